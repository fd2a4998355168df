#pragma once
/// Integer dot products of small codes for every instruction set: the one step of quantised products that differs between them.
/// Everything is exact, so all give the same sums. Everything is forced inline.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/isa.hpp"
#include "frugal/device/cpu/simd.hpp"

#if FRUGAL_HAS_AVX2
#include <immintrin.h>
#endif

FRUGAL_NAMESPACE_BEGIN

namespace simd {

/// A register of 32-bit integers.
template <class Isa>
struct integers {
    typedef std::int32_t type __attribute__((vector_size(Isa::vector_bytes)));
};
template <class Isa>
using ints = typename integers<Isa>::type;

/// A register of 16-bit integers.
template <class Isa>
struct short_integers {
    typedef std::int16_t type __attribute__((vector_size(Isa::vector_bytes)));
    static constexpr std::size_t width = Isa::vector_bytes / sizeof(std::int16_t);
};
template <class Isa>
using shorts = typename short_integers<Isa>::type;

template <class Isa>
FRUGAL_ALWAYS_INLINE shorts<Isa> load_shorts(const std::int16_t* from) noexcept {
    shorts<Isa> out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}

/// Signed bytes, each extended to 16 bits.
template <class Isa>
FRUGAL_ALWAYS_INLINE shorts<Isa> load_shorts(const std::int8_t* from) noexcept {
    constexpr std::size_t width = short_integers<Isa>::width;
#if FRUGAL_HAS_AVX512
    if constexpr (Isa::vector_bytes == 64)
        return reinterpret_cast<shorts<Isa>>(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#endif
#if FRUGAL_HAS_AVX2
    if constexpr (Isa::vector_bytes == 32)
        return reinterpret_cast<shorts<Isa>>(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#endif
    if constexpr (width == 8) {
        // Each byte twice, of which an arithmetic shift leaves one, extended.
        signed char bytes __attribute__((vector_size(16))) = {};
        std::memcpy(&bytes, from, 8);
        return reinterpret_cast<shorts<Isa>>(
                   __builtin_shufflevector(bytes, bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)) >>
               8;
    } else {
        shorts<Isa> out;
        std::int16_t lane[width];
        for (std::size_t i = 0; i < width; ++i) lane[i] = from[i];
        std::memcpy(&out, lane, sizeof(out));
        return out;
    }
}

/// sum lane i += a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1], exactly while it fits 32 bits.
template <class Isa>
FRUGAL_ALWAYS_INLINE ints<Isa> add_pair_products(const ints<Isa>& sum, const shorts<Isa>& a, const shorts<Isa>& b) noexcept {
#if FRUGAL_HAS_AVX512
    if constexpr (Isa::vector_bytes == 64)
        return reinterpret_cast<ints<Isa>>(
            _mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#endif
#if FRUGAL_HAS_AVX2
    if constexpr (Isa::vector_bytes == 32)
        return sum + reinterpret_cast<ints<Isa>>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#endif
#if defined(__SSE2__)
    if constexpr (Isa::vector_bytes == 16) return sum + reinterpret_cast<ints<Isa>>(__builtin_ia32_pmaddwd128(a, b));
#endif
    ints<Isa> out = sum;
    for (std::size_t i = 0; i < width<Isa>; ++i) out[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return out;
}

/// Lane i is the sum of the lanes of values[i]; `values` are overwritten.
template <class Isa>
FRUGAL_ALWAYS_INLINE ints<Isa> sums(ints<Isa> (&values)[width<Isa>]) noexcept {
    vec<Isa> bits[width<Isa>];
    detail::unrolled<width<Isa>>([&](auto i) __attribute__((always_inline)) { bits[i] = reinterpret_cast<vec<Isa>>(values[i]); });
    detail::combine_halves<Isa, width<Isa>>(
        bits, [](const vec<Isa>& a, const vec<Isa>& b) __attribute__((always_inline)) {
            return reinterpret_cast<vec<Isa>>(reinterpret_cast<ints<Isa>>(a) + reinterpret_cast<ints<Isa>>(b));
        });
    return reinterpret_cast<ints<Isa>>(bits[0]);
}

/// What quad_dots adds to codes before they are multiplied: it wants unsigned ones.
template <class Isa, bool Signed>
inline constexpr int code_bias = 0;
#if FRUGAL_HAS_AVX512
template <class Isa>
    requires(Isa::vector_bytes == 64)
inline constexpr int code_bias<Isa, true> = 128;
#endif

namespace detail {

/// Has the value computed before what follows. g++ would rather reorder a chain of integer additions: all products first, then
/// the sums, with more products than registers.
template <class Register>
FRUGAL_ALWAYS_INLINE void in_order(Register& value) noexcept {
#if defined(__GNUC__) && !defined(__clang__)
    asm("" : "+v"(value));
#else
    (void)value;
#endif
}

/// How many products of pairs of codes 0 … most with -127 … 127 may be added in 16 bits; a power of two.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t pairs_in_16_bits(int most, std::size_t limit) noexcept {
    std::size_t count = 1;
    while (2 * count <= limit && static_cast<int>(2 * count) * 2 * 127 * most <= 32767) count *= 2;
    return count;
}

}  // namespace detail

/// For each of 16 rows r and each t: sums[t] lane r = sum over k < 4 * Quads of (code k of row r + code_bias) * x[t][k].
/// Codes: [Quads][16 rows][4], bytes 0 … Most, or signed bytes; x: -127 … 127. A sum is spread over 16 / width registers.
template <class Isa, bool Signed, int Most, std::size_t Quads, std::size_t Tokens>
FRUGAL_ALWAYS_INLINE void quad_dots(const std::uint8_t* codes, const std::int8_t* const (&x)[Tokens],
                                    ints<Isa> (&sums)[Tokens][16 / width<Isa>]) noexcept {
#if FRUGAL_HAS_AVX512
    if constexpr (Isa::vector_bytes == 64) {
        for (std::size_t t = 0; t < Tokens; ++t) sums[t][0] = ints<Isa>{};
        for (std::size_t q = 0; q < Quads; ++q) {
            __m512i c = _mm512_loadu_si512(codes + 64 * q);
            if constexpr (Signed) c = _mm512_xor_si512(c, _mm512_set1_epi8(-128));
            for (std::size_t t = 0; t < Tokens; ++t) {
                std::int32_t four;
                std::memcpy(&four, x[t] + 4 * q, sizeof(four));
                sums[t][0] = reinterpret_cast<ints<Isa>>(
                    _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums[t][0]), c, _mm512_set1_epi32(four)));
            }
        }
        return;
    }
#endif
#if FRUGAL_HAS_AVX2
    if constexpr (Isa::vector_bytes == 32) {
        constexpr std::size_t registers = 2, run = detail::pairs_in_16_bits(Signed ? 127 : Most, Quads);
        using detail::unrolled;  // loops over registers, which must not become loops over memory
        unrolled<Quads / run>([&](auto first) __attribute__((always_inline)) {
            __m256i pairs[Tokens][registers];
            unrolled<run>([&](auto q) __attribute__((always_inline)) {
                constexpr std::size_t quad = decltype(first)::value * run + decltype(q)::value;
                __m256i c[registers], magnitude[registers];
                unrolled<registers>([&](auto v) __attribute__((always_inline)) {
                    c[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * quad + 32 * v));
                    magnitude[v] = Signed ? _mm256_abs_epi8(c[v]) : c[v];
                });
                unrolled<Tokens>([&](auto t) __attribute__((always_inline)) {
                    std::int32_t four;
                    std::memcpy(&four, x[t] + 4 * quad, sizeof(four));
                    const __m256i value = _mm256_set1_epi32(four);
                    unrolled<registers>([&](auto v) __attribute__((always_inline)) {
                        const __m256i products =
                            _mm256_maddubs_epi16(magnitude[v], Signed ? _mm256_sign_epi8(value, c[v]) : value);
                        pairs[t][v] = q == 0 ? products : _mm256_add_epi16(pairs[t][v], products);
                        detail::in_order(pairs[t][v]);
                    });
                });
            });
            unrolled<Tokens * registers>([&](auto i) __attribute__((always_inline)) {
                constexpr std::size_t t = decltype(i)::value / registers, v = decltype(i)::value % registers;
                const auto sum = reinterpret_cast<ints<Isa>>(_mm256_madd_epi16(pairs[t][v], _mm256_set1_epi16(1)));
                sums[t][v] = first == 0 ? sum : sums[t][v] + sum;
                detail::in_order(sums[t][v]);
            });
        });
        return;
    }
#endif
    for (std::size_t t = 0; t < Tokens; ++t) {
        std::int32_t lane[16] = {};
        for (std::size_t q = 0; q < Quads; ++q)
            for (std::size_t r = 0; r < 16; ++r)
                for (std::size_t i = 0; i < 4; ++i) {
                    const std::uint8_t code = codes[64 * q + 4 * r + i];
                    lane[r] += (Signed ? static_cast<std::int8_t>(code) : code) * x[t][4 * q + i];
                }
        std::memcpy(sums[t], lane, sizeof(lane));
    }
}

}  // namespace simd

FRUGAL_NAMESPACE_END
