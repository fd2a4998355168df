#pragma once
/// What a step of a model on a GPU begins with, and how it appends to a cache.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/attention/precision.hpp"
#include "frugal/ops/attention/step_cuda.hpp"
#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// One block.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    unpack_step(const step_token* __restrict__ from, int count, step_rows rows, std::uint32_t* length) {
    const std::uint32_t before = *length;
    for (int t = static_cast<int>(threadIdx.x); t < count; t += Threads) {
        const std::uint32_t seen = before + static_cast<std::uint32_t>(t) + 1;
        rows.tokens[t] = from[t].token;
        rows.positions[t] = from[t].position;
        rows.visible[t] = seen;
        if (rows.ratio == 0) continue;
        rows.complete[t] = seen / rows.ratio;
        rows.history[(seen - 1) % rows.history_rows] = from[t].position;
    }
    __syncthreads();  // everybody has read the length, and every position is kept
    if (rows.ratio != 0)
        for (int t = static_cast<int>(threadIdx.x); t < count; t += Threads) {
            const std::uint32_t seen = before + static_cast<std::uint32_t>(t) + 1;
            rows.block_positions[t] =
                seen % rows.ratio == 0 ? rows.history[(seen - rows.ratio) % rows.history_rows] : rope_position{};
        }
    if (threadIdx.x == 0) *length = before + static_cast<std::uint32_t>(count);
}

template <class Unit>
cudaError_t begin_step(const step_token* from, std::size_t count, const step_rows& rows, std::uint32_t* length,
                       cudaStream_t stream) {
    constexpr unsigned threads = 128;
    if (count == 0) return cudaSuccess;
    return device::gpu::launch(unpack_step<threads>, dim3(1), dim3(threads), 0, stream, from, static_cast<int>(count), rows,
                               length);
}

// As attention::token_store::write: what is finite stays finite.
FRUGAL_DEVICE void store_feature(float* to, float value) { *to = value; }
FRUGAL_DEVICE void store_feature(half* to, float value) {
    const unsigned bits = __half_as_ushort(__float2half_rn(value));
    to->bits = static_cast<std::uint16_t>(bits - ((bits & 0x7FFFu) == 0x7C00u && fabsf(value) < INFINITY ? 1u : 0u));
}
FRUGAL_DEVICE void store_feature(bfloat16* to, float value) {
    const unsigned bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
    to->bits = static_cast<std::uint16_t>(bits - ((bits & 0x7FFFu) == 0x7F80u && fabsf(value) < INFINITY ? 1u : 0u));
}

/// A warp encodes 32 values as quant::q8_0::encode does.
FRUGAL_DEVICE void store_q8_block(std::int8_t* block, float value, int lane) {
    value = clamp_for_cache<quant::q8_0>(value);
    const float scale = device::gpu::lane_max(fabsf(value)) / 127.0f;
    float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    if (!(inverse - inverse == 0.0f)) inverse = 0.0f;
    float product = __fmul_rn(value, inverse);
    if (!(product == product)) product = 0.0f;
    block[2 + lane] = static_cast<std::int8_t>(static_cast<int>(roundf(product)));
    if (lane != 0) return;
    // The reference leaves no scale that its inverse could not undo.
    const unsigned short bits = __half_as_ushort(__float2half_rn(scale));
    *reinterpret_cast<unsigned short*>(block) = bits;
}

/// Grid: rows.
template <class Scalar, int Threads>
__global__ void __launch_bounds__(Threads)
    append_rows(const float* __restrict__ keys, std::size_t key_stride, const float* __restrict__ values,
                std::size_t value_stride, int features, const std::uint32_t* __restrict__ visible, contiguous_cache<Scalar> cache,
                split_row<Scalar>* __restrict__ rows) {
    const std::size_t row = blockIdx.x;
    const std::uint32_t seen = visible[row];
    const float *const key = keys + row * key_stride, *const value = values + row * value_stride;
    const std::size_t at = (seen - 1) * cache.stride;
    if constexpr (std::is_same_v<Scalar, quant::q8_0>) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        for (int block = static_cast<int>(threadIdx.x) / 32; block < features / 32; block += Threads / 32) {
            store_q8_block(cache.keys + at + block * 34, key[block * 32 + lane], lane);
            store_q8_block(cache.values + at + block * 34, value[block * 32 + lane], lane);
        }
    } else {
        for (int i = static_cast<int>(threadIdx.x); i < features; i += Threads) {
            store_feature(cache.keys + at + i, key[i]);
            store_feature(cache.values + at + i, value[i]);
        }
    }
    if (threadIdx.x != 0) return;
    rows[row].list = nullptr;
    rows[row].visible = seen;
}

template <class Scalar>
cudaError_t append_keys_values(matrix_view<const float> keys, matrix_view<const float> values, const std::uint32_t* visible,
                               const contiguous_cache<Scalar>& cache, split_row<Scalar>* rows, cudaStream_t stream) {
    constexpr unsigned threads = 128;
    if (keys.rows() == 0) return cudaSuccess;
    return device::gpu::launch(append_rows<Scalar, threads>, dim3(static_cast<unsigned>(keys.rows())), dim3(threads), 0, stream,
                               keys.data(), keys.stride(), values.data(), values.stride(), static_cast<int>(keys.cols()), visible,
                               cache, rows);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
