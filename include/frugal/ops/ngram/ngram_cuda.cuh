#pragma once
/// n-gram embeddings on a GPU: which rows of the table a token looks up, and the gate into the residual streams, as ops/ngram
/// defines them.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// An ngram_hash whose arrays are on the device.
struct device_ngram_hash {
    int ngram_size = 0, heads_per_ngram = 0;
    std::int64_t eos = 0;
    const std::uint64_t *multipliers = nullptr, *head_offsets = nullptr, *head_sizes = nullptr;
};

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

/// As ngram_hash::rows, on device memory: before [ngram_size - 1], tokens [count], rows [count][heads]; every token is of the
/// vocabulary.
[[nodiscard]] inline cudaError_t ngram_rows(const device_ngram_hash& hash, const std::int64_t* before, const std::int64_t* tokens,
                                            std::size_t count, std::int64_t* rows, cudaStream_t stream) {
    constexpr unsigned threads = 64;
    if (count == 0) return cudaSuccess;
    return device::gpu::launch(hash_ngrams<threads>, dim3(static_cast<unsigned>((count + threads - 1) / threads)), dim3(threads),
                               0, stream, hash, before, tokens, static_cast<int>(count), rows);
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

/// As ops::ngram_gate, on device memory. y may be the memory of key.
[[nodiscard]] inline cudaError_t ngram_gate(matrix_view<const float> key, matrix_view<const float> query,
                                            matrix_view<const float> value, matrix_view<float> y, cudaStream_t stream) {
    constexpr unsigned threads = 256;
    if (value.rows() == 0 || value.cols() == 0) return cudaSuccess;
    return device::gpu::launch(gate_streams<threads>,
                               dim3(static_cast<unsigned>(key.cols() / value.cols()), static_cast<unsigned>(value.rows())),
                               dim3(threads), 0, stream, key.data(), key.stride(), query.data(), query.stride(), value.data(),
                               value.stride(), static_cast<int>(value.cols()), y.data(), y.stride());
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
