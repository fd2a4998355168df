// A mixture of 64 experts of which 8 are chosen: router, choice, gate, up, down and the weighted sum, for one token at a time
// and for 512 at once.
#include "frugal/layer/moe.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/tensor/workspace.hpp"
#include "operators.hpp"
#include "prepared_graph.hpp"

namespace bench {

namespace {

using format = fg::quant::q4_k;
using listed = fg::quant::list<fg::quant::f32, format>;
constexpr std::size_t experts = 64, chosen = 8, hidden = 2048, width = 512;
constexpr fg::layer::moe_dims dims{experts, chosen, true};

struct inputs {
    explicit inputs(std::size_t count)
        : tokens(count),
          x(normal(count * hidden, 1)),
          router(normal(experts * hidden, 2, 0.03f)),
          gate(experts * width, hidden, 1, 3),
          up(experts * width, hidden, 1, 4),
          down(experts * hidden, width, 1, 5) {}

    /// Errors: shape_mismatch.
    [[nodiscard]] fg::result<fg::layer::moe_weights> weights_of_ours() const {
        fg::layer::moe_weights out;
        out.router = {fg::quant::f32::type, reinterpret_cast<const std::byte*>(router.data()), experts, hidden,
                      hidden * sizeof(float)};
        FRUGAL_TRY_ASSIGN(out.gate, fg::layer::expert_stack::whole(gate.view(), experts));
        FRUGAL_TRY_ASSIGN(out.up, fg::layer::expert_stack::whole(up.view(), experts));
        FRUGAL_TRY_ASSIGN(out.down, fg::layer::expert_stack::whole(down.view(), experts));
        return out;
    }
    [[nodiscard]] std::vector<float> row(std::size_t t) const {
        const auto from = x.begin() + static_cast<std::ptrdiff_t>(t * hidden);
        return {from, from + static_cast<std::ptrdiff_t>(hidden)};
    }

