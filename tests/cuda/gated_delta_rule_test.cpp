// The gated delta rule's GPU kernels on the emulator, token by token and in chunks, against the golden vectors of the CPU's test
// and the rule in double.
#include "frugal/ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cuda.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "../ops/gated_delta_rule_support.hpp"
#include "golden.hpp"
#include "mutation.hpp"
#include "simt_data.hpp"

namespace fg = frugal;
namespace gpu = frugal::ops::cuda;
namespace ops = frugal::ops;
namespace layout = frugal::ops::state_layout;
namespace pairing = frugal::ops::head_pairing;
namespace scan = frugal::ops::scan;
using fg::matrix_view;
using ops::delta_rule_dims;
using test::answer;
using test::device_matrix;
using test::from_golden;
using test::problem;
using test::reference;
using test::same_bits;

namespace {

problem random_problem(delta_rule_dims dims, std::size_t tokens, unsigned seed) {
    return test::random_problem(
        dims, tokens, seed, [](auto& random) { return 3.0f * random.normal(); }, [](auto& random) { return random.uniform(); });
}

using chunked = scan::chunked<gpu::delta_chunk>;
struct tiles {};  ///< in chunks by matrix units

/// Runs the kernel in calls of the given lengths (the rest in one).
template <class Scan = scan::recurrent, class Pairing = pairing::grouped, class Layout = layout::key_major>
answer run(const problem& p, const std::vector<std::size_t>& lengths = {}) {
    const auto& d = p.dims;
    std::vector<float> turned(p.state.size());
    REQUIRE(ops::convert_state<layout::key_major, Layout>(d, p.state, turned));
    device_matrix q(p.q, p.q.size() / p.tokens), k(p.k, p.k.size() / p.tokens), v(p.v, p.v.size() / p.tokens);
    device_matrix g(p.g, d.value_heads), beta(p.beta, d.value_heads), out(p.tokens, d.value_heads * d.value_dim);
    simt::device_array<float> state(turned);
    std::size_t at = 0;
    const auto step = [&](std::size_t n) {
        const auto start = [&](auto rule) {
            return rule(d, q.rows(at, n), k.rows(at, n), v.rows(at, n), g.rows(at, n), beta.rows(at, n), state.data(),
                        out.rows(at, n), nullptr);
        };
        const cudaError_t started = std::is_same_v<Scan, tiles>     ? start(gpu::gated_delta_rule_tiles<Pairing, Layout>)
                                    : std::is_same_v<Scan, chunked> ? start(gpu::gated_delta_rule_chunked<Pairing, Layout>)
                                                                    : start(gpu::gated_delta_rule<Pairing, Layout>);
        REQUIRE(started == cudaSuccess);
        at += n;
    };
    for (const std::size_t n : lengths) step(n);
    if (at < p.tokens) step(p.tokens - at);
    answer a{out.to_host(), std::vector<float>(p.state.size())};
    REQUIRE(ops::convert_state<Layout, layout::key_major>(d, state.to_host(), a.state));
    return a;
}

double largest(const std::vector<float>& a) {
    double most = 1;
    for (const float value : a) most = std::max(most, std::abs(double(value)));
    return most;
}

/// The tolerance that the golden files advise for a token loop in f32: relative to the largest output and state.
void check_answer(const answer& got, const answer& want, const std::string& what, double off = 5e-6) {
    const test::tolerance tol{off * std::max(largest(want.out), largest(want.state)), 1e-5};
    test::check_close(got.out, want.out, tol, what + ": out");
    test::check_close(got.state, want.state, tol, what + ": state");
}

void check_files(const std::string& prefix, std::size_t at_least, const std::string& other) {
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(FRUGAL_TEST_DATA "/gdn")) {
        const std::string name = entry.path().stem().string();
        if (name.rfind(prefix, 0) != 0 || name == other) continue;
        ++files;
        const test::golden file("gdn/" + name);
        const std::size_t rows = file.shape("q")[0];
        for (std::size_t row = 0; row < rows; ++row) {
            const problem p = from_golden(file, row);
            const auto slice = [&](const char* tensor) {
                const auto all = file.f32(tensor);
                const std::size_t n = all.size() / rows;
                return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(row * n),
                                          all.begin() + static_cast<std::ptrdiff_t>((row + 1) * n));
            };
            const auto check = [&](const answer& got) {
                test::check_close(got.out, slice("out_ref64"), file.tol("out_recurrent"), name + " out");
                test::check_close(got.state, slice("state_ref64"), file.tol("state_recurrent"), name + " state");
            };
            check(run<chunked>(p));
            if (!simt::access_checks_active()) check(run(p));  // whose accesses other cases check
        }
    }
    REQUIRE(files >= at_least);
}

}  // namespace

