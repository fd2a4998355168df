#pragma once
/// Sums of many values over the lanes of a warp at once.
#include "frugal/device/cuda/portable.cuh"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// Each lane has 32 values. Lane l gets the sum over all lanes of value l, for 31 shuffles where one sum after the other takes
/// 160: at every step a lane keeps half of its values and gives the other half away. `values` is used up.
FRUGAL_DEVICE float transpose_sum(float (&values)[warp_size]) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    FRUGAL_UNROLL
    for (int half = warp_size / 2; half > 0; half /= 2) {
        const bool upper = (lane & half) != 0;
        FRUGAL_UNROLL
        for (int i = 0; i < half; ++i) {
            const float kept = upper ? values[i + half] : values[i], given = upper ? values[i] : values[i + half];
            values[i] = kept + __shfl_xor_sync(full_warp, given, half);
        }
    }
    return values[0];
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
