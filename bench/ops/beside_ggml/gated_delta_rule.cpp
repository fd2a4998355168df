// The gated delta rule of a Gated DeltaNet layer: a decoded token, whose state comes from memory, and a prefill.
#include "frugal/ops/gated_delta_rule/gated_delta_rule.hpp"

#include <cmath>
#include <memory>
#include <utility>

#include "frugal/tensor/workspace.hpp"
#include "operators.hpp"
#include "prepared_graph.hpp"

namespace bench {

namespace {

constexpr fg::ops::delta_rule_dims dims{16, 32, 128, 128};
using pairing = fg::ops::head_pairing::tiled;  // ggml's
constexpr std::size_t out_width = dims.value_heads * dims.value_dim;

std::vector<float> unit(std::size_t vectors, unsigned seed) {
    std::vector<float> out = normal(vectors * dims.key_dim, seed);
    for (std::size_t i = 0; i < vectors; ++i) {
        float square = 0;
        for (std::size_t j = 0; j < dims.key_dim; ++j) square += out[i * dims.key_dim + j] * out[i * dims.key_dim + j];
        for (std::size_t j = 0; j < dims.key_dim; ++j) out[i * dims.key_dim + j] /= std::sqrt(square);
    }
    return out;
}

struct inputs {
    explicit inputs(std::size_t count)
        : tokens(count),
          q(unit(count * dims.key_heads, 1)),
          k(unit(count * dims.key_heads, 2)),
          v(normal(count * out_width, 3)),
          g(normal(count * dims.value_heads, 4)),
          beta(normal(count * dims.value_heads, 5)),
          state(normal(dims.state_size(), 6, 0.1f)) {
        for (float& each : g) each = -0.1f * std::fabs(each);
        for (float& each : beta) each = 1.0f / (1.0f + std::exp(-each));
    }
    std::size_t tokens;
    std::vector<float> q, k, v, g, beta, state;  // state: [value heads][key dim][value dim]
};

/// The recurrence in double for some heads; fills what is compared.
void add_reference(const inputs& in, contest& out) {
    std::vector<std::size_t> heads{0, 13, dims.value_heads - 1};
    std::vector<std::vector<double>> states;
    for (const std::size_t h : heads) {
        const auto* const from = in.state.data() + h * dims.key_dim * dims.value_dim;
        states.emplace_back(from, from + dims.key_dim * dims.value_dim);
    }
    for (std::size_t t = 0; t < in.tokens; ++t)
        for (std::size_t i = 0; i < heads.size(); ++i) {
            const std::size_t h = heads[i], pair = pairing::key_head(h, dims.key_heads, dims.value_heads);
            std::vector<double>& s = states[i];
            const float* const key = in.k.data() + (t * dims.key_heads + pair) * dims.key_dim;
            const float* const query = in.q.data() + (t * dims.key_heads + pair) * dims.key_dim;
            const double decay = std::exp(static_cast<double>(in.g[t * dims.value_heads + h]));
            for (std::size_t c = 0; c < dims.value_dim; ++c) {
                double predicted = 0, read = 0;
                for (std::size_t r = 0; r < dims.key_dim; ++r)
                    predicted += (s[r * dims.value_dim + c] *= decay) * static_cast<double>(key[r]);
                const std::size_t at = t * out_width + h * dims.value_dim + c;
                const double delta =
                    (static_cast<double>(in.v[at]) - predicted) * static_cast<double>(in.beta[t * dims.value_heads + h]);
                for (std::size_t r = 0; r < dims.key_dim; ++r) {
                    s[r * dims.value_dim + c] += static_cast<double>(key[r]) * delta;
                    read += s[r * dims.value_dim + c] * static_cast<double>(query[r]);
                }
                out.checked.push_back(at);
                out.want.push_back(read / std::sqrt(static_cast<double>(dims.key_dim)));
            }
        }
}

/// Every state takes the tokens once a run, in place.
template <class Isa, class Scan>
class our_rule {
public:
    our_rule(std::shared_ptr<const inputs> in, std::size_t states, std::size_t threads)
        : in_(std::move(in)), device_(executor(threads)), states_(states, in_->state), out_(in_->tokens * out_width) {}

