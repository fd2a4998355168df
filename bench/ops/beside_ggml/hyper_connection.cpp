// Hyper-connections of a decoded token beside their products: four residual streams of 2560 features, gates of rank 320.
#include "frugal/ops/hyper_connection/hyper_connection.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "frugal/ops/norm/norm.hpp"
#include "operators.hpp"
#include "small_operator.hpp"

namespace bench {

namespace {

using peer::prepared_graph;
constexpr std::size_t streams = 4, hidden = 2560, width = streams * hidden, rank = 320;
constexpr float eps = 1e-6f, divisor = streams;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

fg::status measure_norm(contests& all, const std::vector<float>& x) {
    const std::vector<float> w = normal(width, 2);
    std::vector<double> want;
    for (std::size_t s = 0; s < streams; ++s) {
        double square = 0;
        for (std::size_t i = 0; i < hidden; ++i) square += number(x[s * hidden + i]) * number(x[s * hidden + i]);
        for (std::size_t i = 0; i < hidden; ++i)
            want.push_back(number(x[s * hidden + i]) / std::sqrt(square / hidden + number(eps)) * number(w[s * hidden + i]));
    }
    return measure_small_operator(
        all, {"hyper_connection.norm", "4x2560", "rms_norm, mul", std::move(want)},
        [=](auto& device, fg::workspace&, std::vector<float>& y) {
            return fg::ops::grouped_rms_norm<fg::ops::norm_weight::plain>(device, w, as_matrix(x, 1), hidden, eps,
                                                                          as_matrix(y, 1));
        },
        [=](prepared_graph& p) {
            const auto norm = p.g().ggml_rms_norm(p.context(), p.input({hidden, streams}, x), eps);
            return p.g().ggml_mul(p.context(), norm, p.input({hidden, streams}, w));
        });
}

fg::status measure_silu(contests& all) {
    const std::vector<float> x = normal(rank, 3, 2 * divisor);
    std::vector<double> want;
    for (const float each : x) want.push_back(number(each / divisor) * sigmoid(number(each / divisor)));
    return measure_small_operator(
        all, {"hyper_connection.silu", "1x320", "scale, silu", std::move(want)},
        // Ours works in place, so the copy of the original is timed too.
        [=](auto& device, fg::workspace&, std::vector<float>& y) -> fg::status {
            std::copy(x.begin(), x.end(), y.begin());
            return fg::ops::divided_silu(device, divisor, as_matrix(y, 1));
        },
        [=](prepared_graph& p) {
            return p.g().ggml_silu(p.context(), p.g().ggml_scale(p.context(), p.input({rank}, x), 1 / divisor));
        });
}

fg::status measure_mean(contests& all, const std::vector<float>& x) {
    const std::vector<float> gate = normal(width, 4);
    std::vector<double> want(hidden);
    for (std::size_t i = 0; i < width; ++i) want[i % hidden] += number(x[i]) * sigmoid(number(gate[i])) / streams;
    return measure_small_operator(
        all, {"hyper_connection.mean", "4x2560", "dsv4_hc_pre_gated", std::move(want)},
        [=](auto& device, fg::workspace&, std::vector<float>& y) {
            return fg::ops::gated_stream_mean(device, as_matrix(gate, 1), as_matrix(x, 1), streams, as_matrix(y, 1));
        },
        [=](prepared_graph& p) {
            const auto from = p.input({hidden, streams, 1}, x);
            return p.g().ggml_dsv4_hc_pre_gated(p.context(), from, p.input({hidden, streams, 1}, gate), 1 / divisor);
        });
}

fg::status measure_inject(contests& all, const std::vector<float>& x) {
    const std::vector<float> gate = normal(streams, 5, divisor), output = normal(hidden, 6);
    std::vector<double> want;
    for (std::size_t i = 0; i < width; ++i)
        want.push_back(number(x[i]) + 2 * sigmoid(number(gate[i / hidden] / divisor)) * number(output[i % hidden]));
    return measure_small_operator(
        all, {"hyper_connection.inject", "4x2560", "scale, sigmoid, dsv4_hc_post", std::move(want)},
        // Ours works in place, so the copies of the originals are timed too.
        [=, scale = gate](auto& device, fg::workspace&, std::vector<float>& y) mutable -> fg::status {
            std::copy(gate.begin(), gate.end(), scale.begin());
            std::copy(x.begin(), x.end(), y.begin());
            FRUGAL_TRY(fg::ops::divided_double_sigmoid(device, divisor, as_matrix(scale, 1)));
            return fg::ops::add_to_streams(device, as_matrix(std::as_const(scale), 1), as_matrix(output, 1), as_matrix(y, 1));
        },
        [=](prepared_graph& p) {
            const auto logit = p.g().ggml_scale(p.context(), p.input({streams, 1}, gate), 1 / divisor);
            const auto scale = p.g().ggml_scale(p.context(), p.g().ggml_sigmoid(p.context(), logit), 2.0f);
            const auto from = p.input({hidden, 1}, output);
            return p.g().ggml_dsv4_hc_post(p.context(), from, p.input({hidden, streams, 1}, x), scale, nullptr);
        });
}

}  // namespace

fg::status measure_hyper_connection(contests& all) {
    const std::vector<float> x = normal(width, 1);
    FRUGAL_TRY(measure_norm(all, x));
    FRUGAL_TRY(measure_silu(all));
    FRUGAL_TRY(measure_mean(all, x));
    return measure_inject(all, x);
}

}  // namespace bench