    std::size_t tokens;
    std::vector<float> x, router;
    weights<format> gate, up, down;
};

/// Output of token t, in double; the experts' inner values are rounded to f32.
std::vector<double> reference(const inputs& in, std::size_t t) {
    const float* const x = in.x.data() + t * hidden;
    std::vector<double> logits(experts);
    for (std::size_t e = 0; e < experts; ++e)
        for (std::size_t i = 0; i < hidden; ++i)
            logits[e] += static_cast<double>(in.router[e * hidden + i]) * static_cast<double>(x[i]);
    std::vector<std::size_t> order(experts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    double total = 0;
    for (std::size_t i = 0; i < chosen; ++i) total += std::exp(logits[order[i]]);
    std::vector<double> out(hidden);
    for (std::size_t i = 0; i < chosen; ++i) {
        const std::size_t e = order[i];
        std::vector<float> inner(width);
        for (std::size_t r = 0; r < width; ++r) {
            const double gate = in.gate.dot(e * width + r, x);
            inner[r] = static_cast<float>(gate / (1 + std::exp(-gate)) * in.up.dot(e * width + r, x));
        }
        for (std::size_t r = 0; r < hidden; ++r)
            out[r] += std::exp(logits[e]) / total * in.down.dot(e * hidden + r, inner.data());
    }
    return out;
}

/// `batch` tokens a call, all tokens a run.
template <class Isa>
class our_experts {
    using device = fg::device::packed_cpu<Isa, fg::counters_off, listed, fg::device::q8_activations>;
    template <class List>
    using images = fg::reuse::image_store<List, device, listed>;

public:
    our_experts(std::shared_ptr<const inputs> in, const fg::layer::moe_weights& weights, std::size_t batch, std::size_t threads)
        : in_(std::move(in)),
          batch_(batch),
          device_(executor(threads)),
          weights_(weights),
          images_(images<fg::layer::moe_products>::create({.layers = 1}).value(),
                  images<fg::layer::dense_ffn_products>::create({.layers = 1}).value()),
          store_({1, experts}),
          y_(in_->tokens * hidden) {}

    // What a pass asks of who multiplies.
    using formats = listed;
    using sharing = fg::reuse::default_activation_sharing;
    template <class List>
    auto begin(device& dev, fg::workspace& scratch, std::size_t layer, const typename List::weights& w) {
        return std::get<images<List>>(images_).begin(dev, scratch, layer, w);
    }
    auto begin_experts(device& dev, fg::workspace& scratch, std::size_t layer, const fg::layer::moe_weights& w) {
        return store_.begin(dev, scratch, layer, w);
    }

    [[nodiscard]] fg::status run() {
        fg::reuse::cpu_pass pass(device_, scratch_, *this);
        for (std::size_t t = 0; t < in_->tokens; t += batch_)
            FRUGAL_TRY(fg::layer::mixture_of_experts::forward(pass, 0, dims, weights_,
                                                              as_matrix(in_->x, in_->tokens).rows_range(t, batch_),
                                                              as_matrix(y_, in_->tokens).rows_range(t, batch_)));
        return {};
    }
    [[nodiscard]] std::vector<float> result() const { return y_; }

private:
    std::shared_ptr<const inputs> in_;
    std::size_t batch_;
    device device_;
    fg::workspace scratch_;
    fg::layer::moe_weights weights_;
    std::tuple<images<fg::layer::moe_products>, images<fg::layer::dense_ffn_products>> images_;
    fg::layer::expert_store<device, listed> store_;
    std::vector<float> y_;
};

/// The same of ggml's operators in the order of llama.cpp's graph; the outputs of all calls lie one after the other.
class peer_experts {
public:
    peer_experts(const peer::ggml& library, const inputs& in, std::size_t batch, std::size_t threads)
        : in_(in),
          batch_(batch),
          gate_and_up_(library, peer::q4_k, {hidden, width, experts}, 2),
          down_(library, peer::q4_k, {width, hidden, experts}, 1),
          graph_(library, 64 * (in.tokens / batch) + 64, threads) {}

    /// False: ggml has no product for these weights in such a buffer. Errors: out_of_memory.
    [[nodiscard]] fg::result<bool> place(peer::ggml_buffer_type* where) {
        FRUGAL_TRY(gate_and_up_.allocate(where));
        FRUGAL_TRY(down_.allocate(where));
        const auto router = graph_.input({hidden, experts}, in_.router);
        const auto y = graph_.empty(peer::f32, {hidden, in_.tokens});
        for (std::size_t t = 0; t < in_.tokens; t += batch_) {
            const auto part = build(router, t);
            if (part == nullptr) return false;
            graph_.expand(graph_.g().ggml_cpy(graph_.context(), part,
                                              graph_.view(y, hidden, batch_, 1, hidden * sizeof(float),
                                                          hidden * batch_ * sizeof(float), t * hidden * sizeof(float))));
        }
        gate_and_up_.set(0, in_.gate.view().data, in_.gate.view().bytes());
        gate_and_up_.set(1, in_.up.view().data, in_.up.view().bytes());
        down_.set(0, in_.down.view().data, in_.down.view().bytes());
        FRUGAL_TRY(graph_.allocate(y, in_.tokens * hidden));
        return true;
    }
    [[nodiscard]] fg::status run() const { return graph_.run(); }
    [[nodiscard]] std::vector<float> result() const { return graph_.result(); }

private:
    [[nodiscard]] peer::ggml_tensor* build(peer::ggml_tensor* router, std::size_t t) {
        const peer::ggml& g = graph_.g();
        peer::ggml_context* const c = graph_.context();
        const auto from = in_.x.begin() + static_cast<std::ptrdiff_t>(t * hidden);
        const auto x = graph_.input({hidden, batch_}, {from, from + static_cast<std::ptrdiff_t>(batch_ * hidden)});
        const auto probabilities = g.ggml_soft_max(c, g.ggml_mul_mat(c, router, x));
        const auto top = g.ggml_argsort_top_k(c, probabilities, chosen);
        auto weight = g.ggml_get_rows(c, graph_.reshape(probabilities, 1, experts, batch_), top);
        weight = graph_.reshape(weight, chosen, batch_);
        weight = g.ggml_div(c, weight, g.ggml_sum_rows(c, weight));
        const auto rows = graph_.reshape(x, hidden, 1, batch_);
        const auto gate = g.ggml_mul_mat_id(c, gate_and_up_.tensors()[0], rows, top);
        const auto up = g.ggml_mul_mat_id(c, gate_and_up_.tensors()[1], rows, top);
        auto out = g.ggml_mul_mat_id(c, down_.tensors()[0], g.ggml_swiglu_split(c, gate, up), top);
        if (!graph_.supported(gate) || !graph_.supported(out)) return nullptr;
        out = g.ggml_mul(c, out, graph_.reshape(weight, 1, chosen, batch_));
        peer::ggml_tensor* sum = nullptr;
        for (std::size_t i = 0; i < chosen; ++i) {
            const std::size_t row = hidden * sizeof(float);
            const auto one = graph_.view(out, hidden, batch_, 1, row * chosen, row * chosen * batch_, i * row);
            sum = sum != nullptr ? g.ggml_add(c, sum, one) : one;
        }
        return sum;
    }

    const inputs& in_;
    std::size_t batch_;
    peer::weights gate_and_up_, down_;
    peer::prepared_graph graph_;
};

fg::status measure(contests& all, std::string figure, std::size_t tokens, std::size_t batch, bound what) {
    const auto in = std::make_shared<const inputs>(tokens);
    const double expert_bytes = static_cast<double>(3 * width * hidden / format::block_size * format::block_bytes);
    contest out;
    out.figure = std::move(figure);
    out.op = fg::concat("experts, ", batch == 1 ? "decode" : "prefill");
    out.format = format::name;
    out.shape = fg::concat(batch, "x8/64x", width, 'x', hidden);
    out.threads = executor().concurrency();
    out.bound = what;
    // The products of the chosen experts and of the router.
    out.cost = {static_cast<double>(std::min(chosen * batch, experts)) * expert_bytes + float_bytes(in->router.size()),
                2.0 * static_cast<double>(batch * hidden * (3 * chosen * width + experts))};
    for (const std::size_t t : {std::size_t{0}, tokens - 1}) {
        const std::vector<double> want = reference(*in, t);
        for (std::size_t i = 0; i < hidden; ++i) {
            out.checked.push_back(t * hidden + i);
            out.want.push_back(want[i]);
        }
    }
    // Activations and inner values may be rounded to 8 bits; the worst of 4096 outputs is far out.
    constexpr double tolerance = 0.15;
    FRUGAL_TRY_ASSIGN(const auto weights, in->weights_of_ours());
    const std::size_t calls = tokens / batch;
    for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        out.enter(std::string(Isa::name), true, std::make_shared<our_experts<Isa>>(in, weights, batch, out.threads), tolerance,
                  calls);
    });
    if (all.peer() != nullptr)
        for (const auto& [name, where] : all.peer()->weight_buffers()) {
            const auto theirs = std::make_shared<peer_experts>(*all.peer(), *in, batch, out.threads);
            FRUGAL_TRY_ASSIGN(const bool present, theirs->place(where));
            if (present) out.enter(name, false, theirs, tolerance, calls);
        }
    return all.hold(std::move(out));
}

}  // namespace

fg::status measure_moe(contests& all) {
    // Sixteen tokens choose experts of their own; together these exceed the last-level cache several times.
    FRUGAL_TRY(measure(all, "moe.decode", 16, 1, bound::reading));
    return measure(all, "moe.prefill", 512, 512, bound::int8);
}

}  // namespace bench
