#pragma once
/// What the files of the two families call a tensor.
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

/// Names of one tensor; empty where a family does not have it. A layer's tensors leave out what tells layers apart:
/// "attn_q.weight" stands for "blk.N.attn_q.weight" in GGUF, "self_attn.q_proj.weight" for
/// "model.layers.N.self_attn.q_proj.weight" in a Hugging Face checkpoint.
struct FRUGAL_FLAGGED tensor_name {
    std::string_view gguf, hugging_face;
    std::string_view other_gguf = {};  ///< of some writers
    bool is_global = false;            ///< in GGUF it belongs to no layer
};

FRUGAL_NAMESPACE_END