TEST_CASE("gated delta rule equals the reference") { check_files("rule_", 20, "rule_bf16_activations"); }

TEST_CASE("C01 extreme decays, gates, keys and states are finite and equal the recurrence") { check_files("extreme_", 14, {}); }

TEST_CASE("every width of heads, both pairings and layouts, any split of the tokens, every order of threads") {
    for (const auto& dims : {delta_rule_dims{1, 2, 24, 20},
                             {2, 4, 32, 32},
                             {2, 2, 33, 40},
                             {1, 3, 64, 33},
                             {2, 2, 128, 64},
                             {1, 1, 200, 16},
                             {1, 1, 256, 8},
                             {1, 1, 1, 1}}) {
        CAPTURE(dims.key_dim);
        const problem p = random_problem(dims, 7, static_cast<unsigned>(dims.key_dim));
        const answer got = run(p);
        check_answer(got, reference<pairing::grouped>(p), "grouped");
        check_answer(run<scan::recurrent, pairing::tiled>(p), reference<pairing::tiled>(p), "tiled");
        const answer turned = run<scan::recurrent, pairing::grouped, layout::value_major>(p);
        CHECK(same_bits(turned.both(), got.both()));
        for (const auto& lengths : {std::vector<std::size_t>{1, 1, 5}, {3, 4}, std::vector<std::size_t>(7, 1)})
            CHECK(same_bits(run(p, lengths).both(), got.both()));
        CHECK(simt::same_under_all_schedules([&] { return run(p).both(); }));
    }
}

TEST_CASE("C03 in chunks: every width of heads, both pairings and layouts, edges of chunks, splits, every order of threads") {
    struct length {
        delta_rule_dims dims;
        std::size_t tokens;
    };
    for (const length& of : {length{{1, 2, 24, 20}, 33},
                             {{2, 4, 32, 32}, 32},
                             {{1, 1, 33, 40}, 70},
                             {{1, 1, 64, 33}, 1},
                             {{1, 1, 128, 16}, 64},
                             {{1, 1, 200, 16}, 31},
                             {{1, 1, 224, 8}, 40},
                             {{1, 1, 256, 8}, 5},
                             {{1, 1, 1, 1}, 65}}) {
        const std::size_t tokens = of.tokens;
        CAPTURE(of.dims.key_dim);
        problem p = random_problem(of.dims, tokens, static_cast<unsigned>(of.dims.key_dim));
        for (const bool slow : {false, true}) {
            if (slow)  // nothing is forgotten: sums run over the whole chunk
                for (float& g : p.g) g *= 1e-4f;
            const answer got = run<chunked>(p), want = reference<pairing::grouped>(p);
            check_answer(got, want, "grouped");
            const answer rounded = run<tiles>(p);
            check_answer(rounded, want, "tiles", 2e-5);
            if (of.dims.key_dim > 200) CHECK(same_bits(rounded.both(), got.both()));  // too wide
            if (slow) {
                check_answer(run<chunked>(p, {tokens / 3, 1 - tokens % 2}), want, "in parts");
                continue;
            }
            check_answer(run<chunked, pairing::tiled>(p), reference<pairing::tiled>(p), "tiled");
            CHECK(same_bits(run<chunked, pairing::grouped, layout::value_major>(p).both(), got.both()));
            CHECK(same_bits(run<tiles, pairing::grouped, layout::value_major>(p).both(), rounded.both()));
            if (tokens > 32) CHECK(same_bits(run<chunked>(p, {32}).both(), got.both()));  // parts of whole chunks
            if (tokens > 32) CHECK(same_bits(run<tiles>(p, {32}).both(), rounded.both()));
        }
        if (tokens < 40) CHECK(simt::same_under_all_schedules([&] { return run<chunked>(p).both(); }, 1));
        if (tokens < 40) CHECK(simt::same_under_all_schedules([&] { return run<tiles>(p).both(); }, 1));
    }
}

