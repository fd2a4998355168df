#pragma once
/// The best of many scores on a GPU: by one block, with the rule of ops/block_select/block_select.hpp.
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/warp.cuh"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// An integer that orders scores: the higher one first, -0 equals 0, NaN lowest.
FRUGAL_DEVICE unsigned ordered_score(float score) {
    const unsigned bits = __float_as_uint(score), magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return 0;
    if (magnitude == 0) return 0x80000000u;
    return bits > magnitude ? ~bits : bits | 0x80000000u;
}

template <int Threads>
struct choice_shared {
    unsigned histogram[256];
    unsigned prefix, wanted;
    unsigned above[Threads / 32], equal[Threads / 32];
};

/// Writes the indices of the best `wanted` of n scores, or all if there are no more: in the order that they are listed in, and
/// of equal scores the ones listed first. at(i): the index of the i-th. A radix search for the least score that is taken, by all
/// threads of a block; a thread then sees those places of `out` that are its own: threadIdx.x + a multiple of Threads.
template <int Threads, class At>
FRUGAL_DEVICE void choose_best(choice_shared<Threads>& shared, const float* __restrict__ scores, std::uint32_t n,
                               std::uint32_t wanted_all, const At& at, std::uint32_t* __restrict__ out) {
    static_assert(Threads >= 256 && Threads % 32 == 0, "frugal: a block has a thread for each digit");
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    if (n <= wanted_all) {  // all of them; the whole block leaves
        for (std::uint32_t i = threadIdx.x; i < n; i += Threads) out[i] = at(i);
        return;
    }
    if (wanted_all == 0) return;
    if (thread == 0) {
        shared.prefix = 0;
        shared.wanted = wanted_all;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {  // the threshold, one byte a round
        if (thread < 256) shared.histogram[thread] = 0;
        __syncthreads();
        const unsigned prefix = shared.prefix;
        for (std::uint32_t i = threadIdx.x; i < n; i += Threads) {
            const unsigned key = ordered_score(scores[at(i)]);
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
        const unsigned key = i < n ? ordered_score(scores[at(i)]) : 0;
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
        if (above || (equal && equal_here < ties)) out[above_here + (min)(equal_here, ties)] = at(i);
        __syncthreads();
    }
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
