#pragma once
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation_cpu.hpp"
#include "frugal/ops/attention/attention_cpu.hpp"
#include "frugal/ops/attention/attention_tiles_cpu-inl.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

inline constexpr float minus_infinity = -__builtin_huge_valf();
inline constexpr float not_a_number = __builtin_nanf("");

template <class Isa>
FRUGAL_ALWAYS_INLINE void scale_row(float* row, float factor, std::size_t n) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    const simd::vec<Isa> factors = simd::broadcast<Isa>(factor);
    std::size_t i = 0;
    for (; i + width <= n; i += width) simd::store<Isa>(row + i, simd::rounded<Isa>(simd::load<Isa>(row + i) * factors));
    for (; i < n; ++i) row[i] = simd::rounded(row[i] * factor);
}

template <class Isa>
FRUGAL_ALWAYS_INLINE float exp_one(float x) noexcept {
    float lanes[simd::width<Isa>];
    simd::store<Isa>(lanes, simd::exp<Isa>(simd::broadcast<Isa>(x)));
    return lanes[0];
}

/// The scores of a step, unscaled, for a block of queries, and how many of the keys each sees; then their weights.
struct step_scores {
    static constexpr std::size_t most_queries = 12;
    alignas(64) float of[most_queries][attention_step];
    std::size_t seen[most_queries];
};

/// Turns the raw scores of `queries` queries into weights relative to the greatest score so far of each, rescales what a query
/// has gathered if that grew, and adds the weights to their sum. A query whose every key so far scored -inf sees none. A score
/// that is NaN makes the sum NaN, and where no number is greater than -inf the greatest score too, which then stays NaN.
template <class Isa>
FRUGAL_ALWAYS_INLINE void softmax_step(step_scores& scores, std::size_t queries, float scale, float* partial,
                                       std::size_t dim) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    const std::size_t stride = attention_partial(dim), at = stride - 2;
    const simd::vec<Isa> scales = simd::broadcast<Isa>(scale), lowest = simd::broadcast<Isa>(minus_infinity);
    for (std::size_t first = 0; first < queries; first += width) {
        const std::size_t count = queries - first < width ? queries - first : width;
        simd::vec<Isa> some[width];
        for (std::size_t i = 0; i < count; ++i) {
            float* const row = scores.of[first + i];
            for (std::size_t j = scores.seen[first + i]; j < attention_step; ++j) row[j] = minus_infinity;
            some[i] = lowest;
            for (std::size_t j = 0; j < attention_step; j += width) {
                const simd::vec<Isa> scaled = simd::rounded<Isa>(simd::load<Isa>(row + j) * scales);
                simd::store<Isa>(row + j, scaled);
                some[i] = simd::max<Isa>(scaled, some[i]);
            }
        }
        for (std::size_t i = count; i < width; ++i) some[i] = lowest;
        float greatest[width], sums[width];
        simd::store<Isa>(greatest, simd::maxima<Isa>(some));
        for (std::size_t i = 0; i < count; ++i) {
            float* const one = partial + (first + i) * stride;
            float& most = one[at + 1];
            some[i] = simd::vec<Isa>{};
            const float now = greatest[i] > most ? greatest[i] : most;
            if (now == minus_infinity) {
                const float* const row = scores.of[first + i];
                for (std::size_t j = 0; j < scores.seen[first + i]; ++j)
                    if (row[j] != row[j]) most = one[at] = not_a_number;
                scores.seen[first + i] = 0;
                continue;
            }
            // The sum of the weights is scaled with the output.
            if (now != most) scale_row<Isa>(one, exp_one<Isa>(most - now), stride - 1);
            most = now;
            float* const row = scores.of[first + i];
            const simd::vec<Isa> shift = simd::broadcast<Isa>(now);
            for (std::size_t j = 0; j < attention_step; j += width) {
                const simd::vec<Isa> weights = simd::exp<Isa>(simd::load<Isa>(row + j) - shift);
                simd::store<Isa>(row + j, weights);
                some[i] += weights;
            }
        }
        for (std::size_t i = count; i < width; ++i) some[i] = simd::vec<Isa>{};
        simd::store<Isa>(sums, simd::sums<Isa>(some));
        for (std::size_t i = 0; i < count; ++i) partial[(first + i) * stride + at] += sums[i];
    }
}

/// The features of one head, `dim` of them, from a quantised format's blocks.
template <class Format>
FRUGAL_ALWAYS_INLINE void unpack_features(const std::int8_t* from, std::size_t dim, float* to) noexcept {
    for (std::size_t d = 0; d < dim; d += Format::block_size, from += Format::block_bytes)
        Format::decode(reinterpret_cast<const std::byte*>(from), to + d);
}

/// Where the rows of a step lie.
template <class Element>
struct step_rows {
    const Element *keys[attention_step], *values[attention_step];
    std::size_t count = 0;
};

