#pragma once
#include <cmath>

#include "frugal/ops/moe/router_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa>
bool route_row(const float* logits, std::size_t experts, std::size_t top_k, bool renormalise, float* probabilities,
               std::int32_t* index, float* weight) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    float greatest = logits[0];
    for (std::size_t e = 0; e < experts; ++e) {
        // A difference with itself is 0 only for finite numbers.
        if (!(logits[e] - logits[e] == 0.0f)) return false;
        if (logits[e] > greatest) greatest = logits[e];
    }
    float total = 0;
    for (std::size_t e = 0; e < experts; ++e) {
        probabilities[e] = ::expf(logits[e] - greatest);
        total += probabilities[e];
    }
    // Insertion into a short sorted list: an equal probability stays behind the lower index that came before it.
    std::size_t held = 0;
    for (std::size_t e = 0; e < experts; ++e) {
        const float p = probabilities[e] / total;
        if (held == top_k && !(p > weight[top_k - 1])) continue;
        std::size_t at = held < top_k ? held++ : top_k - 1;
        for (; at > 0 && p > weight[at - 1]; --at) {
            weight[at] = weight[at - 1];
            index[at] = index[at - 1];
        }
        weight[at] = p;
        index[at] = static_cast<std::int32_t>(e);
    }
    if (renormalise) {
        float sum = 0;
        for (std::size_t i = 0; i < top_k; ++i) sum += weight[i];
        for (std::size_t i = 0; i < top_k; ++i) weight[i] /= sum;
    }
    return true;
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
