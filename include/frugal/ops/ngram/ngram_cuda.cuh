#pragma once
/// n-gram embeddings on a GPU: which rows of the table a token looks up, and the gate into the residual streams, as ops/ngram
/// defines them.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/ngram/ngram_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// One thread a token.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    hash_ngrams(device_ngram_hash hash, const std::int64_t* __restrict__ before, const std::int64_t* __restrict__ tokens,
                int count, std::int64_t* __restrict__ rows) {
    const int t = static_cast<int>(blockIdx.x) * Threads + static_cast<int>(threadIdx.x);
    if (t >= count) return;
    const int heads = (hash.ngram_size - 1) * hash.heads_per_ngram;
    std::uint64_t mixed = static_cast<std::uint64_t>(tokens[t]) * hash.multipliers[0];
    bool cut = false;
    for (int back = 1; back < hash.ngram_size; ++back) {
        std::int64_t token = hash.eos;
        if (!cut) token = back <= t ? tokens[t - back] : before[hash.ngram_size - 1 + t - back];
        cut = cut || token == hash.eos;
        mixed ^= static_cast<std::uint64_t>(token) * hash.multipliers[back];
        for (int i = 0; i < hash.heads_per_ngram; ++i) {
            const int head = (back - 1) * hash.heads_per_ngram + i;
            rows[static_cast<std::size_t>(t) * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)] =
                static_cast<std::int64_t>(mixed % hash.head_sizes[head] + hash.head_offsets[head]);
        }
    }
}

template <class Unit>
cudaError_t ngram_rows(const device_ngram_hash& hash, const std::int64_t* before, const std::int64_t* tokens, std::size_t count,
                       std::int64_t* rows, cudaStream_t stream) {
    constexpr unsigned threads = 64;
    if (count == 0) return cudaSuccess;
    return device::gpu::launch(hash_ngrams<threads>, dim3(static_cast<unsigned>((count + threads - 1) / threads)), dim3(threads),
                               0, stream, hash, before, tokens, static_cast<int>(count), rows);
}

/// One block, as many threads as tokens are kept.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    shift_tokens(std::int64_t* before, int context, const std::int64_t* __restrict__ tokens, int count) {
    const int i = static_cast<int>(threadIdx.x), from = i + count;
    std::int64_t kept = 0;
    if (i < context) kept = from < context ? before[from] : tokens[from - context];
    __syncthreads();  // everybody has read
    if (i < context) before[i] = kept;
}

template <class Unit>
cudaError_t keep_ngram_tokens(std::int64_t* before, std::size_t context, const std::int64_t* tokens, std::size_t count,
                              cudaStream_t stream) {
    constexpr unsigned threads = 64;  // n-grams are no longer
    if (context > threads) return cudaErrorInvalidValue;
    if (count == 0 || context == 0) return cudaSuccess;
    return device::gpu::launch(shift_tokens<threads>, dim3(1), dim3(threads), 0, stream, before, static_cast<int>(context),
                               tokens, static_cast<int>(count));
}

/// Grid: [streams, rows].
template <int Threads>
__global__ void __launch_bounds__(Threads)
    gate_streams(const float* key, std::size_t key_stride, const float* __restrict__ query, std::size_t query_stride,
                 const float* __restrict__ value, std::size_t value_stride, int hidden, float* y, std::size_t y_stride) {
    auto& room = device::gpu::block_shared<device::gpu::block_sum_shared<Threads>>();
    const std::size_t row = blockIdx.y, first = blockIdx.x * static_cast<std::size_t>(hidden);
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < hidden; i += Threads)
        sum = fmaf(key[row * key_stride + first + static_cast<std::size_t>(i)],
                   query[row * query_stride + first + static_cast<std::size_t>(i)], sum);
    const float a = device::gpu::block_sum<Threads>(sum, room) / sqrtf(static_cast<float>(hidden));
    const float magnitude = a < 0.0f ? -a : a;
    float g = sqrtf(magnitude < 1e-6f ? 1e-6f : magnitude);  // a NaN passes through
    if (a < 0.0f) g = -g;
    if (a == 0.0f) g = 0.0f;
    const float scale = ops::sigmoid(g);
    for (int i = static_cast<int>(threadIdx.x); i < hidden; i += Threads)
        y[row * y_stride + first + static_cast<std::size_t>(i)] = scale * value[row * value_stride + static_cast<std::size_t>(i)];
}

template <class Unit>
cudaError_t ngram_gate(matrix_view<const float> key, matrix_view<const float> query, matrix_view<const float> value,
                       matrix_view<float> y, cudaStream_t stream) {
    constexpr unsigned threads = 256;
    if (value.rows() == 0 || value.cols() == 0) return cudaSuccess;
    return device::gpu::launch(gate_streams<threads>,
                               dim3(static_cast<unsigned>(key.cols() / value.cols()), static_cast<unsigned>(value.rows())),
                               dim3(threads), 0, stream, key.data(), key.stride(), query.data(), query.stride(), value.data(),
                               value.stride(), static_cast<int>(value.cols()), y.data(), y.stride());
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
