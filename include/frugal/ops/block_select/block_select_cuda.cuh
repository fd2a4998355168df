#pragma once
/// Choice of the best blocks of a query on a GPU, by the rule of ops/block_select/block_select.hpp.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/transpose_sum.cuh"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/attention/attention_cuda.cuh"
#include "frugal/ops/block_select/best_scores_cuda.cuh"
#include "frugal/ops/block_select/block_select_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int score_warps = 4;
inline constexpr int score_heads = 8;       ///< that a warp takes at once, of four blocks
inline constexpr int score_most_dim = 256;  ///< features of an indexer head, at most

FRUGAL_DEVICE float block_feature(const float* key, int i) { return feature_at(key, i); }
FRUGAL_DEVICE float block_feature(const half* key, int i) { return feature_at(key, i); }
FRUGAL_DEVICE float block_feature(const bfloat16* key, int i) { return feature_at(key, i); }
FRUGAL_DEVICE float block_feature(const std::int8_t* key, int i) { return static_cast<float>(key[i]); }

/// scores[row][b] = sum over heads of max(0, q[h] . key[b]) / divisor. A warp takes four blocks. Features: of a head, as many
/// for each of 32 lanes. Grid: [blocks / (4 * score_warps), rounded up; rows].
template <class Scalar, int Features>
__global__ void __launch_bounds__(32 * score_warps, 1)
    score_block_keys(const float* __restrict__ q, std::size_t q_stride, int heads, int dim, float divisor,
                     const select_row<Scalar>* __restrict__ rows, float* __restrict__ scores, std::size_t scores_stride) {
    constexpr int at_once = 32 / score_heads;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const select_row<Scalar>& row = rows[blockIdx.y];
    const std::uint32_t first = (blockIdx.x * score_warps + static_cast<unsigned>(warp)) * at_once;
    if (first >= row.complete) return;  // whole warps leave; there is no block barrier below
    const auto place = [&](std::uint32_t block) { return block & ((std::uint32_t{1} << row.blocks.chunk_shift) - 1); };

    float keys[at_once][Features];
    FRUGAL_UNROLL
    for (int b = 0; b < at_once; ++b) {
        const std::uint32_t block = (min)(first + static_cast<std::uint32_t>(b), row.complete - 1);
        const Scalar* const key = row.blocks.keys[block >> row.blocks.chunk_shift] + place(block) * row.blocks.stride;
        FRUGAL_UNROLL
        for (int i = 0; i < Features; ++i) keys[b][i] = lane + 32 * i < dim ? block_feature(key, lane + 32 * i) : 0.0f;
    }
    const float* const queries = q + blockIdx.y * q_stride;
    float sum = 0.0f;  // of this lane's block, over the heads whose number leaves the rest lane % score_heads
    for (int first_head = 0; first_head < heads; first_head += score_heads) {
        float dots[32];
        FRUGAL_UNROLL
        for (int h = 0; h < score_heads; ++h) {
            const bool inside = first_head + h < heads;
            float features[Features];
            FRUGAL_UNROLL
            for (int i = 0; i < Features; ++i)
                features[i] = inside && lane + 32 * i < dim
                                  ? __ldg(queries + static_cast<std::size_t>(first_head + h) * static_cast<std::size_t>(dim) +
                                          static_cast<std::size_t>(lane + 32 * i))
                                  : 0.0f;
            FRUGAL_UNROLL
            for (int b = 0; b < at_once; ++b) {
                float dot = 0.0f;
                FRUGAL_UNROLL
                for (int i = 0; i < Features; ++i) dot = fmaf(features[i], keys[b][i], dot);
                dots[b * score_heads + h] = dot;
            }
        }
        const float dot = device::gpu::transpose_sum(dots);
        if (first_head + lane % score_heads < heads) sum += dot < 0.0f ? 0.0f : dot;  // so written, NaN stays NaN
    }
    sum = device::gpu::lane_sum<1, score_heads>(sum);
    const std::uint32_t block = first + static_cast<std::uint32_t>(lane / score_heads);
    if (lane % score_heads != 0 || block >= row.complete) return;
    if constexpr (std::is_same_v<Scalar, std::int8_t>) sum *= row.blocks.scales[block >> row.blocks.chunk_shift][place(block)];
    scores[blockIdx.y * scores_stride + block] = sum / divisor;
}

/// The first of select_blocks' two steps where few rows choose from many blocks: of each segment of a row's scores the best
/// `top`, ascending. Rows of one segment are left out. Grid: [segments, rows]; candidates: [rows][segments][top].
template <class Scalar, int Threads>
__global__ void __launch_bounds__(Threads)
    choose_in_segments(const float* __restrict__ scores, std::size_t scores_stride, const select_row<Scalar>* __restrict__ rows,
                       int top, int segment, std::uint32_t* __restrict__ candidates) {
    auto& shared = device::gpu::block_shared<choice_shared<Threads>>();
    const std::uint32_t n = rows[blockIdx.y].complete, length = static_cast<std::uint32_t>(segment);
    const std::uint32_t begin = blockIdx.x * length;
    if (n <= length || begin >= n) return;  // the whole block leaves
    std::uint32_t* const out =
        candidates + (static_cast<std::size_t>(blockIdx.y) * gridDim.x + blockIdx.x) * static_cast<std::size_t>(top);
    choose_best<Threads>(
        shared, scores + blockIdx.y * scores_stride, (min)(length, n - begin), static_cast<std::uint32_t>(top),
        [&](std::uint32_t i) { return begin + i; }, out);
}

