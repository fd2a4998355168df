// What shared activations save: a mixture of experts and a Gated DeltaNet layer whose products each quantise what they read
// (A, per_product) or read what was quantised once (B, shared_activations), for one token and for 512.
//
// Weights are images in Q4_K; the mixture has 64 experts of which 8 are chosen, and a shared one. Rounds of A and B alternate in
// one process; medians are compared. Results are equal bit for bit, or the program fails.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "bench.hpp"
#include "comparison.hpp"
#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/layer/moe.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/weights/image_products.hpp"

namespace bench {

namespace {

using format = fg::quant::q4_k;
using listed = fg::quant::list<format>;
constexpr std::size_t hidden = 2048;

template <class Isa>
using device = fg::device::packed_cpu<Isa, fg::counters_on, listed, fg::device::q8_activations>;

/// Weights of both layers; more than the caches hold.
struct layer_weights {
    static constexpr std::size_t experts = 64, chosen = 8, width = 512, key_heads = 16, value_heads = 32, dim = 128, taps = 4;
    static constexpr std::size_t values = value_heads * dim, channels = 2 * key_heads * dim + values;

    fg::status bind() {
        moe.router = router.view();
        FRUGAL_TRY_ASSIGN(moe.gate, fg::layer::expert_stack::whole(gate.view(), experts));
        FRUGAL_TRY_ASSIGN(moe.up, fg::layer::expert_stack::whole(up.view(), experts));
        FRUGAL_TRY_ASSIGN(moe.down, fg::layer::expert_stack::whole(down.view(), experts));
        moe.shared_gate = shared_gate.view();
        moe.shared_gate_proj = shared_in.view(0);
        moe.shared_up = shared_in.view(1);
        moe.shared_down = shared_down.view();
        gdn = {qkv.view(), z.view(), gates.view(0), gates.view(1), out.view(), conv, a, bias, norm};
        return {};
    }

    weights<format> router{experts, hidden, 1, 1}, gate{experts * width, hidden, 1, 2}, up{experts * width, hidden, 1, 3},
        down{experts * hidden, width, 1, 4}, shared_gate{1, hidden, 1, 5}, shared_in{width, hidden, 2, 6},
        shared_down{hidden, width, 1, 7}, qkv{channels, hidden, 1, 8}, z{values, hidden, 1, 9}, gates{value_heads, hidden, 2, 10},
        out{hidden, values, 1, 11};
    std::vector<float> conv = normal(channels * taps, 12, 0.3f), a = std::vector<float>(value_heads, -0.5f),
                       bias = std::vector<float>(value_heads, 0.1f), norm = std::vector<float>(dim, 1.0f);
    fg::layer::moe_weights moe;
    fg::attention::gdn_weights gdn;
};

/// One arm: both layers with images of their own.
template <class Isa, class Sharing>
class arm {
    template <class List>
    using store = fg::reuse::image_store<List, device<Isa>, listed, fg::reuse::skip_resident, fg::counters_off,
                                         fg::reuse::unpoisoned, Sharing>;
    using expert_store = fg::layer::expert_store<device<Isa>, listed, fg::reuse::skip_resident, fg::counters_off, Sharing>;
    using variant = fg::attention::gdn<fg::ops::head_pairing::tiled>;

public:
    // What a pass asks of who multiplies.
    using formats = listed;
    using sharing = Sharing;
    template <class List>
    auto begin(device<Isa>& dev, fg::workspace& scratch, std::size_t layer, const typename List::weights& w) {
        return std::get<store<List>>(stores_).begin(dev, scratch, layer, w);
    }
    auto begin_experts(device<Isa>& dev, fg::workspace& scratch, std::size_t layer, const fg::layer::moe_weights& w) {
        return experts_.begin(dev, scratch, layer, w);
    }

    static fg::result<std::unique_ptr<arm>> create(const layer_weights& w) {
        FRUGAL_TRY_ASSIGN(auto routing, store<fg::layer::moe_products>::create({.layers = 1}));
        FRUGAL_TRY_ASSIGN(auto shared, store<fg::layer::dense_ffn_products>::create({.layers = 1}));
        FRUGAL_TRY_ASSIGN(auto recurrent, store<fg::attention::gdn_products>::create({.layers = 1}));
        FRUGAL_TRY_ASSIGN(auto state, variant::state::create(sizes(), 1, 0));
        return std::unique_ptr<arm>(new arm(w, std::move(routing), std::move(shared), std::move(recurrent), std::move(state)));
    }

