// A pass of Qwen4-Exp with all formats and the default policies.
#include "frugal/model/transformer.hpp"

namespace fg = frugal;
using model = fg::model::transformer<fg::model::qwen4exp<>, fg::model::convention::gguf, fg::policies<>>;

fg::status step(const model& m, model::pass_type& pass, model::state& state, const fg::model::token_batch& tokens,
                fg::matrix_view<float> logits) {
    return m.forward(pass, state, tokens, logits);
}
