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

/// How the indexer keeps its keys where nothing is said. Scoring reads every block's key for each token, so half the bytes are
/// half the time at great lengths; against f32 keys about one chosen block in 500 is another one, whose score differs by less
/// than the rounding. Where the selection must be that of f32 keys, say float.
using default_index_key = bfloat16;

/// Types of the caches: `KeyValue` of keys and values, `Index` of the indexer's keys. The second does not follow the first:
/// coarse indexer keys drop tokens outright.
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
