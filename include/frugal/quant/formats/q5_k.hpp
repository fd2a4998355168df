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

/// GGUF Q5_K: as Q4_K with 32 bytes of fifth bits before the nibbles: bit g of byte j belongs to element j of group g.
struct q5_k : from_codes<q5_k, offset_codes<256, 32, std::int16_t>> {
    static constexpr std::string_view name = "q5_k";
    static constexpr type_id type{13};
    static constexpr std::size_t block_bytes = 176;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        codes_type out;
        out.scale = detail::load_half(block);
        out.offset_scale = -detail::load_half(block + 2);
        std::uint8_t scales[8], minima[8], fifth[32], packed[128];
        detail::load_k_scales(block + 4, scales, minima);
        std::memcpy(fifth, block + 16, sizeof(fifth));
        std::memcpy(packed, block + 48, sizeof(packed));
        for (std::size_t g = 0; g < 8; ++g) out.offsets[g] = static_cast<std::int8_t>(minima[g]);
        for (std::size_t pair = 0; pair < 4; ++pair) {
            const std::int16_t low = scales[2 * pair], high = scales[2 * pair + 1];
            for (std::size_t j = 0; j < 32; ++j) {
                const std::uint8_t both = packed[32 * pair + j];
                const int low_bit = (fifth[j] >> (2 * pair)) & 1, high_bit = (fifth[j] >> (2 * pair + 1)) & 1;
                out.codes[64 * pair + j] = static_cast<std::int16_t>(low * ((both & 0xF) | (low_bit << 4)));
                out.codes[64 * pair + 32 + j] = static_cast<std::int16_t>(high * ((both >> 4) | (high_bit << 4)));
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