/// The weighted sums of values of a block of queries: its tiles one after the other over the same features.
template <class Isa, class Scalar, class Element>
FRUGAL_ALWAYS_INLINE void accumulate(float* out, std::size_t out_stride, const step_scores& weights, std::size_t queries,
                                     const Scalar* v, std::size_t v_stride, std::size_t dim,
                                     const rows_ahead<Element>& ahead) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    const std::size_t whole = (dim + width - 1) / width * width;
    const auto features = [&](auto registers, std::size_t d) __attribute__((always_inline)) {
        for_each_query_tile(
            queries, [&](auto tile, std::size_t first) __attribute__((always_inline)) {
                std::size_t least = weights.seen[first], most = least;
                for (std::size_t i = 1; i < tile; ++i) {
                    least = weights.seen[first + i] < least ? weights.seen[first + i] : least;
                    most = weights.seen[first + i] > most ? weights.seen[first + i] : most;
                }
                float* const to = out + first * out_stride + d;
                const auto add = [&](const auto& on_the_way) __attribute__((always_inline)) {
                    accumulate_tile<Isa, tile, registers>(to, out_stride, &weights.of[first], v + d, v_stride, 0, least,
                                                          on_the_way, d);
                };
                if (first == 0)
                    add(ahead);
                else
                    add(nothing_ahead{});
                if (least != most)
                    for (std::size_t i = 0; i < tile; ++i)
                        accumulate_tile<Isa, 1, registers>(to + i * out_stride, out_stride, &weights.of[first + i], v + d,
                                                           v_stride, least, weights.seen[first + i], nothing_ahead{}, d);
            });
    };
    std::size_t d = 0;
    for (; d + 2 * width <= whole; d += 2 * width) features(std::integral_constant<std::size_t, 2>{}, d);
    if (d < whole) features(std::integral_constant<std::size_t, 1>{}, d);
}

/// One step of keys for queries first … first + queries - 1 of the tile, which are packed into q.
template <class Isa, class Scalar, class Key, class Value>
FRUGAL_ALWAYS_INLINE void attend_step(const attention_tile<Scalar>& tile, std::size_t first, std::size_t queries,
                                      std::size_t begin, std::size_t keys, const float* q, const Key* const* k, const Value* v,
                                      const rows_ahead<typename stored_features<Scalar>::element>& ahead,
                                      float* partial) noexcept {
    const std::size_t dim = tile.head_dim, stride = attention_stride<float>(dim);
    step_scores scores;
    std::size_t most = 0;
    for (std::size_t i = 0; i < queries; ++i) {
        const std::size_t visible = tile.visible[(first + i) / tile.heads], left = visible > begin ? visible - begin : 0;
        scores.seen[i] = left < keys ? left : keys;
        most = scores.seen[i] > most ? scores.seen[i] : most;
    }
    if (most == 0) return;
    // Keys that a query does not see are scored with its neighbours, and dropped.
    constexpr std::size_t together = 4;
    const auto score = [&](auto count, std::size_t j) __attribute__((always_inline)) {
        for_each_query_tile(
            queries, [&](auto tile_queries, std::size_t i) __attribute__((always_inline)) {
                if (i == 0)
                    score_tile<Isa, tile_queries, count>(q, stride, k + j, dim, scores.of, j, ahead);
                else
                    score_tile<Isa, tile_queries, count>(q + i * stride, stride, k + j, dim, &scores.of[i], j, nothing_ahead{});
            });
    };
    std::size_t j = 0;
    for (; j + together <= most; j += together) score(std::integral_constant<std::size_t, together>{}, j);
    for (; j < most; ++j) score(std::integral_constant<std::size_t, 1>{}, j);
    softmax_step<Isa>(scores, queries, tile.scale, partial, dim);
    accumulate<Isa>(partial, attention_partial(dim), scores, queries, v, attention_stride<Value>(dim), dim, ahead);
}

}  // namespace detail

