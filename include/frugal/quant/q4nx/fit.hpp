#pragma once
/// Scales and offsets for groups of 32 weights, rounded to bfloat16 before codes are chosen, so that codes are chosen well.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "frugal/core/config.hpp"
#include "frugal/quant/encode.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant::detail {

/// The bfloat16 at or next below a finite value.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr bfloat16 bfloat16_below(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return {static_cast<std::uint16_t>((bits + ((0u - (bits >> 31)) & 0xFFFFu)) >> 16)};
}

/// Bits as an integer of the same order as the floats, and back. Minimum and maximum of integers become vector code.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::int32_t order_key(std::int32_t bits) noexcept {
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

struct group_range {
    float least, most;
};

[[nodiscard]] FRUGAL_ALWAYS_INLINE group_range range_of_group(const float* in) noexcept {
    std::int32_t keys[32];
    std::memcpy(keys, in, sizeof(keys));
    for (std::size_t i = 0; i < 32; ++i) keys[i] = order_key(keys[i]);
    std::int32_t least = keys[0], most = keys[0];
    for (std::size_t i = 0; i < 32; ++i) {
        least = keys[i] < least ? keys[i] : least;
        most = keys[i] > most ? keys[i] : most;
    }
    return {std::bit_cast<float>(order_key(least)), std::bit_cast<float>(order_key(most))};
}

/// out[i] = (in[i] - base) * inverse, held within least … most (NaN gives least). The bounds also keep compilers from fusing the
/// product with a later sum. As vectors, because compilers make branches of bounds that are constants.
FRUGAL_ALWAYS_INLINE void bounded_multiples(const float* in, float base, float inverse, float least, float most,
                                            float (&out)[32]) noexcept {
    typedef float floats_4 __attribute__((vector_size(16)));
    const floats_4 low = {least, least, least, least}, high = {most, most, most, most};
    for (std::size_t i = 0; i < 32; i += 4) {
        floats_4 value;
        std::memcpy(&value, in + i, sizeof(value));
        value = (value - base) * inverse;
        value = value > low ? value : low;
        value = value < high ? value : high;
        std::memcpy(out + i, &value, sizeof(value));
    }
}

/// For each x = index / 1024 the set of steps n, as bits 1 … 15, for which x is a multiple of 1 / n (no multiple lies near the
/// border between two indices).
struct FRUGAL_FLAGGED step_sets {
    std::uint16_t at[1025] = {};
    constexpr step_sets() noexcept {
        for (unsigned n = 1; n <= 15; ++n)
            for (unsigned k = 0; k <= n; ++k) {
                std::uint16_t& set = at[(2 * 1024 * k + n) / (2 * n)];
                set = static_cast<std::uint16_t>(set | (1u << n));
            }
    }
};
inline constexpr step_sets sets_of_steps{};

/// To the nearest integer, for values that fit into one.
[[nodiscard]] FRUGAL_ALWAYS_INLINE float nearest(float value) noexcept {
    return static_cast<float>(static_cast<std::int32_t>(value + (value < 0.0f ? -0.5f : 0.5f)));
}

/// A bfloat16 scale of which all w - base are multiples Least … Most, with nothing lost to rounding; 0 where there is none.
/// `range` is the greatest |w - from|, and some step count of the set (as bits) covers it. Random weights leave at the first or
/// second look-up.
template <int Least, int Most>
[[nodiscard]] FRUGAL_ALWAYS_INLINE float exact_scale(const float* in, float base, float from, float range,
                                                     std::uint32_t steps) noexcept {
    const float inverse = inverse_scale(range);
    if (inverse == 0.0f) return 0.0f;
    for (std::size_t i = 0; i < 32 && steps != 0; ++i) {
        const float distance = in[i] - from, share = (distance < 0.0f ? -distance : distance) * inverse;
        steps &= sets_of_steps.at[static_cast<std::size_t>((share < 1.0f ? share : 1.0f) * 1024.0f + 0.5f)];
    }
    for (std::uint32_t n = 1; steps != 0 && n <= 15; ++n) {
        if ((steps & (1u << n)) == 0) continue;
        const float scales[2] = {to_float(to_bfloat16(range / static_cast<float>(n))), -scales[0]};
        for (const float scale : scales) {
            const float per_step = inverse_scale(scale);
            bool exact = per_step != 0.0f;
            for (std::size_t i = 0; i < 32 && exact; ++i) {
                const float multiple = nearest((in[i] - base) * per_step);
                exact = multiple >= static_cast<float>(Least) && multiple <= static_cast<float>(Most) &&
                        scale * multiple + base == in[i];
            }
            if (exact) return scale;
        }
    }
    return 0.0f;
}

}  // namespace quant::detail

FRUGAL_NAMESPACE_END
