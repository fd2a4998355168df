#pragma once
/// Norms on a GPU: one block a group of features, as ops/norm/norm.hpp defines them.
#include <cstddef>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/norm/norm_cpu.hpp"
#include "frugal/ops/norm/norm_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// What becomes of a normed feature: x / sqrt(mean x² + eps) * factor(w).
template <class NormWeight>
struct weighted_norm {
    static constexpr bool mean = true;
    const float* weights;
    FRUGAL_DEVICE float operator()(float normed, std::size_t, int column) const {
        return normed * NormWeight::factor(weights[column]);
    }
};

/// x / sqrt(sum x² + eps).
struct plain_l2_norm {
    static constexpr bool mean = false;
    FRUGAL_DEVICE float operator()(float normed, std::size_t, int) const { return normed; }
};

/// x / sqrt(mean x² + eps) * w * Gate(gate).
template <class Gate>
struct gated_norm {
    static constexpr bool mean = true;
    const float* weights;
    const float* gate;
    std::size_t gate_stride;
    FRUGAL_DEVICE float operator()(float normed, std::size_t row, int column) const {
        return normed * weights[column] * Gate::apply(gate[row * gate_stride + static_cast<std::size_t>(column)]);
    }
};

/// Grid: [rows, groups of a row]. x and y may be the same memory.
template <class Finish, int Threads>
__global__ void __launch_bounds__(Threads)
    norm_groups(const float* x, std::size_t x_stride, int group, float eps, Finish finish, float* y, std::size_t y_stride) {
    auto& room = device::gpu::block_shared<device::gpu::block_sum_shared<Threads>>();
    const std::size_t row = blockIdx.x;
    const int first = static_cast<int>(blockIdx.y) * group, thread = static_cast<int>(threadIdx.x);
    const float* const in = x + row * x_stride + first;
    float sum = 0.0f;
    for (int c = thread; c < group; c += Threads) sum = fmaf(in[c], in[c], sum);
    sum = device::gpu::block_sum<Threads>(sum, room);
    const float scale = 1.0f / sqrtf((Finish::mean ? sum / static_cast<float>(group) : sum) + eps);
    float* const out = y + row * y_stride + first;
    for (int c = thread; c < group; c += Threads) out[c] = finish(in[c] * scale, row, first + c);
}

/// Norms each group of `group` consecutive features of every row; x.cols() is a multiple of it.
template <class Finish>
[[nodiscard]] cudaError_t norm_rows(matrix_view<const float> x, std::size_t group, float eps, Finish finish, matrix_view<float> y,
                                    cudaStream_t stream) {
    if (x.rows() == 0 || x.cols() == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(x.rows()), static_cast<unsigned>(x.cols() / group));
    const auto start = [&](auto kernel, unsigned threads) {
        return device::gpu::launch(kernel, grid, dim3(threads), 0, stream, x.data(), x.stride(), static_cast<int>(group), eps,
                                   finish, y.data(), y.stride());
    };
    // The number of threads is part of the order of summation, so it depends on the group alone.
    if (group <= 128) return start(norm_groups<Finish, 32>, 32);
    if (group <= 1024) return start(norm_groups<Finish, 128>, 128);
    return start(norm_groups<Finish, 512>, 512);
}

template <norm_weight_policy NormWeight>
cudaError_t grouped_rms_norm(matrix_view<const float> x, const float* w, std::size_t group, float eps, matrix_view<float> y,
                             cudaStream_t stream) {
    return norm_rows(x, group, eps, weighted_norm<NormWeight>{w}, y, stream);
}

template <class Unit>
cudaError_t grouped_l2_norm(matrix_view<const float> x, std::size_t group, float eps, matrix_view<float> y, cudaStream_t stream) {
    return norm_rows(x, group, eps, plain_l2_norm{}, y, stream);
}

template <class Gate>
cudaError_t gated_rms_norm(matrix_view<const float> x, matrix_view<const float> gate, const float* w, float eps,
                           matrix_view<float> y, cudaStream_t stream) {
    return norm_rows(x, x.cols(), eps, gated_norm<Gate>{w, gate.data(), gate.stride()}, y, stream);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
