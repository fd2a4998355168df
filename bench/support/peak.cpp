// Compiled once for each instruction set.
#include <cstddef>

#include "frugal/device/cpu/simd.hpp"
#include "limits.hpp"

namespace bench {

namespace {

using isa = frugal::isa::FRUGAL_KERNEL_ISA;
using vector = frugal::simd::vec<isa>;
// Independent sums that hide the latency of the operation on any present core and fit its registers.
constexpr std::size_t sums = isa::vector_bytes == 64 ? 20 : 12;

/// Registers are opaque to the optimiser here, so it can neither fold the loop nor drop it.
double run(std::size_t rounds) {
    float seed = 1.0f;
    asm volatile("" : "+m"(seed));
    const vector a = frugal::simd::broadcast<isa>(seed * 0.999f), b = frugal::simd::broadcast<isa>(seed * 1e-3f);
    vector s[sums];
    for (std::size_t i = 0; i < sums; ++i) s[i] = frugal::simd::broadcast<isa>(seed + static_cast<float>(i));
    const double start = thread_seconds();
    for (std::size_t round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < sums; ++i) s[i] = s[i] * a + b;
    const double end = thread_seconds();
    vector total = s[0];
    for (std::size_t i = 1; i < sums; ++i) total += s[i];
    float result = frugal::simd::sum<isa>(total);
    asm volatile("" : "+m"(result));
    return end - start;
}

}  // namespace

template <>
double peak_flops<isa>() {
    constexpr std::size_t rounds = 200000;
    double best = 1e300;
    for (int i = 0; i < 40; ++i) {
        const double seconds = run(rounds);
        best = seconds < best ? seconds : best;
    }
    return 2.0 * static_cast<double>(rounds * sums * frugal::simd::width<isa>) / best;
}

}  // namespace bench
