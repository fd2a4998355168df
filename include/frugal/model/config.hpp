#pragma once
/// Run-time sizes of a model, from whatever file they came.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/ops/ngram/hash.hpp"
#include "frugal/ops/rope/rope.hpp"
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

    /// Whether a layer is an attention layer, not a recurrent one.
    [[nodiscard]] bool is_attention(std::size_t i) const noexcept { return layers[i] == layer_kind::attention; }

    // For the layers' own checks (validate_sizes).

    /// Whether a size can be worked with. Errors: invalid_argument.
    [[nodiscard]] static status positive(std::size_t value, const char* what) {
        if (value == 0) return fail(errc::invalid_argument, "the model's ", what, " is 0");
        // Sizes of any real model are far below; beyond this, products of two sizes could overflow.
        if (value > 0x7FFFFFFF) return fail(errc::invalid_argument, "the model's ", what, " of ", value, " is out of range");
        return {};
    }
    /// Whether heads can be rotated. Errors: invalid_argument, unsupported.
    [[nodiscard]] status validate_rope() const {
        FRUGAL_TRY(positive(rotary_dim, "rotary size"));
        if (rotary_dim > head_dim || rotary_dim % 2 != 0)
            return fail(errc::invalid_argument, "cannot rotate ", rotary_dim, " of ", head_dim, " values a head");
        if (!(rope_theta > 0) || !std::isfinite(rope_theta)) return fail(errc::invalid_argument, "rope theta is ", rope_theta);
        FRUGAL_TRY(ops::validate(rope_scaling));
        if (rope_scaling.kind == ops::rope_scaling_kind::yarn && !(rope_theta > 1))
            return fail(errc::invalid_argument, "rope theta is ", rope_theta,
                        "; rotary scaling of type \"yarn\" needs more than 1");
        return {};
    }
    [[nodiscard]] ops::rope_table make_rope_table() const {
        return ops::rope_table::make(rope_theta, rotary_dim, rope_sections, true, rope_scaling);
    }
};

}  // namespace model

FRUGAL_NAMESPACE_END
