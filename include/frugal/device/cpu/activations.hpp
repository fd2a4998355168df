#pragma once
/// In which form products take their activations: a policy of the device.
#include <concepts>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// As they are: f32 products with the decoded weights, with the bits that a matrix of these weights in f32 gives. The default.
struct f32_activations {
    static constexpr bool quantized = false;
};

/// Rounded to 8 bits in blocks of 32 (quant::q8_activation<32>) and multiplied with the codes of the weights in integers. Each
/// activation is off by at most half of its block's scale, which is (largest magnitude in the block) / 127; a product is off
/// by at most the sum over its columns of |weight| times that. A block with a NaN or an infinity makes its row of results NaN.
/// Weights without integer codes (f32, f16, bf16, formats of your own) take the activations as they are.
struct q8_activations {
    static constexpr bool quantized = true;
};

/// device::f32_activations or device::q8_activations.
template <class A>
concept activation_policy = std::same_as<A, f32_activations> || std::same_as<A, q8_activations>;

using default_activations = f32_activations;
static_assert(activation_policy<default_activations>, "frugal: the default activations must model device::activation_policy");

}  // namespace device

FRUGAL_NAMESPACE_END
