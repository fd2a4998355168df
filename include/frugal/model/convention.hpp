#pragma once
/// How a file stores weights: which head order, which norm gammas. Types, so that a model cannot be run with the other one's.
#include <concepts>
#include <string_view>
#include <type_traits>

#include "frugal/core/config.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule.hpp"
#include "frugal/ops/norm/norm.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model::convention {

/// GGUF: value heads tiled over key heads, zero-centred gammas stored with their 1 added, decay stored as -exp(A_log).
struct FRUGAL_FLAGGED gguf {
    static constexpr std::string_view name = "gguf";
    using head_pairing = ops::head_pairing::tiled;
    using norm_weight = ops::norm_weight::plain;
    static constexpr bool decay_is_log = false;
    static constexpr bool innermost_first = true;  ///< how people write a tensor's extents: {row length, rows}
};

/// Hugging Face checkpoints: value heads grouped by key head, zero-centred gammas stored as w, decay stored as A_log.
struct FRUGAL_FLAGGED hugging_face {
    static constexpr std::string_view name = "hugging_face";
    using head_pairing = ops::head_pairing::grouped;
    using norm_weight = ops::norm_weight::zero_centred;
    static constexpr bool decay_is_log = true;
    static constexpr bool innermost_first = false;
};

}  // namespace model::convention

namespace model {

/// A convention: the members of convention::gguf.
template <class C>
concept convention_policy =
    ops::head_pairing_policy<typename C::head_pairing> && ops::norm_weight_policy<typename C::norm_weight> && requires {
    { C::name } -> std::convertible_to<std::string_view>;
    typename std::bool_constant<C::decay_is_log>;
    typename std::bool_constant<C::innermost_first>;
};
static_assert(convention_policy<convention::gguf> && convention_policy<convention::hugging_face>);

/// Put `FRUGAL_REQUIRE_CONVENTION(C);` first into a class that takes a convention as a parameter.
#define FRUGAL_REQUIRE_CONVENTION(...)                                                                              \
    static_assert(::frugal::model::convention_policy<__VA_ARGS__>,                                                  \
                  "frugal: the second parameter of a model is the convention of its file, policies are the third; " \
                  "write transformer<spec, model::convention::gguf, policies<...>>, or hugging_face for checkpoints")

}  // namespace model

FRUGAL_NAMESPACE_END
