#pragma once
/// The sizes of a model's layers, from its configuration.
#include "frugal/attention/full/gated_heads.hpp"
#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/layer/hyper_connection.hpp"
#include "frugal/layer/moe.hpp"
#include "frugal/layer/ngram_embedding.hpp"
#include "frugal/model/config.hpp"
#include "frugal/ops/rope/rope.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

[[nodiscard]] inline attention::gdn_dims make_gdn_dims(const config& c) {
    return {c.hidden, c.key_heads, c.value_heads, c.key_dim, c.value_dim, c.conv_kernel, c.rms_epsilon};
}

[[nodiscard]] inline ops::rope_table make_rope_table(const config& c) {
    return ops::rope_table::make(c.rope_theta, c.rotary_dim, c.rope_sections, true, c.rope_scaling);
}

/// Dims: attention::full_dims or attention::qsa_dims. Their rotary table stays null.
template <class Dims>
[[nodiscard]] FRUGAL_FLAGGED Dims make_attention_dims(const config& c) {
    Dims d;
    d.hidden = c.hidden;
    d.heads = c.heads;
    d.kv_heads = c.kv_heads;
    d.head_dim = c.head_dim;
    d.eps = c.rms_epsilon;
    if constexpr (requires { d.index_heads; }) {
        d.index_heads = c.index_heads;
        d.index_dim = c.index_dim;
        d.budget = c.index_budget;
    }
    return d;
}

[[nodiscard]] inline layer::moe_dims make_moe_dims(const config& c) { return {c.experts, c.experts_used, c.renormalise_experts}; }

[[nodiscard]] inline layer::hyper_connection_dims make_hyper_dims(const config& c) {
    return {c.hidden, c.streams, c.mix_rank, c.rms_epsilon};
}

[[nodiscard]] inline layer::ngram_dims make_ngram_dims(const config& c, const ngram_module& m) {
    return {c.hidden, c.streams, c.ngram_row, c.ngram_conv_kernel, c.rms_epsilon, m.hash};
}

}  // namespace model

FRUGAL_NAMESPACE_END
