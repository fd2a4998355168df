#pragma once
/// How a file stores weights: which head order, which norm gammas. Types, so that a model cannot be run with the other one's.
#include <string_view>

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

FRUGAL_NAMESPACE_END
