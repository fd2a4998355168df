#pragma once
/// CPU kernels of ops::attention: softmax attention of a tile of queries over a span of keys, with partial results that
/// can be merged.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "frugal/device/cpu/isa.hpp"
#include "frugal/quant/formats/q8_0.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// How keys and values are stored: as scalars, one a feature …
template <class Scalar>
struct stored_features {
    using element = Scalar;
    static constexpr bool quantised = false;
    static constexpr std::size_t block = 1;  ///< features that are stored together
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static constexpr std::size_t elements(std::size_t features) noexcept { return features; }
};
/// … or in the blocks of a quantised format, as bytes. Heads begin with a block.
template <>
struct stored_features<quant::q8_0> {
    using format = quant::q8_0;
    using element = std::int8_t;
    static constexpr bool quantised = true;
    static constexpr std::size_t block = format::block_size;
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static constexpr std::size_t elements(std::size_t features) noexcept {
        return features / format::block_size * format::block_bytes;
    }
};

/// Keys and values of one sequence, not owned: token t lies in chunk t >> chunk_shift, and there `stride` elements after
/// the token before it. Heads of one token follow one another, head_dim features each.
/// Scalar: float, half, bfloat16 or quant::q8_0.
template <class Scalar>
struct key_value_view {
    const typename stored_features<Scalar>::element* const* keys = nullptr;
    const typename stored_features<Scalar>::element* const* values = nullptr;
    std::size_t chunk_shift = 0, stride = 0;
};

namespace cpu {

/// Keys are taken in spans of this many, each with a softmax of its own, and the spans are merged in order. Both borders
/// are counted along a query's own list of keys, so they do not depend on who computes what.
inline constexpr std::size_t attention_span = 1024;

/// Queries that share some neighbouring key-value heads, and what they see.
template <class Scalar>
struct attention_tile {
    const float* queries = nullptr;  ///< first row, first query head of the first key-value head
    std::size_t row_stride = 0, head_stride = 0;
    std::size_t rows = 0, kv_heads = 1, heads = 0;  ///< heads: query heads of each key-value head
    std::size_t head_dim = 0;
    float scale = 1;  ///< of a score, before the softmax
    key_value_view<Scalar> cache;
    std::size_t offset = 0;                ///< of the first key-value head within a token, in elements
    const std::uint32_t* list = nullptr;   ///< ranks of the keys, or null for 0, 1, 2, …
    const std::size_t* visible = nullptr;  ///< [rows] keys each row sees: the first so many of the list
};

/// Keys between two rescalings of the output.
inline constexpr std::size_t attention_step = 32;

namespace detail {
/// Elements from one copied row of `head_dim` to the next: whole cache lines, and one more, so that rows a power of two long do
/// not fall on few sets of the first cache. Any register of the row may be read or written whole.
template <class Scalar>
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t attention_stride(std::size_t head_dim) noexcept {
    constexpr std::size_t line = 64 / sizeof(Scalar);
    return (head_dim + line - 1) / line * line + line;
}
/// How a step's values, and keys where both are stored quantised, are copied.
template <class Scalar>
using attention_copy = std::conditional_t<stored_features<Scalar>::quantised, float, typename stored_features<Scalar>::element>;
}  // namespace detail

/// Floats of a partial result: unnormalised output, and in its last cache line the sum of the weights and the greatest score. A
/// tile has one for each query, in the order [kv_heads][rows][heads].
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t attention_partial(std::size_t head_dim) noexcept {
    return detail::attention_stride<float>(head_dim);
}

/// Floats of room that attend_span needs for so many queries of a tile and a step's values of one head, and for its keys where
/// both are stored quantised.
template <class Scalar>
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t attention_room(std::size_t queries, std::size_t head_dim) noexcept {
    using copy = detail::attention_copy<Scalar>;
    const std::size_t rows = stored_features<Scalar>::quantised ? 2 * attention_step : attention_step;
    return queries * detail::attention_stride<float>(head_dim) +
           rows * detail::attention_stride<copy>(head_dim) * sizeof(copy) / sizeof(float);
}

/// Partial results of keys begin … end - 1 of the list for every query of the tile. begin is a multiple of attention_span.
/// Whoever goes on with keys up to `ahead` > end has the first of them on their way from memory.
/// partial: [queries of the tile][attention_partial(head_dim)]; room: [attention_room<Scalar>(queries, head_dim)]; both aligned
/// to 64 bytes.
template <class Isa, class Scalar>
FRUGAL_KERNEL void attend_span(const attention_tile<Scalar>& tile, std::size_t begin, std::size_t end, std::size_t ahead,
                               float* partial, float* room);

/// Merges `count` partial results of a later span into those of the spans before it.
template <class Isa>
FRUGAL_KERNEL void merge_attention(float* into, const float* later, std::size_t count, std::size_t head_dim);

/// Normalises a tile's partial results into y: row r, query head h of all at y + r * row_stride + h * head_dim. Queries that saw
/// nothing become 0.
template <class Isa, class Scalar>
FRUGAL_KERNEL void finish_attention(const attention_tile<Scalar>& tile, const float* partial, float* y, std::size_t row_stride);

/// y[i] *= sigmoid(gate[i]), i < n.
template <class Isa>
FRUGAL_KERNEL void multiply_sigmoid(const float* gate, float* y, std::size_t n);

}  // namespace cpu

}  // namespace ops

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/attention/attention_cpu-inl.hpp"
#endif
