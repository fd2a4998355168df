// The small operators of a decoded token: each must be a small share of it.
#include <cmath>
#include <string>
#include <utility>

#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/moe/router.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "operators.hpp"
#include "small_operator.hpp"

namespace bench {

namespace {

using peer::prepared_graph;
constexpr float eps = 1e-6f;

/// Every row divided by the root of the mean (or sum) of its squares.
std::vector<double> normed(const std::vector<float>& x, std::size_t width, bool mean) {
    std::vector<double> out;
    for (std::size_t first = 0; first < x.size(); first += width) {
        double square = 0;
        for (std::size_t i = 0; i < width; ++i) square += number(x[first + i]) * number(x[first + i]);
        if (mean) square /= static_cast<double>(width);
        for (std::size_t i = 0; i < width; ++i) out.push_back(number(x[first + i]) / std::sqrt(square + number(eps)));
    }
    return out;
}

fg::status measure_norms(contests& all) {
    constexpr std::size_t hidden = 2048, heads = 32, head_dim = 128;
    const std::vector<float> x = normal(hidden, 1), w = normal(hidden, 2), v = normal(heads * head_dim, 3),
                             gate = normal(heads * head_dim, 4), head_w = normal(head_dim, 5);
    std::vector<double> want = normed(x, hidden, true);
    for (std::size_t i = 0; i < hidden; ++i) want[i] *= number(w[i]);
    FRUGAL_TRY(measure_small_operator(
        all, {"rms_norm", "1x2048", "rms_norm, mul", std::move(want)},
        [=](auto& device, fg::workspace&, std::vector<float>& y) {
            return fg::ops::rms_norm<fg::ops::norm_weight::plain>(device, w, as_matrix(x, 1), eps, as_matrix(y, 1));
        },
        [=](prepared_graph& p) {
            return p.g().ggml_mul(p.context(), p.g().ggml_rms_norm(p.context(), p.input({hidden}, x), eps), p.input({hidden}, w));
        }));
    want = normed(v, head_dim, true);
    for (std::size_t i = 0; i < want.size(); ++i)
        want[i] *= number(head_w[i % head_dim]) * number(gate[i]) / (1 + std::exp(-number(gate[i])));
    FRUGAL_TRY(measure_small_operator(
        all, {"gated_rms_norm", "32x128", "rms_norm, silu, mul", std::move(want)},
        [=](auto& device, fg::workspace&, std::vector<float>& y) {
            return fg::ops::gated_rms_norm<fg::ops::activation::silu>(device, head_w, as_matrix(v, heads), as_matrix(gate, heads),
                                                                      eps, as_matrix(y, heads));
        },
        [=](prepared_graph& p) {
            const auto norm = p.g().ggml_rms_norm(p.context(), p.input({head_dim, heads}, v), eps);
            return p.g().ggml_mul(p.context(), p.g().ggml_mul(p.context(), norm, p.input({head_dim}, head_w)),
                                  p.g().ggml_silu(p.context(), p.input({head_dim, heads}, gate)));
        }));
    return measure_small_operator(
        all, {"l2_norm", "32x128", "l2_norm", normed(v, head_dim, false)},
        [=](auto& device, fg::workspace&, std::vector<float>& y) {
            return fg::ops::l2_norm(device, as_matrix(v, heads), eps, as_matrix(y, heads));
        },
        [=](prepared_graph& p) {
            return p.g().ggml_l2_norm(p.context(), p.input({head_dim, heads}, v), eps);
        });
}

fg::status measure_rope(contests& all) {
    constexpr std::size_t heads = 26, head_dim = 256, rotary = 64;  // of queries and of keys
    constexpr std::int32_t at = 1000;
    constexpr float base = 1e6f;
    const std::vector<float> x = normal(heads * head_dim, 1);
    const auto table = fg::ops::rope_table::make(static_cast<double>(base), rotary);
    std::vector<double> want(x.begin(), x.end());
    for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t j = 0; j < rotary / 2; ++j) {
            const double angle = at * number(table.inv_freq[j]);
            double &a = want[h * head_dim + j], &b = want[h * head_dim + j + rotary / 2];
            const double first = a, second = b;
            a = first * std::cos(angle) - second * std::sin(angle);
            b = second * std::cos(angle) + first * std::sin(angle);
        }
    return measure_small_operator(
        all, {"rope", "26x256, 64 turned", "rope_ext", std::move(want)},
        // Ours turns in place, so the copy of the original is timed too.
        [=](auto& device, fg::workspace& scratch, std::vector<float>& y) {
            std::copy(x.begin(), x.end(), y.begin());
            const fg::ops::rope_position position{at, at, at};
            return fg::ops::apply_rope(device, scratch, table, std::span(&position, 1), heads, head_dim, as_matrix(y, 1));
        },
        [=](prepared_graph& p) {
            const auto position = p.input(peer::i32, {1}, std::vector<std::int32_t>{at});
            return p.g().ggml_rope_ext(p.context(), p.input({head_dim, heads, 1}, x), position, nullptr, rotary, peer::neox_rope,
                                       0, base, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f);
        });
}

fg::status measure_elementwise(contests& all) {
    constexpr std::size_t width = 6144, hidden = 2048;
    const std::vector<float> gate = normal(width, 1), up = normal(width, 2), x = normal(hidden, 3), y0 = normal(hidden, 4);
    std::vector<double> want;
    for (std::size_t i = 0; i < width; ++i) want.push_back(number(gate[i]) / (1 + std::exp(-number(gate[i]))) * number(up[i]));
    FRUGAL_TRY(measure_small_operator(
        all, {"swiglu", "1x6144", "swiglu_split", std::move(want)},
        [=](auto& device, fg::workspace&, std::vector<float>& y) {
            return fg::ops::swiglu(device, as_matrix(gate, 1), as_matrix(up, 1), as_matrix(y, 1));
        },
        [=](prepared_graph& p) { return p.g().ggml_swiglu_split(p.context(), p.input({width}, gate), p.input({width}, up)); }));
    want.clear();
    for (std::size_t i = 0; i < hidden; ++i) want.push_back(number(x[i]) + number(y0[i]));
    return measure_small_operator(
        all, {"add", "1x2048", "add", std::move(want)},
        [=](auto& device, fg::workspace&, std::vector<float>& y) {
            std::copy(y0.begin(), y0.end(), y.begin());  // timed too
            return fg::ops::add(device, as_matrix(x, 1), as_matrix(y, 1));
        },
        [=](prepared_graph& p) { return p.g().ggml_add(p.context(), p.input({hidden}, x), p.input({hidden}, y0)); });
}

fg::status measure_convolution(contests& all) {
    constexpr std::size_t channels = 8192, kernel = 4;
    const std::vector<float> history = normal((kernel - 1) * channels, 1), x = normal(channels, 2),
                             w = normal(kernel * channels, 3, 0.5f);
    std::vector<double> want;
    std::vector<float> by_channel(kernel * channels);
    for (std::size_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (std::size_t k = 0; k < kernel; ++k) {
            by_channel[c * kernel + k] = k + 1 < kernel ? history[k * channels + c] : x[c];
            sum += number(by_channel[c * kernel + k]) * number(w[c * kernel + k]);
        }
        want.push_back(sum / (1 + std::exp(-sum)));
    }
    return measure_small_operator(
        all, {"conv1d_decode", "1x8192x4", "ssm_conv, silu", std::move(want)},
        // The state moves on, so each call begins with a copy of it, which is timed too.
        [=, state = history](auto& device, fg::workspace&, std::vector<float>& y) mutable {
            std::copy(history.begin(), history.end(), state.begin());
            return fg::ops::causal_conv1d<fg::ops::activation::silu>(device, w, as_matrix(x, 1), kernel, 1,
                                                                     as_matrix(state, kernel - 1), as_matrix(y, 1));
        },
        [=](prepared_graph& p) {
            const auto sums =
                p.g().ggml_ssm_conv(p.context(), p.input({kernel, channels, 1}, by_channel), p.input({kernel, channels}, w));
            return p.g().ggml_silu(p.context(), sums);
        });
}

fg::status measure_router(contests& all, std::string name, std::size_t experts, std::size_t chosen) {
    const std::vector<float> logits = normal(experts, 1);
    std::vector<double> want;
    double total = 0;
    for (const float each : logits) want.push_back(std::exp(number(each)));
    std::sort(want.begin(), want.end(), std::greater<>());
    want.resize(chosen);
    for (const double each : want) total += each;
    for (double& each : want) each /= total;
    return measure_small_operator(
        all, {std::move(name), fg::concat(chosen, " of ", experts), "soft_max, argsort, get_rows, div", std::move(want)},
        [=, own = logits, index = std::vector<std::int32_t>(chosen)](auto& device, fg::workspace&,
                                                                     std::vector<float>& y) mutable {
            std::copy(logits.begin(), logits.end(), own.begin());  // they are overwritten; timed too
            return fg::ops::route(device, as_matrix(own, 1), true, fg::matrix_view<std::int32_t>(index.data(), 1, chosen),
                                  as_matrix(y, 1));
        },
        [=](prepared_graph& p) {
            const auto probabilities = p.g().ggml_soft_max(p.context(), p.input({experts}, logits));
            const auto top = p.g().ggml_argsort_top_k(p.context(), probabilities, static_cast<int>(chosen));
            const auto weight = p.reshape(p.g().ggml_get_rows(p.context(), p.reshape(probabilities, 1, experts), top), chosen);
            return p.g().ggml_div(p.context(), weight, p.g().ggml_sum_rows(p.context(), weight));
        });
}

}  // namespace

fg::status measure_small(contests& all) {
    FRUGAL_TRY(measure_norms(all));
    FRUGAL_TRY(measure_rope(all));
    FRUGAL_TRY(measure_elementwise(all));
    FRUGAL_TRY(measure_convolution(all));
    FRUGAL_TRY(measure_router(all, "router", 64, 8));
    return measure_router(all, "router.512", 512, 10);
}

}  // namespace bench
