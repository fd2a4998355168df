#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/quant/block.hpp"
#include "frugal/quant/codes.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/panel/coded.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// GGUF Q6_K: 128 bytes of low nibbles | 64 bytes of top bit pairs | 16 x int8 group scales | scale f16;
/// w = scale * group_scale * (code - 32), groups of 16. Each half of 128 elements: element 32 k + j has its low nibble in byte
/// j + 32 (k % 2) (low nibble for k < 2, else high) and its top bits at bit 2 k of byte j.
struct q6_k : from_codes<q6_k, scaled_codes<256, std::int16_t>> {
    using library_format = q6_k;
    static constexpr std::string_view name = "q6_k";
    static constexpr type_id type{14};
    static constexpr std::size_t block_bytes = 210;
    using panel = coded_panel<plane_codes<2>, byte_scales<16>, false, 63, 32>;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<256, 16> fields(const std::byte* block) noexcept {
        block_fields<256, 16> out;
        std::uint8_t low[128], top[64];
        std::memcpy(low, block, sizeof(low));
        std::memcpy(top, block + 128, sizeof(top));
        std::memcpy(out.run_scales, block + 192, sizeof(out.run_scales));
        out.scale = static_cast<std::uint16_t>(detail::load_u16(block + 208));
        for (std::size_t part = 0; part < 2; ++part)
            for (std::size_t k = 0; k < 4; ++k)
                for (std::size_t j = 0; j < 32; ++j) {
                    const int nibble = (low[64 * part + 32 * (k % 2) + j] >> (k < 2 ? 0 : 4)) & 0xF;
                    const int pair = (top[32 * part + j] >> (2 * k)) & 3;
                    out.codes[128 * part + 32 * k + j] = static_cast<std::uint8_t>(nibble | (pair << 4));
                }
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static grouped_levels<256, 16> split(const std::byte* block) noexcept {
        const auto parts = fields(block);
        grouped_levels<256, 16> out;
        out.scale = detail::load_half(block + 208);
        std::memcpy(out.group_scales, parts.run_scales, sizeof(out.group_scales));
        for (std::size_t i = 0; i < 256; ++i) out.levels[i] = static_cast<std::int8_t>(parts.codes[i] - 32);
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        return split(block).multiplied();
    }
    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float* out) noexcept { split(block).decode(out); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept {
        return detail::finite_half(block + 208);
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
