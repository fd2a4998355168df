#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/quant/block.hpp"
#include "frugal/quant/codes.hpp"
#include "frugal/quant/encode.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/panel/coded.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// GGUF Q8_0: scale f16 | 32 x int8; w = scale * code.
struct q8_0 : from_codes<q8_0, scaled_codes<32, std::int8_t>> {
    using library_format = q8_0;
    static constexpr std::string_view name = "q8_0";
    static constexpr type_id type{8};
    static constexpr std::size_t block_bytes = 34;
    using panel = coded_panel<byte_codes, half_scales, true, 127, 0>;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        codes_type out;
        out.scale = detail::load_half(block);
        std::memcpy(out.codes, block + 2, 32);
        return out;
    }
    /// Scale = largest magnitude / 127; codes round half away from zero. NaN counts as 0 (quant/encode.hpp).
    FRUGAL_ALWAYS_INLINE static void encode(const float* in, std::byte* block) noexcept {
        float most = 0.0f;
        for (std::size_t i = 0; i < 32; ++i) {
            const float value = detail::nan_to_zero(in[i]), magnitude = value < 0.0f ? -value : value;
            if (magnitude > most) most = magnitude;
        }
        const float scale = most / 127.0f, inverse = detail::inverse_scale(scale);
        std::int8_t codes[32];
        for (std::size_t i = 0; i < 32; ++i) {
            const float value = detail::nan_to_zero(detail::rounded(detail::nan_to_zero(in[i]) * inverse));
            const int whole = static_cast<int>(value);
            const float rest = value - static_cast<float>(whole);
            codes[i] = static_cast<std::int8_t>(whole + (rest >= 0.5f ? 1 : rest <= -0.5f ? -1 : 0));
        }
        detail::store_half(block, scale);
        std::memcpy(block + 2, codes, sizeof(codes));
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<32, 32> fields(const std::byte* block) noexcept {
        block_fields<32, 32> out;
        out.scale = static_cast<std::uint16_t>(detail::load_u16(block));
        std::memcpy(out.codes, block + 2, sizeof(out.codes));
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept { return detail::finite_half(block); }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
