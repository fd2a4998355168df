#pragma once
/// Sums and maxima over the lanes of a warp, in an order that never changes.
#include "frugal/device/cuda/portable.cuh"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// The sum over lanes that differ from this one in bits `Least` … `Most / 2` of their number; every lane gets it.
template <int Least = 1, int Most = warp_size>
FRUGAL_DEVICE float lane_sum(float value) {
    FRUGAL_UNROLL
    for (int offset = Most / 2; offset >= Least; offset /= 2) value += __shfl_xor_sync(full_warp, value, offset);
    return value;
}

template <int Least = 1, int Most = warp_size>
FRUGAL_DEVICE float lane_max(float value) {
    FRUGAL_UNROLL
    for (int offset = Most / 2; offset >= Least; offset /= 2) value = fmaxf(value, __shfl_xor_sync(full_warp, value, offset));
    return value;
}

/// The sum over this lane and those before it.
template <class Integer>
FRUGAL_DEVICE Integer lane_prefix_sum(Integer value) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    FRUGAL_UNROLL
    for (int offset = 1; offset < warp_size; offset *= 2) {
        const Integer other = __shfl_up_sync(full_warp, value, static_cast<unsigned>(offset));
        if (lane >= offset) value += other;
    }
    return value;
}

template <int Threads>
struct block_sum_shared {
    float partial[Threads / warp_size];
};

/// The sum over the block's threads, in the order of warps; every thread gets it. Has two barriers: all threads must come here,
/// and the room may be used again at once.
template <int Threads>
FRUGAL_DEVICE float block_sum(float value, block_sum_shared<Threads>& room) {
    static_assert(Threads % warp_size == 0, "frugal: blocks have whole warps");
    const int thread = static_cast<int>(threadIdx.x);
    value = lane_sum(value);
    if constexpr (Threads > warp_size) {
        if (thread % warp_size == 0) room.partial[thread / warp_size] = value;
        __syncthreads();
        value = 0.0f;
        FRUGAL_UNROLL
        for (int w = 0; w < Threads / warp_size; ++w) value += room.partial[w];
        __syncthreads();
    }
    return value;
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