    fg::status moe(fg::matrix_view<const float> x, fg::matrix_view<float> y) {
        fg::reuse::cpu_pass pass(device_, scratch_, *this);
        return fg::layer::mixture_of_experts::forward(
            pass, 0, fg::layer::moe_dims{layer_weights::experts, layer_weights::chosen, true}, w_.moe, x, y);
    }
    fg::status gdn(fg::matrix_view<const float> x, fg::matrix_view<float> y) {
        state_.clear(fg::attention::sequence_id{0});
        const std::vector<fg::attention::rope_position> positions(x.rows());
        const fg::attention::segment whole{fg::attention::sequence_id{0}, 0, x.rows()};
        fg::reuse::cpu_pass pass(device_, scratch_, *this);
        const fg::attention::step step{{{&whole, 1}, positions}, {}, {}};
        return variant::forward(pass, 0, sizes(), w_.gdn, state_, step, x, y);
    }
    [[nodiscard]] std::uint64_t quantisations() const { return device_.counters().read(fg::counter::activation_quantize_calls); }

private:
    static fg::attention::gdn_dims sizes() {
        return {hidden,
                layer_weights::key_heads,
                layer_weights::value_heads,
                layer_weights::dim,
                layer_weights::dim,
                layer_weights::taps,
                1e-6f};
    }
    arm(const layer_weights& w, store<fg::layer::moe_products> routing, store<fg::layer::dense_ffn_products> shared,
        store<fg::attention::gdn_products> recurrent, typename variant::state state)
        : w_(w),
          stores_(std::move(routing), std::move(shared), std::move(recurrent)),
          experts_({.layers = 1, .experts = layer_weights::experts}),
          state_(std::move(state)) {}

    const layer_weights& w_;
    device<Isa> device_{executor()};
    fg::workspace scratch_;
    std::tuple<store<fg::layer::moe_products>, store<fg::layer::dense_ffn_products>, store<fg::attention::gdn_products>> stores_;
    expert_store experts_;
    typename variant::state state_;
};

/// Times `call` of both arms on the same activations.
template <class A, class B, class Call>
fg::status compare_arms(std::string_view what, std::size_t rows, int rounds, A& per_product, B& shared, const Call& call) {
    const std::vector<float> x = normal(rows * hidden, 20);
    std::vector<float> y[2];
    std::vector<double> seconds[2];
    std::uint64_t quantised[2] = {};
    const auto one = [&](auto& side, int i) -> fg::status {
        y[i].assign(rows * hidden, 0.0f);
        const std::uint64_t before = side.quantisations();
        const double start = measured_seconds();
        FRUGAL_TRY(call(side, as_matrix(x, rows), as_matrix(y[i], rows)));
        seconds[i].push_back(measured_seconds() - start);
        quantised[i] = side.quantisations() - before;
        return {};
    };
    for (int round = -1; round < rounds; ++round) {
        FRUGAL_TRY(one(per_product, 0));
        FRUGAL_TRY(one(shared, 1));
        if (round < 0) seconds[0].clear(), seconds[1].clear();  // images were packed
    }
    if (std::memcmp(y[0].data(), y[1].data(), y[0].size() * sizeof(float)) != 0)
        return fg::fail(fg::errc::invalid_argument, what, ": the arms' results differ");
    if (!(std::fabs(y[0][0]) > 0)) return fg::fail(fg::errc::not_finite, what, ": the results compare nothing");
    const std::string name(what);
    const double ratio = median(seconds[0]) / median(seconds[1]);
    std::printf("%-12s %4zu rows: %llu quantisations by product, %llu shared; time by product over shared %.3f\n", name.c_str(),
                rows, static_cast<unsigned long long>(quantised[0]), static_cast<unsigned long long>(quantised[1]), ratio);
    std::printf("figure shared_activations.%s.quantisations_per_product %llu\n", name.c_str(),
                static_cast<unsigned long long>(quantised[0]));
    std::printf("figure shared_activations.%s.quantisations_shared %llu\n", name.c_str(),
                static_cast<unsigned long long>(quantised[1]));
    std::printf("figure shared_activations.%s.ratio %.4g\n", name.c_str(), ratio);
    return {};
}

fg::status run(json&) {
    return fg::device::dispatch<fg::isa::all>([&]<class Isa>(fg::type_tag<Isa>) -> fg::status {
        const auto weights = std::make_unique<layer_weights>();
        FRUGAL_TRY(weights->bind());
        FRUGAL_TRY_ASSIGN(const auto a, (arm<Isa, fg::reuse::per_product>::create(*weights)));
        FRUGAL_TRY_ASSIGN(const auto b, (arm<Isa, fg::reuse::shared_activations>::create(*weights)));
        const auto moe = [](auto& side, auto x, auto y) { return side.moe(x, y); };
        const auto gdn = [](auto& side, auto x, auto y) { return side.gdn(x, y); };
        FRUGAL_TRY(compare_arms("moe_decode", 1, 301, *a, *b, moe));
        FRUGAL_TRY(compare_arms("gdn_decode", 1, 301, *a, *b, gdn));
        FRUGAL_TRY(compare_arms("moe_prefill", 512, 9, *a, *b, moe));
        FRUGAL_TRY(compare_arms("gdn_prefill", 512, 9, *a, *b, gdn));
        std::printf("figure shared_activations.results_identical 1\n");
        return {};
    });
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("shared_activations", argc, argv, bench::run); }
