#pragma once
/// One vector register of floats as a value, for any instruction set tag, through the compilers' vector extension.
/// Everything is forced inline: no symbol is left for the linker to merge between differently flagged objects.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/isa.hpp"
#include "frugal/device/cpu/rounded.hpp"
#include "frugal/tensor/half_vector.hpp"
#include "frugal/tensor/scalar.hpp"

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

/// The same for a register that several products take: compilers would rather load it anew for each, where loads are what is
/// scarce.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> load_once(const float* from) noexcept {
    vec<Isa> out = load<Isa>(from);
#if defined(__GNUC__) && defined(__SSE2__)
    // AVX-512 has twice the registers, which "x" does not name all.
    if constexpr (Isa::vector_bytes < 64) asm("" : "+x"(out));
#endif
    return out;
}

template <class Isa>
FRUGAL_ALWAYS_INLINE void store(float* to, const vec<Isa>& value) noexcept {
    std::memcpy(to, &value, sizeof(value));
}

template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> broadcast(float value) noexcept {
    return value - vec<Isa>{};  // minus, because adding 0 would have to turn -0 into 0
}

/// rounded(float) for every lane.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> rounded(vec<Isa> value) noexcept {
#if defined(__FMA__)
    if constexpr (Isa::vector_bytes < 64)
        asm("" : "+x"(value));
    else
        asm("" : "+v"(value));
#elif defined(__aarch64__)
    asm("" : "+w"(value));
#endif
    return value;
}

/// a * b + c of every lane: rounded once where the set has fused multiply-adds, else twice, whatever the flags, the tuning and
/// the compiler. All sums of products that bits are promised for are written with it.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> multiply_add(const vec<Isa>& a, const vec<Isa>& b, const vec<Isa>& c) noexcept {
    if constexpr (!Isa::fused) {
        return rounded<Isa>(a * b) + rounded<Isa>(c);
    } else {
#if FRUGAL_HAS_BUILTIN(__builtin_elementwise_fma)
        return __builtin_elementwise_fma(a, b, c);
#else
#if FRUGAL_HAS_AVX512
        if constexpr (width<Isa> == 16) return __builtin_ia32_vfmaddps512_mask(a, b, c, static_cast<std::uint16_t>(-1), 4);
#endif
#if FRUGAL_HAS_AVX2
        if constexpr (width<Isa> == 8) return __builtin_ia32_vfmaddps256(a, b, c);
#endif
#endif
    }
}
/// The same for one value, with the bits of a lane.
template <class Isa>
FRUGAL_ALWAYS_INLINE float multiply_add(float a, float b, float c) noexcept {
    if constexpr (Isa::fused)
        return __builtin_fmaf(a, b, c);
    else
        return rounded(a * b) + rounded(c);
}

/// The greater of each pair of lanes; that of `b` where either is NaN.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa>(max)(const vec<Isa>& a, const vec<Isa>& b) noexcept {
#if FRUGAL_HAS_AVX2
    if constexpr (width<Isa> == 8) return __builtin_ia32_maxps256(a, b);
#endif
#if defined(__SSE2__)
    if constexpr (width<Isa> == 4) return __builtin_ia32_maxps(a, b);
#endif
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    const ints greater = a > b;
    return reinterpret_cast<vec<Isa>>((reinterpret_cast<ints>(a) & greater) | (reinterpret_cast<ints>(b) & ~greater));
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

namespace detail {

/// f(0) … f(N - 1), the numbers as constants: compilers do not always unroll a loop whose turns fold to little.
template <std::size_t N, class F>
FRUGAL_ALWAYS_INLINE void unrolled(F&& f) noexcept {
    [&]<std::size_t... Index>(std::index_sequence<Index...>) __attribute__((always_inline)) {
        (f(std::integral_constant<std::size_t, Index>{}), ...);
    }
    (std::make_index_sequence<N>{});
}

/// From registers of partial sums in segments of `Segment` lanes: the lower or upper halves of all segments, those of `a`
/// and of `b` by turns.
template <class Isa, std::size_t Segment, bool Upper, std::size_t... Lane>
FRUGAL_ALWAYS_INLINE vec<Isa> half_segments(const vec<Isa>& a, const vec<Isa>& b, std::index_sequence<Lane...>) noexcept {
    constexpr std::size_t half = Segment / 2;
    return __builtin_shufflevector(a, b,
                                   static_cast<int>(Lane / half / 2 * Segment + Lane % half + (Upper ? half : 0) +
                                                    (Lane / half % 2 == 0 ? 0 : width<Isa>))...);
}

/// values[i] <- combine(lower halves, upper halves), until every segment is one lane.
template <class Isa, std::size_t Segment, class Combine>
FRUGAL_ALWAYS_INLINE void combine_halves(vec<Isa>* values, Combine&& combine) noexcept {
    using lanes = std::make_index_sequence<width<Isa>>;
    unrolled<Segment / 2>([&](auto i) __attribute__((always_inline)) {
        values[i] = combine(half_segments<Isa, Segment, false>(values[i], values[i + Segment / 2], lanes{}),
                            half_segments<Isa, Segment, true>(values[i], values[i + Segment / 2], lanes{}));
    });
    if constexpr (Segment > 2) combine_halves<Isa, Segment / 2>(values, combine);
}

}  // namespace detail

