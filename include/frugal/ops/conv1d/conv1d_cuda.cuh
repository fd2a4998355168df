#pragma once
/// Causal depthwise convolution with a carried history on a GPU, as ops/conv1d/conv1d.hpp defines it.
#include <cstddef>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/conv1d/conv1d_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

struct conv1d_arguments {
    const float* x;
    std::size_t x_stride;
    const float* weights;  ///< [channels][kernel]
    int tokens, channels, kernel, dilation;
    float* state;
    std::size_t state_stride;
    float* y;
    std::size_t y_stride;
};

/// Channel c of row `at` of [history, x].
FRUGAL_DEVICE float conv1d_row(const conv1d_arguments& a, int at, int c) {
    const int history = (a.kernel - 1) * a.dilation;
    return at < history ? a.state[static_cast<std::size_t>(at) * a.state_stride + static_cast<std::size_t>(c)]
                        : a.x[static_cast<std::size_t>(at - history) * a.x_stride + static_cast<std::size_t>(c)];
}

/// Outputs of tokens blockIdx.y, + gridDim.y, …; where Shift (then gridDim.y is 1) the history moves on as well.
template <class Activation, bool Shift, int Threads>
__global__ void __launch_bounds__(Threads) convolve_channels(conv1d_arguments a) {
    const int c = static_cast<int>(blockIdx.x) * Threads + static_cast<int>(threadIdx.x);
    if (c >= a.channels) return;
    const float* const taps = a.weights + static_cast<std::size_t>(c) * static_cast<std::size_t>(a.kernel);
    for (int t = static_cast<int>(blockIdx.y); t < a.tokens; t += static_cast<int>(gridDim.y)) {
        float sum = 0.0f;
        for (int k = 0; k < a.kernel; ++k) sum = fmaf(taps[k], conv1d_row(a, t + k * a.dilation, c), sum);
        a.y[static_cast<std::size_t>(t) * a.y_stride + static_cast<std::size_t>(c)] = Activation::apply(sum);
    }
    if constexpr (Shift)  // every row moves down by `tokens`: read before it is overwritten
        for (int to = 0; to < (a.kernel - 1) * a.dilation; ++to)
            a.state[static_cast<std::size_t>(to) * a.state_stride + static_cast<std::size_t>(c)] =
                conv1d_row(a, to + a.tokens, c);
}

/// The history alone moves on.
template <int Threads>
__global__ void __launch_bounds__(Threads) shift_history(conv1d_arguments a) {
    const int c = static_cast<int>(blockIdx.x) * Threads + static_cast<int>(threadIdx.x);
    if (c >= a.channels) return;
    for (int to = 0; to < (a.kernel - 1) * a.dilation; ++to)
        a.state[static_cast<std::size_t>(to) * a.state_stride + static_cast<std::size_t>(c)] = conv1d_row(a, to + a.tokens, c);
}

template <class Activation>
cudaError_t causal_conv1d(matrix_view<const float> x, const float* weights, std::size_t kernel, std::size_t dilation,
                          matrix_view<float> state, matrix_view<float> y, cudaStream_t stream) {
    constexpr unsigned threads = 128;
    constexpr std::size_t few = 8;  // tokens for which one kernel does both
    if (x.rows() == 0 || x.cols() == 0) return cudaSuccess;
    const conv1d_arguments a{x.data(),
                             x.stride(),
                             weights,
                             static_cast<int>(x.rows()),
                             static_cast<int>(x.cols()),
                             static_cast<int>(kernel),
                             static_cast<int>(dilation),
                             state.data(),
                             state.stride(),
                             y.data(),
                             y.stride()};
    const auto blocks = static_cast<unsigned>((x.cols() + threads - 1) / threads);
    if (x.rows() <= few)
        return device::gpu::launch(convolve_channels<Activation, true, threads>, dim3(blocks), dim3(threads), 0, stream, a);
    const auto rows = static_cast<unsigned>(x.rows() < 4096 ? x.rows() : 4096);
    const cudaError_t started =
        device::gpu::launch(convolve_channels<Activation, false, threads>, dim3(blocks, rows), dim3(threads), 0, stream, a);
    if (started != cudaSuccess) return started;
    return device::gpu::launch(shift_history<threads>, dim3(blocks), dim3(threads), 0, stream, a);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
