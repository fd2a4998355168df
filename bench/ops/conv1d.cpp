// Causal depthwise convolution of 8192 channels with four taps, as a Gated DeltaNet layer runs it.
#include "frugal/ops/conv1d/conv1d.hpp"
#include "bench.hpp"
#include "frugal/ops/activation/activation.hpp"

namespace bench {

namespace {

template <class Isa>
struct convolution {
    static constexpr std::size_t channels = 8192, kernel = 4;
    explicit convolution(std::size_t count)
        : tokens(count),
          x(normal(count * channels, 1)),
          w(normal(channels * kernel, 2, 0.5f)),
          state((kernel - 1) * channels),
          y(x.size()) {}

    fg::status run() {
        return fg::ops::causal_conv1d<fg::ops::activation::silu>(device, as_matrix(std::as_const(x), tokens), w, kernel, 1,
                                                                 as_matrix(state, kernel - 1), as_matrix(y, tokens));
    }

    // The first run starts from a history of zeros.
    std::string check() const {
        std::vector<double> want(y.size());
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t c = 0; c < channels; ++c) {
                double sum = 0;
                for (std::size_t k = 0; k < kernel; ++k)
                    if (t + k + 1 >= kernel)
                        sum +=
                            static_cast<double>(w[c * kernel + k]) * static_cast<double>(x[(t + k + 1 - kernel) * channels + c]);
                want[t * channels + c] = sum / (1 + std::exp(-sum));
            }
        return compare(y, want, 1e-5);
    }

    work cost() const {
        return {float_bytes(x.size() + y.size() + w.size() + 2 * state.size()), static_cast<double>((2 * kernel + 4) * x.size())};
    }

    std::size_t tokens;
    std::vector<float> x, w, state, y;
    fg::device::cpu<Isa> device{executor()};
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t tokens : {std::size_t{1}, std::size_t{512}})
            add_case<convolution<Isa>>(name("conv1d", "f32", Isa::name, fg::concat(tokens, "x8192x4")), Isa::name, tokens);
    });
}

}  // namespace bench
