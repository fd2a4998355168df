// The gated delta rule: one token (decode: the state streams), and a prefill by either scan.
#include "frugal/ops/gated_delta_rule/gated_delta_rule.hpp"
#include "bench.hpp"

namespace bench {

namespace {

template <class Isa, class Scan>
struct delta_rule {
    static constexpr fg::ops::delta_rule_dims dims{16, 32, 128, 128};
    using pairing = fg::ops::head_pairing::grouped;

    explicit delta_rule(std::size_t count)
        : tokens(count),
          q(unit(count * dims.key_heads, 1)),
          k(unit(count * dims.key_heads, 2)),
          v(normal(count * dims.value_heads * dims.value_dim, 3)),
          g(normal(count * dims.value_heads, 4)),
          beta(normal(count * dims.value_heads, 5)),
          state(dims.state_size()),
          out(v.size()) {
        for (auto& each : g) each = -0.1f * std::fabs(each);
        for (auto& each : beta) each = 1.0f / (1.0f + std::exp(-each));
    }

    fg::status run() {
        return fg::ops::gated_delta_rule<pairing, fg::ops::state_layout::key_major, Scan>(
            device, scratch, as_matrix(std::as_const(q), tokens), as_matrix(std::as_const(k), tokens),
            as_matrix(std::as_const(v), tokens), as_matrix(std::as_const(g), tokens), as_matrix(std::as_const(beta), tokens),
            dims, state, as_matrix(out, tokens));
    }

    // The recurrence in double for three heads, from a state of zeros.
    std::string check() const {
        std::vector<float> got;
        std::vector<double> want;
        for (std::size_t h : {std::size_t{0}, std::size_t{13}, dims.value_heads - 1}) {
            const std::size_t i = pairing::key_head(h, dims.key_heads, dims.value_heads);
            std::vector<double> s(dims.key_dim * dims.value_dim);
            for (std::size_t t = 0; t < tokens; ++t) {
                const float* const key = k.data() + (t * dims.key_heads + i) * dims.key_dim;
                const float* const query = q.data() + (t * dims.key_heads + i) * dims.key_dim;
                const double decay = std::exp(static_cast<double>(g[t * dims.value_heads + h]));
                for (std::size_t c = 0; c < dims.value_dim; ++c) {
                    double predicted = 0, read = 0;
                    for (std::size_t r = 0; r < dims.key_dim; ++r) {
                        s[r * dims.value_dim + c] *= decay;
                        predicted += s[r * dims.value_dim + c] * static_cast<double>(key[r]);
                    }
                    const std::size_t at = (t * dims.value_heads + h) * dims.value_dim + c;
                    const double delta =
                        (static_cast<double>(v[at]) - predicted) * static_cast<double>(beta[t * dims.value_heads + h]);
                    for (std::size_t r = 0; r < dims.key_dim; ++r) {
                        s[r * dims.value_dim + c] += static_cast<double>(key[r]) * delta;
                        read += s[r * dims.value_dim + c] * static_cast<double>(query[r]);
                    }
                    got.push_back(out[at]);
                    want.push_back(read / std::sqrt(static_cast<double>(dims.key_dim)));
                }
            }
        }
        return compare(got, want, 1e-4);
    }

    // Operations of the recurrence, whatever the scan does: decay 1, prediction 2, update 2, reading 2 a state element.
    work cost() const {
        return {float_bytes(q.size() + k.size() + v.size() + g.size() + beta.size() + out.size() + 2 * state.size()),
                7.0 * static_cast<double>(tokens * state.size())};
    }

    static std::vector<float> unit(std::size_t vectors, unsigned seed) {
        std::vector<float> out = normal(vectors * dims.key_dim, seed);
        for (std::size_t i = 0; i < vectors; ++i) {
            float square = 0;
            for (std::size_t j = 0; j < dims.key_dim; ++j) square += out[i * dims.key_dim + j] * out[i * dims.key_dim + j];
            for (std::size_t j = 0; j < dims.key_dim; ++j) out[i * dims.key_dim + j] /= std::sqrt(square);
        }
        return out;
    }

    std::size_t tokens;
    std::vector<float> q, k, v, g, beta, state, out;
    fg::device::cpu<Isa> device{executor()};
    fg::workspace scratch;
};

}  // namespace

void register_benchmarks() {
    using fg::ops::scan::recurrent;
    using chunked = fg::ops::scan::chunked<>;
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const auto add_scan = [&]<class Scan>(fg::type_tag<Scan>, std::size_t tokens) {
            add_case<delta_rule<Isa, Scan>>(
                name(fg::concat("gated_delta_rule_", Scan::name), "f32", Isa::name, fg::concat(tokens, "x32x128x128")), Isa::name,
                tokens);
        };
        add_scan(fg::type_tag<recurrent>{}, 1);
        add_scan(fg::type_tag<recurrent>{}, 512);
        add_scan(fg::type_tag<chunked>{}, 512);
    });
}

}  // namespace bench
