#pragma once
#include <cstddef>
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/attention/attention_cpu.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

inline constexpr float minus_infinity = -__builtin_huge_valf();

/// Keys whose features stay in the first cache while all queries of a tile go over them.
inline constexpr std::size_t attention_key_block = 8;

/// Features of a row of keys or values as floats, padded with zeros to a whole number of registers.
template <class Isa, class Scalar>
FRUGAL_ALWAYS_INLINE void unpack_features(const typename stored_features<Scalar>::element* from, std::size_t dim,
                                          float* to) noexcept {
    if constexpr (stored_features<Scalar>::quantised) {
        using format = typename stored_features<Scalar>::format;
        for (std::size_t d = 0; d < dim; d += format::block_size, from += format::block_bytes)
            format::decode(reinterpret_cast<const std::byte*>(from), to + d);
    } else {
        constexpr std::size_t width = simd::width<Isa>;
        std::size_t d = 0;
        for (; d + width <= dim; d += width) simd::store<Isa>(to + d, simd::load<Isa>(from + d));
        if (d < dim) simd::store<Isa>(to + d, simd::load_some<Isa>(from + d, dim - d));
    }
}

/// Rows of the step after this one, on their way from memory while this one is computed: a row at a time, evenly spread over the
/// tiles of this step. Nothing else would fetch the rows of a list in time.
template <class Element>
struct rows_ahead {
    const Element* rows[2 * attention_step];
    std::size_t count = 0, bytes = 0;
    std::size_t turns = 1, due = 0, next = 0;

    /// One of `turns` calls.
    FRUGAL_ALWAYS_INLINE void turn() noexcept {
        for (due += count; due >= turns; due -= turns) {
            const char* const row = reinterpret_cast<const char*>(rows[next++]);
            for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
        }
    }
};

/// Queries x keys dot products, those of a key side by side. One running register a product: the same bits in every tile shape.
template <class Isa, std::size_t Queries, std::size_t Keys>
FRUGAL_ALWAYS_INLINE void score_tile(const float* q, std::size_t q_stride, const float* const* k, std::size_t dim, float* scores,
                                     std::size_t scores_stride) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    simd::vec<Isa> sums[Queries][Keys];
    for (std::size_t i = 0; i < Queries; ++i)  // not by an initialiser, which g++ makes a fill of memory
        for (std::size_t j = 0; j < Keys; ++j) sums[i][j] = simd::vec<Isa>{};
    for (std::size_t d = 0; d < dim; d += width) {
        simd::vec<Isa> ks[Keys];
        for (std::size_t j = 0; j < Keys; ++j) ks[j] = simd::load<Isa>(k[j] + d);
        for (std::size_t i = 0; i < Queries; ++i) {
            const simd::vec<Isa> qs = simd::load_once<Isa>(q + i * q_stride + d);
            for (std::size_t j = 0; j < Keys; ++j) sums[i][j] += qs * ks[j];
        }
    }
    for (std::size_t j = 0; j < Keys; ++j)
        for (std::size_t first = 0; first < Queries; first += width) {
            simd::vec<Isa> some[width];
            for (std::size_t i = 0; i < width; ++i)
                if (first + i < Queries)
                    some[i] = sums[first + i][j];
                else
                    some[i] = simd::vec<Isa>{};
            simd::store<Isa>(scores + j * scores_stride + first, simd::sums<Isa>(some));
        }
}

