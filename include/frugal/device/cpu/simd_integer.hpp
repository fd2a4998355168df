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

/// What quad_dots adds to codes before they are multiplied: it wants unsigned ones.
template <class Isa, bool Signed>
inline constexpr int code_bias = 0;
#if FRUGAL_HAS_AVX512
template <class Isa>
    requires(Isa::vector_bytes == 64)
inline constexpr int code_bias<Isa, true> = 128;
#endif

namespace detail {

/// f(0) … f(N - 1), the numbers as constants: compilers do not always unroll a loop whose turns fold to little.
template <std::size_t N, class F>
FRUGAL_ALWAYS_INLINE void unrolled(F&& f) noexcept {
    [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (f(std::integral_constant<std::size_t, I>{}), ...);
    }
    (std::make_index_sequence<N>{});
}

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
[[nodiscard]] constexpr std::size_t pairs_in_16_bits(int most, std::size_t limit) noexcept {
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
        detail::unrolled<Quads / run>([&](auto first) __attribute__((always_inline)) {
            __m256i pairs[Tokens][registers];
            detail::unrolled<run>([&](auto q) __attribute__((always_inline)) {
                constexpr std::size_t quad = decltype(first)::value * run + decltype(q)::value;
                __m256i c[registers], magnitude[registers];
                for (std::size_t v = 0; v < registers; ++v) {
                    c[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * quad + 32 * v));
                    magnitude[v] = Signed ? _mm256_abs_epi8(c[v]) : c[v];
                }
                for (std::size_t t = 0; t < Tokens; ++t) {
                    std::int32_t four;
                    std::memcpy(&four, x[t] + 4 * quad, sizeof(four));
                    const __m256i value = _mm256_set1_epi32(four);
                    for (std::size_t v = 0; v < registers; ++v) {
                        const __m256i products =
                            _mm256_maddubs_epi16(magnitude[v], Signed ? _mm256_sign_epi8(value, c[v]) : value);
                        pairs[t][v] = q == 0 ? products : _mm256_add_epi16(pairs[t][v], products);
                        detail::in_order(pairs[t][v]);
                    }
                }
            });
            for (std::size_t t = 0; t < Tokens; ++t)
                for (std::size_t v = 0; v < registers; ++v) {
                    const auto sum = reinterpret_cast<ints<Isa>>(_mm256_madd_epi16(pairs[t][v], _mm256_set1_epi16(1)));
                    sums[t][v] = first == 0 ? sum : sums[t][v] + sum;
                    detail::in_order(sums[t][v]);
                }
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
