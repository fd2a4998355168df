#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/quant/block.hpp"
#include "frugal/quant/codes.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/k_scales.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// GGUF Q4_K: scale f16 | minimum scale f16 | 12 bytes of 6-bit scales and minima for 8 groups of 32 | 128 bytes of nibbles;
/// w = scale * group_scale * code - minimum_scale * group_minimum. Bytes 32 g … 32 g + 31 hold groups 2 g (low) and 2 g + 1
/// (high).
struct q4_k : from_codes<q4_k, offset_codes<256, 32, std::int16_t>> {
    static constexpr std::string_view name = "q4_k";
    static constexpr type_id type{12};
    static constexpr std::size_t block_bytes = 144;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        codes_type out;
        out.scale = detail::load_half(block);
        out.offset_scale = -detail::load_half(block + 2);
        std::uint8_t scales[8], minima[8], packed[128];
        detail::load_k_scales(block + 4, scales, minima);
        std::memcpy(packed, block + 16, sizeof(packed));
        for (std::size_t g = 0; g < 8; ++g) out.offsets[g] = static_cast<std::int8_t>(minima[g]);
        for (std::size_t pair = 0; pair < 4; ++pair) {
            const std::int16_t low = scales[2 * pair], high = scales[2 * pair + 1];
            for (std::size_t j = 0; j < 32; ++j) {
                const std::uint8_t both = packed[32 * pair + j];
                out.codes[64 * pair + j] = static_cast<std::int16_t>(low * (both & 0xF));
                out.codes[64 * pair + 32 + j] = static_cast<std::int16_t>(high * (both >> 4));
            }
        }
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept {
        return detail::finite_half(block) && detail::finite_half(block + 2);
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