/// Out[i] += sum over keys from … to - 1, in this order, of weights[j][i] * v[j]; D registers of features at once.
template <class Isa, std::size_t Queries, std::size_t D>
FRUGAL_ALWAYS_INLINE void accumulate_tile(float* out, std::size_t out_stride, const float* weights, std::size_t weights_stride,
                                          const float* v, std::size_t v_stride, std::size_t from, std::size_t to) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    simd::vec<Isa> sums[Queries][D];
    for (std::size_t i = 0; i < Queries; ++i)
        for (std::size_t d = 0; d < D; ++d) sums[i][d] = simd::load<Isa>(out + i * out_stride + d * width);
    for (std::size_t j = from; j < to; ++j) {
        simd::vec<Isa> vs[D];
        for (std::size_t d = 0; d < D; ++d) vs[d] = simd::load<Isa>(v + j * v_stride + d * width);
        for (std::size_t i = 0; i < Queries; ++i) {
            const simd::vec<Isa> weight = simd::broadcast<Isa>(weights[j * weights_stride + i]);
            for (std::size_t d = 0; d < D; ++d) sums[i][d] += weight * vs[d];
        }
    }
    for (std::size_t i = 0; i < Queries; ++i)
        for (std::size_t d = 0; d < D; ++d) simd::store<Isa>(out + i * out_stride + d * width, sums[i][d]);
}

/// Calls body(first, integral constant) for tiles of 6, 4 or 1 queries that cover all.
template <class Body>
FRUGAL_ALWAYS_INLINE constexpr void for_each_query_tile(std::size_t queries, Body&& body) noexcept {
    for (std::size_t i = 0; i < queries;) {
        const std::size_t left = queries - i;
        if (left >= 12 || left == 6 || left == 7) {
            body(i, std::integral_constant<std::size_t, 6>{});
            i += 6;
        } else if (left >= 4) {
            body(i, std::integral_constant<std::size_t, 4>{});
            i += 4;
        } else {
            body(i++, std::integral_constant<std::size_t, 1>{});
        }
    }
}

[[nodiscard]] constexpr std::size_t count_query_tiles(std::size_t queries) noexcept {
    std::size_t count = 0;
    for_each_query_tile(queries, [&](std::size_t, auto) { ++count; });
    return count;
}

template <class Isa>
FRUGAL_ALWAYS_INLINE void scale_row(float* row, float factor, std::size_t n) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    const simd::vec<Isa> factors = simd::broadcast<Isa>(factor);
    std::size_t i = 0;
    for (; i + width <= n; i += width) simd::store<Isa>(row + i, simd::load<Isa>(row + i) * factors);
    for (; i < n; ++i) row[i] *= factor;
}

template <class Isa>
FRUGAL_ALWAYS_INLINE float exp_one(float x) noexcept {
    float lanes[simd::width<Isa>];
    simd::store<Isa>(lanes, simd::exp<Isa>(simd::broadcast<Isa>(x)));
    return lanes[0];
}

/// What a tile's queries have gathered over the steps of a span, and the room for a step.
struct attention_state {
    std::size_t queries, dim;  // dim: rounded up to whole registers
    std::size_t q_stride, row_stride, scores_stride, partial_stride;
    float *q, *scores, *most, *sums, *factors, *rows, *partial;
};

/// Turns the scores of a step into weights relative to each query's greatest score so far, rescales what a query has gathered if
/// that grew, and adds the weights to their sum. False if a query has seen scores of -inf alone, whose weights are 0.
template <class Isa>
FRUGAL_ALWAYS_INLINE bool softmax_step(const attention_state& state, std::size_t keys) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    const simd::vec<Isa> lowest = simd::broadcast<Isa>(minus_infinity);
    bool finite = true;
    for (std::size_t first = 0; first < state.queries; first += width) {
        const simd::vec<Isa> before = simd::load<Isa>(state.most + first);
        simd::vec<Isa> now = before;
        for (std::size_t j = 0; j < keys; ++j)
            now = simd::max<Isa>(simd::load<Isa>(state.scores + j * state.scores_stride + first), now);
        simd::store<Isa>(state.most + first, now);
        // -inf less itself would be NaN.
        const auto seen = now > lowest;
        const auto shift = reinterpret_cast<simd::vec<Isa>>(reinterpret_cast<decltype(now > lowest)>(now) & seen);
        const simd::vec<Isa> factor = simd::exp<Isa>(before - shift);
        simd::vec<Isa> sums{};
        for (std::size_t j = 0; j < keys; ++j) {
            float* const at = state.scores + j * state.scores_stride + first;
            const simd::vec<Isa> weights = simd::exp<Isa>(simd::load<Isa>(at) - shift);
            simd::store<Isa>(at, weights);
            sums += weights;
        }
        simd::store<Isa>(state.sums + first, simd::load<Isa>(state.sums + first) * factor + sums);
        simd::store<Isa>(state.factors + first, factor);
    }
    for (std::size_t i = 0; i < state.queries; ++i) {
        if (state.factors[i] != 1.0f) scale_row<Isa>(state.partial + i * state.partial_stride, state.factors[i], state.dim);
        finite = finite && state.most[i] != minus_infinity;
    }
    return finite;
}

