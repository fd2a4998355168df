#pragma once
/// The router of a mixture of experts on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// As ops::route, on device memory: index, weight [rows][top_k]. A row with a logit that is not finite gets experts 0 and
/// weights NaN, and *first_bad becomes its number if that is lower (the caller sets it to the number of rows or more before).
/// Errors: cudaErrorInvalidValue for more than 512 experts, or top_k of 0 or more than there are.
template <class Unit = void>
[[nodiscard]] cudaError_t route(matrix_view<const float> logits, std::size_t top_k, bool renormalise, std::int32_t* index,
                                float* weight, int* first_bad, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
