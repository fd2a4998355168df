#pragma once
/// What callers of a model pass to it, apart from the model itself: light to include.
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/attention/batch.hpp"
#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// Tokens of one forward pass.
struct FRUGAL_FLAGGED token_batch {
    std::span<const std::int32_t> tokens;
    std::span<const attention::segment> segments;              ///< cover all tokens, at most one a sequence
    std::span<const attention::rope_position> positions = {};  ///< one a token; empty: text, position = index in the sequence
    std::span<const std::size_t> logit_rows = {};              ///< tokens whose logits are wanted, ascending
};

/// Limits of the state that a model makes.
struct FRUGAL_FLAGGED state_options {
    std::size_t sequences = 1;
    std::size_t max_tokens = 0;   ///< a sequence; 0: the model's context length
    std::size_t checkpoints = 0;  ///< most recent tokens that rollback can undo in recurrent layers
};

}  // namespace model

FRUGAL_NAMESPACE_END
