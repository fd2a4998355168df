#include "frugal/ops/gated_delta_rule/gated_delta_rule.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <vector>

#include "gated_delta_rule_support.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "sanitizer.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
namespace layout = ops::state_layout;
namespace pairing = ops::head_pairing;
namespace scan = ops::scan;
using fg::matrix_view;
using ops::delta_rule_dims;
using test::answer;
using test::from_golden;
using test::normalise;
using test::problem;
using test::random_problem;
using test::reference;
using test::same_bits;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Inputs in the ranges seen in trained models: g in [-316, 0), v in [-0.28, 24.8], beta in (0, 1), q and k of unit length.
problem realistic(delta_rule_dims dims, std::size_t tokens, unsigned seed) {
    return random_problem(
        dims, tokens, seed,
        [](auto& random) { return random.uniform() < 0.7f ? -0.28f + 0.6f * random.uniform() : 24.8f * random.uniform(); },
        [](auto& random) { return 1.0f / (1.0f + std::exp(-2.0f * random.normal())); });
}

/// Runs the rule in calls of the given lengths (the rest in one).
template <class Pairing, class Layout, class Scan, class Device>
answer run(Device& dev, const problem& p, const std::vector<std::size_t>& lengths = {}) {
    fg::workspace scratch;
    const auto& d = p.dims;
    answer a{std::vector<float>(p.v.size(), std::numeric_limits<float>::quiet_NaN()), std::vector<float>(p.state.size())};
    REQUIRE(ops::convert_state<layout::key_major, Layout>(d, p.state, a.state));
    std::size_t at = 0;
    const auto view = [&](const std::vector<float>& data, std::size_t n) {
        const std::size_t cols = data.size() / p.tokens;
        return matrix_view<const float>(data.data() + at * cols, n, cols);
    };
    const auto step = [&](std::size_t n) {
        const std::size_t cols = d.value_heads * d.value_dim;
        REQUIRE(ops::gated_delta_rule<Pairing, Layout, Scan>(dev, scratch, view(p.q, n), view(p.k, n), view(p.v, n), view(p.g, n),
                                                             view(p.beta, n), d, a.state,
                                                             matrix_view<float>(a.out.data() + at * cols, n, cols)));
        at += n;
    };
    for (const std::size_t n : lengths) step(n);
    if (at < p.tokens) step(p.tokens - at);
    std::vector<float> key_major(a.state.size());
    REQUIRE(ops::convert_state<Layout, layout::key_major>(d, a.state, key_major));
    a.state = key_major;
    return a;
}

template <class Scan, class Device>
answer run(Device& dev, const problem& p, const std::vector<std::size_t>& lengths = {}) {
    return run<pairing::grouped, layout::key_major, Scan>(dev, p, lengths);
}

double largest(const std::vector<float>& a) {
    double most = 1;
    for (const float value : a) most = std::max(most, std::abs(double(value)));
    return most;
}

/// The tolerance that the golden files advise for a token loop in f32: relative to the largest output and state.
test::tolerance tolerance_of(const answer& want) { return {5e-6 * std::max(largest(want.out), largest(want.state)), 1e-5}; }

void check_answer(const answer& got, const answer& want, const std::string& what) {
    const auto tol = tolerance_of(want);
    test::check_close(got.out, want.out, tol, what + ": out");
    test::check_close(got.state, want.state, tol, what + ": state");
}

/// Golden files whose names start with `prefix`, except `other`.
std::vector<std::string> files(const std::string& prefix, std::size_t at_least, const std::string& other = {}) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(FRUGAL_TEST_DATA "/gdn")) {
        const std::string name = entry.path().stem().string();
        if (name.rfind(prefix, 0) == 0 && name != other) names.push_back("gdn/" + name);
    }
    REQUIRE(names.size() >= at_least);
    return names;
}

