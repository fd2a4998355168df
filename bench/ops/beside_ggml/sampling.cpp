// Choice of a token from 248,320 logits. ggml has operators for the greatest and for the best k with their probabilities; to draw
// one of these is left out of its graph. (llama.cpp's own samplers are no part of ggml.)
#include "frugal/ops/sampling/sampling.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "operators.hpp"
#include "small_operator.hpp"

namespace bench {

namespace {

using peer::prepared_graph;
constexpr std::size_t vocabulary = 248320;
constexpr int best = 40;
constexpr float temperature = 0.8f;

/// The logit of the token whose number this is, bit for bit.
float logit_of(const std::vector<float>& logits, float token) {
    const auto at = static_cast<std::size_t>(std::bit_cast<std::uint32_t>(token));
    return at < logits.size() ? logits[at] : std::numeric_limits<float>::quiet_NaN();
}

auto our_sampler(const std::vector<float>& logits, const fg::ops::sampler& sampler) {
    return [&logits, own = sampler](auto&, fg::workspace&, std::vector<float>& y) mutable -> fg::status {
        FRUGAL_TRY_ASSIGN(const std::int64_t token, own.sample(logits));
        y[0] = std::bit_cast<float>(static_cast<std::int32_t>(token));
        return {};
    };
}

}  // namespace

fg::status measure_sampling(contests& all) {
    const std::vector<float> logits = normal(vocabulary, 1, 3.0f);
    std::vector<float> sorted = logits;
    std::partial_sort(sorted.begin(), sorted.begin() + best, sorted.end(), std::greater<>());
    FRUGAL_TRY_ASSIGN(const auto greedy, fg::ops::sampler::create({.temperature = 0}));
    FRUGAL_TRY_ASSIGN(const auto drawn, fg::ops::sampler::create({.temperature = temperature, .top_k = best, .seed = 1}));

    small_operator what{"sampling.greedy", fg::concat(vocabulary), "argmax", {number(sorted[0])}};
    what.one_code = true;
    what.tolerance = 0;
    what.seen = what.peer_seen = [&](const std::vector<float>& token) { return std::vector{logit_of(logits, token[0])}; };
    FRUGAL_TRY(measure_small_operator(all, what, our_sampler(logits, greedy), [&](prepared_graph& p) {
        return p.g().ggml_argmax(p.context(), p.input({vocabulary, 1}, logits));
    }));

    what.name = "sampling.top_k";
    what.shape = fg::concat(best, " of ", vocabulary);
    what.peer = "top_k, get_rows, scale, soft_max";
    what.peer_size = best;
    // Right is a token among the best k; of ggml's graph, which ends with probabilities, the greatest of them.
    what.want = {1};
    what.tolerance = 1e-4;
    what.seen = [&](const std::vector<float>& token) {
        return std::vector{logit_of(logits, token[0]) >= sorted[best - 1] ? 1.0f : 0.0f};
    };
    double total = 0;
    for (std::size_t i = 0; i < std::size_t{best}; ++i) total += std::exp(number(sorted[i] - sorted[0]) / number(temperature));
    what.peer_seen = [=](const std::vector<float>& probabilities) {
        return std::vector{static_cast<float>(total) * *std::max_element(probabilities.begin(), probabilities.end())};
    };
    return measure_small_operator(all, what, our_sampler(logits, drawn), [&](prepared_graph& p) {
        const auto from = p.input({vocabulary, 1}, logits);
        const auto top = p.g().ggml_top_k(p.context(), from, best);
        const auto logit = p.reshape(p.g().ggml_get_rows(p.context(), p.reshape(from, 1, vocabulary), top), best);
        return p.g().ggml_soft_max(p.context(), p.g().ggml_scale(p.context(), logit, 1 / temperature));
    });
}

}  // namespace bench
