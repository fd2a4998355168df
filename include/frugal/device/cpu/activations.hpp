#pragma once
/// In which form products take their activations: a policy of the device.
#include <concepts>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// As they are: f32 products with the decoded weights, with the bits that a matrix of these weights in f32 gives. The default.
struct f32_activations {
    static constexpr bool quantized = false, rounded = false;
};

/// Rounded to 8 bits in blocks of 32 (quant::q8_activation<32>) and multiplied with the codes of the weights in integers. Each
/// activation is off by at most half of its block's scale, which is (largest magnitude in the block) / 127; a product is off
/// by at most the sum over its columns of |weight| times that. A block with a NaN or an infinity makes its row of results NaN.
/// Weights without integer codes (f32, f16, bf16, formats of your own) take the activations as they are.
struct q8_activations {
    static constexpr bool quantized = true, rounded = false;
};

/// Rounded to bfloat16 (to nearest, ties to even) and multiplied in f32 with bfloat16 weights, or with the codes of weights that
/// have integer codes, which bfloat16 holds exactly. Each activation is off by at most 2^-8 of its magnitude; a product is off by
/// at most the sum over its columns of |weight * activation| times that, and by the roundings of f32 sums. Magnitudes below
/// 2^-126 are taken for 0.
///
/// Sums of 32 columns (16, where that many share a scale) are those of the even columns plus those of the odd ones, each one
/// after the other: the order of Intel AMX, which computes them for 16 rows and more where the processor has it, with the bits
/// that vector registers give. Those of AVX512_BF16's dot products differ; they are not used. bfloat16 weights give the same
/// bits on every instruction set, as long as no product of two numbers is beyond the range of f32.
/// Weights in f32, in f16 and in formats of your own without codes take the activations as they are.
struct bf16_activations {
    static constexpr bool quantized = false, rounded = true;
};

/// device::f32_activations, device::q8_activations or device::bf16_activations.
template <class A>
concept activation_policy =
    std::same_as<A, f32_activations> || std::same_as<A, q8_activations> || std::same_as<A, bf16_activations>;

using default_activations = f32_activations;
static_assert(activation_policy<default_activations>, "frugal: the default activations must model device::activation_policy");

}  // namespace device

FRUGAL_NAMESPACE_END
