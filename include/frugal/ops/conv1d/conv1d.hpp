#pragma once
/// Causal depthwise convolution over time with a carried history, as Gated DeltaNet layers and n-gram embeddings use it.
#include <cstddef>
#include <limits>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/conv1d/conv1d_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// y[t][c] = Activation(sum over k of w[c][k] * x[t - (kernel - 1 - k) * dilation][c]) for one sequence, where rows before
/// the first are the history in `state`.
/// x, y: [tokens, channels]; w: [channels][kernel], oldest tap first; state: [(kernel - 1) * dilation, channels], oldest row
/// first, raw inputs (before weights and activation), replaced by the newest ones. A sequence without history has a state of
/// zeros. The same bits for any split of the tokens into calls and any number of threads. x and y must not overlap; no tokens
/// change nothing. Errors: invalid_argument (kernel 0; dilation 0), shape_mismatch.
template <class Activation, device::cpu_target Device>
[[nodiscard]] status causal_conv1d(Device& dev, std::span<const float> w, matrix_view<const float> x, std::size_t kernel,
                                   std::size_t dilation, matrix_view<float> state, matrix_view<float> y) {
    FRUGAL_REQUIRE_ACTIVATION(Activation);
    if (kernel == 0 || (kernel > 1 && dilation == 0))
        return fail(errc::invalid_argument, "convolution with kernel ", kernel, " and dilation ", dilation);
    if (kernel > 1 && dilation > (std::numeric_limits<std::size_t>::max)() / (kernel - 1))
        return fail(errc::invalid_argument, "convolution with kernel ", kernel, " and dilation ", dilation,
                    " reaches too far back");
    const std::size_t channels = x.cols();
    if (y.rows() != x.rows() || y.cols() != channels)
        return fail(errc::shape_mismatch, "convolution of [", x.rows(), ", ", channels, "] into [", y.rows(), ", ", y.cols(),
                    "]");
    if (w.size() % kernel != 0 || w.size() / kernel != channels)
        return fail(errc::shape_mismatch, "convolution of ", channels, " channels with ", w.size(), " weights for kernel ",
                    kernel);
    const std::size_t history = (kernel - 1) * dilation;
    if (state.rows() != history || (history != 0 && state.cols() != channels))
        return fail(errc::shape_mismatch, "convolution state is [", state.rows(), ", ", state.cols(), "], not [", history, ", ",
                    channels, "]");
    if (x.rows() == 0 || channels == 0) return {};
    const std::size_t tiles = (channels + ops::cpu::conv1d_tile - 1) / ops::cpu::conv1d_tile;
    const std::size_t work =
        x.rows() * ops::cpu::conv1d_tile * (kernel / 2 + 8);  // taps stay in registers, the activation counts
    dev.run_ranges(tiles, device::grain(work), [&](std::size_t begin, std::size_t end) {
        const std::size_t last = end * ops::cpu::conv1d_tile;
        ops::cpu::causal_conv1d_channels<typename Device::isa, Activation>(
            x, w.data(), kernel, dilation, state, y, begin * ops::cpu::conv1d_tile, last < channels ? last : channels);
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
