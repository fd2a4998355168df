#pragma once
/// Run-time sizes of a model, from whatever file they came.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/ops/ngram/hash.hpp"
#include "frugal/ops/rope/scaling.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

enum class layer_kind : std::uint8_t { gdn, attention };

/// One n-gram (PLE) module: its hash constants and the layer that adds its output.
struct FRUGAL_FLAGGED ngram_module {
    std::size_t layer = 0;  ///< counted from 0
    ops::ngram_hash hash;
};

struct FRUGAL_FLAGGED config {
    std::string architecture;  ///< GGUF name: qwen35, qwen35moe, qwen4exp
    std::size_t vocabulary = 0, hidden = 0, context_length = 0;
    float rms_epsilon = 1e-6f;
    std::vector<layer_kind> layers;

    // Attention (full or QSA).
    std::size_t heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
    float rope_theta = 0;
    std::array<int, 3> rope_sections{};
    ops::rope_scaling rope_scaling;

    // Gated DeltaNet.
    std::size_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv_kernel = 0;

    // Feed-forward.
    std::size_t intermediate = 0;
    std::size_t experts = 0, experts_used = 0, expert_intermediate = 0, shared_intermediate = 0;
    bool renormalise_experts = true;

    // Hyper-connections.
    std::size_t streams = 1, mix_rank = 0;

    // QSA. A ratio of 0 means dense attention in that layer.
    std::size_t index_heads = 0, index_dim = 0, index_budget = 0;
    std::vector<std::size_t> qsa_ratios;  ///< [layers]; empty unless QSA

    // N-gram embedding.
    std::size_t ngram_row = 0, ngram_conv_kernel = 0;  ///< length of a table row; kernel of the dilated convolution
    std::vector<ngram_module> ngrams;

    /// Stop tokens named by the configuration (not by the tokenizer).
    std::vector<std::int32_t> eos;
};