template <class Isa, class Scalar>
void attend_span(const attention_tile<Scalar>& tile, std::size_t begin, std::size_t end, std::size_t ahead, float* partial,
                 float* room) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    using stored = stored_features<Scalar>;
    using element = typename stored::element;
    using copy = detail::attention_copy<Scalar>;
    const std::size_t dim = tile.head_dim, queries = tile.rows * tile.heads;  // of one key-value head
    const std::size_t stride = detail::attention_stride<float>(dim), copy_stride = detail::attention_stride<copy>(dim);
    float* const q = room;
    auto* const values = reinterpret_cast<copy*>(room + tile.kv_heads * queries * stride);
    auto* const keys = values + attention_step * copy_stride;  // where they are quantised
    for (std::size_t i = 0; i < tile.kv_heads * queries; ++i) {
        const std::size_t head = i / queries * tile.heads + i % tile.heads, row = i % queries / tile.heads;
        const float* const from = tile.queries + row * tile.row_stride + head * tile.head_stride;
        float *const to = q + i * stride, *const one = partial + i * stride;
        for (std::size_t d = 0; d < dim; ++d) to[d] = from[d];
        for (std::size_t d = dim; d < stride; ++d) to[d] = 0;
        for (std::size_t d = 0; d < stride; ++d) one[d] = 0;
        one[stride - 1] = detail::minus_infinity;
    }
    for (std::size_t j = 0; j < attention_step; ++j)
        for (std::size_t d = dim; d < copy_stride; ++d) values[j * copy_stride + d] = copy{};
    const std::size_t mask = (static_cast<std::size_t>(1) << tile.cache.chunk_shift) - 1;
    using rows = detail::step_rows<element>;
    const auto find = [&](std::size_t s, std::size_t last, rows& to) {
        to.count = s >= last ? 0 : last - s < attention_step ? last - s : attention_step;
        for (std::size_t j = 0; j < to.count; ++j) {
            const std::size_t token = tile.list != nullptr ? tile.list[s + j] : s + j;
            const std::size_t within = (token & mask) * tile.cache.stride + tile.offset;
            to.keys[j] = tile.cache.keys[token >> tile.cache.chunk_shift] + within;
            to.values[j] = tile.cache.values[token >> tile.cache.chunk_shift] + within;
        }
    };
    rows steps[2];
    find(begin, end, steps[0]);
    for (std::size_t s = begin, now = 0; s < end; s += attention_step, now ^= 1) {
        const rows& here = steps[now];
        rows& next = steps[now ^ 1];
        find(s + attention_step, s + attention_step < end ? end : ahead, next);
        // All heads of a row one after the other, since memory is read in longer pieces than one of them.
        for (std::size_t head = 0; head < tile.kv_heads; ++head) {
            const std::size_t offset = head * stored::elements(dim);
            // Of the values the same features of all rows are read together: they are copied side by side.
            const copy* k[attention_step];
            for (std::size_t j = 0; j < here.count; ++j) {
                if constexpr (stored::quantised) {
                    detail::unpack_features<typename stored::format>(here.keys[j] + offset, dim, keys + j * copy_stride);
                    detail::unpack_features<typename stored::format>(here.values[j] + offset, dim, values + j * copy_stride);
                    k[j] = keys + j * copy_stride;
                } else {
                    __builtin_memcpy(values + j * copy_stride, here.values[j] + offset, dim * sizeof(copy));
                    k[j] = here.keys[j] + offset;
                }
            }
            constexpr std::size_t block = detail::step_scores::most_queries;
            for (std::size_t first = 0; first < queries; first += block) {
                const std::size_t count = queries - first < block ? queries - first : block;
                const std::size_t at = (head * queries + first) * stride;
                const bool fetch = first == 0 && next.count == attention_step;
                const detail::rows_ahead<element> at_hand{here.keys, here.values, offset};
                const detail::rows_ahead<element> to_come{next.keys, next.values, offset};
                detail::attend_step<Isa>(tile, first, count, s, here.count, q + at, k, values, fetch ? to_come : at_hand,
                                         partial + at);
            }
        }
    }
}

template <class Isa>
void merge_attention(float* into, const float* later, std::size_t count, std::size_t head_dim) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const std::size_t stride = attention_partial(head_dim);
    for (std::size_t i = 0; i < count; ++i, into += stride, later += stride) {
        const float before = into[stride - 1], after = later[stride - 1];
        if (after == detail::minus_infinity) continue;  // the later span saw nothing
        const float most = after > before ? after : before;
        detail::scale_row<Isa>(into, detail::exp_one<Isa>(before - most), stride - 1);
        simd::axpy<Isa>(detail::exp_one<Isa>(after - most), later, into, stride - 1);
        into[stride - 1] = most;
    }
}

template <class Isa, class Scalar>
void finish_attention(const attention_tile<Scalar>& tile, const float* partial, float* y, std::size_t row_stride) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const std::size_t dim = tile.head_dim, stride = attention_partial(dim);
    for (std::size_t head = 0; head < tile.kv_heads * tile.heads; head += tile.heads)
        for (std::size_t r = 0; r < tile.rows; ++r)
            for (std::size_t h = 0; h < tile.heads; ++h, partial += stride) {
                float* const out = y + r * row_stride + (head + h) * dim;
                const float sum = partial[stride - 2];
                for (std::size_t d = 0; d < dim; ++d) {
                    const float value = partial[d] / sum;
                    out[d] = sum == 0.0f ? 0.0f : value == value ? value : detail::not_a_number;  // one NaN, whichever came first
                }
            }
}

template <class Isa>
void multiply_sigmoid(const float* gate, float* y, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t width = simd::width<Isa>;
    std::size_t i = 0;
    simd::vec<Isa> open[1];
    for (; i + width <= n; i += width) {
        open[0] = simd::load<Isa>(gate + i);
        sigmoid<Isa>(open);
        simd::store<Isa>(y + i, simd::load<Isa>(y + i) * open[0]);
    }
    if (i == n) return;
    float lanes[width] = {};
    for (std::size_t k = i; k < n; ++k) lanes[k - i] = gate[k];
    open[0] = simd::load<Isa>(lanes);
    sigmoid<Isa>(open);
    simd::store<Isa>(lanes, open[0]);
    for (std::size_t k = i; k < n; ++k) y[k] *= lanes[k - i];
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