template <class Isa>
void check_files(const std::vector<std::string>& names) {
    fg::device::cpu<Isa> dev;
    for (const std::string& name : names) {
        const test::golden file(name);
        const std::size_t rows = file.shape("q")[0];
        for (std::size_t row = 0; row < rows; ++row) {
            const problem p = from_golden(file, row);
            const auto slice = [&](const char* tensor) {
                const auto all = file.f32(tensor);
                const std::size_t n = all.size() / rows;
                return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(row * n),
                                          all.begin() + static_cast<std::ptrdiff_t>((row + 1) * n));
            };
            const auto out = slice("out_ref64"), state = slice("state_ref64");
            const auto out_tol = file.tol("out_recurrent"), state_tol = file.tol("state_recurrent");
            const auto check = [&](const answer& got, const char* scan_name) {
                test::check_close(got.out, out, out_tol, name + " out, " + scan_name);
                test::check_close(got.state, state, state_tol, name + " state, " + scan_name);
            };
            const answer one = run<scan::recurrent>(dev, p);
            check(one, "recurrent");
            const answer turned = run<pairing::grouped, layout::value_major, scan::recurrent>(dev, p);
            CHECK(same_bits(turned.out, one.out));
            CHECK(same_bits(turned.state, one.state));
            const answer chunks = run<scan::chunked<64>>(dev, p);
            check(chunks, "chunked");
            const answer turned_chunks = run<pairing::grouped, layout::value_major, scan::chunked<64>>(dev, p);
            CHECK(same_bits(turned_chunks.out, chunks.out));
            CHECK(same_bits(turned_chunks.state, chunks.state));
        }
    }
}

}  // namespace

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("gated delta rule equals the reference, both scans, both layouts") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) { check_files<Isa>(files("rule_", 20, "rule_bf16_activations")); });
}

TEST_CASE("C01 extreme decays, gates, keys and states are finite and equal the recurrence, both scans") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) { check_files<Isa>(files("extreme_", 14)); });
}

TEST_CASE("C01 heads that forget fast: no NaN in a prefill") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const float g : {-3.0f, -27.631f, -88.0f, -104.0f, -316.0f, -1e5f, -3e38f, -infinity})
            for (const bool alternating : {false, true}) {
                CAPTURE(g);
                problem p = realistic({1, 1, 16, 16}, 200, 3);
                for (std::size_t t = 0; t < p.tokens; ++t) p.g[t] = alternating && t % 3 != 0 ? -1e-3f : g;
                const answer want = reference(p), token = run<scan::recurrent>(dev, p), chunks = run<scan::chunked<64>>(dev, p),
                             odd = run<scan::chunked<7>>(dev, p);
                for (const float value : chunks.out) REQUIRE(std::isfinite(value));
                for (const float value : chunks.state) REQUIRE(std::isfinite(value));
                check_answer(token, want, "token by token");
                check_answer(chunks, want, "in chunks of 64");
                check_answer(odd, want, "in chunks of 7");
                test::check_close(chunks.out, token.out, tolerance_of(want), "chunks against tokens");
            }
    });
}

