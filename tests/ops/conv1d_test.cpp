#include "frugal/ops/conv1d/conv1d.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "golden.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using fg::matrix_view;
using ops::activation::identity;
using ops::activation::silu;

namespace {

matrix_view<const float> rows_of(const std::vector<float>& data, std::size_t cols) {
    return {data.data(), data.size() / cols, cols};
}
matrix_view<float> rows_of(std::vector<float>& data, std::size_t cols) { return {data.data(), data.size() / cols, cols}; }

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<float> normals(std::size_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& value : out) value = normal(generator);
    return out;
}

/// [channels, times] of one batch row, times x channels as the library wants it.
std::vector<float> turned(const std::vector<float>& data, std::size_t first, std::size_t channels, std::size_t times) {
    std::vector<float> out(channels * times);
    for (std::size_t c = 0; c < channels; ++c)
        for (std::size_t t = 0; t < times; ++t) out[t * channels + c] = data[first + c * times + t];
    return out;
}

/// The newest 3 of the 4 cached columns.
std::vector<float> history_of(const std::vector<float>& data, std::size_t first, std::size_t channels) {
    auto all = turned(data, first, channels, 4);
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(channels));
    return all;
}

/// The plain sum in double, history of zeros.
std::vector<float> direct(const std::vector<float>& x, const std::vector<float>& w, std::size_t channels, std::size_t kernel,
                          std::size_t dilation) {
    const std::size_t tokens = x.size() / channels;
    std::vector<float> y(x.size());
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t c = 0; c < channels; ++c) {
            double sum = 0;
            for (std::size_t k = 0; k < kernel; ++k) {
                const std::size_t back = (kernel - 1 - k) * dilation;
                if (back <= t) sum += double(w[c * kernel + k]) * x[(t - back) * channels + c];
            }
            y[t * channels + c] = static_cast<float>(sum);
        }
    return y;
}

/// Runs `x` in calls of the given lengths (the rest in one) and returns outputs and final state.
template <class Activation, class Device>
std::pair<std::vector<float>, std::vector<float>> in_chunks(Device& dev, const std::vector<float>& x, const std::vector<float>& w,
                                                            std::size_t channels, std::size_t kernel, std::size_t dilation,
                                                            const std::vector<std::size_t>& lengths) {
    std::vector<float> y(x.size(), std::numeric_limits<float>::quiet_NaN()), state((kernel - 1) * dilation * channels);
    const matrix_view<float> history(state.data(), (kernel - 1) * dilation, channels);
    const std::size_t tokens = x.size() / channels;
    std::size_t at = 0;
    const auto step = [&](std::size_t n) {
        REQUIRE(ops::causal_conv1d<Activation>(dev, w, rows_of(x, channels).rows_range(at, n), kernel, dilation, history,
                                               rows_of(y, channels).rows_range(at, n)));
        at += n;
    };
    for (const std::size_t n : lengths) step(n);
    step(tokens - at);
    return {y, state};
}

}  // namespace

TEST_CASE("convolution equals the reference: prefill, steps, several tokens after a prefill") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const char* name : {"gdn/conv_prefill_T01", "gdn/conv_prefill_T02", "gdn/conv_prefill_T03", "gdn/conv_prefill_T04",
                                 "gdn/conv_prefill_T05", "gdn/conv_prefill_T64"}) {
            const test::golden file(name);
            const auto shape = file.shape("x");
            const std::size_t channels = shape[1], tokens = shape[2];
            const auto w = file.f32("w");
            const auto tol = file.tol("y_silu");
            for (std::size_t b = 0; b < shape[0]; ++b) {
                const auto x = turned(file.f32("x"), b * channels * tokens, channels, tokens);
                std::vector<float> y(x.size()), state(3 * channels);
                REQUIRE(ops::causal_conv1d<identity>(dev, w, rows_of(x, channels), 4, 1, rows_of(state, channels),
                                                     rows_of(y, channels)));
                test::check_close(y, turned(file.f32("y_none"), b * channels * tokens, channels, tokens), tol, "y_none");
                std::fill(state.begin(), state.end(), 0.0f);
                REQUIRE(
                    ops::causal_conv1d<silu>(dev, w, rows_of(x, channels), 4, 1, rows_of(state, channels), rows_of(y, channels)));
                test::check_close(y, turned(file.f32("y_silu"), b * channels * tokens, channels, tokens), tol, "y_silu");
                CHECK(same_bits(state, history_of(file.f32("state_after"), b * channels * 4, channels)));

                std::vector<float> continued = state, out(6 * channels);
                const auto more = turned(file.f32("x_continue"), b * channels * 6, channels, 6);
                REQUIRE(ops::causal_conv1d<silu>(dev, w, rows_of(more, channels), 4, 1, rows_of(continued, channels),
                                                 rows_of(out, channels)));
                test::check_close(out, turned(file.f32("y_continue"), b * channels * 6, channels, 6), tol, "y_continue");

                for (std::size_t i = 0; i < 5; ++i) {
                    const std::size_t at = (i * shape[0] + b) * channels;
                    const auto one = turned(file.f32("x_steps"), at, channels, 1);
                    std::vector<float> step(channels);
                    REQUIRE(ops::causal_conv1d<silu>(dev, w, rows_of(one, channels), 4, 1, rows_of(state, channels),
                                                     rows_of(step, channels)));
                    test::check_close(step, turned(file.f32("y_steps"), at, channels, 1), tol, "y_steps");
                    CHECK(same_bits(state, history_of(file.f32("state_steps"), at * 4, channels)));
                }
            }
        }
    });
}

