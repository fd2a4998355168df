#pragma once
/// Elementwise operators on a GPU, declared; see ops/README.md. On device memory, otherwise as the operators of the same
/// names in ops.
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/kernel_queue.hpp"
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
/// Copies a state of `size` elements to row (*visible - 1) modulo `rows` of `kept`, [rows][size]: how it is before the token that
/// sees so many.
template <class T>
[[nodiscard]] cudaError_t keep_before_token(const T* state, std::size_t size, const std::uint32_t* visible, T* kept,
                                            std::size_t rows, cudaStream_t stream);
/// *to becomes the value.
template <class Unit = void>
[[nodiscard]] cudaError_t store_number(std::uint32_t* to, std::uint32_t value, cudaStream_t stream);

}  // namespace ops::cuda

namespace ops {

// The same calls as on the host, on device memory: queued.
// Precondition: shapes that the host's operator takes. Errors: of the start.

template <device::gpu::kernel_queue Pass>
[[nodiscard]] status swiglu(const Pass& pass, matrix_view<const float> gate, matrix_view<const float> up, matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::swiglu(gate, up, y, stream); });
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status add(const Pass& pass, matrix_view<const float> x, matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::add(x, y, stream); });
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status add_scaled(const Pass& pass, std::span<const float> scale, matrix_view<const float> x,
                                matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::add_scaled(scale.data(), x, y, stream); });
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status gate_heads(const Pass& pass, matrix_view<const float> gate, std::size_t heads, matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::gate_heads(gate, heads, y, stream); });
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status divided_silu(const Pass& pass, float divisor, matrix_view<float> x) {
    return pass.start([&](cudaStream_t stream) { return cuda::divided_silu(divisor, x, stream); });
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status divided_double_sigmoid(const Pass& pass, float divisor, matrix_view<float> x) {
    return pass.start([&](cudaStream_t stream) { return cuda::divided_double_sigmoid(divisor, x, stream); });
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status gated_stream_mean(const Pass& pass, matrix_view<const float> gate, matrix_view<const float> x,
                                       std::size_t streams, matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::gated_stream_mean(gate, x, streams, y, stream); });
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status add_to_streams(const Pass& pass, matrix_view<const float> scale, matrix_view<const float> x,
                                    matrix_view<float> streams) {
    return pass.start([&](cudaStream_t stream) { return cuda::add_to_streams(scale, x, streams, stream); });
}
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status expand_streams(const Pass& pass, matrix_view<const float> x, matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::expand_streams(x, y, stream); });
}

}  // namespace ops

FRUGAL_NAMESPACE_END
