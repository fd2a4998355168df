#pragma once
/// Causal depthwise convolution on a GPU, declared; see ops/README.md.
#include <cstddef>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// As ops::causal_conv1d, on device memory; x and y do not overlap. The same bits for any split of the tokens into calls.
template <class Activation>
[[nodiscard]] cudaError_t causal_conv1d(matrix_view<const float> x, const float* weights, std::size_t kernel,
                                        std::size_t dilation, matrix_view<float> state, matrix_view<float> y,
                                        cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
