#pragma once
/// The reference encoders' arithmetic for blocks of 32: the bytes equal those of gguf-py and ggml for every finite block.
///
/// All encoders: NaN counts as 0 and does not disturb its neighbours; a block so small that its inverse scale overflows gets
/// codes of 0 and a stored scale of 0, so it decodes to exactly 0; no input makes a NaN scale. A magnitude beyond the range of
/// the stored scale makes an infinite scale: quant::encode_row (quant/codec.hpp) reports it, and NaN, as an error.
#include <cstddef>
#include <cstdint>

#include "frugal/core/config.hpp"
#include "frugal/quant/block.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant::detail {

[[nodiscard]] FRUGAL_ALWAYS_INLINE float nan_to_zero(float value) noexcept { return value == value ? value : 0.0f; }

/// 1 / scale, or 0 where that is not a finite number.
[[nodiscard]] FRUGAL_ALWAYS_INLINE float inverse_scale(float scale) noexcept {
    const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    return inverse - inverse == 0.0f ? inverse : 0.0f;
}

/// Codes 0 … 2 * Middle - 1 around `Middle`: the value of largest magnitude (the first of equals) becomes code 0.
/// Returns the scale.
template <std::uint8_t Middle>
[[nodiscard]] FRUGAL_ALWAYS_INLINE float encode_centred(const float* in, std::uint8_t (&codes)[32]) noexcept {
    float most = 0.0f, extreme = 0.0f;
    for (std::size_t i = 0; i < 32; ++i) {
        const float value = nan_to_zero(in[i]), magnitude = value < 0.0f ? -value : value;
        if (magnitude > most) most = magnitude, extreme = value;
    }
    const float scale = extreme / -static_cast<float>(Middle), inverse = inverse_scale(scale);
    // The reference leaves codes of 0, not of the middle, where the inverse scale overflows.
    const bool vanishing = inverse == 0.0f && scale != 0.0f;
    for (std::size_t i = 0; i < 32; ++i) {
        // Exact product in double, one rounding of the sum, one to float, then towards zero: as the reference does.
        const double shifted = static_cast<double>(nan_to_zero(in[i])) * static_cast<double>(inverse) + (Middle + 0.5);
        codes[i] = vanishing ? std::uint8_t{0} : clamp_code(static_cast<float>(shifted), 2 * Middle - 1);
    }
    return scale;
}

struct scale_and_offset {
    float scale, offset;
};

/// Codes 0 … Most from the smallest value to the largest.
template <std::uint8_t Most>
[[nodiscard]] FRUGAL_ALWAYS_INLINE scale_and_offset encode_offset(const float* in, std::uint8_t (&codes)[32]) noexcept {
    float least = nan_to_zero(in[0]), most = least;
    for (std::size_t i = 1; i < 32; ++i) {
        const float value = nan_to_zero(in[i]);
        if (value < least) least = value;
        if (value > most) most = value;
    }
    const float scale = (most - least) / static_cast<float>(Most), inverse = inverse_scale(scale);
    for (std::size_t i = 0; i < 32; ++i) codes[i] = clamp_code(rounded((nan_to_zero(in[i]) - least) * inverse) + 0.5f, Most);
    return {scale, least};
}

}  // namespace quant::detail

FRUGAL_NAMESPACE_END