/// Lane i is sum(values[i]), to the bit, at a fraction of the cost; `values` are overwritten.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> sums(vec<Isa> (&values)[width<Isa>]) noexcept {
    detail::combine_halves<Isa, width<Isa>>(
        values, [](const vec<Isa>& a, const vec<Isa>& b) __attribute__((always_inline)) { return a + b; });
    return values[0];
}

/// Lane i is the greatest lane of values[i], of which none is NaN; `values` are overwritten.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> maxima(vec<Isa> (&values)[width<Isa>]) noexcept {
    detail::combine_halves<Isa, width<Isa>>(
        values, [](const vec<Isa>& a, const vec<Isa>& b) __attribute__((always_inline)) { return max<Isa>(a, b); });
    return values[0];
}

/// load() of the scalar types a cache may hold; halves become floats exactly.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> load(const half* from) noexcept {
#if FRUGAL_HAS_HALF_VECTOR
    if constexpr (width<Isa> == 8) return frugal::detail::load_eight_halves(from);
#endif
    float lane[width<Isa>];
    for (std::size_t i = 0; i < width<Isa>; ++i) lane[i] = to_float(from[i]);
    return load<Isa>(lane);
}

/// bfloat16 becomes float exactly.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> load(const bfloat16* from) noexcept {
    if constexpr (width<Isa> == 4) {
        // Each value under a zero of its size: one instruction, where compilers would go through integer registers.
        std::uint16_t values __attribute__((vector_size(16))) = {};
        std::memcpy(&values, from, 4 * sizeof(bfloat16));
        return reinterpret_cast<vec<Isa>>(__builtin_shufflevector(decltype(values){}, values, 0, 8, 1, 9, 2, 10, 3, 11));
    } else {
        float lane[width<Isa>];
        for (std::size_t i = 0; i < width<Isa>; ++i) lane[i] = to_float(from[i]);
        return load<Isa>(lane);
    }
}

/// Signed bytes become floats exactly.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> load(const std::int8_t* from) noexcept {
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    ints values;
    if constexpr (width<Isa> == 4) {
        // Each byte four times, of which an arithmetic shift leaves one, extended.
        signed char bytes __attribute__((vector_size(16))) = {};
        std::memcpy(&bytes, from, 4);
        const auto twice = __builtin_shufflevector(bytes, bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        typedef std::int16_t words __attribute__((vector_size(16)));
        const words pairs = reinterpret_cast<words>(twice);
        values = reinterpret_cast<ints>(__builtin_shufflevector(pairs, pairs, 0, 8, 1, 9, 2, 10, 3, 11)) >> 24;
    } else {
        std::int32_t lane[width<Isa>];
        for (std::size_t i = 0; i < width<Isa>; ++i) lane[i] = from[i];
        std::memcpy(&values, lane, sizeof(values));
    }
    return __builtin_convertvector(values, vec<Isa>);
}

/// The first `n` <= width elements, then zeros: tails of sums of products take the same steps as what is before them.
template <class Isa, class Scalar>
FRUGAL_ALWAYS_INLINE vec<Isa> load_some(const Scalar* from, std::size_t n) noexcept {
    if (n == width<Isa>) return load<Isa>(from);
    float lane[width<Isa>] = {};
    for (std::size_t i = 0; i < n; ++i) lane[i] = to_float(from[i]);
    return load<Isa>(lane);
}

/// Stores the first `n` <= width lanes.
template <class Isa>
FRUGAL_ALWAYS_INLINE void store_some(float* to, const vec<Isa>& value, std::size_t n) noexcept {
    if (n == width<Isa>) return store<Isa>(to, value);
    float lane[width<Isa>];
    store<Isa>(lane, value);
    for (std::size_t i = 0; i < n; ++i) to[i] = lane[i];
}

/// sum a[i] * b[i], i < n: four running registers, then the tail. The order of additions depends only on n and the width.
template <class Isa>
FRUGAL_ALWAYS_INLINE float dot(const float* a, const float* b, std::size_t n) noexcept {
    constexpr std::size_t w = width<Isa>;
    vec<Isa> s0{}, s1{}, s2{}, s3{};
    std::size_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) {
        s0 = multiply_add<Isa>(load<Isa>(a + i), load<Isa>(b + i), s0);
        s1 = multiply_add<Isa>(load<Isa>(a + i + w), load<Isa>(b + i + w), s1);
        s2 = multiply_add<Isa>(load<Isa>(a + i + 2 * w), load<Isa>(b + i + 2 * w), s2);
        s3 = multiply_add<Isa>(load<Isa>(a + i + 3 * w), load<Isa>(b + i + 3 * w), s3);
    }
    for (; i + w <= n; i += w) s0 = multiply_add<Isa>(load<Isa>(a + i), load<Isa>(b + i), s0);
    if (i < n) s0 = multiply_add<Isa>(load_some<Isa>(a + i, n - i), load_some<Isa>(b + i, n - i), s0);
    return sum<Isa>((s0 + s1) + (s2 + s3));
}

