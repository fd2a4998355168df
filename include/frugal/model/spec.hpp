#pragma once
/// The models as constexpr specifications: which kinds of parts a model is built of. Sizes are run-time (model/config.hpp).
/// A new model of the family = one struct here.
#include <concepts>
#include <cstddef>
#include <string_view>

#include "frugal/core/config.hpp"
#include "frugal/ops/activation/activation.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// What the layers that are not Gated DeltaNet do.
enum class attention_kind { full, qsa };
enum class feed_forward_kind { dense, mixture_of_experts };
/// `plain`: one stream, normed before each block. `hyper_connections`: several streams mixed before and fed after each block.
enum class residual_kind { plain, hyper_connections };

/// A model specification.
template <class S>
concept specification = requires {
    { S::name } -> std::convertible_to<std::string_view>;
    { S::attention } -> std::convertible_to<attention_kind>;
    { S::feed_forward } -> std::convertible_to<feed_forward_kind>;
    { S::residual } -> std::convertible_to<residual_kind>;
    { S::ngram_embedding } -> std::convertible_to<bool>;
    { S::qsa_ratio } -> std::convertible_to<std::size_t>;
    typename S::gdn_gate;
};

/// Qwen3.5 dense (transformers `Qwen3_5ForCausalLM`, GGUF `qwen35`).
struct FRUGAL_FLAGGED qwen35 {
    static constexpr std::string_view name = "qwen35";
    static constexpr attention_kind attention = attention_kind::full;
    static constexpr feed_forward_kind feed_forward = feed_forward_kind::dense;
    static constexpr residual_kind residual = residual_kind::plain;
    static constexpr bool ngram_embedding = false;
    static constexpr std::size_t qsa_ratio = 0;
    using gdn_gate = ops::activation::silu;
};

/// Qwen3.5 mixture of experts (transformers `Qwen3_5MoeForCausalLM`, GGUF `qwen35moe`).
struct FRUGAL_FLAGGED qwen35moe : qwen35 {
    static constexpr std::string_view name = "qwen35moe";
    static constexpr feed_forward_kind feed_forward = feed_forward_kind::mixture_of_experts;
};

/// Qwen4-Exp, "Qwen3.8-Flash-Next" (transformers `Qwen4ExpForCausalLM`, GGUF `qwen4exp`): sparse attention over blocks of
/// `Ratio` tokens, mixture of experts, hyper-connections, n-gram embedding.
template <std::size_t Ratio = 4>
struct FRUGAL_FLAGGED qwen4exp {
    static_assert(Ratio >= 1,
                  "frugal: qwen4exp<Ratio> needs a compress ratio of at least 1 token a block; 4 is the released model's");
    static constexpr std::string_view name = "qwen4exp";
    static constexpr attention_kind attention = attention_kind::qsa;
    static constexpr feed_forward_kind feed_forward = feed_forward_kind::mixture_of_experts;
    static constexpr residual_kind residual = residual_kind::hyper_connections;
    static constexpr bool ngram_embedding = true;
    static constexpr std::size_t qsa_ratio = Ratio;
    using gdn_gate = ops::activation::sigmoid;
};

static_assert(specification<qwen35> && specification<qwen35moe> && specification<qwen4exp<>>);

}  // namespace model

FRUGAL_NAMESPACE_END