TEST_CASE("in chunks: no token reaches an earlier one, and a head's gates are its own") {
    problem p = random_problem({1, 2, 16, 24}, 50, 7);
    const answer want = run<chunked>(p), tiled = run<tiles>(p);
    constexpr std::size_t bad = 41, width = 2 * 24;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const auto untouched = [&](const problem& q, std::size_t values) {
        for (const auto& [got, right] : {std::pair(run<chunked>(q), &want), std::pair(run<tiles>(q), &tiled)}) {
            CHECK(std::isnan(got.out[bad * width]));
            std::size_t same = 0;  // before the token, and the second head throughout
            for (std::size_t t = 0; t < q.tokens; ++t)
                for (std::size_t c = t < bad ? 0 : values; c < width; ++c)
                    if (std::memcmp(&got.out[t * width + c], &right->out[t * width + c], sizeof(float)) != 0) ++same;
            CHECK(same == 0);
        }
    };
    for (std::vector<float> problem::*from : {&problem::q, &problem::k}) {
        problem broken = p;
        (broken.*from)[bad * 16 + 3] = nan;
        untouched(broken, width);  // both heads have this key
    }
    problem broken = p;
    broken.v[bad * width] = nan;
    untouched(broken, 1);  // only its own feature
    for (std::vector<float> problem::*from : {&problem::g, &problem::beta}) {
        broken = p;
        (broken.*from)[bad * 2] = nan;
        untouched(broken, 24);
    }
}

TEST_CASE("C01 heads that forget fast: nothing but numbers") {
    for (const float g : {-3.0f, -88.0f, -104.0f, -3e38f, -std::numeric_limits<float>::infinity()}) {
        problem p = random_problem({1, 1, 16, 16}, 20, 3);
        for (std::size_t t = 0; t < p.tokens; ++t) p.g[t] = t % 3 != 0 ? -1e-3f : g;
        for (const answer& got : {run(p), run<chunked>(p), run<tiles>(p)}) {
            for (const float value : got.both()) REQUIRE(std::isfinite(value));
            check_answer(got, reference<pairing::grouped>(p), "forgetting");
        }
    }
}

TEST_CASE("too wide heads are refused, no tokens change nothing") {
    const auto start = [](auto rule, std::size_t key_dim, std::size_t tokens) {
        const fg::matrix_view<float> keys{nullptr, tokens, key_dim}, values{nullptr, tokens, 4}, gates{nullptr, tokens, 1};
        return rule(delta_rule_dims{1, 1, key_dim, 4}, keys, keys, values, gates, gates, nullptr, values, nullptr);
    };
    for (const auto rule : {gpu::gated_delta_rule<pairing::grouped, layout::key_major>,
                            gpu::gated_delta_rule_chunked<pairing::grouped, layout::key_major>,
                            gpu::gated_delta_rule_tiles<pairing::grouped, layout::key_major>}) {
        CHECK(start(rule, 257, 1) == cudaErrorInvalidValue);
        CHECK(start(rule, 16, 0) == cudaSuccess);
    }
}

TEST_CASE("gates equal their formulas, tails included") {
    const std::vector<float> a = {0, 3, -80, 90, 1e-3f, -2}, b = {0, 50, -50, 1, -100, 100}, decay = {-1, -16, -0.01f},
                             bias = {0.5f, 0, -1};
    std::vector<float> want_g(6), want_beta(6);
    for (std::size_t i = 0; i < 6; ++i) {
        const double x = double(a[i] + bias[i % 3]);
        want_g[i] = static_cast<float>(double(decay[i % 3]) * (std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)))));
        want_beta[i] = static_cast<float>(1 / (1 + std::exp(-double(b[i]))));
    }
    simt::for_each_schedule([&] {
        device_matrix da(a, 3), db(b, 3), g(2, 3), beta(2, 3);
        simt::device_array<float> decays(decay), biases(bias);
        const cudaError_t started = gpu::delta_gates(da, db, decays.data(), biases.data(), g, beta, nullptr);
        REQUIRE(started == cudaSuccess);
        test::check_close(g.to_host(), want_g, {1e-7, 1e-6}, "g");
        test::check_close(beta.to_host(), want_beta, {1e-7, 1e-6}, "beta");
    });
}

TEST_CASE("a removed __syncthreads is noticed") {
    const problem p = random_problem({1, 1, 64, 32}, 3, 9), longer = random_problem({1, 1, 16, 32}, 40, 9);
    CHECK(test::unnoticed_barriers([&] { return run(p).both(); }) == std::vector<std::string>{});
    CHECK(test::unnoticed_barriers([&] { return run<chunked>(longer).both(); }) == std::vector<std::string>{});
    CHECK(test::unnoticed_barriers([&] { return run<tiles>(longer).both(); }) == std::vector<std::string>{});
}
