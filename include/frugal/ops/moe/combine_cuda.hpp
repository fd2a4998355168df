#pragma once
/// Sums of a token's experts on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr std::size_t combine_most = 64;  ///< experts of a token

/// y[t] = sum over the token's experts, in ascending order, of weight[t][k] * outputs[t * top_k + k], plus sigmoid(gate[t]) *
/// shared[t] if there are these two (null: shared alone, or neither). outputs: [rows * top_k, y.cols()]; index and weight are
/// those of `route`. Errors: cudaErrorInvalidValue for more than combine_most experts a token.
template <class Unit = void>
[[nodiscard]] cudaError_t combine_experts(matrix_view<const float> outputs, const std::int32_t* index, const float* weight,
                                          std::size_t top_k, matrix_view<const float> shared, const float* gate,
                                          matrix_view<float> y, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
