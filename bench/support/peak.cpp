// Compiled once for each instruction set.
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstddef>

#include "frugal/device/cpu/simd.hpp"
#include "limits.hpp"

namespace bench {

namespace {

using isa = frugal::isa::FRUGAL_KERNEL_ISA;
using vector = frugal::simd::vec<isa>;
// Independent sums that hide the latency of the operation on any present core and fit its registers. All loops over them are
// unrolled, or g++ keeps them in memory, as it does with more than 16.
constexpr std::size_t sums = isa::vector_bytes == 64 ? 16 : 12;

/// Registers are opaque to the optimiser here, so it can neither fold the loop nor drop it.
double run(std::size_t rounds) {
    float seed = 1.0f;
    asm volatile("" : "+m"(seed));
    const vector a = frugal::simd::broadcast<isa>(seed * 0.999f), b = frugal::simd::broadcast<isa>(seed * 1e-3f);
    vector s[sums];
#pragma GCC unroll 32
    for (std::size_t i = 0; i < sums; ++i) s[i] = frugal::simd::broadcast<isa>(seed + static_cast<float>(i));
    const double start = thread_seconds();
    for (std::size_t round = 0; round < rounds; ++round)
#pragma GCC unroll 32
        for (std::size_t i = 0; i < sums; ++i) s[i] = frugal::simd::multiply_add<isa>(s[i], a, b);
    const double end = thread_seconds();
    vector total = s[0];
#pragma GCC unroll 32
    for (std::size_t i = 1; i < sums; ++i) total += s[i];
    float result = frugal::simd::sum<isa>(total);
    asm volatile("" : "+m"(result));
    return end - start;
}

/// Another number from here on, for all that the optimiser knows.
template <class Register>
FRUGAL_ALWAYS_INLINE void opaque(Register& value) {
#if defined(__AVX512F__)
    asm volatile("" : "+v"(value));
#elif defined(__SSE2__)
    asm volatile("" : "+x"(value));
#endif
}

template <class Run>
double best_of(Run&& run_once) {
    double best = 1e300;
    for (int i = 0; i < 40; ++i) {
        const double seconds = run_once();
        best = seconds < best ? seconds : best;
    }
    return best;
}

// Products of bytes, added up in 32 bits by the instructions that these flags allow.
#if defined(__AVX512VNNI__)
using integers = __m512i;
FRUGAL_ALWAYS_INLINE integers add_products(integers sum, integers a, integers b) { return _mm512_dpbusd_epi32(sum, a, b); }
#elif defined(__AVX512BW__)
using integers = __m512i;
FRUGAL_ALWAYS_INLINE integers add_products(integers sum, integers a, integers b) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
}
#elif defined(__AVX2__)
using integers = __m256i;
FRUGAL_ALWAYS_INLINE integers add_products(integers sum, integers a, integers b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
#elif defined(__SSE2__)
// Bytes have to be widened first: what is counted are 16 bytes' products by two multiplications of 16-bit numbers.
using integers = __m128i;
FRUGAL_ALWAYS_INLINE integers add_products(integers sum, integers a, integers b) {
    return _mm_add_epi32(sum, _mm_add_epi32(_mm_madd_epi16(a, b), _mm_madd_epi16(b, a)));
}
#endif

double run_int8([[maybe_unused]] std::size_t rounds) {
#if defined(__SSE2__)
    int seed = 1;
    asm volatile("" : "+m"(seed));
    integers a, b, s[sums];
    __builtin_memset(&a, seed, sizeof(a));
    b = a;
#pragma GCC unroll 32
    for (std::size_t i = 0; i < sums; ++i) {
        s[i] = a;
        opaque(s[i]);
    }
    const double start = thread_seconds();
    for (std::size_t round = 0; round < rounds; ++round) {
        opaque(a);
#pragma GCC unroll 32
        for (std::size_t i = 0; i < sums; ++i) s[i] = add_products(s[i], a, b);
    }
    const double end = thread_seconds();
#pragma GCC unroll 32
    for (std::size_t i = 1; i < sums; ++i) s[0] += s[i];
    asm volatile("" : : "x"(s[0]));
    return end - start;
#else
    return 1e300;
#endif
}

}  // namespace

template <>
double peak_int8<isa>() {
    constexpr std::size_t rounds = 200000;
    return 2.0 * static_cast<double>(rounds * sums * isa::vector_bytes) / best_of([] { return run_int8(rounds); });
}

template <>
double peak_flops<isa>() {
    constexpr std::size_t rounds = 200000;
    return 2.0 * static_cast<double>(rounds * sums * frugal::simd::width<isa>) / best_of([] { return run(rounds); });
}

}  // namespace bench
