#pragma once
#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/activation/activation_cpu.hpp"
#include "frugal/ops/hyper_connection/hyper_connection_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa>
void divided_silu(float divisor, float* x, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t width = simd::width<Isa>;
    for (std::size_t i = 0; i < n; i += width) {
        const std::size_t left = n - i < width ? n - i : width;
        simd::vec<Isa> value[1] = {simd::load_some<Isa>(x + i, left) / simd::broadcast<Isa>(divisor)};
        silu<Isa>(value);
        simd::store_some<Isa>(x + i, value[0], left);
    }
}

template <class Isa>
void divided_double_sigmoid(float divisor, float* x, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t i = 0; i < n; ++i) x[i] = 2.0f * ops::sigmoid(x[i] / divisor);
}

template <class Isa>
void gated_stream_mean(const float* gate, const float* x, std::size_t streams, std::size_t hidden, float* y, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t width = simd::width<Isa>;
    for (std::size_t i = 0; i < n; i += width) {
        const std::size_t left = n - i < width ? n - i : width;
        simd::vec<Isa> sum{};
        for (std::size_t s = 0; s < streams; ++s) {
            simd::vec<Isa> open[1] = {simd::load_some<Isa>(gate + s * hidden + i, left)};
            sigmoid<Isa>(open);
            sum = simd::multiply_add<Isa>(open[0], simd::load_some<Isa>(x + s * hidden + i, left), sum);
        }
        simd::store_some<Isa>(y + i, sum / simd::broadcast<Isa>(static_cast<float>(streams)), left);
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
