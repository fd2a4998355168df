#pragma once
/// Elementwise activations, as functions and as tag types that kernels take.
#include <cmath>
#include <concepts>
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// 1 / (1 + exp(-x)), without overflow for any x.
[[nodiscard]] FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE float sigmoid(float x) noexcept {
    // exp of a positive number is never formed: for x < 0 the quotient is rewritten.
    const float e = ::expf(x < 0 ? x : -x);
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/// x * sigmoid(x).
[[nodiscard]] FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE float silu(float x) noexcept { return x * sigmoid(x); }

/// log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)): finite for every finite x, and exact in both tails.
[[nodiscard]] FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE float softplus(float x) noexcept {
    return (x > 0 ? x : 0.0f) + ::log1pf(::expf(x > 0 ? -x : x));
}

/// Activations as types: `activation::silu::apply(x)`.
namespace activation {
struct identity {
    static constexpr std::string_view name = "identity";
    FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE static float apply(float x) noexcept { return x; }
};
struct silu {
    static constexpr std::string_view name = "silu";
    FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE static float apply(float x) noexcept { return ops::silu(x); }
};
struct sigmoid {
    static constexpr std::string_view name = "sigmoid";
    FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE static float apply(float x) noexcept { return ops::sigmoid(x); }
};
}  // namespace activation

/// An activation: `name` and `apply(x)`.
template <class A>
concept activation_function = requires(float x) {
    { A::name } -> std::convertible_to<std::string_view>;
    { A::apply(x) }
    noexcept->std::same_as<float>;
};
static_assert(activation_function<activation::identity> && activation_function<activation::silu> &&
              activation_function<activation::sigmoid>);

/// Put `FRUGAL_REQUIRE_ACTIVATION(A);` first into what takes an activation, or a gate, as a parameter.
#define FRUGAL_REQUIRE_ACTIVATION(...)                                                                                    \
    static_assert(::frugal::ops::activation_function<__VA_ARGS__>,                                                        \
                  "frugal: an activation or gate is a type; write ops::activation::silu, sigmoid or identity, or one of " \
                  "your own with a name and static float apply(float) noexcept")

}  // namespace ops

FRUGAL_NAMESPACE_END
