#pragma once
/// The greedy choice of the next token on a GPU, declared; see ops/README.md.
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// As ops::greedy for every row of logits, on device memory: the token, or -1 where ops::greedy has an error.
template <class Unit = void>
[[nodiscard]] cudaError_t greedy(matrix_view<const float> logits, std::int32_t* chosen, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
