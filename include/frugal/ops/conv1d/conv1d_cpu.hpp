#pragma once
/// CPU kernel of the causal depthwise convolution: a range of channels over all tokens of one sequence.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// Channels that are worked on together. Ranges of causal_conv1d_channels begin at multiples of it.
inline constexpr std::size_t conv1d_tile = 64;

/// Channels channel_begin … channel_end - 1 of ops::causal_conv1d, outputs first, then the state.
template <class Isa, class Activation>
FRUGAL_KERNEL void causal_conv1d_channels(matrix_view<const float> x, const float* w, std::size_t kernel, std::size_t dilation,
                                          matrix_view<float> state, matrix_view<float> y, std::size_t channel_begin,
                                          std::size_t channel_end);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/conv1d/conv1d_cpu-inl.hpp"
#endif
