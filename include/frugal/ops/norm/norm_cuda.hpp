#pragma once
/// Norms on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/kernel_queue.hpp"
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

namespace ops {

// The same calls as on the host, on device memory: queued.
// Precondition: shapes that the host's operator takes. Errors: of the start.

template <norm_weight_policy NormWeight, device::gpu::kernel_queue Pass>
[[nodiscard]] status grouped_rms_norm(const Pass& pass, std::span<const float> w, matrix_view<const float> x, std::size_t group,
                                      float eps, matrix_view<float> y) {
    return pass.start(
        [&](cudaStream_t stream) { return cuda::grouped_rms_norm<NormWeight>(x, w.data(), group, eps, y, stream); });
}
template <norm_weight_policy NormWeight, device::gpu::kernel_queue Pass>
[[nodiscard]] status rms_norm(const Pass& pass, std::span<const float> w, matrix_view<const float> x, float eps,
                              matrix_view<float> y) {
    return grouped_rms_norm<NormWeight>(pass, w, x, x.cols(), eps, y);
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status grouped_l2_norm(const Pass& pass, matrix_view<const float> x, std::size_t group, float eps,
                                     matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::grouped_l2_norm(x, group, eps, y, stream); });
}
template <class Gate, device::gpu::kernel_queue Pass>
[[nodiscard]] status gated_rms_norm(const Pass& pass, std::span<const float> w, matrix_view<const float> x,
                                    matrix_view<const float> gate, float eps, matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::gated_rms_norm<Gate>(x, gate, w.data(), eps, y, stream); });
}

}  // namespace ops

FRUGAL_NAMESPACE_END
