#pragma once
/// The choices of a batch by expert on a GPU: a counting sort by one block, a warp a part of the batch.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/products.hpp"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/moe/group_cuda.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

template <int Warps>
struct group_shared {
    int next[Warps][group_most];  ///< choices of an expert in a warp's part; later the place in `order` of the next of them
    int sums[3][Warps];           ///< over a warp's experts: choices, tiles of few, tiles of many
};

/// Tiles of one expert, whose choices begin at `first`.
FRUGAL_DEVICE void write_tiles(device::gpu::choice_tile* to, int size, int expert, int first, int count) {
    for (int i = 0; i * size < count; ++i) to[i] = {expert, first + i * size, (min)(size, count - i * size)};
}

/// One block; thread e has expert e. few_tiles, many_tiles: of the arrays of tiles.
template <int Warps>
__global__ void __launch_bounds__(32 * Warps) group_by_expert(const std::int32_t* __restrict__ index, int choices,
                                                              device::gpu::expert_groups out, int few_tiles, int many_tiles) {
    static_assert(32 * Warps == group_most, "frugal: an expert has a thread");
    constexpr int few = device::gpu::expert_groups::few, many = device::gpu::expert_groups::many;
    auto& shared = device::gpu::block_shared<group_shared<Warps>>();
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int part = (choices + 32 * Warps - 1) / (32 * Warps) * 32;  // whole groups of lanes
    const int begin = (min)(warp * part, choices), end = (min)(begin + part, choices);

    FRUGAL_UNROLL
    for (int w = 0; w < Warps; ++w) shared.next[w][thread] = 0;
    __syncthreads();  // all counts are zero
    for (int i = begin + lane; i < end; i += 32) atomicAdd(&shared.next[warp][index[i]], 1);
    __syncthreads();  // all choices are counted

    int count = 0;
    FRUGAL_UNROLL
    for (int w = 0; w < Warps; ++w) {  // a warp's choices of an expert follow those of the warps before it
        const int own = shared.next[w][thread];
        shared.next[w][thread] = count;
        count += own;
    }
    const int own[3] = {count, (count + few - 1) / few, (count + many - 1) / many};
    int first[3];
    FRUGAL_UNROLL
    for (int i = 0; i < 3; ++i) {
        first[i] = device::gpu::lane_prefix_sum(own[i]);
        if (lane == 31) shared.sums[i][warp] = first[i];
        first[i] -= own[i];
    }
    __syncthreads();  // sums are here
    int all[3];
    FRUGAL_UNROLL
    for (int i = 0; i < 3; ++i) {
        all[i] = 0;
        FRUGAL_UNROLL
        for (int w = 0; w < Warps; ++w) {
            if (w < warp) first[i] += shared.sums[i][w];
            all[i] += shared.sums[i][w];
        }
    }
    FRUGAL_UNROLL
    for (int w = 0; w < Warps; ++w) shared.next[w][thread] += first[0];
    write_tiles(out.of_few + first[1], few, thread, first[0], count);
    write_tiles(out.of_many + first[2], many, thread, first[0], count);
    for (int i = all[1] + thread; i < few_tiles; i += 32 * Warps) out.of_few[i] = {0, 0, 0};
    for (int i = all[2] + thread; i < many_tiles; i += 32 * Warps) out.of_many[i] = {0, 0, 0};
    __syncthreads();  // it is known where each warp's choices of an expert begin

    for (int base = begin; base < end; base += 32) {
        const bool present = base + lane < end;
        const int expert = present ? index[base + lane] : -1;
        const unsigned same = __match_any_sync(device::gpu::full_warp, expert);
        const int before = __popc(same & ((1u << lane) - 1u));
        if (present) out.order[shared.next[warp][expert] + before] = base + lane;
        __syncwarp();  // all lanes have read where
        if (present && before == 0) shared.next[warp][expert] += __popc(same);
        __syncwarp();
    }
}

template <class Unit>
cudaError_t group_choices(const std::int32_t* index, std::size_t choices, const device::gpu::expert_groups& out,
                          cudaStream_t stream) {
    using device::gpu::expert_groups;
    constexpr unsigned warps = group_most / 32;
    if (out.experts > group_most) return cudaErrorInvalidValue;
    if (choices == 0) return cudaSuccess;
    return device::gpu::launch(group_by_expert<warps>, dim3(1), dim3(32 * warps), 0, stream, index, choices, out,
                               expert_groups::most_tiles(choices, out.experts, expert_groups::few),
                               expert_groups::most_tiles(choices, out.experts, expert_groups::many));
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
