#pragma once
/// CPU kernels of ops::attention: softmax attention of a tile of queries over a span of keys, with partial results that
/// can be merged.
#include <cstddef>
#include <cstdint>

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
    [[nodiscard]] static constexpr std::size_t elements(std::size_t features) noexcept { return features; }
};
/// … or in the blocks of a quantised format, as bytes. Heads begin with a block.
template <>
struct stored_features<quant::q8_0> {
    using format = quant::q8_0;
    using element = std::int8_t;
    static constexpr bool quantised = true;
    static constexpr std::size_t block = format::block_size;
    [[nodiscard]] static constexpr std::size_t elements(std::size_t features) noexcept {
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

/// Queries that share one key-value head, and what they see.
template <class Scalar>
struct attention_tile {
    const float* queries = nullptr;  ///< first row, first query head of the key-value head
    std::size_t row_stride = 0, head_stride = 0;
    std::size_t rows = 0, heads = 0;  ///< heads: query heads of this key-value head
    std::size_t head_dim = 0;
    float scale = 1;  ///< of a score, before the softmax
    key_value_view<Scalar> cache;
    std::size_t offset = 0;                ///< of the key-value head within a token, in elements
    const std::uint32_t* list = nullptr;   ///< ranks of the keys, or null for 0, 1, 2, …
    const std::size_t* visible = nullptr;  ///< [rows] keys each row sees: the first so many of the list
};

/// Floats of a partial result: unnormalised output, sum of the weights, greatest score. A tile has rows * heads of them.
[[nodiscard]] constexpr std::size_t attention_partial(std::size_t head_dim) noexcept { return head_dim + 2; }

/// Keys between two rescalings of the output.
inline constexpr std::size_t attention_step = 32;

namespace detail {
/// Elements from one copied row of `head_dim` to the next: a cache line more than the row.
template <class Scalar>
[[nodiscard]] constexpr std::size_t attention_stride(std::size_t head_dim) noexcept {
    return head_dim + 64 / sizeof(Scalar);
}
}  // namespace detail

/// Floats of room that attend_span needs for a step's values, and for its keys where both are stored quantised.
template <class Scalar>
[[nodiscard]] constexpr std::size_t attention_room(std::size_t head_dim) noexcept {
    if constexpr (stored_features<Scalar>::quantised)
        return 2 * attention_step * detail::attention_stride<float>(head_dim);
    else
        return (attention_step * detail::attention_stride<Scalar>(head_dim) * sizeof(Scalar) + sizeof(float) - 1) / sizeof(float);
}

/// Partial results of keys begin … end - 1 of the list for every query of the tile. begin is a multiple of attention_span.
/// room: [attention_room<Scalar>(head_dim)].
template <class Isa, class Scalar>
void attend_span(const attention_tile<Scalar>& tile, std::size_t begin, std::size_t end, float* partial, float* room);

/// Merges `count` partial results of a later span into those of the spans before it.
template <class Isa>
void merge_attention(float* into, const float* later, std::size_t count, std::size_t head_dim);

/// Normalises a tile's partial results into y: row r, head h at y + r * row_stride + h * head_dim. Queries that saw
/// nothing become 0.
template <class Isa>
void finish_attention(const float* partial, std::size_t rows, std::size_t heads, std::size_t head_dim, float* y,
                      std::size_t row_stride);

/// y[i] *= sigmoid(gate[i]), i < n.
template <class Isa>
void multiply_sigmoid(const float* gate, float* y, std::size_t n);

}  // namespace cpu

}  // namespace ops

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/attention/attention_cpu-inl.hpp"
#endif
