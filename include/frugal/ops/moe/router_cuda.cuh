#pragma once
/// The router of a mixture of experts on a GPU, as ops/moe/router.hpp defines it: one warp a token.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/moe/router_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int route_warps = 4;
inline constexpr int route_most = 16;  ///< experts of a lane, at most

/// Grid: rows / route_warps, rounded up. first_bad: the least row that holds a logit that is not finite, if it was greater
/// before.
template <int Experts>
__global__ void __launch_bounds__(32 * route_warps)
    route_rows(const float* __restrict__ logits, std::size_t stride, int rows, int experts, int top_k, bool renormalise,
               std::int32_t* __restrict__ index, float* __restrict__ weight, int* __restrict__ first_bad) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(blockIdx.x) * route_warps + static_cast<int>(threadIdx.x) / 32;
    if (row >= rows) return;  // whole warps leave; there is no block barrier below
    const float* const own = logits + static_cast<std::size_t>(row) * stride;
    float p[Experts];  // of experts lane, lane + 32, …
    bool finite = true;
    float greatest = -INFINITY;
    FRUGAL_UNROLL
    for (int i = 0; i < Experts; ++i) {
        p[i] = lane + 32 * i < experts ? own[lane + 32 * i] : -INFINITY;
        finite = finite && (lane + 32 * i >= experts || p[i] - p[i] == 0.0f);
        greatest = fmaxf(greatest, p[i]);
    }
    greatest = device::gpu::lane_max(greatest);
    if (__all_sync(device::gpu::full_warp, finite) == 0) {
        if (lane == 0) atomicMin(first_bad, row);
        finite = false;
    } else {
        finite = true;
    }
    float total = 0.0f;
    FRUGAL_UNROLL
    for (int i = 0; i < Experts; ++i) {
        p[i] = lane + 32 * i < experts ? expf(p[i] - greatest) : 0.0f;
        total += p[i];
    }
    total = device::gpu::lane_sum(total);
    FRUGAL_UNROLL
    for (int i = 0; i < Experts; ++i) p[i] /= total;
    float sum = 0.0f;
    std::int32_t* const out_index = index + static_cast<std::size_t>(row) * static_cast<std::size_t>(top_k);
    float* const out_weight = weight + static_cast<std::size_t>(row) * static_cast<std::size_t>(top_k);
    for (int k = 0; k < top_k; ++k) {
        // Probabilities order like their bits; among equals the lower expert is the greater number.
        unsigned long long best = 0;
        FRUGAL_UNROLL
        for (int i = 0; i < Experts; ++i) {
            const int expert = lane + 32 * i;
            if (expert >= experts || !(p[i] >= 0.0f)) continue;
            const unsigned long long ranked = static_cast<unsigned long long>(__float_as_uint(p[i])) << 32 |
                                              static_cast<unsigned>(~static_cast<unsigned>(expert));
            if (ranked > best) best = ranked;
        }
        FRUGAL_UNROLL
        for (int offset = 16; offset > 0; offset /= 2) {
            const unsigned long long other = __shfl_xor_sync(device::gpu::full_warp, best, offset);
            if (other > best) best = other;
        }
        const auto expert = finite ? static_cast<int>(~static_cast<unsigned>(best & 0xFFFFFFFFu)) : 0;
        const float chosen = finite ? __uint_as_float(static_cast<unsigned>(best >> 32)) : NAN;
        FRUGAL_UNROLL
        for (int i = 0; i < Experts; ++i)
            if (lane + 32 * i == expert) p[i] = -1.0f;  // taken
        sum += chosen;
        if (lane == 0) {
            out_index[k] = expert;
            out_weight[k] = chosen;
        }
    }
    if (!renormalise) return;
    __syncwarp();  // every weight is written
    for (int k = lane; k < top_k; k += 32) out_weight[k] /= sum;
}

template <class Unit>
cudaError_t route(matrix_view<const float> logits, std::size_t top_k, bool renormalise, std::int32_t* index, float* weight,
                  int* first_bad, cudaStream_t stream) {
    const std::size_t experts = logits.cols();
    if (top_k == 0 || top_k > experts || experts > 32 * static_cast<std::size_t>(route_most)) return cudaErrorInvalidValue;
    if (logits.rows() == 0) return cudaSuccess;
    const auto start = [&](auto kernel) {
        return device::gpu::launch(kernel, dim3(static_cast<unsigned>((logits.rows() + route_warps - 1) / route_warps)),
                                   dim3(32 * route_warps), 0, stream, logits.data(), logits.stride(),
                                   static_cast<int>(logits.rows()), static_cast<int>(experts), static_cast<int>(top_k),
                                   renormalise, index, weight, first_bad);
    };
    if (experts <= 128) return start(route_rows<4>);
    return start(route_rows<route_most>);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
