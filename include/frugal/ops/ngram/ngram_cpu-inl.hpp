#pragma once
#include <cmath>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/ngram/ngram_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa>
void ngram_gate_row(const float* key, const float* query, const float* value, std::size_t streams, std::size_t hidden,
                    float* out) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const float root = ::sqrtf(static_cast<float>(hidden));
    for (std::size_t s = 0; s < streams; ++s) {
        const float a = simd::dot<Isa>(key + s * hidden, query + s * hidden, hidden) / root;
        const float magnitude = a < 0 ? -a : a;
        float g = ::sqrtf(magnitude < 1e-6f ? 1e-6f : magnitude);  // a NaN passes through
        if (a < 0) g = -g;
        if (a == 0) g = 0;
        const float scale = ops::sigmoid(g);
        for (std::size_t i = 0; i < hidden; ++i) out[s * hidden + i] = scale * value[i];
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
