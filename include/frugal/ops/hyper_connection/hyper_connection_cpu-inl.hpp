#pragma once
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/hyper_connection/hyper_connection_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa>
void divided_silu(float divisor, float* x, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t i = 0; i < n; ++i) x[i] = ops::silu(x[i] / divisor);
}

template <class Isa>
void divided_double_sigmoid(float divisor, float* x, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t i = 0; i < n; ++i) x[i] = 2.0f * ops::sigmoid(x[i] / divisor);
}

template <class Isa>
void gated_stream_mean(const float* gate, const float* x, std::size_t streams, std::size_t hidden, float* y, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t i = 0; i < n; ++i) {
        float sum = 0;
        for (std::size_t s = 0; s < streams; ++s) sum += ops::sigmoid(gate[s * hidden + i]) * x[s * hidden + i];
        y[i] = sum / static_cast<float>(streams);
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
