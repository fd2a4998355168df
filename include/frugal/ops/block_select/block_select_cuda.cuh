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
#include "frugal/ops/block_select/block_select_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// An integer that orders scores: the higher one first, -0 equals 0, NaN lowest.
FRUGAL_DEVICE unsigned ordered_score(float score) {
    const unsigned bits = __float_as_uint(score), magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return 0;
    if (magnitude == 0) return 0x80000000u;
    return bits > magnitude ? ~bits : bits | 0x80000000u;
}

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
        const std::uint32_t block = min(first + static_cast<std::uint32_t>(b), row.complete - 1);
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

template <int Threads>
struct select_shared {
    unsigned histogram[256];
    unsigned prefix, wanted;
    unsigned above[Threads / 32], equal[Threads / 32];
};

/// Indices of the best min(top, complete) scores of each row, ascending, by a radix search for the least score that is taken.
/// One block a row.
template <class Scalar, int Threads>
__global__ void __launch_bounds__(Threads)
    choose_blocks(const float* __restrict__ scores, std::size_t scores_stride, const select_row<Scalar>* __restrict__ rows,
                  int top, std::uint32_t* __restrict__ chosen, std::uint32_t* __restrict__ counts) {
    static_assert(Threads >= 256 && Threads % 32 == 0, "frugal: a block has a thread for each digit");
    auto& shared = device::gpu::block_shared<select_shared<Threads>>();
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const std::uint32_t n = rows[blockIdx.x].complete, wanted_all = static_cast<std::uint32_t>(top);
    std::uint32_t* const out = chosen + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(top);
    if (thread == 0) counts[blockIdx.x] = min(n, wanted_all);
    if (n <= wanted_all) {  // all of them: none is scored; the whole block leaves
        for (std::uint32_t i = threadIdx.x; i < n; i += Threads) out[i] = i;
        return;
    }
    if (wanted_all == 0) return;
    const float* const own = scores + blockIdx.x * scores_stride;
    if (thread == 0) {
        shared.prefix = 0;
        shared.wanted = wanted_all;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {  // the threshold, one byte a round
        if (thread < 256) shared.histogram[thread] = 0;
        __syncthreads();
        const unsigned prefix = shared.prefix;
        for (std::uint32_t i = threadIdx.x; i < n; i += Threads) {
            const unsigned key = ordered_score(own[i]);
            if (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&shared.histogram[key >> shift & 255u], 1u);
        }
        __syncthreads();
        if (warp == 0) {  // eight digits a lane, the highest digits in lane 0
            unsigned mine = 0;
            for (int j = 0; j < 8; ++j) mine += shared.histogram[255 - (lane * 8 + j)];
            unsigned before = device::gpu::lane_prefix_sum(mine) - mine;
            const unsigned wanted = shared.wanted;
            __syncwarp();  // all lanes have read it
            if (before < wanted && wanted <= before + mine) {
                unsigned digit = 255u - static_cast<unsigned>(lane) * 8;
                while (before + shared.histogram[digit] < wanted) before += shared.histogram[digit--];
                shared.prefix = prefix | digit << shift;
                shared.wanted = wanted - before;
            }
        }
        __syncthreads();
    }

    const unsigned threshold = shared.prefix, ties = shared.wanted;  // all above it, and the first `ties` that are equal
    unsigned above_before = 0, equal_before = 0;
    for (std::uint32_t base = 0; base < n; base += Threads) {
        const std::uint32_t i = base + threadIdx.x;
        const unsigned key = i < n ? ordered_score(own[i]) : 0;
        const bool above = i < n && key > threshold, equal = i < n && key == threshold;
        const unsigned above_lanes = __ballot_sync(device::gpu::full_warp, above);
        const unsigned equal_lanes = __ballot_sync(device::gpu::full_warp, equal);
        if (lane == 0) {
            shared.above[warp] = static_cast<unsigned>(__popc(above_lanes));
            shared.equal[warp] = static_cast<unsigned>(__popc(equal_lanes));
        }
        __syncthreads();
        unsigned above_here = above_before, equal_here = equal_before;
        for (int w = 0; w < Threads / 32; ++w) {
            if (w < warp) {
                above_here += shared.above[w];
                equal_here += shared.equal[w];
            }
            above_before += shared.above[w];
            equal_before += shared.equal[w];
        }
        const unsigned below = (1u << lane) - 1u;
        above_here += static_cast<unsigned>(__popc(above_lanes & below));
        equal_here += static_cast<unsigned>(__popc(equal_lanes & below));
        if (above || (equal && equal_here < ties)) out[above_here + min(equal_here, ties)] = i;
        __syncthreads();
    }
}

template <class Scalar>
cudaError_t select_blocks(matrix_view<const float> q, std::size_t heads, const select_row<Scalar>* rows, std::size_t complete,
                          std::size_t top, float* scores, std::uint32_t* chosen, std::uint32_t* counts, cudaStream_t stream) {
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
    return device::gpu::launch(choose_blocks<Scalar, threads>, dim3(static_cast<unsigned>(q.rows())), dim3(threads), 0, stream,
                               scores, complete, rows, static_cast<int>(top), chosen, counts);
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