/// Scores of a step's keys k.
template <class Isa, class Ahead>
FRUGAL_ALWAYS_INLINE void score_step(const attention_state& state, const float* const* k, std::size_t keys,
                                     Ahead& ahead) noexcept {
    for (std::size_t block = 0; block < keys; block += attention_key_block) {
        const std::size_t end = block + attention_key_block < keys ? block + attention_key_block : keys;
        for_each_query_tile(
            state.queries, [&](std::size_t first, auto count) __attribute__((always_inline)) {
                constexpr std::size_t many = decltype(count)::value, together = many == 1 ? 4 : 2;
                const float* const q = state.q + first * state.q_stride;
                float* const scores = state.scores + first;
                std::size_t j = block;
                for (; j + together <= end; j += together) {
                    ahead.turn();
                    score_tile<Isa, many, together>(q, state.q_stride, k + j, state.dim, scores + j * state.scores_stride,
                                                    state.scores_stride);
                }
                for (; j < end; ++j)
                    score_tile<Isa, many, 1>(q, state.q_stride, k + j, state.dim, scores + j * state.scores_stride,
                                             state.scores_stride);
            });
    }
}

/// Adds the values of keys 0 … keys - 1 of a step.
template <class Isa, class Ahead>
FRUGAL_ALWAYS_INLINE void accumulate_step(const attention_state& state, std::size_t keys, Ahead& ahead) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    const auto features = [&](std::size_t d, auto registers) __attribute__((always_inline)) {
        for_each_query_tile(
            state.queries, [&](std::size_t first, auto count) __attribute__((always_inline)) {
                ahead.turn();
                accumulate_tile<Isa, decltype(count)::value, decltype(registers)::value>(
                    state.partial + first * state.partial_stride + d, state.partial_stride, state.scores + first,
                    state.scores_stride, state.rows + d, state.row_stride, 0, keys);
            });
    };
    std::size_t d = 0;
    for (; d + 2 * width <= state.dim; d += 2 * width) features(d, std::integral_constant<std::size_t, 2>{});
    if (d < state.dim) features(d, std::integral_constant<std::size_t, 1>{});
}

/// 1 / (1 + exp(-x)) of every lane, without overflow.
template <class Isa>
FRUGAL_ALWAYS_INLINE simd::vec<Isa> sigmoid(const simd::vec<Isa>& x) noexcept {
    // exp of a positive number is never formed: with e = exp(-|x|) the value is 1 / (1 + e), or e / (1 + e) for x < 0.
    const simd::vec<Isa> zero{}, one = simd::broadcast<Isa>(1.0f);
    const simd::vec<Isa> e = simd::exp<Isa>(zero - simd::max<Isa>(x, zero - x));
    const auto negative = x < zero;
    const auto numerator =
        (reinterpret_cast<decltype(x < zero)>(e) & negative) | (reinterpret_cast<decltype(x < zero)>(one) & ~negative);
    return reinterpret_cast<simd::vec<Isa>>(numerator) / (one + e);
}

}  // namespace detail