TEST_CASE("C02 lengths and widths that fill neither chunk nor register stay within their rows") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const auto body = [&]<class Scan>(fg::type_tag<Scan>) {
            fg::device::cpu<Isa> dev;
            fg::workspace scratch;
            const delta_rule_dims dims{1, 2, 24, 20};
            const std::size_t cols = dims.value_heads * dims.value_dim, lengths[2] = {65, 64};
            problem first = realistic(dims, lengths[0], 1), second = realistic(dims, lengths[1], 2);
            std::fill(second.v.begin(), second.v.end(), 1e4f);
            const answer alone[2] = {run<Scan>(dev, first), run<Scan>(dev, second)};
            // Packed into one set of rows, sentinels before, between (extra columns) and after.
            const std::size_t stride = cols + 3;
            std::vector<float> out((1 + 65 + 64 + 1) * stride, 1e4f), states;
            for (const problem* p : {&first, &second}) states.insert(states.end(), p->state.begin(), p->state.end());
            std::size_t row = 1;
            for (std::size_t s = 0; s < 2; ++s) {
                const problem& p = s == 0 ? first : second;
                const auto view = [&](const std::vector<float>& data) {
                    return matrix_view<const float>(data.data(), p.tokens, data.size() / p.tokens);
                };
                REQUIRE(ops::gated_delta_rule<pairing::grouped, layout::key_major, Scan>(
                    dev, scratch, view(p.q), view(p.k), view(p.v), view(p.g), view(p.beta), dims,
                    std::span(states).subspan(s * dims.state_size(), dims.state_size()),
                    matrix_view<float>(out.data() + row * stride, p.tokens, cols, stride)));
                row += p.tokens;
            }
            row = 1;
            for (std::size_t s = 0; s < 2; ++s)
                for (std::size_t t = 0; t < lengths[s]; ++t, ++row)
                    CHECK(std::memcmp(&out[row * stride], &alone[s].out[t * cols], cols * sizeof(float)) == 0);
            bool intact = true;
            for (std::size_t r = 0; r < 131; ++r)
                for (std::size_t c = r == 0 || r == 130 ? 0 : cols; c < stride; ++c)
                    intact = intact && out[r * stride + c] == 1e4f;
            CHECK(intact);
            for (std::size_t s = 0; s < 2; ++s)
                CHECK(std::memcmp(&states[s * dims.state_size()], alone[s].state.data(), dims.state_size() * sizeof(float)) == 0);
        };
        body(fg::type_tag<scan::recurrent>{});
        body(fg::type_tag<scan::chunked<64>>{});
    });
}

TEST_CASE("C02 any key and value dimension equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const std::size_t key_dim : std::initializer_list<std::size_t>{1, 2, 7, 16, 33})
            for (const std::size_t value_dim : std::initializer_list<std::size_t>{1, 3, 8, 20, 31, 64, 65, 100, 200}) {
                const problem p = realistic({1, 2, key_dim, value_dim}, 70, static_cast<unsigned>(key_dim * 1000 + value_dim));
                const answer want = reference(p);
                const std::string what = std::to_string(key_dim) + " x " + std::to_string(value_dim);
                const answer one = run<scan::recurrent>(dev, p),
                             turned = run<pairing::grouped, layout::value_major, scan::recurrent>(dev, p);
                check_answer(one, want, what);
                check_answer(run<scan::chunked<64>>(dev, p), want, what + " chunked");
                CHECK(same_bits(one.out, turned.out));
                CHECK(same_bits(one.state, turned.state));
            }
    });
}

TEST_CASE("C03 prefill equals decode at every split: same bits token by token, within tolerance in chunks") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const std::size_t tokens : std::initializer_list<std::size_t>{1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
            CAPTURE(tokens);
            const problem p = realistic({1, 2, 16, 12}, tokens, static_cast<unsigned>(tokens));
            const answer want = reference(p), whole = run<scan::recurrent>(dev, p), chunks = run<scan::chunked<64>>(dev, p);
            check_answer(whole, want, "one call");
            check_answer(chunks, want, "one call in chunks");
            const answer steps = run<scan::recurrent>(dev, p, std::vector<std::size_t>(tokens, 1));
            CHECK(same_bits(steps.out, whole.out));
            CHECK(same_bits(steps.state, whole.state));
            for (std::size_t split = 1; split < tokens; ++split) {
                const answer parts = run<scan::recurrent>(dev, p, {split});
                CHECK(same_bits(parts.out, whole.out));
                CHECK(same_bits(parts.state, whole.state));
                check_answer(run<scan::chunked<64>>(dev, p, {split}), want, "split in chunks");
            }
        }
    });
}

