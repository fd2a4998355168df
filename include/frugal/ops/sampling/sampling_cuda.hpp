#pragma once
/// The choice of the next token on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// As ops::greedy for every row of logits, on device memory: the token, or -1 where ops::greedy has an error.
template <class Unit = void>
[[nodiscard]] cudaError_t greedy(matrix_view<const float> logits, std::int32_t* chosen, cudaStream_t stream);

inline constexpr std::size_t sample_most = 1024;  ///< tokens that a draw is between

/// How one row draws: the options of ops::sampler but min-p, and a number of its generator in [0, 1).
struct sampling_draw {
    double uniform = 0;
    float temperature = 1.0f, top_p = 1.0f;
    std::uint32_t top_k = 0;  ///< from 1 to sample_most; with a temperature of 0 it does not matter
};

/// As ops::sampler::sample without min-p for every row of logits, on device memory: the token, or -1 where that has an error or
/// a draw's top_k is out of range. draws: [logits.rows()]. Sums are in double and in the sampler's order, so tokens are its
/// tokens as far as both sides' exp agree.
template <class Unit = void>
[[nodiscard]] cudaError_t sample(matrix_view<const float> logits, const sampling_draw* draws, std::int32_t* chosen,
                                 cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
