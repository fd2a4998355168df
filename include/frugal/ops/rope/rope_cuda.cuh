#pragma once
/// Rotary position embedding on a GPU, as ops/rope/rope.hpp defines it.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/ops/rope/position.hpp"
#include "frugal/ops/rope/rope_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// Cosines, then sines of each position's angles. Grid: positions; blocks of any size.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    make_rope_angles(rope_frequencies table, const rope_position* __restrict__ positions, float* __restrict__ angles) {
    const rope_position at = positions[blockIdx.x];
    const float components[3] = {static_cast<float>(at.temporal), static_cast<float>(at.height), static_cast<float>(at.width)};
    float* const row = angles + static_cast<std::size_t>(blockIdx.x) * 2 * static_cast<std::size_t>(table.pairs);
    for (int j = static_cast<int>(threadIdx.x); j < table.pairs; j += Threads) {
        const int which = table.components[j];
        // One rounded product, as the reference has it.
        const float angle = __fmul_rn(which == 0 ? components[0] : which == 1 ? components[1] : components[2], table.inv_freq[j]);
        row[j] = table.magnitude * cosf(angle);
        row[table.pairs + j] = table.magnitude * sinf(angle);
    }
}

/// Grid: rows. Rotates features j and j + pairs of every head of a row.
template <int Threads>
__global__ void __launch_bounds__(Threads) rotate_heads(const float* __restrict__ angles, int pairs, float* __restrict__ x,
                                                        std::size_t stride, int heads, int head_stride) {
    const float* const cosines = angles + static_cast<std::size_t>(blockIdx.x) * 2 * static_cast<std::size_t>(pairs);
    float* const row = x + blockIdx.x * stride;
    for (int i = static_cast<int>(threadIdx.x); i < heads * pairs; i += Threads) {
        const int h = i / pairs, j = i % pairs;
        float* const first = row + static_cast<std::size_t>(h) * static_cast<std::size_t>(head_stride) + j;
        const float c = cosines[j], s = cosines[pairs + j], a = first[0], b = first[pairs];
        first[0] = a * c - b * s;
        first[pairs] = b * c + a * s;
    }
}

template <class Unit>
cudaError_t rope_angles(const rope_frequencies& table, const rope_position* positions, std::size_t count, float* angles,
                        cudaStream_t stream) {
    if (count == 0 || table.pairs == 0) return cudaSuccess;
    return device::gpu::launch(make_rope_angles<64>, dim3(static_cast<unsigned>(count)), dim3(64), 0, stream, table, positions,
                               angles);
}

template <class Unit>
cudaError_t apply_rope(const float* angles, int pairs, matrix_view<float> x, std::size_t heads, cudaStream_t stream) {
    if (x.rows() == 0 || pairs == 0) return cudaSuccess;
    return device::gpu::launch(rotate_heads<256>, dim3(static_cast<unsigned>(x.rows())), dim3(256), 0, stream, angles, pairs,
                               x.data(), x.stride(), static_cast<int>(heads), static_cast<int>(x.cols() / heads));
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