    [[nodiscard]] fg::status run() {
        const std::size_t n = in_->tokens;
        for (std::vector<float>& state : states_)
            FRUGAL_TRY((fg::ops::gated_delta_rule<pairing, fg::ops::state_layout::key_major, Scan>(
                device_, scratch_, as_matrix(in_->q, n), as_matrix(in_->k, n), as_matrix(in_->v, n), as_matrix(in_->g, n),
                as_matrix(in_->beta, n), dims, state, as_matrix(out_, n))));
        return {};
    }
    [[nodiscard]] std::vector<float> result() const { return out_; }

private:
    std::shared_ptr<const inputs> in_;
    fg::device::cpu<Isa> device_;
    fg::workspace scratch_;
    std::vector<std::vector<float>> states_;
    std::vector<float> out_;
};

/// ggml_gated_delta_net, which writes the new state behind its output.
fg::result<std::shared_ptr<peer::prepared_graph>> peer_rule(const peer::ggml& library, const inputs& in, std::size_t states,
                                                            std::size_t threads) {
    const auto out = std::make_shared<peer::prepared_graph>(library, 2 * states + 32, threads);
    const auto q = out->input({dims.key_dim, dims.key_heads, in.tokens}, in.q);
    const auto k = out->input({dims.key_dim, dims.key_heads, in.tokens}, in.k);
    const auto v = out->input({dims.value_dim, dims.value_heads, in.tokens}, in.v);
    const auto g = out->input({1, dims.value_heads, in.tokens}, in.g);
    const auto beta = out->input({1, dims.value_heads, in.tokens}, in.beta);
    std::vector<float> state(dims.state_size());
    FRUGAL_TRY(
        (fg::ops::convert_state<fg::ops::state_layout::key_major, fg::ops::state_layout::value_major>(dims, in.state, state)));
    peer::ggml_tensor* last = nullptr;
    for (std::size_t i = 0; i < states; ++i) {
        const auto from = out->input({dims.key_dim, dims.value_dim, dims.value_heads, 1}, state);
        last = library.ggml_gated_delta_net(out->context(), q, k, v, g, beta, from, 1);
        out->expand(last);
    }
    FRUGAL_TRY(out->allocate(last, in.tokens * out_width));
    return out;
}

template <class Scan>
fg::status measure(contests& all, std::size_t tokens, contest out) {
    const auto in = std::make_shared<const inputs>(tokens);
    const std::size_t states = tokens == 1 ? copies_beyond_cache(dims.state_size() * sizeof(float)) : 1;
    out.op = fg::concat("gated delta rule, ", tokens == 1 ? "decode" : "prefill");
    out.format = "f32";
    out.shape = fg::concat(tokens, "x16/32x128");
    out.threads = executor().concurrency();
    // Of a recurrence, whatever the scan does: decay 1, prediction 2, update 2, reading 2 a state element.
    out.cost = {float_bytes(2 * dims.state_size()), 7.0 * static_cast<double>(tokens * dims.state_size())};
    add_reference(*in, out);
    constexpr double tolerance = 1e-3;
    for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        out.enter(std::string(Isa::name), true, std::make_shared<our_rule<Isa, Scan>>(in, states, out.threads), tolerance,
                  states);
    });
    if (all.peer() != nullptr) {
        FRUGAL_TRY_ASSIGN(const auto theirs, peer_rule(*all.peer(), *in, states, out.threads));
        out.enter("gated_delta_net", false, theirs, tolerance, states);
    }
    return all.hold(std::move(out));
}

}  // namespace

fg::status measure_gated_delta_rule(contests& all) {
    contest decode;
    decode.figure = "gdn.decode";
    decode.bound = bound::updating;
    FRUGAL_TRY(measure<fg::ops::scan::recurrent>(all, 1, std::move(decode)));
    contest prefill;
    prefill.figure = "gdn.prefill";
    prefill.bound = bound::f32;
    return measure<fg::ops::scan::chunked<64>>(all, 512, std::move(prefill));
}

}  // namespace bench