/// y[i] += a * x[i], i < n.
template <class Isa>
FRUGAL_ALWAYS_INLINE void axpy(float a, const float* x, float* y, std::size_t n) noexcept {
    constexpr std::size_t w = width<Isa>;
    const vec<Isa> factor = broadcast<Isa>(a);
    std::size_t i = 0;
    for (; i + w <= n; i += w) store<Isa>(y + i, multiply_add<Isa>(factor, load<Isa>(x + i), load<Isa>(y + i)));
    if (i < n)
        store_some<Isa>(y + i, multiply_add<Isa>(factor, load_some<Isa>(x + i, n - i), load_some<Isa>(y + i, n - i)), n - i);
}

/// The lesser of each pair of lanes; that of `b` where either is NaN.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa>(min)(const vec<Isa>& a, const vec<Isa>& b) noexcept {
#if FRUGAL_HAS_AVX2
    if constexpr (width<Isa> == 8) return __builtin_ia32_minps256(a, b);
#endif
#if defined(__SSE2__)
    if constexpr (width<Isa> == 4) return __builtin_ia32_minps(a, b);
#endif
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    const ints less = a < b;
    return reinterpret_cast<vec<Isa>>((reinterpret_cast<ints>(a) & less) | (reinterpret_cast<ints>(b) & ~less));
}

namespace detail {

/// exp of every lane as two factors: x becomes the one near 1, `power` 2^n. For -87.3 <= x <= 88.7; NaN stays NaN in x. The
/// registers go through every step side by side, because one alone would wait for itself.
template <class Isa, std::size_t N>
FRUGAL_ALWAYS_INLINE void exp_factors(vec<Isa> (&x)[N], vec<Isa> (&power)[N]) noexcept {
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    // x = n ln 2 + r with |r| <= ln(2) / 2: adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits, here those of
    // n + 127, the exponent of 2^n.
    const vec<Isa> shift = broadcast<Isa>(12582912.0f + 127.0f);
    vec<Isa> p[N];
    for (std::size_t i = 0; i < N; ++i) {
        const vec<Isa> shifted = multiply_add<Isa>(x[i], broadcast<Isa>(1.44269504f), shift);
        const vec<Isa> n = shifted - shift;
        power[i] = reinterpret_cast<vec<Isa>>(reinterpret_cast<ints>(shifted) << 23);
        // ln 2 in two parts: the first has 15 significant bits, so n times it is exact.
        x[i] = multiply_add<Isa>(n, broadcast<Isa>(-22713.0f / 32768.0f), x[i]);
        x[i] = multiply_add<Isa>(n, broadcast<Isa>(-1.42860682e-6f), x[i]);
    }
    // The polynomial of degree 6 nearest to exp on this interval, with the first two coefficients 1: within 3e-9.
    for (std::size_t i = 0; i < N; ++i)
        p[i] = multiply_add<Isa>(x[i], broadcast<Isa>(0.00139412131f), broadcast<Isa>(0.0083752102f));
    for (std::size_t i = 0; i < N; ++i) p[i] = multiply_add<Isa>(p[i], x[i], broadcast<Isa>(0.0416663516f));
    for (std::size_t i = 0; i < N; ++i) p[i] = multiply_add<Isa>(p[i], x[i], broadcast<Isa>(0.166664145f));
    for (std::size_t i = 0; i < N; ++i) p[i] = multiply_add<Isa>(p[i], x[i], broadcast<Isa>(0.5f));
    for (std::size_t i = 0; i < N; ++i) p[i] = multiply_add<Isa>(p[i], x[i], broadcast<Isa>(1.0f));
    for (std::size_t i = 0; i < N; ++i) x[i] = multiply_add<Isa>(p[i], x[i], broadcast<Isa>(1.0f));
}

}  // namespace detail

/// exp of every lane for x <= 88: within 2 units in the last place of normal results, 0 below -87.3, NaN stays NaN.
/// The same bits for a value in any lane.
template <class Isa>
FRUGAL_ALWAYS_INLINE vec<Isa> exp(const vec<Isa>& x) noexcept {
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    vec<Isa> near_one[1] = {x}, power[1];
    detail::exp_factors<Isa>(near_one, power);
    const vec<Isa> value = near_one[0] * power[0];
    const ints keep = ~(x < broadcast<Isa>(-87.3f));
    return reinterpret_cast<vec<Isa>>(reinterpret_cast<ints>(value) & keep);
}

}  // namespace simd

FRUGAL_NAMESPACE_END
