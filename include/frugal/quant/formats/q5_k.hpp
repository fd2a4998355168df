#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/quant/block.hpp"
#include "frugal/quant/codes.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/k_scales.hpp"
#include "frugal/quant/panel/coded.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// GGUF Q5_K: as Q4_K with 32 bytes of fifth bits before the nibbles: bit g of byte j belongs to element j of group g.
struct q5_k : from_codes<q5_k, offset_codes<256, 32, std::int16_t>> {
    using library_format = q5_k;
    static constexpr std::string_view name = "q5_k";
    static constexpr type_id type{13};
    static constexpr std::size_t block_bytes = 176;
    using panel = coded_panel<plane_codes<1>, byte_scales_and_minima, false, 31, 0>;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<256, 32> fields(const std::byte* block) noexcept {
        block_fields<256, 32> out;
        detail::load_k_fields(block, out);
        std::uint8_t fifth[32];
        std::memcpy(fifth, block + 16, sizeof(fifth));
        for (std::size_t pair = 0; pair < 4; ++pair) detail::load_pair(block + 48 + 32 * pair, out.codes + 64 * pair);
        for (std::size_t g = 0; g < 8; ++g)
            for (std::size_t j = 0; j < 32; ++j)
                out.codes[32 * g + j] = static_cast<std::uint8_t>(out.codes[32 * g + j] | (((fifth[j] >> g) & 1) << 4));
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        const auto parts = fields(block);
        codes_type out;
        out.scale = detail::load_half(block);
        out.offset_scale = -detail::load_half(block + 2);
        for (std::size_t g = 0; g < 8; ++g) {
            out.offsets[g] = static_cast<std::int8_t>(parts.run_offsets[g]);
            const auto scale = static_cast<std::int16_t>(parts.run_scales[g]);
            for (std::size_t i = 32 * g; i < 32 * (g + 1); ++i) out.codes[i] = static_cast<std::int16_t>(scale * parts.codes[i]);
        }
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept {
        return detail::finite_half(block) && detail::finite_half(block + 2);
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