TEST_CASE("C12 conv state in chunks shorter than the kernel") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::vector<float> w = {1, 10, 100, 1000}, x = {1, 2, 3, 4, 5}, want = {1000, 2100, 3210, 4321, 5432};
        for (const auto& lengths : std::vector<std::vector<std::size_t>>{{}, {1, 1}, {1, 1, 1, 1}, {2}, {3}, {4}, {0, 2, 0, 2}}) {
            const auto [y, state] = in_chunks<identity>(dev, x, w, 1, 4, 1, lengths);
            CHECK(y == want);
            CHECK(state == std::vector<float>{3, 4, 5});
        }
        // Fewer tokens than the state holds: the rest of the state is what it held.
        const auto [y, state] = in_chunks<identity>(dev, {7}, w, 1, 4, 1, {});
        CHECK(y == std::vector<float>{7000});
        CHECK(state == std::vector<float>{0, 0, 7});
        // A state that held NaN and was cleared by storing zeros.
        std::vector<float> used(3, std::numeric_limits<float>::quiet_NaN()), out(5);
        std::fill(used.begin(), used.end(), 0.0f);
        REQUIRE(ops::causal_conv1d<identity>(dev, w, rows_of(x, 1), 4, 1, rows_of(used, 1), rows_of(out, 1)));
        CHECK(out == want);
        // A used state is history: it must be read.
        std::vector<float> before = {1, 2, 3}, after(1);
        REQUIRE(
            ops::causal_conv1d<identity>(dev, w, rows_of(std::vector<float>{4}, 1), 4, 1, rows_of(before, 1), rows_of(after, 1)));
        CHECK(after[0] == 4321);
    });
}

TEST_CASE("C12 any kernel, dilation, channel count and split gives the bits of one call") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        test::threads pool(3);
        fg::device::cpu<Isa> threaded(pool);
        for (const std::size_t kernel : std::initializer_list<std::size_t>{1, 2, 3, 4, 7, 70})
            for (const std::size_t dilation : std::initializer_list<std::size_t>{1, 2, 5})
                for (const std::size_t channels : std::initializer_list<std::size_t>{1, 3, 64, 65, 1030}) {
                    CAPTURE(kernel);
                    CAPTURE(dilation);
                    CAPTURE(channels);
                    const std::size_t tokens = 23;
                    const auto x = normals(tokens * channels, 1), w = normals(channels * kernel, 2);
                    const auto whole = in_chunks<identity>(dev, x, w, channels, kernel, dilation, {});
                    test::check_close(whole.first, direct(x, w, channels, kernel, dilation), {4e-6, 2e-6}, "direct sum");
                    for (std::size_t split = 1; split < tokens; split += 3) {
                        const auto parts = in_chunks<identity>(dev, x, w, channels, kernel, dilation, {split});
                        CHECK(same_bits(parts.first, whole.first));
                        CHECK(same_bits(parts.second, whole.second));
                    }
                    const auto steps =
                        in_chunks<identity>(threaded, x, w, channels, kernel, dilation, std::vector<std::size_t>(tokens, 1));
                    CHECK(same_bits(steps.first, whole.first));
                    CHECK(same_bits(steps.second, whole.second));
                }
        const std::size_t channels = 1000, tokens = 40;
        const auto x = normals(tokens * channels, 1), w = normals(channels * 4, 2);
        const auto one = in_chunks<silu>(dev, x, w, channels, 4, 1, {}),
                   many = in_chunks<silu>(threaded, x, w, channels, 4, 1, {});
        CHECK(same_bits(one.first, many.first));
        CHECK(same_bits(one.second, many.second));
    });
}

