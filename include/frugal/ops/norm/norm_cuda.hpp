#pragma once
/// Norms on a GPU, declared; see ops/README.md.
#include <cstddef>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/ops/norm/norm_cpu.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// As ops::grouped_rms_norm, on device memory. w: [x.cols()].
template <norm_weight_policy NormWeight>
[[nodiscard]] cudaError_t grouped_rms_norm(matrix_view<const float> x, const float* w, std::size_t group, float eps,
                                           matrix_view<float> y, cudaStream_t stream);

/// As ops::grouped_l2_norm, on device memory.
template <class Unit = void>
[[nodiscard]] cudaError_t grouped_l2_norm(matrix_view<const float> x, std::size_t group, float eps, matrix_view<float> y,
                                          cudaStream_t stream);

/// As ops::gated_rms_norm, on device memory. w: [x.cols()].
template <class Gate>
[[nodiscard]] cudaError_t gated_rms_norm(matrix_view<const float> x, matrix_view<const float> gate, const float* w, float eps,
                                         matrix_view<float> y, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
