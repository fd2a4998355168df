#pragma once
// The convolution that Gated DeltaNet layers and n-gram embeddings run, as a benchmark.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/tensor/buffer.hpp"

namespace bench {

/// Causal depthwise convolution with four taps, `Dilation` tokens apart, and SiLU behind it.
template <class Isa, std::size_t Channels, std::size_t Dilation>
struct convolution {
    static constexpr std::size_t channels = Channels, kernel = 4, dilation = Dilation, history = (kernel - 1) * dilation;
    explicit convolution(std::size_t count)
        : tokens(count),
          w(normal(channels * kernel, 2, 0.5f)),
          state(history * channels),
          x(*fg::buffer<float>::allocate(count * channels)),
          y(*fg::buffer<float>::allocate(count * channels)) {
        std::ranges::copy(normal(x.size(), 1), x.data());
    }

    fg::status run() {
        return fg::ops::causal_conv1d<fg::ops::activation::silu>(device, w, {x.data(), tokens, channels}, kernel, dilation,
                                                                 as_matrix(state, history), {y.data(), tokens, channels});
    }

    // The first run starts from a history of zeros.
    std::string check() const {
        std::vector<double> want(y.size());
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t c = 0; c < channels; ++c) {
                double sum = 0;
                for (std::size_t back = 0; back < kernel && back * dilation <= t; ++back)
                    sum += static_cast<double>(w[c * kernel + kernel - 1 - back]) *
                           static_cast<double>(x[(t - back * dilation) * channels + c]);
                want[t * channels + c] = sum / (1 + std::exp(-sum));
            }
        return compare(y.span(), want, 1e-5);
    }

    work cost() const {
        return {float_bytes(x.size() + y.size() + w.size() + 2 * state.size()), static_cast<double>((2 * kernel + 4) * x.size())};
    }

    std::size_t tokens;
    std::vector<float> w, state;
    fg::buffer<float> x, y;  // as the library's own activations lie
    fg::device::cpu<Isa> device{executor()};
};

}  // namespace bench