TEST_CASE("C05 gates stay f32, one token at a time as in a prefill, over 512 steps") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::size_t tokens = 512, heads = 2;
        problem p = realistic({1, heads, 32, 32}, tokens, 9);
        std::mt19937 generator(1);
        std::normal_distribution<float> normal;
        std::vector<float> a(tokens * heads), b(tokens * heads, 0.5f);
        for (float& value : a) value = normal(generator) - 6.0f;
        for (std::size_t i = 8; i < b.size(); ++i) b[i] = 2.0f * normal(generator);
        const std::vector<float> a_neg_exp = {-0.5f, -2.0f}, bias = {0.1f, -0.3f};
        const auto gates = [&](matrix_view<const float> from_a, matrix_view<const float> from_b, matrix_view<float> g,
                               matrix_view<float> beta) {
            REQUIRE(ops::delta_gates(dev, a_neg_exp, bias, from_a, from_b, g, beta));
        };
        const auto rows = [&](std::vector<float>& data, std::size_t first, std::size_t n) {
            return matrix_view<float>(data.data() + first * heads, n, heads);
        };
        gates(rows(a, 0, tokens), rows(b, 0, tokens), rows(p.g, 0, tokens), rows(p.beta, 0, tokens));
        CHECK(p.beta[0] == doctest::Approx(0.622459).epsilon(1e-6));
        std::vector<float> g(p.g.size()), beta(p.beta.size());
        for (std::size_t t = 0; t < tokens; ++t) gates(rows(a, t, 1), rows(b, t, 1), rows(g, t, 1), rows(beta, t, 1));
        CHECK(same_bits(g, p.g));
        CHECK(same_bits(beta, p.beta));
        const answer whole = run<scan::recurrent>(dev, p),
                     steps = run<scan::recurrent>(dev, p, std::vector<std::size_t>(tokens, 1)), want = reference(p);
        CHECK(same_bits(whole.out, steps.out));
        check_answer(whole, want, "512 steps");
        check_answer(run<scan::chunked<64>>(dev, p), want, "512 steps in chunks");
    });
}

TEST_CASE("C07 softplus gate for large arguments, and the gates of the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::vector<float> a = {100, 89, -20, 0, 1e30f, -1e30f, 20, -104}, b(8), ones(8, -1.0f), zeros(8);
        std::vector<float> g(8), beta(8);
        const matrix_view<const float> row(a.data(), 1, 8), gate(b.data(), 1, 8);
        REQUIRE(ops::delta_gates(dev, ones, zeros, row, gate, matrix_view<float>(g.data(), 1, 8),
                                 matrix_view<float>(beta.data(), 1, 8)));
        for (std::size_t i = 0; i < 8; ++i) {
            const double x = a[i], want = -(std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
            CHECK(std::isfinite(g[i]));
            CHECK(g[i] <= 0);
            CHECK(std::abs(g[i] - want) <= 1e-45 + 3e-7 * std::abs(want));
        }
        CHECK(g[0] == -100);
        CHECK(g[1] == -89);
        CHECK(g[2] == doctest::Approx(-2.06115e-9).epsilon(1e-5));

        const test::golden file("gdn/gates");
        const auto shape = file.shape("a");
        auto a_neg_exp = file.f32("A_log");
        for (float& value : a_neg_exp) value = -std::exp(value);
        const auto from_a = file.f32("a"), from_b = file.f32("b"), bias = file.f32("dt_bias");
        const std::size_t rows = shape[1], heads = shape[2];
        std::vector<float> got_g(from_a.size()), got_beta(from_a.size());
        REQUIRE(ops::delta_gates(dev, a_neg_exp, bias, matrix_view<const float>(from_a.data(), rows, heads),
                                 matrix_view<const float>(from_b.data(), rows, heads),
                                 matrix_view<float>(got_g.data(), rows, heads),
                                 matrix_view<float>(got_beta.data(), rows, heads)));
        test::check_close(got_g, file.f32("g"), file.tol("g"), "g");
        test::check_close(got_beta, file.f32("beta"), file.tol("beta"), "beta");
    });
}

