#pragma once
/// Where a token stands for the rotary embedding.
#include <compare>
#include <cstdint>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Rotary position of one token. For text all three are the token's index.
struct rope_position {
    std::int32_t temporal = 0, height = 0, width = 0;
    FRUGAL_ALWAYS_INLINE friend auto operator<=>(const rope_position&, const rope_position&) = default;
};

}  // namespace ops

FRUGAL_NAMESPACE_END
