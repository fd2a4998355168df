// Whole random models of each architecture, against transformers in f32.
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

template <class Spec>
void check_golden_model(const std::string& name) {
    const golden_model golden(name);
    const auto tokens = golden.tokens();
    const auto prefill = golden.data.params().at("prefill").get<std::size_t>();
    for_each_isa([&]<class Isa>(type_tag<Isa>) {
        auto m = golden.run<Spec, Isa, exact_selection>({.sequences = 1, .max_tokens = 64});
        std::vector<std::vector<float>> layers(golden.sizes.layers.size());
        const auto keep = [&](std::ptrdiff_t layer, matrix_view<const float> stream) {
            if (layer < 0) return;
            auto& out = layers[static_cast<std::size_t>(layer)];
            out.insert(out.end(), stream.data(), stream.data() + stream.rows() * stream.cols());
        };
        // As the reference was made: one call, then token by token.
        std::vector<float> logits = m->run(std::span(tokens).first(prefill), sequence_id{0}, keep);
        for (std::size_t t = prefill; t < tokens.size(); ++t) {
            const auto one = m->run({&tokens[t], 1}, sequence_id{0}, keep);
            logits.insert(logits.end(), one.begin(), one.end());
        }
        for (std::size_t i = 0; i < layers.size(); ++i) {
            const std::string layer = concat("io.layer_", i);
            check_close(layers[i], golden.data.f32(layer), golden.data.tol(layer), layer);
        }
        check_close(logits, golden.data.f32("io.logits"), golden.data.tol("io.logits"), "logits");

        auto fresh = golden.run<Spec, Isa, exact_selection>({.sequences = 1, .max_tokens = 64});
        const auto greedy = fresh->greedy(fresh->run(std::span(tokens).first(prefill)), 12);
        const auto want = golden.data.i64("io.greedy");
        CHECK(std::equal(greedy.begin(), greedy.end(), want.begin(), want.end()));
    });
}

}  // namespace

TEST_CASE("golden model: Qwen3.5 dense") { check_golden_model<model::qwen35>("models/qwen3_5_dense"); }
TEST_CASE("golden model: Qwen3.5 mixture of experts") { check_golden_model<model::qwen35moe>("models/qwen3_5_moe"); }
TEST_CASE("golden model: Qwen4-Exp") { check_golden_model<model::qwen4exp<4>>("models/qwen4_exp"); }
