#pragma once
/// The greedy choice of the next token on a GPU, as ops::greedy makes it.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/ops/block_select/best_scores_cuda.cuh"
#include "frugal/ops/sampling/sampling_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

template <int Threads>
struct greedy_shared {
    unsigned long long best[Threads / 32];
    int bad[Threads / 32];
};

/// One block a row.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    choose_greatest(const float* __restrict__ logits, std::size_t stride, int tokens, std::int32_t* __restrict__ chosen) {
    auto& shared = device::gpu::block_shared<greedy_shared<Threads>>();
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const float* const own = logits + blockIdx.x * stride;
    unsigned long long best = 0;
    bool bad = false;
    for (int i = thread; i < tokens; i += Threads) {
        const float logit = own[i];
        bad = bad || !(logit < INFINITY);
        if (!(logit > -INFINITY)) continue;  // ruled out
        const unsigned long long ranked =
            static_cast<unsigned long long>(ordered_score(logit)) << 32 | static_cast<unsigned>(~static_cast<unsigned>(i));
        if (ranked > best) best = ranked;
    }
    FRUGAL_UNROLL
    for (int offset = 16; offset > 0; offset /= 2) {
        const unsigned long long other = __shfl_xor_sync(device::gpu::full_warp, best, offset);
        if (other > best) best = other;
    }
    const int any_bad = __any_sync(device::gpu::full_warp, bad);
    if (lane == 0) {
        shared.best[warp] = best;
        shared.bad[warp] = any_bad;
    }
    __syncthreads();
    if (thread != 0) return;
    for (int w = 1; w < Threads / 32; ++w) {
        if (shared.best[w] > best) best = shared.best[w];
        shared.bad[0] |= shared.bad[w];
    }
    chosen[blockIdx.x] =
        shared.bad[0] != 0 || best == 0 ? -1 : static_cast<std::int32_t>(~static_cast<unsigned>(best & 0xFFFFFFFFu));
}

template <class Unit>
cudaError_t greedy(matrix_view<const float> logits, std::int32_t* chosen, cudaStream_t stream) {
    constexpr unsigned threads = 1024;
    if (logits.rows() == 0) return cudaSuccess;
    return device::gpu::launch(choose_greatest<threads>, dim3(static_cast<unsigned>(logits.rows())), dim3(threads), 0, stream,
                               logits.data(), logits.stride(), static_cast<int>(logits.cols()), chosen);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
