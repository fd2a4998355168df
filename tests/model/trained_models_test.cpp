// The two small trained models against transformers in f32: logits, greedy text, layers.
#include <fstream>

#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

nlohmann::json read_json(const std::string& path) {
    std::ifstream in(path);
    REQUIRE_MESSAGE(in.good(), path);
    return nlohmann::json::parse(in);
}

std::string data(const std::string& path) { return std::string(FRUGAL_TEST_DATA "/") + path; }

/// The file's weights, f32 activations: everywhere within 1e-3 of the logits that transformers computes from these in f32,
/// and the same 64 greedy tokens after each prompt.
template <class Spec>
void check_trained_model(const std::string& name, const std::string& path) {
    const gguf_model file(path);
    const auto reference = read_json(data(name + "/golden/golden.json"));
    for_each_isa([&]<class Isa>(type_tag<Isa>) {
        auto m = file.run<Spec, Isa, exact_selection>({.sequences = 1, .max_tokens = 512});
        for (const char* prompt : {"short", "eos", "long"}) {
            CAPTURE(prompt);
            m->state.clear(sequence_id{0});
            const golden want(prompt, data(name + "/golden/" + prompt + ".safetensors"));
            const auto ids = want.get<std::int32_t>("ids");
            const auto positions = want.get<std::int32_t>("positions");
            std::vector<float> last_layers;
            const auto logits = m->run(ids, sequence_id{0}, [&](std::ptrdiff_t layer, matrix_view<const float> stream) {
                if (layer < 0) return;
                const auto row = stream.row_span(stream.rows() - 1);
                last_layers.insert(last_layers.end(), row.begin(), row.end());
            });
            std::vector<float> kept;
            for (const std::int32_t p : positions) {
                const auto at = logits.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(p) * m->vocabulary());
                kept.insert(kept.end(), at, at + static_cast<std::ptrdiff_t>(m->vocabulary()));
            }
            check_close(kept, want.f32("logits"), {1e-3, 0}, "logits");
            check_close(last_layers, want.f32("layer_out_last"), {1e-3, 1e-4}, "layers at the last token");
            const auto argmax = want.get<std::int32_t>("argmax");
            std::size_t same = 0;
            for (std::size_t t = 0; t < ids.size(); ++t) {
                const auto row = std::span(logits).subspan(t * m->vocabulary(), m->vocabulary());
                same += std::max_element(row.begin(), row.end()) - row.begin() == argmax[t] ? 1u : 0u;
            }
            CHECK(same == ids.size());
            const auto greedy = reference["prompts"][prompt]["greedy"].get<std::vector<std::int32_t>>();
            CHECK(m->greedy(logits, greedy.size()) == greedy);
        }
    });
}

}  // namespace

TEST_CASE("trained model: tiny-qwen35 in BF16") {
    check_trained_model<model::qwen35>("tiny-qwen35", data("tiny-qwen35/tiny-qwen35-BF16.gguf"));
}
// The closest choice of its greedy text, token 34 after `long`, has a margin of 3.6e-4; our logits are within 7e-5 of theirs.
TEST_CASE("trained model: tiny-qwen4exp in Q4_K_M") {
    check_trained_model<model::qwen4exp<4>>("tiny-qwen4exp", FRUGAL_EXAMPLE_MODELS "/tiny-qwen4exp-Q4_K_M.gguf");
}
