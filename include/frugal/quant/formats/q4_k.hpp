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

/// GGUF Q4_K: scale f16 | minimum scale f16 | 12 bytes of 6-bit scales and minima for 8 groups of 32 | 128 bytes of nibbles;
/// w = scale * group_scale * code - minimum_scale * group_minimum. Bytes 32 g … 32 g + 31 hold groups 2 g (low) and 2 g + 1
/// (high).
struct q4_k : from_codes<q4_k, offset_codes<256, 32, std::int16_t>> {
    using library_format = q4_k;
    static constexpr std::string_view name = "q4_k";
    static constexpr type_id type{12};
    static constexpr std::size_t block_bytes = 144;
    using panel = coded_panel<plane_codes<0>, byte_scales_and_minima, false, 15, 0>;

    /// The offset of group g is minus the minimum: offset_scale * run_offsets[g] with the sign of offset_scale turned.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<256, 32> fields(const std::byte* block) noexcept {
        block_fields<256, 32> out;
        detail::load_k_fields(block, out);
        for (std::size_t pair = 0; pair < 4; ++pair) detail::load_pair(block + 16 + 32 * pair, out.codes + 64 * pair);
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