/// Indices of the best min(top, complete) scores of each row, ascending. One block a row. Where a row has more than one segment
/// and there are candidates, these alone are looked at: every full segment has left `top` of them, so they lie side by side, and
/// as they ascend, ties are broken as among all.
template <class Scalar, int Threads>
__global__ void __launch_bounds__(Threads)
    choose_blocks(const float* __restrict__ scores, std::size_t scores_stride, const select_row<Scalar>* __restrict__ rows,
                  int top, int segment, int segments, const std::uint32_t* __restrict__ candidates,
                  std::uint32_t* __restrict__ chosen, std::uint32_t* __restrict__ counts) {
    auto& shared = device::gpu::block_shared<choice_shared<Threads>>();
    const std::uint32_t n = rows[blockIdx.x].complete, wanted = static_cast<std::uint32_t>(top),
                        length = static_cast<std::uint32_t>(segment);
    std::uint32_t* const out = chosen + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(top);
    if (threadIdx.x == 0) counts[blockIdx.x] = (min)(n, wanted);
    const float* const own = scores + blockIdx.x * scores_stride;
    if (candidates == nullptr || n <= length) {
        choose_best<Threads>(
            shared, own, n, wanted, [](std::uint32_t i) { return i; }, out);
        return;
    }
    const std::uint32_t* const from =
        candidates + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(segments) * static_cast<std::size_t>(top);
    choose_best<Threads>(
        shared, own, n / length * wanted + (min)(wanted, n % length), wanted, [&](std::uint32_t i) { return from[i]; }, out);
}

template <class Scalar>
cudaError_t select_blocks(matrix_view<const float> q, std::size_t heads, const select_row<Scalar>* rows, std::size_t complete,
                          std::size_t top, float* scores, std::uint32_t* candidates, std::uint32_t* chosen, std::uint32_t* counts,
                          cudaStream_t stream) {
    const std::size_t dim = q.cols() / heads;
    if (q.rows() == 0) return cudaSuccess;
    if (dim > static_cast<std::size_t>(score_most_dim)) return cudaErrorInvalidValue;
    if (complete > top && top != 0) {
        constexpr std::size_t a_block = score_warps * 32 / score_heads;
        const dim3 grid(static_cast<unsigned>((complete + a_block - 1) / a_block), static_cast<unsigned>(q.rows()));
        const auto start = [&](auto kernel) {
            return device::gpu::launch(kernel, grid, dim3(32 * score_warps), 0, stream, q.data(), q.stride(),
                                       static_cast<int>(heads), static_cast<int>(dim), std::sqrt(static_cast<float>(dim)), rows,
                                       scores, complete);
        };
        const cudaError_t started = dim <= 128 ? start(score_block_keys<Scalar, 4>) : start(score_block_keys<Scalar, 8>);
        if (started != cudaSuccess) return started;
    }
    constexpr unsigned threads = 512;
    const auto rows_count = static_cast<unsigned>(q.rows());
    const std::size_t segments = select_segments(q.rows(), complete, top);
    if (segments != 0) {
        const cudaError_t started = device::gpu::launch(
            choose_in_segments<Scalar, threads>, dim3(static_cast<unsigned>(segments), rows_count), dim3(threads), 0, stream,
            scores, complete, rows, static_cast<int>(top), static_cast<int>(select_segment), candidates);
        if (started != cudaSuccess) return started;
    }
    return device::gpu::launch(choose_blocks<Scalar, threads>, dim3(rows_count), dim3(threads), 0, stream, scores, complete, rows,
                               static_cast<int>(top), static_cast<int>(select_segment), static_cast<int>(segments),
                               segments != 0 ? candidates : nullptr, chosen, counts);
}

/// Grid: [tokens of a list / Threads, rounded up; rows].
template <class Scalar, int Threads>
__global__ void __launch_bounds__(Threads)
    list_tokens(const std::uint32_t* __restrict__ chosen, const std::uint32_t* __restrict__ counts, int top, std::uint32_t ratio,
                const std::uint32_t* __restrict__ complete, const std::uint32_t* __restrict__ visible,
                std::uint32_t* __restrict__ lists, std::uint32_t list_stride, split_row<Scalar>* __restrict__ rows) {
    const std::size_t row = blockIdx.y;
    const std::uint32_t blocks = counts[row], tail = visible[row] - complete[row] * ratio, all = blocks * ratio + tail;
    std::uint32_t* const list = lists + row * list_stride;
    const std::uint32_t i = blockIdx.x * Threads + threadIdx.x;
    if (i == 0) {
        rows[row].list = list;
        rows[row].visible = all;
    }
    if (i < blocks * ratio)
        list[i] = chosen[row * static_cast<std::size_t>(top) + i / ratio] * ratio + i % ratio;
    else if (i < all)
        list[i] = complete[row] * ratio + (i - blocks * ratio);
}

template <class Scalar>
cudaError_t attend_chosen(const std::uint32_t* chosen, const std::uint32_t* counts, std::size_t top, std::size_t ratio,
                          const std::uint32_t* complete, const std::uint32_t* visible, std::size_t rows_count,
                          std::uint32_t* lists, split_row<Scalar>* rows, cudaStream_t stream) {
    constexpr unsigned threads = 256;
    const std::size_t most = top * ratio + ratio - 1;
    if (rows_count == 0 || most == 0) return cudaSuccess;
    return device::gpu::launch(list_tokens<Scalar, threads>,
                               dim3(static_cast<unsigned>((most + threads - 1) / threads), static_cast<unsigned>(rows_count)),
                               dim3(threads), 0, stream, chosen, counts, static_cast<int>(top), static_cast<std::uint32_t>(ratio),
                               complete, visible, lists, static_cast<std::uint32_t>(most), rows);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
