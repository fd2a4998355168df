// Loads a model of frugal::models, runs a prompt and takes the logits of its last token.
#include "frugal/model/compiled.hpp"

namespace fg = frugal;

fg::status prompt(const char* path, std::span<const std::int32_t> tokens, std::vector<float>& logits) {
    FRUGAL_TRY_ASSIGN(const auto model, fg::model::compiled_model::load(path));
    logits.resize(model->sizes().vocabulary);
    const fg::attention::segment whole{fg::attention::sequence_id{0}, 0, tokens.size()};
    const std::size_t last = tokens.size() - 1;
    return model->forward({tokens, {&whole, 1}, {}, {&last, 1}}, {logits.data(), 1, logits.size()});
}
