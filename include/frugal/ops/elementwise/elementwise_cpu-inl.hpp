#pragma once
#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation_cpu.hpp"
#include "frugal/ops/elementwise/elementwise_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa>
void swiglu(const float* gate, const float* up, float* y, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t w = simd::width<Isa>;
    for (std::size_t i = 0; i < n; i += w) {
        const std::size_t left = n - i < w ? n - i : w;
        simd::vec<Isa> open[1] = {simd::load_some<Isa>(gate + i, left)};
        cpu::silu<Isa>(open);
        simd::store_some<Isa>(y + i, open[0] * simd::load_some<Isa>(up + i, left), left);
    }
}

template <class Isa>
void add(const float* x, float* y, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t w = simd::width<Isa>;
    std::size_t i = 0;
    for (; i + w <= n; i += w) simd::store<Isa>(y + i, simd::load<Isa>(y + i) + simd::load<Isa>(x + i));
    for (; i < n; ++i) y[i] += x[i];
}

template <class Isa>
void add_scaled(float scale, const float* x, float* y, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    simd::axpy<Isa>(scale, x, y, n);
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
