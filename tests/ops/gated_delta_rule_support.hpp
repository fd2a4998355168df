#pragma once
/// Inputs of the gated delta rule for the tests of its kernels, and the rule in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "frugal/ops/gated_delta_rule/policies.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "golden.hpp"

namespace test {

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// One sequence's inputs; q and k of unit length already.
struct problem {
    frugal::ops::delta_rule_dims dims;
    std::size_t tokens = 0;
    std::vector<float> q, k, v, g, beta, state;
};

struct answer {
    std::vector<float> out, state;
    [[nodiscard]] std::vector<float> both() const {
        auto all = out;
        all.insert(all.end(), state.begin(), state.end());
        return all;
    }
};

inline void normalise(std::vector<float>& heads, std::size_t dim) {
    frugal::device::cpu<frugal::isa::baseline> dev;
    const frugal::matrix_view<float> rows(heads.data(), heads.size() / dim, dim);
    REQUIRE(frugal::ops::l2_norm(dev, rows, 1e-6f, rows));
}

struct random_numbers {
    std::mt19937 generator;
    std::normal_distribution<float> normal_distribution;
    std::uniform_real_distribution<float> uniform_distribution;
    float normal() { return normal_distribution(generator); }
    float uniform() { return uniform_distribution(generator); }
};

/// g in [-316, 0), q and k of unit length; values and betas as they are drawn by `value(random)` and `beta(random)`.
template <class Value, class Beta>
problem random_problem(frugal::ops::delta_rule_dims dims, std::size_t tokens, unsigned seed, const Value& value,
                       const Beta& beta) {
    random_numbers random{std::mt19937(seed), {}, {}};
    problem p{dims, tokens, {}, {}, {}, {}, {}, {}};
    p.q.resize(tokens * dims.key_heads * dims.key_dim);
    p.k.resize(p.q.size());
    for (float& each : p.q) each = random.normal();
    for (float& each : p.k) each = random.normal();
    normalise(p.q, dims.key_dim);
    normalise(p.k, dims.key_dim);
    p.v.resize(tokens * dims.value_heads * dims.value_dim);
    for (float& each : p.v) each = value(random);
    p.g.resize(tokens * dims.value_heads);
    p.beta.resize(p.g.size());
    for (float& each : p.g) each = -std::exp(std::log(1e-4f) + random.uniform() * (std::log(316.0f) - std::log(1e-4f)));
    for (float& each : p.beta) each = beta(random);
    p.state.resize(dims.state_size());
    for (float& each : p.state) each = 0.5f * random.normal();
    return p;
}

inline problem from_golden(const golden& file, std::size_t row) {
    const auto q = file.shape("q"), v = file.shape("v");
    problem p{{q[2], v[2], q[3], v[3]}, q[1], {}, {}, {}, {}, {}, {}};
    const auto take = [&](const char* name) {
        const auto all = file.f32(name);
        const std::size_t n = all.size() / q[0];
        return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(row * n),
                                  all.begin() + static_cast<std::ptrdiff_t>((row + 1) * n));
    };
    p.q = take("q"), p.k = take("k"), p.v = take("v"), p.g = take("g"), p.beta = take("beta");
    p.state = file.has("state0") ? take("state0") : std::vector<float>(p.dims.state_size());
    normalise(p.q, p.dims.key_dim);
    normalise(p.k, p.dims.key_dim);
    return p;
}

/// The token loop in double.
template <class Pairing = frugal::ops::head_pairing::grouped>
answer reference(const problem& p) {
    const auto [key_heads, value_heads, key_dim, value_dim] = p.dims;
    std::vector<double> s(p.state.begin(), p.state.end());
    answer a{std::vector<float>(p.v.size()), std::vector<float>(s.size())};
    for (std::size_t t = 0; t < p.tokens; ++t)
        for (std::size_t h = 0; h < value_heads; ++h) {
            const std::size_t i = Pairing::key_head(h, key_heads, value_heads);
            const float *q = &p.q[(t * key_heads + i) * key_dim], *k = &p.k[(t * key_heads + i) * key_dim];
            const double decay = std::exp(double(p.g[t * value_heads + h]));
            double* head = &s[h * key_dim * value_dim];
            for (std::size_t c = 0; c < value_dim; ++c) {
                double predicted = 0, read = 0;
                for (std::size_t d = 0; d < key_dim; ++d) predicted += (head[d * value_dim + c] *= decay) * double(k[d]);
                const double delta =
                    (double(p.v[(t * value_heads + h) * value_dim + c]) - predicted) * double(p.beta[t * value_heads + h]);
                for (std::size_t d = 0; d < key_dim; ++d)
                    read += (head[d * value_dim + c] += double(k[d]) * delta) * double(q[d]);
                a.out[(t * value_heads + h) * value_dim + c] = static_cast<float>(read / std::sqrt(double(key_dim)));
            }
        }
    std::transform(s.begin(), s.end(), a.state.begin(), [](double x) { return static_cast<float>(x); });
    return a;
}

}  // namespace test
