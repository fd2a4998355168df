#pragma once
/// A Gated DeltaNet layer with the weights of a golden file, and short ways to run it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/quant/formats/f32.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace test {

namespace fg = frugal;
namespace attention = frugal::attention;
namespace pairing = frugal::ops::head_pairing;
using attention::gdn_dims;
using attention::segment;
using attention::sequence_id;
using formats = fg::quant::list<fg::quant::f32>;
using grouped_silu = attention::gdn<pairing::grouped>;

inline constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

inline std::vector<float> normals(std::size_t n, unsigned seed, float scale = 1.0f) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& value : out) value = scale * normal(generator);
    return out;
}

/// Owns the weights of one layer.
struct gdn_layer {
    gdn_dims dims;
    std::vector<float> qkv, z, beta, alpha, out, conv, a_neg_exp, dt_bias, norm;

    static gdn_layer from(const golden& file) {
        gdn_layer l;
        const auto& p = file.params();
        l.dims = {p.at("hidden_size"), p.at("num_k_heads"), p.at("num_v_heads"), p.at("k_head_dim"),
                  p.at("v_head_dim"),  p.at("conv_kernel"), p.at("rms_eps")};
        l.qkv = file.f32("w.in_proj_qkv.weight"), l.z = file.f32("w.in_proj_z.weight"), l.beta = file.f32("w.in_proj_b.weight");
        l.alpha = file.f32("w.in_proj_a.weight"), l.out = file.f32("w.out_proj.weight"), l.conv = file.f32("w.conv1d.weight");
        l.a_neg_exp = file.f32("w.A_log"), l.dt_bias = file.f32("w.dt_bias"), l.norm = file.f32("w.norm.weight");
        for (float& value : l.a_neg_exp) value = -std::exp(value);
        return l;
    }
    /// Random weights of any sizes.
    static gdn_layer random(const gdn_dims& d, unsigned seed) {
        gdn_layer l;
        l.dims = d;
        const float scale = 1.2f / std::sqrt(static_cast<float>(d.hidden));
        l.qkv = normals(d.channels() * d.hidden, seed, scale), l.z = normals(d.values() * d.hidden, seed + 1, scale);
        l.beta = normals(d.value_heads * d.hidden, seed + 2, scale), l.alpha = normals(d.value_heads * d.hidden, seed + 3, scale);
        l.out = normals(d.hidden * d.values(), seed + 4, scale), l.conv = normals(d.channels() * d.conv_kernel, seed + 5, 0.5f);
        l.a_neg_exp = normals(d.value_heads, seed + 6), l.dt_bias = normals(d.value_heads, seed + 7),
        l.norm = normals(d.value_dim, seed + 8);
        for (float& value : l.a_neg_exp) value = -std::exp(value);
        return l;
    }
    [[nodiscard]] attention::gdn_weights weights() const {
        const auto matrix = [](const std::vector<float>& data, std::size_t rows) {
            const std::size_t cols = data.size() / rows;
            return fg::quant::weight_view{fg::quant::f32::type, reinterpret_cast<const std::byte*>(data.data()), rows, cols,
                                          cols * sizeof(float)};
        };
        return {matrix(qkv, dims.channels()),
                matrix(z, dims.values()),
                matrix(beta, dims.value_heads),
                matrix(alpha, dims.value_heads),
                matrix(out, dims.hidden),
                conv,
                a_neg_exp,
                dt_bias,
                norm};
    }
};

