#pragma once
/// How products with many tokens are computed where activations are floats: a policy of device::cuda.
#include <concepts>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::prefill {

/// With the bits of products with few tokens. The default.
struct exact {
    static constexpr bool rounds = false;
};

/// By matrix units, for batches of more than 16 tokens: decoded weights and activations are rounded to bfloat16, each off by at
/// most 2^-9 of itself; sums are f32. A product is off by at most 2^-8 of the sum of its terms' magnitudes, and a token's bits
/// depend on how many tokens come with it: more than 16 or not. Products with device::q8_activations need none of this: their
/// matrix units give the bits of a single token.
struct bf16_tiles {
    static constexpr bool rounds = true;
};

}  // namespace device::prefill

namespace device {

/// prefill::exact or prefill::bf16_tiles.
template <class P>
concept prefill_policy = std::same_as<P, prefill::exact> || std::same_as<P, prefill::bf16_tiles>;

}  // namespace device

FRUGAL_NAMESPACE_END
