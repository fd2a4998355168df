// What hyper-connections do beside their products: four residual streams of 2560, and gates of low rank 320.
#include "frugal/ops/hyper_connection/hyper_connection.hpp"
#include <algorithm>

#include "bench.hpp"

namespace bench {

namespace {

constexpr std::size_t streams = 4, hidden = 2560, low_rank = 320;

/// silu or twice the sigmoid of a quotient, in place.
template <class Isa, bool Silu>
struct divided {
    static constexpr float divisor = streams;
    divided(std::size_t count, std::size_t width)
        : rows(count), original(normal(count * width, 1, 2 * divisor)), x(original.size()) {}

    // The input is overwritten, so each run copies it first: a small part of the time.
    fg::status run() {
        std::copy(original.begin(), original.end(), x.begin());
        if constexpr (Silu)
            return fg::ops::divided_silu(device, divisor, as_matrix(x, rows));
        else
            return fg::ops::divided_double_sigmoid(device, divisor, as_matrix(x, rows));
    }

    std::string check() const {
        std::vector<double> want(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double quotient = static_cast<double>(original[i]) / static_cast<double>(divisor);
            want[i] = (Silu ? quotient : 2) / (1 + std::exp(-quotient));
        }
        return compare(x, want, 1e-5);
    }

    work cost() const { return {float_bytes(2 * x.size()), static_cast<double>(5 * x.size())}; }

    std::size_t rows;
    std::vector<float> original, x;
    fg::device::cpu<Isa> device{executor()};
};

/// The input of a layer out of the streams.
template <class Isa>
struct mean_of_streams {
    explicit mean_of_streams(std::size_t count)
        : rows(count), gate(normal(count * streams * hidden, 1)), x(normal(count * streams * hidden, 2)), y(count * hidden) {}

    fg::status run() {
        return fg::ops::gated_stream_mean(device, as_matrix(std::as_const(gate), rows), as_matrix(std::as_const(x), rows),
                                          streams, as_matrix(y, rows));
    }

    std::string check() const {
        std::vector<double> want(y.size());
        for (std::size_t i = 0; i < y.size(); ++i)
            for (std::size_t s = 0; s < streams; ++s) {
                const std::size_t at = (i / hidden * streams + s) * hidden + i % hidden;
                want[i] += static_cast<double>(x[at]) / (1 + std::exp(-static_cast<double>(gate[at]))) / streams;
            }
        return compare(y, want, 1e-5);
    }

    work cost() const { return {float_bytes(gate.size() + x.size() + y.size()), static_cast<double>(5 * x.size() + y.size())}; }

    std::size_t rows;
    std::vector<float> gate, x, y;
    fg::device::cpu<Isa> device{executor()};
};

/// The output of a layer into the streams, which grow from run to run and stay far from overflow.
template <class Isa>
struct into_streams {
    explicit into_streams(std::size_t count)
        : rows(count),
          scale(normal(count * streams, 1)),
          x(normal(count * hidden, 2)),
          before(normal(count * streams * hidden, 3)),
          after(before) {}

    fg::status run() {
        return fg::ops::add_to_streams(device, as_matrix(std::as_const(scale), rows), as_matrix(std::as_const(x), rows),
                                       as_matrix(after, rows));
    }

    std::string check() const {
        std::vector<double> want(after.size());
        for (std::size_t i = 0; i < after.size(); ++i)
            want[i] = static_cast<double>(before[i]) +
                      static_cast<double>(scale[i / hidden]) * static_cast<double>(x[i / hidden / streams * hidden + i % hidden]);
        return compare(after, want, 1e-5);
    }

    work cost() const { return {float_bytes(scale.size() + x.size() + 2 * after.size()), static_cast<double>(2 * after.size())}; }

    std::size_t rows;
    std::vector<float> scale, x, before, after;
    fg::device::cpu<Isa> device{executor()};
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t tokens : {std::size_t{1}, std::size_t{512}}) {
            const auto title = [&](const char* op, const std::string& width) {
                return name(op, "f32", Isa::name, fg::concat(tokens, 'x', width));
            };
            const std::string all_streams = fg::concat(streams, 'x', hidden);
            add_case<mean_of_streams<Isa>>(title("gated_stream_mean", all_streams), Isa::name, tokens);
            add_case<into_streams<Isa>>(title("add_to_streams", all_streams), Isa::name, tokens);
            add_case<divided<Isa, true>>(title("divided_silu", fg::concat(low_rank)), Isa::name, tokens, low_rank);
            add_case<divided<Isa, false>>(title("divided_double_sigmoid", fg::concat(streams)), Isa::name, tokens, streams);
        }
    });
}

}  // namespace bench