/// Outputs of the layer in double, from an empty state, grouped pairing.
template <class Gate>
std::vector<double> reference64(const gdn_layer& l, std::span<const float> x, Gate gate) {
    const auto& d = l.dims;
    const std::size_t tokens = x.size() / d.hidden, keys = d.key_heads * d.key_dim, channels = d.channels();
    const auto project = [](const std::vector<float>& w, std::size_t row, const auto* in, std::size_t cols) {
        double sum = 0;
        for (std::size_t c = 0; c < cols; ++c) sum += double(w[row * cols + c]) * in[c];
        return sum;
    };
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    std::vector<double> inputs(tokens * channels), s(d.rule().state_size()), c(channels), heads(d.values());
    std::vector<double> out(x.size());
    for (std::size_t t = 0; t < tokens; ++t) {
        const float* in = x.data() + t * d.hidden;
        for (std::size_t i = 0; i < channels; ++i) {
            inputs[t * channels + i] = project(l.qkv, i, in, d.hidden);
            c[i] = 0;
            for (std::size_t k = 0; k < d.conv_kernel && k <= t; ++k)
                c[i] += l.conv[i * d.conv_kernel + d.conv_kernel - 1 - k] * inputs[(t - k) * channels + i];
            c[i] *= sigmoid(c[i]);
        }
        for (std::size_t h = 0; h < 2 * d.key_heads; ++h) {
            double square = 1e-6;
            for (std::size_t i = 0; i < d.key_dim; ++i) square += c[h * d.key_dim + i] * c[h * d.key_dim + i];
            for (std::size_t i = 0; i < d.key_dim; ++i) c[h * d.key_dim + i] /= std::sqrt(square);
        }
        for (std::size_t h = 0; h < d.value_heads; ++h) {
            const double a = project(l.alpha, h, in, d.hidden) + l.dt_bias[h], beta = sigmoid(project(l.beta, h, in, d.hidden));
            const double decay = std::exp(l.a_neg_exp[h] * (std::max(a, 0.0) + std::log1p(std::exp(-std::abs(a)))));
            const std::size_t i = h / (d.value_heads / d.key_heads);
            const double *q = &c[i * d.key_dim], *k = &c[keys + i * d.key_dim];
            double square = 0;
            for (std::size_t v = 0; v < d.value_dim; ++v) {
                double predicted = 0, read = 0;
                double* column = &s[h * d.key_dim * d.value_dim + v];
                for (std::size_t e = 0; e < d.key_dim; ++e) predicted += (column[e * d.value_dim] *= decay) * k[e];
                const double delta = (c[2 * keys + h * d.value_dim + v] - predicted) * beta;
                for (std::size_t e = 0; e < d.key_dim; ++e) read += (column[e * d.value_dim] += k[e] * delta) * q[e];
                heads[h * d.value_dim + v] = read / std::sqrt(double(d.key_dim));
                square += heads[h * d.value_dim + v] * heads[h * d.value_dim + v] / double(d.value_dim);
            }
            for (std::size_t v = 0; v < d.value_dim; ++v)
                heads[h * d.value_dim + v] *=
                    l.norm[v] * gate(project(l.z, h * d.value_dim + v, in, d.hidden)) / std::sqrt(square + double(d.eps));
        }
        for (std::size_t i = 0; i < d.hidden; ++i) out[t * d.hidden + i] = project(l.out, i, heads.data(), d.values());
    }
    return out;
}

/// What one test runs on: a device, a layer, a state.
template <class Isa, class Variant = grouped_silu>
class gdn_runner {
public:
    using state_type = typename Variant::state;

    gdn_runner(const gdn_layer& layer, std::size_t sequences, std::size_t checkpoints, fg::device::executor_ref executor = {})
        : layer_(layer), dev_(executor), state(*state_type::create(layer.dims, sequences, checkpoints)) {}

    /// Forward of rows of x cut into segments; returns y, which held NaN.
    std::vector<float> operator()(const std::vector<segment>& segments, std::span<const float> x) {
        const std::size_t hidden = layer_.dims.hidden, rows = x.size() / hidden;
        std::vector<float> y(x.size(), quiet_nan);
        const std::vector<attention::rope_position> positions(rows);
        const auto done = forward({segments, positions}, {x.data(), rows, hidden}, {y.data(), rows, hidden});
        REQUIRE_MESSAGE(done, (done ? std::string() : done.error().message));
        return y;
    }
    /// All rows of x continue one sequence.
    std::vector<float> operator()(int sequence, std::span<const float> x) {
        return (*this)({{static_cast<sequence_id>(sequence), 0, x.size() / layer_.dims.hidden}}, x);
    }
    fg::status forward(const attention::batch& b, fg::matrix_view<const float> x, fg::matrix_view<float> y) {
        return Variant::template forward<formats>(dev_, scratch_, layer_.dims, layer_.weights(), state, b, x, y);
    }
    /// Fills everything a sequence holds.
    void poison(int sequence, float value) {
        const auto recurrent = state.recurrent(static_cast<sequence_id>(sequence));
        std::fill(recurrent.begin(), recurrent.end(), value);
        const auto history = state.conv_history(static_cast<sequence_id>(sequence));
        std::fill_n(history.data(), history.rows() * history.cols(), value);
    }
    /// Recurrent state, then conv history.
    [[nodiscard]] std::vector<float> content(int sequence) const {
        const auto recurrent = state.recurrent(static_cast<sequence_id>(sequence));
        const auto history = state.conv_history(static_cast<sequence_id>(sequence));
        std::vector<float> out(recurrent.begin(), recurrent.end());
        out.insert(out.end(), history.data(), history.data() + history.rows() * history.cols());
        return out;
    }

private:
    const gdn_layer& layer_;
    fg::device::cpu<Isa> dev_;
    fg::workspace scratch_;

public:
    state_type state;
};

}  // namespace test