/// Checks that the sizes are those of a model of `Spec` and hang together; the message names the offending size.
/// Errors: invalid_argument, unsupported.
template <specification Spec>
[[nodiscard]] status validate(const config& c) {
    const auto positive = [](std::size_t value, const char* what) -> status {
        if (value == 0) return fail(errc::invalid_argument, "the model's ", what, " is 0");
        // Sizes of any real model are far below; beyond this, products of two sizes could overflow.
        if (value > 0x7FFFFFFF) return fail(errc::invalid_argument, "the model's ", what, " of ", value, " is out of range");
        return {};
    };
    FRUGAL_TRY(positive(c.vocabulary, "vocabulary"));
    FRUGAL_TRY(positive(c.hidden, "hidden size"));
    FRUGAL_TRY(positive(c.context_length, "context length"));
    FRUGAL_TRY(positive(c.layers.size(), "layer count"));
    if (!(c.rms_epsilon > 0) || c.rms_epsilon > 1) return fail(errc::invalid_argument, "rms epsilon is ", c.rms_epsilon);
    bool any_gdn = false, any_attention = false;
    for (const layer_kind kind : c.layers) (kind == layer_kind::gdn ? any_gdn : any_attention) = true;
    if (any_attention) {
        FRUGAL_TRY(positive(c.heads, "attention head count"));
        FRUGAL_TRY(positive(c.kv_heads, "key-value head count"));
        FRUGAL_TRY(positive(c.head_dim, "head size"));
        FRUGAL_TRY(positive(c.rotary_dim, "rotary size"));
        if (c.heads % c.kv_heads != 0)
            return fail(errc::invalid_argument, c.heads, " attention heads cannot share ", c.kv_heads, " key-value heads");
        if (c.rotary_dim > c.head_dim || c.rotary_dim % 2 != 0)
            return fail(errc::invalid_argument, "cannot rotate ", c.rotary_dim, " of ", c.head_dim, " values a head");
        if (!(c.rope_theta > 0) || !std::isfinite(c.rope_theta))
            return fail(errc::invalid_argument, "rope theta is ", c.rope_theta);
        FRUGAL_TRY(ops::validate(c.rope_scaling));
        if (c.rope_scaling.kind == ops::rope_scaling_kind::yarn && !(c.rope_theta > 1))
            return fail(errc::invalid_argument, "rope theta is ", c.rope_theta,
                        "; rotary scaling of type \"yarn\" needs more than 1");
    }
    if (any_gdn) {
        FRUGAL_TRY(positive(c.key_heads, "linear key head count"));
        FRUGAL_TRY(positive(c.value_heads, "linear value head count"));
        FRUGAL_TRY(positive(c.key_dim, "linear key head size"));
        FRUGAL_TRY(positive(c.value_dim, "linear value head size"));
        FRUGAL_TRY(positive(c.conv_kernel, "convolution kernel"));
        if (c.value_heads % c.key_heads != 0)
            return fail(errc::invalid_argument, c.value_heads, " value heads cannot share ", c.key_heads, " key heads");
    }
    if constexpr (Spec::feed_forward == feed_forward_kind::dense) {
        FRUGAL_TRY(positive(c.intermediate, "feed-forward size"));
    } else {
        FRUGAL_TRY(positive(c.experts, "expert count"));
        FRUGAL_TRY(positive(c.experts_used, "number of experts a token"));
        FRUGAL_TRY(positive(c.expert_intermediate, "expert size"));
        FRUGAL_TRY(positive(c.shared_intermediate, "shared expert size"));
        if (c.experts_used > c.experts)
            return fail(errc::invalid_argument, "a token cannot use ", c.experts_used, " of ", c.experts, " experts");
    }
    if constexpr (Spec::residual == residual_kind::hyper_connections) {
        if (c.streams < 2) return fail(errc::invalid_argument, "hyper-connections need at least 2 streams, not ", c.streams);
        FRUGAL_TRY(positive(c.streams, "stream count"));
        FRUGAL_TRY(positive(c.mix_rank, "hyper-connection rank"));
    }
    if constexpr (Spec::attention == attention_kind::qsa) {
        FRUGAL_TRY(positive(c.index_heads, "indexer head count"));
        FRUGAL_TRY(positive(c.index_dim, "indexer head size"));
        FRUGAL_TRY(positive(c.index_budget, "indexer budget"));
        if (c.index_dim < c.rotary_dim)
            return fail(errc::invalid_argument, "the indexer's heads of ", c.index_dim, " cannot rotate ", c.rotary_dim,
                        " values");
        if (c.qsa_ratios.size() != c.layers.size())
            return fail(errc::invalid_argument, c.qsa_ratios.size(), " compress ratios for ", c.layers.size(), " layers");
        for (std::size_t i = 0; i < c.layers.size(); ++i)
            if (c.layers[i] == layer_kind::attention && c.qsa_ratios[i] != 0 && c.qsa_ratios[i] != Spec::qsa_ratio)
                return fail(errc::unsupported, "layer ", i, " has compress ratio ", c.qsa_ratios[i],
                            "; this instantiation computes ratio ", Spec::qsa_ratio);
    }
    if constexpr (Spec::ngram_embedding) {
        for (const ngram_module& m : c.ngrams) {
            FRUGAL_TRY(positive(c.ngram_row, "n-gram row length"));
            FRUGAL_TRY(positive(c.ngram_conv_kernel, "n-gram convolution kernel"));
            if (m.layer >= c.layers.size())
                return fail(errc::invalid_argument, "n-gram layer ", m.layer, " of ", c.layers.size());
            if (m.hash.vocabulary < 0 || static_cast<std::size_t>(m.hash.vocabulary) != c.vocabulary)
                return fail(errc::invalid_argument, "n-grams over ", m.hash.vocabulary, " tokens in a vocabulary of ",
                            c.vocabulary);
        }
    }
    return {};
}

}  // namespace model

FRUGAL_NAMESPACE_END