template <class Isa, class Scalar>
void attend_span(const attention_tile<Scalar>& tile, std::size_t begin, std::size_t end, std::size_t beyond, float* partial,
                 float* room) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    using stored = stored_features<Scalar>;
    using element = typename stored::element;
    using rows = detail::rows_ahead<element>;
    constexpr std::size_t width = simd::width<Isa>;
    const std::size_t head_dim = tile.head_dim, queries = tile.rows * tile.heads;
    detail::attention_state state;
    state.queries = queries;
    state.dim = (head_dim + width - 1) / width * width;
    state.q_stride = detail::attention_padded(head_dim);
    state.row_stride = detail::attention_stride(head_dim);
    state.scores_stride = detail::attention_scores(queries);
    state.partial_stride = attention_partial(head_dim);
    state.partial = partial;
    state.rows = room;
    state.q = state.rows + attention_step * state.row_stride;
    state.scores = state.q + queries * state.q_stride;
    state.most = state.scores + attention_step * state.scores_stride;
    state.sums = state.most + state.scores_stride;
    state.factors = state.sums + state.scores_stride;
    for (std::size_t i = 0; i < attention_step * state.scores_stride; ++i) state.scores[i] = 0;
    for (std::size_t i = 0; i < state.scores_stride; ++i) state.most[i] = detail::minus_infinity;
    for (std::size_t i = 0; i < state.scores_stride; ++i) state.sums[i] = 0;
    const simd::vec<Isa> scales = simd::broadcast<Isa>(tile.scale);
    for (std::size_t i = 0; i < queries; ++i) {
        const float* const from = tile.queries + i / tile.heads * tile.row_stride + i % tile.heads * tile.head_stride;
        float* const to = state.q + i * state.q_stride;
        std::size_t d = 0;
        for (; d + width <= head_dim; d += width) simd::store<Isa>(to + d, simd::load<Isa>(from + d) * scales);
        if (d < head_dim) simd::store<Isa>(to + d, simd::load_some<Isa>(from + d, head_dim - d) * scales);
        for (d = 0; d < state.dim; d += width) simd::store<Isa>(partial + i * state.partial_stride + d, simd::vec<Isa>{});
    }

    const std::size_t mask = (static_cast<std::size_t>(1) << tile.cache.chunk_shift) - 1;
    const std::size_t query_tiles = detail::count_query_tiles(queries);
    const auto find = [&](std::size_t s, std::size_t last, rows& to) {
        const std::size_t keys = s >= last ? 0 : last - s < attention_step ? last - s : attention_step;
        to.count = 2 * keys;
        to.bytes = stored::elements(head_dim) * sizeof(element);
        to.turns = query_tiles * (attention_step / 4 + state.dim / (2 * width));
        to.due = to.next = 0;
        for (std::size_t j = 0; j < keys; ++j) {
            const std::size_t token = tile.list != nullptr ? tile.list[s + j] : s + j;
            const std::size_t within = (token & mask) * tile.cache.stride + tile.offset;
            to.rows[j] = tile.cache.keys[token >> tile.cache.chunk_shift] + within;
            to.rows[keys + j] = tile.cache.values[token >> tile.cache.chunk_shift] + within;
        }
    };
    rows steps[2];
    find(begin, end, steps[0]);
    for (std::size_t s = begin, now = 0; s < end; s += attention_step, now ^= 1) {
        const std::size_t keys = steps[now].count / 2;
        const element* const* const found = steps[now].rows;
        rows& ahead = steps[now ^ 1];
        find(s + attention_step, s + attention_step < end ? end : beyond, ahead);
        const float* k[attention_step];
        for (std::size_t j = 0; j < keys; ++j) {
            if constexpr (std::is_same_v<Scalar, float>)
                if (head_dim == state.dim) {
                    k[j] = found[j];
                    continue;
                }
            float* const features = state.rows + j * state.row_stride;
            detail::unpack_features<Isa, Scalar>(found[j], head_dim, features);
            k[j] = features;
        }
        detail::score_step<Isa>(state, k, keys, ahead);
        // Keys that a query does not see were scored with its neighbours; they are dropped here.
        std::size_t least = keys;
        for (std::size_t r = 0; r < tile.rows; ++r) {
            const std::size_t left = tile.visible[r] > s ? tile.visible[r] - s : 0;
            least = left < least ? left : least;
            for (std::size_t j = left; j < keys; ++j)
                for (std::size_t i = 0; i < tile.heads; ++i)
                    state.scores[j * state.scores_stride + r * tile.heads + i] = detail::minus_infinity;
        }
        if (!detail::softmax_step<Isa>(state, keys)) least = 0;
        for (std::size_t j = 0; j < keys; ++j)
            detail::unpack_features<Isa, Scalar>(found[keys + j], head_dim, state.rows + j * state.row_stride);
        detail::accumulate_step<Isa>(state, least, ahead);
        if (least == keys) continue;
        for (std::size_t i = 0; i < queries; ++i) {
            const std::size_t seen = tile.visible[i / tile.heads];
            if (seen <= s || state.most[i] == detail::minus_infinity) continue;
            for (std::size_t d = 0; d < state.dim; d += width)
                detail::accumulate_tile<Isa, 1, 1>(partial + i * state.partial_stride + d, 0, state.scores + i,
                                                   state.scores_stride, state.rows + d, state.row_stride, least,
                                                   seen - s < keys ? seen - s : keys);
        }
    }
    for (std::size_t i = 0; i < queries; ++i) {
        partial[i * state.partial_stride + state.q_stride] = state.sums[i];
        partial[i * state.partial_stride + state.q_stride + 1] = state.most[i];
    }
}

