#pragma once
/// The choice of the next token on a GPU, as ops::greedy and ops::sampler make it.
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

/// The id of the greatest logit, or -1 where ops::greedy has an error. All threads of a block learn it.
template <int Threads>
FRUGAL_DEVICE std::int32_t greatest_logit(greedy_shared<Threads>& shared, const float* __restrict__ logits, int tokens) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    unsigned long long best = 0;
    bool bad = false;
    for (int i = thread; i < tokens; i += Threads) {
        const float logit = logits[i];
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
    int all_bad = 0;
    for (int w = 0; w < Threads / 32; ++w) {
        if (shared.best[w] > best) best = shared.best[w];
        all_bad |= shared.bad[w];
    }
    return all_bad != 0 || best == 0 ? -1 : static_cast<std::int32_t>(~static_cast<unsigned>(best & 0xFFFFFFFFu));
}

/// One block a row.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    choose_greatest(const float* __restrict__ logits, std::size_t stride, int tokens, std::int32_t* __restrict__ chosen) {
    auto& shared = device::gpu::block_shared<greedy_shared<Threads>>();
    const std::int32_t best = greatest_logit(shared, logits + blockIdx.x * stride, tokens);
    if (threadIdx.x == 0) chosen[blockIdx.x] = best;
}

template <int Threads>
struct sample_shared {
    greedy_shared<Threads> greedy;
    choice_shared<Threads> choice;
    std::uint32_t listed[sample_most], token[sample_most];  ///< ascending; the most probable first
    unsigned score[sample_most];                            ///< of those listed
    double listed_weight[sample_most], weight[sample_most];
};

/// One block a row.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    draw_token(const float* __restrict__ logits, std::size_t stride, int tokens, const sampling_draw* __restrict__ draws,
               std::int32_t* __restrict__ chosen) {
    auto& shared = device::gpu::block_shared<sample_shared<Threads>>();
    const float* const own = logits + blockIdx.x * stride;
    const sampling_draw draw = draws[blockIdx.x];
    const std::int32_t best = greatest_logit(shared.greedy, own, tokens);
    if (best < 0 || draw.temperature == 0.0f || draw.top_k == 0 || draw.top_k > sample_most) {
        if (threadIdx.x == 0) chosen[blockIdx.x] = draw.temperature == 0.0f ? best : -1;
        return;  // the whole block
    }
    const auto all = static_cast<std::uint32_t>(tokens);
    const std::uint32_t count = (min)(draw.top_k, all);
    choose_best<Threads>(
        shared.choice, own, all, count, [](std::uint32_t i) { return i; }, shared.listed);
    const double greatest = static_cast<double>(own[best]), temperature = static_cast<double>(draw.temperature);
    for (std::uint32_t i = threadIdx.x; i < count; i += Threads) {
        const float logit = own[shared.listed[i]];
        shared.score[i] = ordered_score(logit);
        shared.listed_weight[i] = exp((static_cast<double>(logit) - greatest) / temperature);
    }
    __syncthreads();  // their scores are known
    for (std::uint32_t i = threadIdx.x; i < count; i += Threads) {
        const unsigned mine = shared.score[i];
        std::uint32_t rank = 0;
        for (std::uint32_t j = 0; j < count; ++j) {
            const unsigned other = shared.score[j];
            rank += other > mine || (other == mine && j < i) ? 1u : 0u;
        }
        shared.token[rank] = shared.listed[i];
        shared.weight[rank] = shared.listed_weight[i];
    }
    __syncthreads();  // the candidates are ranked
    if (threadIdx.x != 0) return;
    const double* const summed = count < all ? shared.weight : shared.listed_weight;
    double total = 0;
    for (std::uint32_t i = 0; i < count; ++i) total += summed[i];
    std::uint32_t kept = count;
    if (draw.top_p < 1.0f) {
        const double share = static_cast<double>(draw.top_p) * total;
        total = 0;
        for (kept = 0; kept < count && (kept == 0 || total < share); ++kept) total += shared.weight[kept];
    }
    const double target = draw.uniform * total;
    double sum = 0;
    std::uint32_t possible = 0;
    for (std::uint32_t i = 0; i < kept && shared.weight[i] != 0; ++i) {
        possible = i;
        sum += shared.weight[i];
        if (target < sum) break;
    }
    chosen[blockIdx.x] = static_cast<std::int32_t>(shared.token[possible]);
}

template <class Unit>
cudaError_t greedy(matrix_view<const float> logits, std::int32_t* chosen, cudaStream_t stream) {
    constexpr unsigned threads = 1024;
    if (logits.rows() == 0) return cudaSuccess;
    return device::gpu::launch(choose_greatest<threads>, dim3(static_cast<unsigned>(logits.rows())), dim3(threads), 0, stream,
                               logits.data(), logits.stride(), static_cast<int>(logits.cols()), chosen);
}

template <class Unit>
cudaError_t sample(matrix_view<const float> logits, const sampling_draw* draws, std::int32_t* chosen, cudaStream_t stream) {
    constexpr unsigned threads = 1024;
    if (logits.rows() == 0) return cudaSuccess;
    return device::gpu::launch(draw_token<threads>, dim3(static_cast<unsigned>(logits.rows())), dim3(threads), 0, stream,
                               logits.data(), logits.stride(), static_cast<int>(logits.cols()), draws, chosen);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
