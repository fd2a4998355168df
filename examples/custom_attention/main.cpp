// A model with an attention variant of your own: Qwen3.5 whose attention layers see 64 tokens.
//   custom_attention examples/models/tiny-qwen35-Q4_K_M.gguf "The "
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/io/tokenizer.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/transformer.hpp"
#include "frugal/ops/sampling/sampling.hpp"
#include "sliding_window.hpp"

namespace mine {

/// The model: one name in the pattern is another.
struct spec : model::qwen35 {
    static constexpr std::string_view name = "sliding";
    template <class Build>
    using layers =
        model::pattern<model::gdn_layer<Build>, model::gdn_layer<Build>, model::gdn_layer<Build>, sliding_window<Build, 64>>;
};

status run(const char* path, const char* prompt) {
    FRUGAL_TRY_ASSIGN(const auto file, io::gguf_file::open(path));
    FRUGAL_TRY_ASSIGN(const auto words, io::tokenizer::from_gguf(file));
    FRUGAL_TRY_ASSIGN(auto tokens, words.encode_prompt(prompt));
    FRUGAL_TRY_ASSIGN(const auto sizes, model::read_config(file));
    FRUGAL_TRY_ASSIGN(auto weights, model::read_weights<spec, quant::all>(file, sizes));
    using sliding = model::transformer<spec>;
    FRUGAL_TRY_ASSIGN(const auto loaded, sliding::create(sizes, std::move(weights)));
    FRUGAL_TRY_ASSIGN(auto state, loaded.make_state({}));
    sliding::device_type device;
    FRUGAL_TRY_ASSIGN(auto pass, loaded.make_pass(device));
    std::vector<float> logits(sizes.vocabulary);
    for (int i = 0; i < 100; ++i) {
        const attention::segment all{attention::sequence_id{0}, 0, tokens.size()};
        const std::size_t last = tokens.size() - 1;
        FRUGAL_TRY(loaded.forward(pass, state, {tokens, {&all, 1}, {}, {&last, 1}},
                                  matrix_view<float>(logits.data(), 1, logits.size())));
        FRUGAL_TRY_ASSIGN(const std::int32_t next, ops::greedy(logits));
        tokens.assign(1, next);
        std::printf("%s", words.decode(tokens).c_str());
    }
    return {};
}

}  // namespace mine

int main(int count, char** arguments) {
    if (count != 3) return std::fprintf(stderr, "usage: %s MODEL.gguf PROMPT\n", arguments[0]), 2;
    const auto done = mine::run(arguments[1], arguments[2]);
    if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
    return done && std::fflush(stdout) == 0 ? 0 : 1;
}