TEST_CASE("C08 head pairing: grouped and tiled, and the permutation between them") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        // The key of head 0 is e0, that of head 1 is e1: the row of the state that fills tells which key a value head read.
        problem p{{2, 4, 2, 1}, 1, {1, 0, 0, 1}, {1, 0, 0, 1}, {1, 1, 1, 1}, {0, 0, 0, 0}, {1, 1, 1, 1}, std::vector<float>(8)};
        const auto keys = [](const answer& a) {
            std::array<int, 4> out{};
            for (std::size_t h = 0; h < 4; ++h)
                out[h] = a.state[2 * h] == 1 && a.state[2 * h + 1] == 0   ? 0
                         : a.state[2 * h] == 0 && a.state[2 * h + 1] == 1 ? 1
                                                                          : -1;
            return out;
        };
        CHECK(keys(run<pairing::grouped, layout::key_major, scan::recurrent>(dev, p)) == std::array<int, 4>{0, 0, 1, 1});
        CHECK(keys(run<pairing::tiled, layout::key_major, scan::recurrent>(dev, p)) == std::array<int, 4>{0, 1, 0, 1});
        CHECK(keys(run<pairing::grouped, layout::key_major, scan::chunked<64>>(dev, p)) == std::array<int, 4>{0, 0, 1, 1});
        CHECK(keys(run<pairing::tiled, layout::key_major, scan::chunked<64>>(dev, p)) == std::array<int, 4>{0, 1, 0, 1});

        // Value heads put into the tiled order: tiled pairing gives the grouped result, permuted, bit for bit.
        for (const std::size_t ratio : std::initializer_list<std::size_t>{1, 2, 3}) {
            const std::size_t key_heads = 2, value_heads = key_heads * ratio, dv = 5;
            const problem grouped = realistic({key_heads, value_heads, 8, dv}, 20, 4);
            const auto tiled_of = [&](std::size_t h) { return h % ratio * key_heads + h / ratio; };
            const auto permuted = [&](const std::vector<float>& data, std::size_t per_head) {
                std::vector<float> out(data.size());
                for (std::size_t i = 0; i < data.size(); ++i) {
                    const std::size_t head = i / per_head % value_heads, rest = i / (per_head * value_heads);
                    out[(rest * value_heads + tiled_of(head)) * per_head + i % per_head] = data[i];
                }
                return out;
            };
            problem tiled = grouped;
            tiled.v = permuted(grouped.v, dv), tiled.g = permuted(grouped.g, 1), tiled.beta = permuted(grouped.beta, 1),
            tiled.state = permuted(grouped.state, 8 * dv);
            const answer a = run<pairing::grouped, layout::key_major, scan::recurrent>(dev, grouped),
                         b = run<pairing::tiled, layout::key_major, scan::recurrent>(dev, tiled);
            CHECK(same_bits(permuted(a.out, dv), b.out));
            CHECK(same_bits(permuted(a.state, 8 * dv), b.state));
            check_answer(b, reference<pairing::tiled>(tiled), "tiled");
        }
    });
}

TEST_CASE("C09 state layouts: conversion is the transpose, round-trips, and results do not depend on the layout") {
    const delta_rule_dims dims{2, 2, 8, 4};
    const problem p = realistic(dims, 6, 8);
    std::vector<float> turned(p.state.size()), back(p.state.size());
    REQUIRE(ops::convert_state<layout::key_major, layout::value_major>(dims, p.state, turned));
    for (std::size_t h = 0; h < 2; ++h)
        for (std::size_t i = 0; i < 8; ++i)
            for (std::size_t c = 0; c < 4; ++c) CHECK(turned[h * 32 + c * 8 + i] == p.state[h * 32 + i * 4 + c]);
    REQUIRE(ops::convert_state<layout::value_major, layout::key_major>(dims, turned, back));
    CHECK(same_bits(back, p.state));
    REQUIRE(ops::convert_state<layout::value_major, layout::value_major>(dims, turned, back));
    CHECK(same_bits(back, turned));
    CHECK_FALSE(ops::convert_state<layout::key_major, layout::value_major>(dims, p.state, std::span(back).first(8)));
    test::for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        // Hand-over in the middle: first tokens in one layout, the rest in the other.
        problem first = p, rest = p;
        const auto cut = [](std::vector<float>& data, std::size_t tokens, std::size_t begin, std::size_t end) {
            const auto cols = static_cast<std::ptrdiff_t>(data.size() / tokens);
            data = std::vector<float>(data.begin() + static_cast<std::ptrdiff_t>(begin) * cols,
                                      data.begin() + static_cast<std::ptrdiff_t>(end) * cols);
        };
        for (auto member : {&problem::q, &problem::k, &problem::v, &problem::g, &problem::beta})
            cut(first.*member, 6, 0, 2), cut(rest.*member, 6, 2, 6);
        first.tokens = 2, rest.tokens = 4;
        const answer whole = run<scan::recurrent>(dev, p);
        rest.state = run<pairing::grouped, layout::value_major, scan::recurrent>(dev, first).state;
        const answer end = run<pairing::grouped, layout::key_major, scan::recurrent>(dev, rest);
        CHECK(same_bits(end.state, whole.state));
    });
}

