#pragma once
/// Elementwise operators on a GPU, declared; see ops/README.md. On device memory, otherwise as the operators of the same
/// names in ops.
#include <cstddef>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

template <class Unit = void>
[[nodiscard]] cudaError_t swiglu(matrix_view<const float> gate, matrix_view<const float> up, matrix_view<float> y,
                                 cudaStream_t stream);
template <class Unit = void>
[[nodiscard]] cudaError_t add(matrix_view<const float> x, matrix_view<float> y, cudaStream_t stream);
template <class Unit = void>
[[nodiscard]] cudaError_t add_scaled(const float* scale, matrix_view<const float> x, matrix_view<float> y, cudaStream_t stream);
template <class Unit = void>
[[nodiscard]] cudaError_t gate_heads(matrix_view<const float> gate, std::size_t heads, matrix_view<float> y, cudaStream_t stream);
template <class Unit = void>
[[nodiscard]] cudaError_t divided_silu(float divisor, matrix_view<float> x, cudaStream_t stream);
template <class Unit = void>
[[nodiscard]] cudaError_t divided_double_sigmoid(float divisor, matrix_view<float> x, cudaStream_t stream);
template <class Unit = void>
[[nodiscard]] cudaError_t gated_stream_mean(matrix_view<const float> gate, matrix_view<const float> x, std::size_t streams,
                                            matrix_view<float> y, cudaStream_t stream);
template <class Unit = void>
[[nodiscard]] cudaError_t add_to_streams(matrix_view<const float> scale, matrix_view<const float> x, matrix_view<float> streams,
                                         cudaStream_t stream);
/// Each of y's streams of x.cols() features becomes x.
template <class Unit = void>
[[nodiscard]] cudaError_t expand_streams(matrix_view<const float> x, matrix_view<float> y, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
