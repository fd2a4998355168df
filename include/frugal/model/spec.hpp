#pragma once
/// The models as compile-time specifications: the types that a model is built of. Sizes are run-time (model/config.hpp).
/// A new model of the family is one struct here, or in a file of your own.
#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include "frugal/attention/full/full.hpp"
#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/attention/qsa/qsa.hpp"
#include "frugal/attention/variant.hpp"
#include "frugal/core/config.hpp"
#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/layer/hyper_connection.hpp"
#include "frugal/layer/moe.hpp"
#include "frugal/layer/ngram_embedding.hpp"
#include "frugal/layer/residual.hpp"
#include "frugal/ops/activation/activation.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// What a spec's types are built for: the convention of the weights and the policies of the states.
template <class Convention, class Policies>
struct FRUGAL_FLAGGED build {
    using convention = Convention;
    using norm_weight = typename Convention::norm_weight;
    using head_pairing = typename Convention::head_pairing;
    using key_value = typename Policies::precision::key_value;
    using index = typename Policies::precision::index;
    using inputs = typename Policies::inputs;
};

namespace detail {

template <class List, class... T>
struct FRUGAL_FLAGGED unique_types {
    using type = List;
};
template <class... Kept, class First, class... Rest>
struct unique_types<type_list<Kept...>, First, Rest...>
    : std::conditional_t<type_list<Kept...>::template contains<First>, unique_types<type_list<Kept...>, Rest...>,
                         unique_types<type_list<Kept..., First>, Rest...>> {};

/// Says what a variant lacks.
template <class V>
struct FRUGAL_FLAGGED required_variant {
    FRUGAL_REQUIRE_ATTENTION_VARIANT(V);
};

}  // namespace detail

/// A list without its repetitions.
template <class... T>
using unique = typename detail::unique_types<type_list<>, T...>::type;

/// The mixers of a model's layers, attention variants: the pattern is repeated as often as the model has layers.
/// Where a file says which of its layers are recurrent and says something else, the file is right, if only one kind of the
/// pattern computes such layers.
template <class... Layer>
struct FRUGAL_FLAGGED pattern {
    static_assert(sizeof...(Layer) > 0, "frugal: a model's pattern needs at least one layer: pattern<attention::full<...>>");
    static_assert((sizeof(detail::required_variant<Layer>) + ...) > 0);
    /// Each kind once, in order.
    using kinds = unique<Layer...>;

    /// Number of a layer's kind. `recurrent`: what the file says. Errors: unsupported.
    [[nodiscard]] static result<std::size_t> kind_of(std::size_t layer, bool recurrent) {
        constexpr std::array<std::size_t, sizeof...(Layer)> numbers{kinds::template index_of<Layer>()...};
        constexpr std::array<bool, sizeof...(Layer)> are_recurrent{Layer::is_recurrent...};
        const std::size_t at = layer % sizeof...(Layer);
        if (are_recurrent[at] == recurrent) return numbers[at];
        std::size_t found = kinds::size;
        for (std::size_t i = 0; i < sizeof...(Layer); ++i) {
            if (are_recurrent[i] != recurrent) continue;
            if (found != kinds::size && found != numbers[i])
                return fail(errc::unsupported, "layer ", layer, " is ", recurrent ? "" : "not ",
                            "recurrent, unlike the model's pattern, which has several kinds of such layers");
            found = numbers[i];
        }
        if (found == kinds::size)
            return fail(errc::unsupported, "layer ", layer, " is ", recurrent ? "" : "not ",
                        "recurrent; the model has no such layers");
        return found;
    }
};

/// No modules besides the layers.
struct FRUGAL_FLAGGED no_modules {};

/// A model specification: a name, and for a model::build the types `layers` (a pattern), `feed_forward` (layer::dense, …),
/// `residual` (layer::plain_residual, …) and `modules` (layer::ngram_embedding, or no_modules).
template <class S>
concept specification = requires {
    { S::name } -> std::convertible_to<std::string_view>;
    S::is_specification;
};

/// What models of the family have unless they say otherwise.
struct FRUGAL_FLAGGED specification_base {
    static constexpr bool is_specification = true;
    template <class Build>
    using modules = no_modules;
    template <class Build>
    using residual = layer::plain_residual<typename Build::norm_weight>;
    template <class Build>
    using feed_forward = layer::dense;
};

template <class Build, class Gate = ops::activation::silu>
using gdn_layer = attention::gdn<typename Build::head_pairing, Gate>;
template <class Build>
using full_layer = attention::full<typename Build::norm_weight, typename Build::key_value>;
template <class Build, std::size_t Ratio>
using qsa_layer =
    attention::qsa<Ratio, typename Build::norm_weight, typename Build::key_value, typename Build::index, typename Build::inputs>;

/// Qwen3.5 dense (transformers `Qwen3_5ForCausalLM`, GGUF `qwen35`).
struct FRUGAL_FLAGGED qwen35 : specification_base {
    static constexpr std::string_view name = "qwen35";
    template <class Build>
    using layers = pattern<gdn_layer<Build>, gdn_layer<Build>, gdn_layer<Build>, full_layer<Build>>;
};

/// Qwen3.5 mixture of experts (transformers `Qwen3_5MoeForCausalLM`, GGUF `qwen35moe`).
struct FRUGAL_FLAGGED qwen35moe : qwen35 {
    static constexpr std::string_view name = "qwen35moe";
    template <class Build>
    using feed_forward = layer::mixture_of_experts;
};

/// Qwen4-Exp, "Qwen3.8-Flash-Next" (transformers `Qwen4ExpForCausalLM`, GGUF `qwen4exp`): sparse attention over blocks of
/// `Ratio` tokens, mixture of experts, hyper-connections, n-gram embedding.
template <std::size_t Ratio = 4>
struct FRUGAL_FLAGGED qwen4exp : specification_base {
    static_assert(Ratio >= 1,
                  "frugal: qwen4exp<Ratio> needs a compress ratio of at least 1 token a block; 4 is the released model's");
    static constexpr std::string_view name = "qwen4exp";
    template <class Build>
    using layers = pattern<gdn_layer<Build, ops::activation::sigmoid>, gdn_layer<Build, ops::activation::sigmoid>,
                           gdn_layer<Build, ops::activation::sigmoid>, qsa_layer<Build, Ratio>>;
    template <class Build>
    using feed_forward = layer::mixture_of_experts;
    template <class Build>
    using residual = layer::hyper_connection<typename Build::norm_weight>;
    template <class Build>
    using modules = layer::ngram_embedding<typename Build::norm_weight>;
};

static_assert(specification<qwen35> && specification<qwen35moe> && specification<qwen4exp<>>);

}  // namespace model

FRUGAL_NAMESPACE_END