TEST_CASE("C10 the query is scaled by 1/sqrt(key dim)") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        problem p{{1, 1, 16, 3}, 1,      std::vector<float>(16), std::vector<float>(16), {4, 8, -2},
                  {0},           {0.5f}, std::vector<float>(48)};
        p.q[3] = p.k[3] = 1;
        const std::vector<float> want = {0.5f, 1.0f, -0.25f};  // beta * v * (q . k) / 4, exactly
        CHECK(run<scan::recurrent>(dev, p).out == want);
        CHECK(run<scan::chunked<64>>(dev, p).out == want);
    });
}

TEST_SUITE_END();

TEST_CASE("C75 realistic ranges: finite and equal to the reference at model size; threads do not matter") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        test::threads pool(3);
        fg::device::cpu<Isa> threaded(pool);
        for (const unsigned seed : {1u, 2u}) {
            problem p = realistic({2, 4, 128, 128}, 130, seed);
            p.g[0] = -316.0f, p.g[4] = -1e-30f, p.g[9] = -0.0f, p.beta[3] = 0, p.beta[11] = 1;
            const answer want = reference(p), one = run<scan::recurrent>(dev, p), many = run<scan::recurrent>(threaded, p);
            check_answer(one, want, "recurrent");
            CHECK(same_bits(one.out, many.out));
            CHECK(same_bits(one.state, many.state));
            const answer chunks = run<scan::chunked<64>>(dev, p), many_chunks = run<scan::chunked<64>>(threaded, p);
            check_answer(chunks, want, "chunked");
            CHECK(same_bits(chunks.out, many_chunks.out));
            CHECK(same_bits(chunks.state, many_chunks.state));
        }
    });
}

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("the state is kept in f32: 512 slow steps, and bf16 activations") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const test::golden slow("gdn/state_precision");
        const problem p = from_golden(slow, 0);
        const auto last = [&](const answer& a) {
            return std::vector<float>(a.out.end() - 64 * static_cast<std::ptrdiff_t>(p.dims.value_heads * p.dims.value_dim),
                                      a.out.end());
        };
        const answer steps = run<scan::recurrent>(dev, p, std::vector<std::size_t>(p.tokens, 1)),
                     chunks = run<scan::chunked<64>>(dev, p);
        for (const answer* a : {&steps, &chunks}) {
            test::check_close(last(*a), slow.f32("out_last64_ref64"), slow.tol("out_last64_ref64"), "out");
            test::check_close(a->state, slow.f32("state_ref64"), slow.tol("state_ref64"), "state");
        }
        const test::golden bf16("gdn/rule_bf16_activations");
        const problem b = from_golden(bf16, 0);
        const answer got = run<scan::recurrent>(dev, b), got_chunks = run<scan::chunked<64>>(dev, b);
        test::check_close(got.out, bf16.f32("out_recurrent"), bf16.tol("out_recurrent"), "bf16 out");
        test::check_close(got.state, bf16.f32("state_recurrent"), bf16.tol("state_recurrent"), "bf16 state");
        test::check_close(got_chunks.out, bf16.f32("out_chunk"), bf16.tol("out_chunk"), "bf16 out, chunked");
        test::check_close(got_chunks.state, bf16.f32("state_chunk"), bf16.tol("state_chunk"), "bf16 state, chunked");
    });
}

