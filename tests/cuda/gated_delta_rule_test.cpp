// The gated delta rule's GPU kernel on the emulator, against the golden vectors of the CPU's test and the rule in double.
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cuda.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
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

/// Runs the kernel in calls of the given lengths (the rest in one).
template <class Pairing = pairing::grouped, class Layout = layout::key_major>
answer run(const problem& p, const std::vector<std::size_t>& lengths = {}) {
    const auto& d = p.dims;
    std::vector<float> turned(p.state.size());
    REQUIRE(ops::convert_state<layout::key_major, Layout>(d, p.state, turned));
    device_matrix q(p.q, p.q.size() / p.tokens), k(p.k, p.k.size() / p.tokens), v(p.v, p.v.size() / p.tokens);
    device_matrix g(p.g, d.value_heads), beta(p.beta, d.value_heads), out(p.tokens, d.value_heads * d.value_dim);
    simt::device_array<float> state(turned);
    std::size_t at = 0;
    const auto step = [&](std::size_t n) {
        const cudaError_t started =
            gpu::gated_delta_rule<Pairing, Layout>(d, q.rows(at, n), k.rows(at, n), v.rows(at, n), g.rows(at, n),
                                                   beta.rows(at, n), state.data(), out.rows(at, n), nullptr);
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
void check_answer(const answer& got, const answer& want, const std::string& what) {
    const test::tolerance tol{5e-6 * std::max(largest(want.out), largest(want.state)), 1e-5};
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
            const answer got = run(p);
            test::check_close(got.out, slice("out_ref64"), file.tol("out_recurrent"), name + " out");
            test::check_close(got.state, slice("state_ref64"), file.tol("state_recurrent"), name + " state");
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
        check_answer(run<pairing::tiled>(p), reference<pairing::tiled>(p), "tiled");
        const answer turned = run<pairing::grouped, layout::value_major>(p);
        CHECK(same_bits(turned.both(), got.both()));
        for (const auto& lengths : {std::vector<std::size_t>{1, 1, 5}, {3, 4}, std::vector<std::size_t>(7, 1)})
            CHECK(same_bits(run(p, lengths).both(), got.both()));
        CHECK(simt::same_under_all_schedules([&] { return run(p).both(); }));
    }
}

TEST_CASE("C01 heads that forget fast: nothing but numbers") {
    for (const float g : {-3.0f, -88.0f, -104.0f, -3e38f, -std::numeric_limits<float>::infinity()}) {
        problem p = random_problem({1, 1, 16, 16}, 20, 3);
        for (std::size_t t = 0; t < p.tokens; ++t) p.g[t] = t % 3 != 0 ? -1e-3f : g;
        const answer got = run(p);
        for (const float value : got.both()) REQUIRE(std::isfinite(value));
        check_answer(got, reference<pairing::grouped>(p), "forgetting");
    }
}

TEST_CASE("too wide heads are refused, no tokens change nothing") {
    const delta_rule_dims dims{1, 1, 257, 4};
    CHECK(gpu::gated_delta_rule<pairing::grouped>(dims, {nullptr, 1, 257}, {nullptr, 1, 257}, {nullptr, 1, 4}, {nullptr, 1, 1},
                                                  {nullptr, 1, 1}, nullptr, {nullptr, 1, 4}, nullptr) == cudaErrorInvalidValue);
    CHECK(gpu::gated_delta_rule<pairing::grouped>(dims, {nullptr, 0, 257}, {nullptr, 0, 257}, {nullptr, 0, 4}, {nullptr, 0, 1},
                                                  {nullptr, 0, 1}, nullptr, {nullptr, 0, 4}, nullptr) == cudaSuccess);
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
    const problem p = random_problem({1, 1, 64, 32}, 3, 9);
    CHECK(test::unnoticed_barriers([&] { return run(p).both(); }) == std::vector<std::string>{});
}
