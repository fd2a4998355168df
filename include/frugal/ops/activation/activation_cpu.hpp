#pragma once
/// Activations of whole registers, for kernels that apply one to what they have just computed.
#include <cstddef>
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// x becomes 1 + exp(-x): 1 from 17 on, infinity below -88.7, NaN stays NaN.
template <class Isa, std::size_t N>
FRUGAL_ALWAYS_INLINE void one_plus_exp_minus(simd::vec<Isa> (&x)[N]) noexcept {
    const simd::vec<Isa> zero{};  // taken from, since a minus would change the sign of a NaN
    simd::vec<Isa> power[N];
    for (std::size_t i = 0; i < N; ++i)
        x[i] = zero - simd::min<Isa>(simd::broadcast<Isa>(87.0f), simd::max<Isa>(simd::broadcast<Isa>(-89.0f), x[i]));
    simd::detail::exp_factors<Isa>(x, power);
    for (std::size_t i = 0; i < N; ++i) x[i] = simd::multiply_add<Isa>(x[i], power[i], simd::broadcast<Isa>(1.0f));
}

}  // namespace detail

/// 1 / (1 + exp(-x)) of every lane, within 3 units in the last place; 0 below -88.7.
template <class Isa, std::size_t N>
FRUGAL_ALWAYS_INLINE void sigmoid(simd::vec<Isa> (&x)[N]) noexcept {
    detail::one_plus_exp_minus<Isa>(x);
    for (std::size_t i = 0; i < N; ++i) x[i] = simd::broadcast<Isa>(1.0f) / x[i];
}

/// x * sigmoid(x) of every lane, within 3 units in the last place; 0 below -88.7.
template <class Isa, std::size_t N>
FRUGAL_ALWAYS_INLINE void silu(simd::vec<Isa> (&x)[N]) noexcept {
    simd::vec<Isa> divisor[N];
    for (std::size_t i = 0; i < N; ++i) divisor[i] = x[i];
    detail::one_plus_exp_minus<Isa>(divisor);
    for (std::size_t i = 0; i < N; ++i) x[i] = x[i] / divisor[i];
}

/// Activation::apply of every lane. The same bits for a value in any lane and register.
template <class Isa, class Activation, std::size_t N>
FRUGAL_ALWAYS_INLINE void activate(simd::vec<Isa> (&x)[N]) noexcept {
    if constexpr (std::is_same_v<Activation, activation::silu>) {
        silu<Isa>(x);
    } else if constexpr (std::is_same_v<Activation, activation::sigmoid>) {
        sigmoid<Isa>(x);
    } else if constexpr (!std::is_same_v<Activation, activation::identity>) {
        for (std::size_t i = 0; i < N; ++i) {
            float lanes[simd::width<Isa>];
            simd::store<Isa>(lanes, x[i]);
            for (float& lane : lanes) lane = Activation::apply(lane);
            x[i] = simd::load<Isa>(lanes);
        }
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
