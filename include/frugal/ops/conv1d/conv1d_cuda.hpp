#pragma once
/// Causal depthwise convolution on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/kernel_queue.hpp"
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

namespace ops {

/// The same call as on the host, on device memory: queued.
/// Precondition: shapes that the host's operator takes. Errors: of the start.
template <class Activation, device::gpu::kernel_queue Pass>
[[nodiscard]] status causal_conv1d(const Pass& pass, std::span<const float> w, matrix_view<const float> x, std::size_t kernel,
                                   std::size_t dilation, matrix_view<float> state, matrix_view<float> y) {
    return pass.start(
        [&](cudaStream_t stream) { return cuda::causal_conv1d<Activation>(x, w.data(), kernel, dilation, state, y, stream); });
}

}  // namespace ops

FRUGAL_NAMESPACE_END
