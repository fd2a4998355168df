#pragma once
/// The precision policy: how exactly a model's caches keep what attention reads again and again.
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "frugal/core/config.hpp"
#include "frugal/quant/formats/q8_0.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// A type of keys and values. Kernels for others would have to be instantiated.
template <class Scalar>
concept key_value_scalar = std::is_same_v<Scalar, float> || std::is_same_v<Scalar, half> || std::is_same_v<Scalar, bfloat16> ||
    std::is_same_v<Scalar, quant::q8_0>;

/// A type of the keys that QSA's indexer scores; signed bytes have a scale a block.
template <class Scalar>
concept index_key_scalar = std::is_same_v<Scalar, float> || std::is_same_v<Scalar, half> || std::is_same_v<Scalar, bfloat16> ||
    std::is_same_v<Scalar, std::int8_t>;

/// What a cache keeps of a value: rounded to nearest even, but beyond the range the greatest number of its sign, so that what is
/// finite stays finite. NaN stays NaN and an infinity one.
template <class Scalar>
    requires(std::is_same_v<Scalar, half> || std::is_same_v<Scalar, bfloat16>)
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr Scalar round_for_cache(float value) noexcept {
    Scalar out;
    if constexpr (std::is_same_v<Scalar, half>)
        out = to_half(value);
    else
        out = to_bfloat16(value);
    // Infinity is the code after the greatest number.
    constexpr unsigned infinity = std::is_same_v<Scalar, half> ? 0x7C00u : 0x7F80u;
    if ((out.bits & 0x7FFFu) == infinity && value - value == 0.0f) --out.bits;
    return out;
}

/// What a quantised cache's encoder is given for a value: beyond the range of the scale the greatest value, and for NaN an
/// infinity, whose block decodes to NaN (the encoder would take NaN for 0).
template <class Format>
    requires std::is_same_v<Format, quant::q8_0>
[[nodiscard]] FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE constexpr float clamp_for_cache(float value) noexcept {
    constexpr float most = 65504.0f * 127.0f;
    if (!(value - value == 0.0f)) return value == value ? value : __builtin_huge_valf();
    return value > most ? most : value < -most ? -most : value;
}

/// How the indexer keeps its keys where nothing is said. Scoring reads every block's key for each token, so half the bytes are
/// half the time at great lengths; against f32 keys about one chosen block in 500 is another one, whose score differs by less
/// than the rounding. Where the selection must be that of f32 keys, say float.
using default_index_key = bfloat16;

/// Types of the caches: `KeyValue` of keys and values, `Index` of the indexer's keys. The second does not follow the first:
/// coarse indexer keys drop tokens outright.
///
/// | type | finite values up to | kept within |
/// |---|---|---|
/// | float | 3.4e38 | the value |
/// | half | 65504 | 2^-11 of the value, 2^-25 below 2^-14 |
/// | bfloat16 | 3.39e38 | 2^-8 of the value |
/// | quant::q8_0 | 65504 * 127 = 8.3e6 | 1/225 of the greatest of its block of 32, or 4e-6 |
/// | std::int8_t | 3.4e38 (the scale is f32) | 1/254 of the greatest of the key |
///
/// A finite value beyond that range is kept as the greatest one of its sign: a cache makes no infinity of it. A NaN or an
/// infinity stays one (in q8_0 it makes its block NaN, in int8 the whole key), so that it shows in what is computed.
template <class KeyValue = float, class Index = default_index_key>
struct cache_precision {
    static_assert(key_value_scalar<KeyValue>,
                  "frugal: cache_precision<KeyValue, Index> keeps keys and values as float, half, bfloat16 or quant::q8_0");
    static_assert(index_key_scalar<Index>,
                  "frugal: cache_precision<KeyValue, Index> keeps the indexer's keys as float, half, bfloat16 or std::int8_t");
    using key_value = KeyValue;
    using index = Index;
};

/// What is used where no precision is named.
using default_cache_precision = cache_precision<>;

/// What every precision policy says.
template <class P>
concept cache_precision_policy = key_value_scalar<typename P::key_value> && index_key_scalar<typename P::index>;

static_assert(cache_precision_policy<default_cache_precision>,
              "frugal: the default precision of caches must model ops::cache_precision_policy");

}  // namespace ops

FRUGAL_NAMESPACE_END
