#pragma once
/// Activations of whole registers, for kernels that apply one to what they have just computed.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// x becomes 1 + exp(-x): 1 from 17 on, infinity below -88.7, NaN stays NaN. The registers go through every step side by
/// side, because one alone would wait for itself.
template <class Isa, std::size_t N>
FRUGAL_ALWAYS_INLINE void one_plus_exp_minus(simd::vec<Isa> (&x)[N]) noexcept {
    using vec = simd::vec<Isa>;
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    // -x = n ln 2 + r with |r| <= ln(2) / 2: the low bits of `shifted` are those of n + 127, the exponent of 2^n.
    const vec shift = simd::broadcast<Isa>(12582912.0f + 127.0f);
    vec r[N], p[N], power[N];  // r: its negative
    for (std::size_t i = 0; i < N; ++i)
        r[i] = simd::min<Isa>(simd::broadcast<Isa>(87.0f), simd::max<Isa>(simd::broadcast<Isa>(-89.0f), x[i]));
    for (std::size_t i = 0; i < N; ++i) {
        const vec shifted = simd::multiply_add<Isa>(r[i], simd::broadcast<Isa>(-1.44269504f), shift);
        const vec n = shifted - shift;
        power[i] = reinterpret_cast<vec>(reinterpret_cast<ints>(shifted) << 23);
        // ln 2 in two parts: the first has 15 significant bits, so n times it is exact.
        r[i] = simd::multiply_add<Isa>(n, simd::broadcast<Isa>(22713.0f / 32768.0f), r[i]);
        r[i] = simd::multiply_add<Isa>(n, simd::broadcast<Isa>(1.42860682e-6f), r[i]);
    }
    // The polynomial of degree 6 nearest to exp on this interval, with the first two coefficients 1: within 3e-9.
    for (std::size_t i = 0; i < N; ++i)
        p[i] = simd::multiply_add<Isa>(r[i], simd::broadcast<Isa>(0.00139412131f), simd::broadcast<Isa>(-0.0083752102f));
    for (std::size_t i = 0; i < N; ++i) p[i] = simd::multiply_add<Isa>(p[i], r[i], simd::broadcast<Isa>(0.0416663516f));
    for (std::size_t i = 0; i < N; ++i) p[i] = simd::multiply_add<Isa>(p[i], r[i], simd::broadcast<Isa>(-0.166664145f));
    for (std::size_t i = 0; i < N; ++i) p[i] = simd::multiply_add<Isa>(p[i], r[i], simd::broadcast<Isa>(0.5f));
    for (std::size_t i = 0; i < N; ++i) p[i] = simd::multiply_add<Isa>(p[i], r[i], simd::broadcast<Isa>(-1.0f));
    for (std::size_t i = 0; i < N; ++i) p[i] = simd::multiply_add<Isa>(p[i], r[i], simd::broadcast<Isa>(1.0f));
    for (std::size_t i = 0; i < N; ++i) x[i] = simd::multiply_add<Isa>(p[i], power[i], simd::broadcast<Isa>(1.0f));
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