TEST_CASE("a state that decays to nothing is 0, not denormal; the caller's arithmetic is as before") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto body = [&]<class Scan>(fg::type_tag<Scan>) {
            problem p = realistic({1, 2, 16, 70}, 3, 5);
            std::fill(p.v.begin(), p.v.end(), 0.0f);
            std::fill(p.beta.begin(), p.beta.end(), 0.0f);
            std::fill(p.g.begin(), p.g.end(), -31.0f);  // three times: 4e-41
            std::fill(p.state.begin(), p.state.end(), 1.0f);
            const answer a = run<Scan>(dev, p);
            CHECK(std::all_of(a.state.begin(), a.state.end(), [](float value) { return value == 0; }));
            volatile float small = 1e-30f;
            CHECK(small * 1e-10f != 0);
        };
        body(fg::type_tag<scan::recurrent>{});
        body(fg::type_tag<scan::chunked<64>>{});
        body(fg::type_tag<scan::chunked<2>>{});
    });
}

TEST_CASE("chunks of any length, with ragged tails, over widths that fill no tile: within the tolerance of a token loop") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const std::size_t tokens : std::initializer_list<std::size_t>{1, 5, 31, 47, 97})
            for (const bool slow : {false, true}) {
                CAPTURE(tokens);
                problem p = realistic({2, 2, 33, 37}, tokens, static_cast<unsigned>(tokens));
                if (slow)  // nothing is forgotten: sums run over the whole chunk
                    for (float& g : p.g) g *= 1e-7f;
                const answer want = reference(p);
                const auto body = [&]<class Scan>(fg::type_tag<Scan>) {
                    const answer whole = run<Scan>(dev, p);
                    check_answer(whole, want, std::to_string(Scan::chunk));
                    const answer turned = run<pairing::grouped, layout::value_major, Scan>(dev, p);
                    CHECK(same_bits(whole.out, turned.out));
                    CHECK(same_bits(whole.state, turned.state));
                };
                body(fg::type_tag<scan::chunked<1>>{});
                body(fg::type_tag<scan::chunked<13>>{});
                body(fg::type_tag<scan::chunked<32>>{});
                body(fg::type_tag<scan::chunked<48>>{});
            }
    });
}

TEST_CASE("C15 gated delta rule: no tokens change nothing; wrong shapes are returned errors and change nothing") {
    fg::device::cpu<fg::isa::baseline> dev;
    fg::workspace scratch;
    const problem p = realistic({2, 4, 8, 4}, 3, 1);
    auto state = p.state;
    std::vector<float> out(p.v.size(), 7.0f);
    const auto view = [&](const std::vector<float>& data, std::size_t n = 3) {
        return matrix_view<const float>(data.data(), n, data.size() / 3);
    };
    const auto call = [&](delta_rule_dims dims, std::size_t n, std::size_t g_rows, std::size_t state_size) {
        return ops::gated_delta_rule<pairing::grouped>(dev, scratch, view(p.q, n), view(p.k, n), view(p.v, n), view(p.g, g_rows),
                                                       view(p.beta, n), dims, std::span(state).first(state_size),
                                                       matrix_view<float>(out.data(), n, 16));
    };
    CHECK(call(p.dims, 0, 0, state.size()));
    for (const auto& s :
         {call({3, 4, 8, 4}, 3, 3, state.size()), call({0, 4, 8, 4}, 3, 3, state.size()), call({2, 4, 4, 4}, 3, 3, state.size()),
          call(p.dims, 3, 2, state.size()), call(p.dims, 3, 3, state.size() - 1)}) {
        REQUIRE_FALSE(s);
        CHECK(s.error().code == fg::errc::shape_mismatch);
    }
    CHECK(same_bits(state, p.state));
    CHECK(std::all_of(out.begin(), out.end(), [](float value) { return value == 7.0f; }));
}

TEST_SUITE_END();