template <class Isa>
void merge_attention(float* into, const float* later, std::size_t count, std::size_t head_dim) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const std::size_t sum = detail::attention_padded(head_dim), greatest = sum + 1;
    for (std::size_t i = 0; i < count; ++i, into += attention_partial(head_dim), later += attention_partial(head_dim)) {
        const float before = into[greatest], after = later[greatest];
        if (after == detail::minus_infinity) continue;  // the later span saw nothing
        const float most = after > before ? after : before;
        const float keep = detail::exp_one<Isa>(before - most), add = detail::exp_one<Isa>(after - most);
        detail::scale_row<Isa>(into, keep, head_dim);
        simd::axpy<Isa>(add, later, into, head_dim);
        // As a register, like the features: no caller's code may fuse what another's does not.
        into[sum] *= keep;
        simd::axpy<Isa>(add, later + sum, into + sum, 1);
        into[greatest] = most;
    }
}

template <class Isa>
void finish_attention(const float* partial, std::size_t rows, std::size_t heads, std::size_t head_dim, float* y,
                      std::size_t row_stride) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t h = 0; h < heads; ++h, partial += attention_partial(head_dim)) {
            float* out = y + r * row_stride + h * head_dim;
            const float sum = partial[detail::attention_padded(head_dim)];
            for (std::size_t d = 0; d < head_dim; ++d) out[d] = sum == 0.0f ? 0.0f : partial[d] / sum;
        }
}

template <class Isa>
void multiply_sigmoid(const float* gate, float* y, std::size_t n) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t width = simd::width<Isa>;
    std::size_t i = 0;
    for (; i + width <= n; i += width)
        simd::store<Isa>(y + i, simd::load<Isa>(y + i) * detail::sigmoid<Isa>(simd::load<Isa>(gate + i)));
    if (i == n) return;
    float lanes[width] = {};
    for (std::size_t k = i; k < n; ++k) lanes[k - i] = gate[k];
    simd::store<Isa>(lanes, detail::sigmoid<Isa>(simd::load<Isa>(lanes)));
    for (std::size_t k = i; k < n; ++k) y[k] *= lanes[k - i];
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
