#pragma once
/// Sums of a token's experts on a GPU.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/moe/combine_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

struct combine_arguments {
    const float* outputs;
    std::size_t outputs_stride;
    const std::int32_t* index;
    const float* weight;
    int top_k;
    const float* shared;
    std::size_t shared_stride;
    const float* gate;
    int columns;
    float* y;
    std::size_t y_stride;
};

struct combine_order {
    int choice[combine_most];
};

/// Grid: [columns / Threads, rounded up; rows].
template <int Threads>
__global__ void __launch_bounds__(Threads) combine_rows(combine_arguments a) {
    static_assert(Threads >= static_cast<int>(combine_most), "frugal: a thread ranks a choice");
    auto& order = device::gpu::block_shared<combine_order>();
    const int thread = static_cast<int>(threadIdx.x), column = static_cast<int>(blockIdx.x) * Threads + thread;
    const std::size_t row = blockIdx.y, first = row * static_cast<std::size_t>(a.top_k);
    if (thread < a.top_k) {
        int rank = 0;
        for (int k = 0; k < a.top_k; ++k) {
            const std::int32_t own = a.index[first + static_cast<std::size_t>(thread)],
                               other = a.index[first + static_cast<std::size_t>(k)];
            rank += other < own || (other == own && k < thread) ? 1 : 0;
        }
        order.choice[rank] = thread;
    }
    __syncthreads();  // the order is known
    if (column >= a.columns) return;
    float sum = 0.0f;
    for (int k = 0; k < a.top_k; ++k) {
        const std::size_t pair = first + static_cast<std::size_t>(order.choice[k]);
        sum = fmaf(a.weight[pair], a.outputs[pair * a.outputs_stride + static_cast<std::size_t>(column)], sum);
    }
    if (a.shared != nullptr) {
        const float scale = a.gate != nullptr ? ops::sigmoid(a.gate[row]) : 1.0f;
        sum = fmaf(scale, a.shared[row * a.shared_stride + static_cast<std::size_t>(column)], sum);
    }
    a.y[row * a.y_stride + static_cast<std::size_t>(column)] = sum;
}

template <class Unit>
cudaError_t combine_experts(matrix_view<const float> outputs, const std::int32_t* index, const float* weight, std::size_t top_k,
                            matrix_view<const float> shared, const float* gate, matrix_view<float> y, cudaStream_t stream) {
    constexpr unsigned threads = 128;
    if (top_k > combine_most) return cudaErrorInvalidValue;
    if (y.rows() == 0 || y.cols() == 0) return cudaSuccess;
    const combine_arguments a{
        outputs.data(), outputs.stride(),           index,    weight,    static_cast<int>(top_k), shared.data(), shared.stride(),
        gate,           static_cast<int>(y.cols()), y.data(), y.stride()};
    const dim3 grid(static_cast<unsigned>((y.cols() + threads - 1) / threads), static_cast<unsigned>(y.rows()));
    return device::gpu::launch(combine_rows<threads>, grid, dim3(threads), 0, stream, a);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
