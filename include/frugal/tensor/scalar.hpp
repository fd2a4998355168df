#pragma once
/// IEEE half and bfloat16 as storage types: bit patterns with exact conversions.
///
/// Own conversions rather than Eigen's types, so that the headers stand without Eigen; the tests compare every one of the
/// 65536 codes, and the rounding of floats, with Eigen::half and Eigen::bfloat16.
#include <bit>
#include <cstdint>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

/// IEEE binary16 bits. NaN stays NaN, subnormals are exact.
struct half {
    std::uint16_t bits = 0;
};

/// The upper half of a binary32.
struct bfloat16 {
    std::uint16_t bits = 0;
};

[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr float to_float(bfloat16 value) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Without branches, so that loops over halves become vector code.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr float to_float(half value) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7FFFu) << 13;
    const std::uint32_t exponent = magnitude & 0x0F800000u;
    // Subnormals: mantissa * 2^-24 as (2^-14 + mantissa * 2^-24) - 2^-14. Both terms and the result are normal numbers in
    // binary32 and the difference is exact, whatever the flush and rounding modes.
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude + 0x38800000u) - 0x1p-14f);
    const std::uint32_t normal = magnitude + (exponent == 0x0F800000u ? 0x70000000u : 0x38000000u);
    // A mask made by arithmetic: compilers turn a comparison here back into a branch around the float subtraction.
    const std::uint32_t is_subnormal = 0u - ((exponent - 1u) >> 31);
    return std::bit_cast<float>(sign | (subnormal & is_subnormal & 0x7FFFFFFFu) | (normal & ~is_subnormal));
}

[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr float to_float(float value) noexcept { return value; }
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr float to_float(std::int8_t value) noexcept { return static_cast<float>(value); }

/// Rounds to nearest even; NaN stays a quiet NaN of the same sign, overflow becomes infinity.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr bfloat16 to_bfloat16(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
    return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

/// Rounds to nearest even, subnormals included; NaN stays a quiet NaN of the same sign, overflow becomes infinity.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr half to_half(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return {static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu))};
    if (magnitude >= 0x477FF000u) return {static_cast<std::uint16_t>(sign | 0x7C00u)};  // 65520 and up round to infinity
    if (magnitude >= 0x38800000u) {                                                      // normal in binary16
        const std::uint32_t rebased = magnitude - 0x38000000u;
        return {static_cast<std::uint16_t>(sign | ((rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13))};
    }
    if (magnitude < 0x33000000u) return {sign};  // below half of the least subnormal
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t shift = 126u - (magnitude >> 23);  // 14 … 24
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
    const std::uint32_t halfway = 1u << (shift - 1u);
    const std::uint32_t up = (rest > halfway || (rest == halfway && (kept & 1u) != 0)) ? 1u : 0u;
    return {static_cast<std::uint16_t>(sign | (kept + up))};
}

FRUGAL_NAMESPACE_END
