#pragma once
/// Names of the tensors in both file families. One table, so that a new role is one line.
#include <cstddef>
#include <string>
#include <string_view>

#include "frugal/core/error.hpp"
#include "frugal/model/convention.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// X(role, GGUF name after "blk.N.", Hugging Face name after "model.layers.N.").
#define FRUGAL_LAYER_TENSORS(X)                                                                                       \
    X(attention_norm, "attn_norm.weight", "input_layernorm.weight")                                                   \
    X(ffn_norm, "post_attention_norm.weight", "post_attention_layernorm.weight")                                      \
    X(gdn_qkv, "attn_qkv.weight", "linear_attn.in_proj_qkv.weight")                                                   \
    X(gdn_z, "attn_gate.weight", "linear_attn.in_proj_z.weight")                                                      \
    X(gdn_beta, "ssm_beta.weight", "linear_attn.in_proj_b.weight")                                                    \
    X(gdn_alpha, "ssm_alpha.weight", "linear_attn.in_proj_a.weight")                                                  \
    X(gdn_out, "ssm_out.weight", "linear_attn.out_proj.weight")                                                       \
    X(gdn_conv, "ssm_conv1d.weight", "linear_attn.conv1d.weight")                                                     \
    X(gdn_decay, "ssm_a", "linear_attn.A_log")                                                                        \
    X(gdn_dt_bias, "ssm_dt.bias", "linear_attn.dt_bias")                                                              \
    X(gdn_norm, "ssm_norm.weight", "linear_attn.norm.weight")                                                         \
    X(attention_q, "attn_q.weight", "self_attn.q_proj.weight")                                                        \
    X(attention_k, "attn_k.weight", "self_attn.k_proj.weight")                                                        \
    X(attention_v, "attn_v.weight", "self_attn.v_proj.weight")                                                        \
    X(attention_out, "attn_output.weight", "self_attn.o_proj.weight")                                                 \
    X(attention_q_norm, "attn_q_norm.weight", "self_attn.q_norm.weight")                                              \
    X(attention_k_norm, "attn_k_norm.weight", "self_attn.k_norm.weight")                                              \
    X(indexer_q, "indexer.q_proj.weight", "")                                                                         \
    X(indexer_k, "indexer.k_proj.weight", "")                                                                         \
    X(indexer_qk, "", "self_attn.indexer.index_qk_proj.weight")                                                       \
    X(indexer_q_norm, "indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight")                                \
    X(indexer_k_norm, "indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight")                                \
    X(ffn_gate, "ffn_gate.weight", "mlp.gate_proj.weight")                                                            \
    X(ffn_up, "ffn_up.weight", "mlp.up_proj.weight")                                                                  \
    X(ffn_down, "ffn_down.weight", "mlp.down_proj.weight")                                                            \
    X(router, "ffn_gate_inp.weight", "mlp.gate.weight")                                                               \
    X(experts_gate, "ffn_gate_exps.weight", "")                                                                       \
    X(experts_up, "ffn_up_exps.weight", "")                                                                           \
    X(experts_gate_up, "ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj")                                         \
    X(experts_down, "ffn_down_exps.weight", "mlp.experts.down_proj")                                                  \
    X(shared_router, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight")                                    \
    X(shared_gate, "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight")                                     \
    X(shared_up, "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight")                                           \
    X(shared_down, "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight")                                     \
    X(hc_attention_norm, "hc_attn_norm.weight", "attn_hyper_connection.hc_norm.weight")                               \
    X(hc_attention_down, "hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down.weight")                 \
    X(hc_attention_up, "hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up.weight")                       \
    X(hc_attention_inject, "hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight")               \
    X(hc_ffn_norm, "hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm.weight")                                       \
    X(hc_ffn_down, "hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down.weight")                         \
    X(hc_ffn_up, "hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up.weight")                               \
    X(hc_ffn_inject, "hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight")                       \
    X(ngram_key, "ple_key.weight", "ple.key_proj.weight")                                                             \
    X(ngram_value, "ple_value.weight", "ple.value_proj.weight")                                                       \
    X(ngram_norm_key, "ple_norm_key.weight", "ple.norm_key.weight")                                                   \
    X(ngram_norm_query, "ple_norm_query.weight", "ple.norm_query.weight")                                             \
    X(ngram_norm_conv, "ple_norm_conv.weight", "ple.norm_conv.weight")                                                \
    X(ngram_conv, "ple_conv1d.weight", "ple.conv1d.weight")

/// X(role, GGUF name, Hugging Face name; "model." there stands for the checkpoint's own prefix).
#define FRUGAL_GLOBAL_TENSORS(X)                                                                         \
    X(embedding, "token_embd.weight", "model.embed_tokens.weight")                                       \
    X(head, "output.weight", "lm_head.weight")                                                           \
    X(output_norm, "output_norm.weight", "model.norm.weight")                                            \
    X(hc_output_norm, "output_hc_norm.weight", "model.hyper_connection_mixer.hc_norm.weight")            \
    X(hc_output_down, "output_hc_down.weight", "model.hyper_connection_mixer.input_mix_weight_down.weight") \
    X(hc_output_up, "output_hc_up.weight", "model.hyper_connection_mixer.input_mix_weight_up.weight")    \
    X(ngram_table, "per_layer_token_embd.weight", "")

/// X(role, another GGUF name after "blk.N."), of files that some writers make.
#define FRUGAL_OTHER_LAYER_TENSORS(X) X(gdn_dt_bias, "ssm_dt")

enum class layer_tensor {
#define FRUGAL_ROLE(role, gguf, hugging_face) role,
    FRUGAL_LAYER_TENSORS(FRUGAL_ROLE)
};
enum class global_tensor { FRUGAL_GLOBAL_TENSORS(FRUGAL_ROLE) };
#undef FRUGAL_ROLE

/// Names of one file family. `prefix` is "model." or "model.language_model." in Hugging Face checkpoints, unused in GGUF.
template <class Convention>
struct FRUGAL_FLAGGED tensor_names {
    std::string prefix = "model.";

    [[nodiscard]] std::string layer(layer_tensor role, std::size_t index) const {
        const std::string_view name = pick(role);
        if (name.empty()) return {};
        if constexpr (std::is_same_v<Convention, convention::gguf>)
            return concat("blk.", index, ".", name);
        else
            return concat(prefix, "layers.", index, ".", name);
    }
    /// The other name that a layer's tensor may have; empty where there is none.
    [[nodiscard]] std::string other(layer_tensor role, std::size_t index) const {
        if constexpr (std::is_same_v<Convention, convention::gguf>) {
#define FRUGAL_OTHER_NAME(named, gguf_name) \
    if (role == layer_tensor::named) return concat("blk.", index, ".", gguf_name);
            FRUGAL_OTHER_LAYER_TENSORS(FRUGAL_OTHER_NAME)
#undef FRUGAL_OTHER_NAME
        }
        return {};
    }
    [[nodiscard]] std::string global(global_tensor role) const {
        const std::string_view name = pick(role);
        constexpr std::string_view generic = "model.";
        if (!std::is_same_v<Convention, convention::gguf> && name.starts_with(generic))
            return concat(prefix, name.substr(generic.size()));
        return std::string(name);
    }

private:
#define FRUGAL_NAME(role, gguf_name, hugging_face_name) \
    case enumeration::role: return std::is_same_v<Convention, convention::gguf> ? gguf_name : hugging_face_name;
    [[nodiscard]] static std::string_view pick(layer_tensor role) {
        using enumeration = layer_tensor;
        switch (role) { FRUGAL_LAYER_TENSORS(FRUGAL_NAME) }
        return {};
    }
    [[nodiscard]] static std::string_view pick(global_tensor role) {
        using enumeration = global_tensor;
        switch (role) { FRUGAL_GLOBAL_TENSORS(FRUGAL_NAME) }
        return {};
    }
#undef FRUGAL_NAME
};

}  // namespace model

FRUGAL_NAMESPACE_END
