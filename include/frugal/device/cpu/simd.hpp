#pragma once
/// One vector register of floats as a value, for any instruction set tag, through the compilers' vector extension.
/// Everything is forced inline: no symbol is left for the linker to merge between differently flagged objects.
#include <cstddef>
#include <cstring>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/isa.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace simd {

template <class Isa>
struct floats {
    typedef float type __attribute__((vector_size(Isa::vector_bytes)));
    static constexpr std::size_t width = Isa::vector_bytes / sizeof(float);
};

/// A register of floats of instruction set `Isa`.
template <class Isa>
using vec = typename floats<Isa>::type;

/// Floats in a register.
template <class Isa>
inline constexpr std::size_t width = floats<Isa>::width;

template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> load(const float* from) noexcept {
    vec<Isa> out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}

template <class Isa>
FRUGAL_ALWAYS_INLINE void store(float* to, const vec<Isa>& value) noexcept {
    std::memcpy(to, &value, sizeof(value));
}

template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> broadcast(float value) noexcept {
    return vec<Isa>{} + value;
}

/// Sum of the lanes: halves are added until one lane is left, so the order depends on nothing but the width.
template <class Isa>
FRUGAL_ALWAYS_INLINE float sum(const vec<Isa>& value) noexcept {
    float lane[width<Isa>];
    std::memcpy(lane, &value, sizeof(value));
    for (std::size_t half = width<Isa> / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
}

/// sum a[i] * b[i], i < n: four running registers, then the tail. The order of additions depends only on n and the width.
template <class Isa>
FRUGAL_ALWAYS_INLINE float dot(const float* a, const float* b, std::size_t n) noexcept {
    constexpr std::size_t w = width<Isa>;
    vec<Isa> s0{}, s1{}, s2{}, s3{};
    std::size_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) {
        s0 += load<Isa>(a + i) * load<Isa>(b + i);
        s1 += load<Isa>(a + i + w) * load<Isa>(b + i + w);
        s2 += load<Isa>(a + i + 2 * w) * load<Isa>(b + i + 2 * w);
        s3 += load<Isa>(a + i + 3 * w) * load<Isa>(b + i + 3 * w);
    }
    for (; i + w <= n; i += w) s0 += load<Isa>(a + i) * load<Isa>(b + i);
    float total = sum<Isa>((s0 + s1) + (s2 + s3));
    for (; i < n; ++i) total += a[i] * b[i];
    return total;
}

/// y[i] += a * x[i], i < n.
template <class Isa>
FRUGAL_ALWAYS_INLINE void axpy(float a, const float* x, float* y, std::size_t n) noexcept {
    constexpr std::size_t w = width<Isa>;
    const vec<Isa> factor = broadcast<Isa>(a);
    std::size_t i = 0;
    for (; i + w <= n; i += w) store<Isa>(y + i, load<Isa>(y + i) + factor * load<Isa>(x + i));
    for (; i < n; ++i) y[i] += a * x[i];
}

}  // namespace simd

FRUGAL_NAMESPACE_END
