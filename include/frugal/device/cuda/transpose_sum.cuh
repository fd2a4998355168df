#pragma once
/// Sums of many values over the lanes of a warp at once.
#include "frugal/device/cuda/portable.cuh"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

namespace detail {
/// A lane keeps the lower or the upper Half of its values, by that bit of its number, and gets the other lane's share of them.
template <int Half>
FRUGAL_DEVICE void transpose_step(float (&values)[warp_size], int lane) {
    const bool upper = (lane & Half) != 0;
    FRUGAL_UNROLL
    for (int i = 0; i < Half; ++i) {
        const float kept = upper ? values[i + Half] : values[i], given = upper ? values[i] : values[i + Half];
        values[i] = kept + __shfl_xor_sync(full_warp, given, Half);
    }
    if constexpr (Half > 1) transpose_step<Half / 2>(values, lane);
}
}  // namespace detail

/// Each lane has 32 values. Lane l gets the sum over all lanes of value l, for 31 shuffles where one sum after the other takes
/// 160: at every step a lane gives half of its values away. `values` is used up.
FRUGAL_DEVICE float transpose_sum(float (&values)[warp_size]) {
    detail::transpose_step<warp_size / 2>(values, static_cast<int>(threadIdx.x) % warp_size);
    return values[0];
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
