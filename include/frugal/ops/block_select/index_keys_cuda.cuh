#pragma once
/// The keys of QSA's indexer on a GPU: of tokens, and of the blocks that they complete.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/attention/step_cuda.cuh"
#include "frugal/ops/block_select/index_keys_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int index_most_dim = 256;  ///< features of a key, and threads of a block

/// Grid: rows.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    keep_raw_keys(const float* __restrict__ from, std::size_t stride, int dim, const std::uint32_t* __restrict__ visible,
                  std::uint32_t history, float* __restrict__ raw) {
    float* const to = raw + (visible[blockIdx.x] - 1) % history * static_cast<std::size_t>(dim);
    for (int i = static_cast<int>(threadIdx.x); i < dim; i += Threads)
        to[i] = from[blockIdx.x * stride + static_cast<std::size_t>(i)];
}

template <int Threads>
struct block_key_shared {
    device::gpu::block_sum_shared<Threads> sum;
    float key[Threads], most[Threads / 32];
};

/// One feature a thread. Grid: rows.
template <class NormWeight, class Scalar, int Threads>
__global__ void __launch_bounds__(Threads)
    finish_block_keys(step_rows step, int dim, const float* __restrict__ norm, float eps, const float* __restrict__ angles,
                      int pairs, contiguous_block_keys<Scalar> keys, select_row<Scalar>* __restrict__ rows) {
    auto& shared = device::gpu::block_shared<block_key_shared<Threads>>();
    const int i = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.x);
    const std::uint32_t seen = step.visible[row], ratio = step.ratio;
    if (i == 0) rows[row].complete = seen / ratio;
    if (seen % ratio != 0) return;  // the whole block leaves
    const std::size_t width = static_cast<std::size_t>(dim);
    float pooled = 0.0f;
    if (i < dim) {
        const auto at = [&](std::uint32_t token) {
            return keys.raw[token % step.history_rows * width + static_cast<std::size_t>(i)];
        };
        pooled = at(seen - ratio);
        for (std::uint32_t token = seen - ratio + 1; token < seen; ++token) pooled += at(token);
        pooled /= static_cast<float>(ratio);
    }
    const float square = device::gpu::block_sum<Threads>(pooled * pooled, shared.sum);
    const float scale = 1.0f / sqrtf(square / static_cast<float>(dim) + eps);
    const float normed = i < dim ? pooled * scale * NormWeight::factor(norm[i]) : 0.0f;
    shared.key[i] = normed;
    __syncthreads();  // the whole key is here
    float rotated = normed;
    if (i < 2 * pairs) {
        const float* const cosines = angles + static_cast<std::size_t>(row) * 2 * static_cast<std::size_t>(pairs);
        const int j = i < pairs ? i : i - pairs;
        const float other = shared.key[i < pairs ? i + pairs : j];
        rotated = i < pairs ? normed * cosines[j] - other * cosines[pairs + j] : normed * cosines[j] + other * cosines[pairs + j];
    }
    const std::size_t block = seen / ratio - 1;
    Scalar* const to = keys.keys + block * width + i;
    if constexpr (std::is_same_v<Scalar, std::int8_t>) {
        // As ops::encode_block_key: a key with a NaN or an infinity has scale NaN and codes 0.
        const float magnitude = rotated - rotated == 0.0f ? fabsf(rotated) : INFINITY;
        const float lanes = device::gpu::lane_max(magnitude);
        if (i % 32 == 0) shared.most[i / 32] = lanes;
        __syncthreads();
        float most = 0.0f;
        for (int w = 0; w < Threads / 32; ++w) most = fmaxf(most, shared.most[w]);
        constexpr float least = 1.17549435e-38f;  // of a scale: the least normal number
        const float step_size = most / 127.0f;
        const bool finite = most < INFINITY, usable = finite && step_size >= least;
        if (i == 0) keys.scales[block] = !finite ? NAN : usable ? step_size : 0.0f;
        if (i < dim) *to = static_cast<std::int8_t>(usable ? rintf(rotated / step_size) : 0.0f);
    } else {
        if (i < dim) store_feature(to, rotated);
    }
}

template <norm_weight_policy NormWeight, class Scalar>
cudaError_t append_index_keys(matrix_view<const float> raw, const step_rows& step, const float* norm, float eps,
                              const float* angles, int pairs, const contiguous_block_keys<Scalar>& keys, select_row<Scalar>* rows,
                              cudaStream_t stream) {
    constexpr unsigned threads = index_most_dim;
    if (raw.cols() > threads) return cudaErrorInvalidValue;
    if (raw.rows() == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(raw.rows()));
    const cudaError_t started =
        device::gpu::launch(keep_raw_keys<threads>, grid, dim3(threads), 0, stream, raw.data(), raw.stride(),
                            static_cast<int>(raw.cols()), step.visible, step.history_rows, keys.raw);
    if (started != cudaSuccess) return started;
    return device::gpu::launch(finish_block_keys<NormWeight, Scalar, threads>, grid, dim3(threads), 0, stream, step,
                               static_cast<int>(raw.cols()), norm, eps, angles, pairs, keys, rows);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
