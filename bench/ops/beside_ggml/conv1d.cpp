// The causal convolution of a Gated DeltaNet layer over 512 tokens, as ggml's operator alone and as llama.cpp's graph has it.
#include <cmath>
#include <memory>
#include <utility>

#include "convolution.hpp"
#include "operators.hpp"
#include "prepared_graph.hpp"

namespace bench {

namespace {

constexpr std::size_t channels = 8192, kernel = 4, tokens = 512;

template <class Isa>
struct our_convolution : convolution<Isa, channels, 1> {
    our_convolution() : convolution<Isa, channels, 1>(tokens) {}
    [[nodiscard]] std::vector<float> result() const { return {this->y.span().begin(), this->y.span().end()}; }
};

/// [channels, taps + tokens - 1] with time fastest, as ggml's operator wants it.
std::vector<float> by_channel(const std::vector<float>& x) {
    const std::size_t width = tokens + kernel - 1;
    std::vector<float> out(channels * width);
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t c = 0; c < channels; ++c) out[c * width + kernel - 1 + t] = x[t * channels + c];
    return out;
}

/// The operator alone leaves out the activation, which is added here to compare.
struct operator_alone : peer::prepared_graph {
    using peer::prepared_graph::prepared_graph;
    [[nodiscard]] std::vector<float> result() const {
        std::vector<float> out = peer::prepared_graph::result();
        for (float& each : out) each /= 1 + std::exp(-each);
        return out;
    }
};

}  // namespace

fg::status measure_conv1d(contests& all) {
    // Zeros before the first token.
    const std::vector<float> x = normal(tokens * channels, 1), w = normal(channels * kernel, 2, 0.5f);
    contest out;
    out.figure = "conv1d";
    out.op = "conv1d";
    out.format = "f32";
    out.shape = fg::concat(tokens, 'x', channels, 'x', kernel);
    out.threads = executor().concurrency();
    out.bound = bound::updating;
    out.cost = {float_bytes(2 * x.size()), 0};
    out.checked = sample(x.size(), 1009);
    for (const std::size_t i : out.checked) {
        const std::size_t t = i / channels, c = i % channels;
        double sum = 0;
        for (std::size_t back = 0; back < kernel && back <= t; ++back)
            sum += static_cast<double>(w[c * kernel + kernel - 1 - back]) * static_cast<double>(x[i - back * channels]);
        out.want.push_back(sum / (1 + std::exp(-sum)));
    }
    constexpr double tolerance = 1e-4;
    const auto enter_ours = [&](contest& to) {
        for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
            to.enter(std::string(Isa::name), true, std::make_shared<our_convolution<Isa>>(), tolerance);
        });
    };
    contest layer = out;
    enter_ours(out);
    if (all.peer() == nullptr) return all.hold(std::move(out));
    const peer::ggml& g = *all.peer();
    {
        const auto theirs = std::make_shared<operator_alone>(g, 16, out.threads);
        const auto result = g.ggml_ssm_conv(theirs->context(), theirs->input({tokens + kernel - 1, channels, 1}, by_channel(x)),
                                            theirs->input({kernel, channels}, w));
        theirs->expand(result);
        FRUGAL_TRY(theirs->allocate(result, x.size()));
        out.enter("ssm_conv", false, theirs, tolerance);
        FRUGAL_TRY(all.hold(std::move(out)));
    }
    layer.figure = "conv1d.layer";
    layer.op = "conv1d as in a graph";
    enter_ours(layer);
    const auto theirs = std::make_shared<peer::prepared_graph>(g, 32, layer.threads);
    peer::ggml_context* const c = theirs->context();
    const auto history = theirs->input({kernel - 1, channels, 1}, std::vector<float>((kernel - 1) * channels));
    const auto transposed = g.ggml_permute(c, theirs->input({channels, tokens, 1}, x), 1, 0, 2, 3);
    const auto joined = g.ggml_concat(c, history, transposed, 0);
    const std::size_t row = (tokens + kernel - 1) * sizeof(float);
    const auto newest = theirs->view(joined, kernel - 1, channels, 1, row, row * channels, tokens * sizeof(float));
    const auto result = g.ggml_silu(c, g.ggml_ssm_conv(c, joined, theirs->input({kernel, channels}, w)));
    theirs->expand(result);
    theirs->expand(g.ggml_cpy(c, newest, theirs->empty(peer::f32, {kernel - 1, channels, 1})));
    FRUGAL_TRY(theirs->allocate(result, x.size()));
    layer.enter("concat, conv, silu", false, theirs, tolerance);
    return all.hold(std::move(layer));
}

}  // namespace bench