TEST_CASE("SiLU behind the convolution: 3 units in the last place over the whole range, and its limits") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto silu_of = [&](const std::vector<float>& x) {
            std::vector<float> y(x.size());
            REQUIRE(ops::causal_conv1d<silu>(dev, std::vector<float>(x.size(), 1.0f), rows_of(x, x.size()), 1, 1,
                                             matrix_view<float>(), rows_of(y, x.size())));
            return y;
        };
        std::vector<float> x;
        for (double value = -87; value < 100; value += 0.00173) x.push_back(static_cast<float>(value));
        const auto y = silu_of(x);
        double worst = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double want = double(x[i]) / (1 + std::exp(-double(x[i])));
            const double unit = std::ldexp(1.0, std::ilogb(want) - 23);
            worst = std::max(worst, std::abs(double(y[i]) - want) / unit);
        }
        CHECK(worst <= 3);
        constexpr float infinity = std::numeric_limits<float>::infinity();
        const auto limit =
            silu_of({0.0f, -0.0f, 1e30f, -1e30f, infinity, -89.0f, 1e-40f, std::numeric_limits<float>::quiet_NaN()});
        CHECK(limit[0] == 0);
        CHECK(limit[1] == 0);
        CHECK(limit[2] == 1e30f);
        CHECK(limit[3] == 0);
        CHECK(limit[4] == infinity);
        CHECK(std::abs(limit[5]) < 1e-36f);
        CHECK(std::abs(limit[6]) <= 1e-40f);
        CHECK(std::isnan(limit[7]));
    });
}

TEST_CASE("C13 packed sequences do not see one another") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::size_t channels = 9;
        const auto x = normals(8 * channels, 5), w = normals(channels * 4, 6);
        const std::vector<float> first(x.begin(), x.begin() + 3 * channels), second(x.begin() + 3 * channels, x.end());
        const auto a = in_chunks<silu>(dev, first, w, channels, 4, 1, {}),
                   b = in_chunks<silu>(dev, second, w, channels, 4, 1, {});
        // Both in one matrix of rows, each with its own state; sentinels around the outputs.
        std::vector<float> y(10 * channels, 1e4f), states(2 * 3 * channels);
        const auto rows = rows_of(x, channels);
        const auto out = rows_of(y, channels).rows_range(1, 8);
        const auto state = rows_of(states, channels);
        REQUIRE(ops::causal_conv1d<silu>(dev, w, rows.rows_range(0, 3), 4, 1, state.rows_range(0, 3), out.rows_range(0, 3)));
        REQUIRE(ops::causal_conv1d<silu>(dev, w, rows.rows_range(3, 5), 4, 1, state.rows_range(3, 3), out.rows_range(3, 5)));
        CHECK(std::memcmp(out.row(0), a.first.data(), a.first.size() * sizeof(float)) == 0);
        CHECK(std::memcmp(out.row(3), b.first.data(), b.first.size() * sizeof(float)) == 0);
        CHECK(std::memcmp(state.row(0), a.second.data(), a.second.size() * sizeof(float)) == 0);
        CHECK(std::memcmp(state.row(3), b.second.data(), b.second.size() * sizeof(float)) == 0);
        for (std::size_t c = 0; c < channels; ++c) CHECK((y[c] == 1e4f && y[9 * channels + c] == 1e4f));
    });
}

TEST_CASE("C15 no tokens change nothing; wrong shapes are returned errors") {
    fg::device::cpu<fg::isa::baseline> dev;
    std::vector<float> state = {1, 2, 3}, x(4), y(4);
    const std::vector<float> w = {1, 1, 1, 1};
    REQUIRE(ops::causal_conv1d<identity>(dev, w, matrix_view<const float>(nullptr, 0, 1), 4, 1, rows_of(state, 1),
                                         matrix_view<float>(nullptr, 0, 1)));
    CHECK(state == std::vector<float>{1, 2, 3});
    const auto code = [&](std::size_t kernel, std::size_t dilation, std::size_t history, std::size_t outputs) {
        const auto s =
            ops::causal_conv1d<identity>(dev, w, rows_of(x, 1), kernel, dilation, matrix_view<float>(state.data(), history, 1),
                                         matrix_view<float>(y.data(), outputs, 1));
        return s ? fg::errc::io : s.error().code;
    };
    CHECK(code(0, 1, 0, 4) == fg::errc::invalid_argument);
    CHECK(code(4, 0, 0, 4) == fg::errc::invalid_argument);
    CHECK(code(4, std::numeric_limits<std::size_t>::max(), 3, 4) == fg::errc::invalid_argument);
    CHECK(code(4, 1, 2, 4) == fg::errc::shape_mismatch);
    CHECK(code(3, 1, 2, 4) == fg::errc::shape_mismatch);
    CHECK(code(4, 1, 3, 3) == fg::errc::shape_mismatch);
    CHECK(state == std::vector<float>{1, 2, 3});
}
