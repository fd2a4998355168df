#pragma once
/// CPU kernel of ops::route: one row of router logits to its experts and their weights.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cpu/isa.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// Softmax over all `experts` logits in f32, then the `top_k` most probable: higher probability first, then lower index.
/// `probabilities` is scratch of `experts` floats and may be `logits`; `index` and `weight` receive top_k entries in that
/// order. With `renormalise` the weights are divided by their sum. False, with the outputs unspecified, if a logit is not finite.
template <class Isa>
[[nodiscard]] FRUGAL_KERNEL bool route_row(const float* logits, std::size_t experts, std::size_t top_k, bool renormalise,
                                           float* probabilities, std::int32_t* index, float* weight);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/moe/router_cpu-inl.hpp"
#endif
