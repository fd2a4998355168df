#pragma once
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/attention/attention_cpu.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

inline constexpr float minus_infinity = -__builtin_huge_valf();

/// Queries x keys dot products. One running register a product: the same bits in every tile shape.
template <class Isa, std::size_t Queries, std::size_t Keys, class Scalar>
FRUGAL_ALWAYS_INLINE void score_tile(const float* const (&q)[Queries], const Scalar* const* k, std::size_t dim,
                                     float (&scores)[Queries][attention_step], std::size_t at) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    simd::vec<Isa> sums[Queries][Keys];
    for (std::size_t i = 0; i < Queries; ++i)  // not by an initialiser, which g++ makes a fill of memory
        for (std::size_t j = 0; j < Keys; ++j) sums[i][j] = simd::vec<Isa>{};
    std::size_t d = 0;
    for (; d + width <= dim; d += width) {
        simd::vec<Isa> ks[Keys];
        for (std::size_t j = 0; j < Keys; ++j) ks[j] = simd::load<Isa>(k[j] + d);
        for (std::size_t i = 0; i < Queries; ++i) {
            const simd::vec<Isa> qs = simd::load_once<Isa>(q[i] + d);
            for (std::size_t j = 0; j < Keys; ++j) sums[i][j] += qs * ks[j];
        }
    }
    if (d < dim)
        for (std::size_t i = 0; i < Queries; ++i) {
            const simd::vec<Isa> qs = simd::load_some<Isa>(q[i] + d, dim - d);
            for (std::size_t j = 0; j < Keys; ++j) sums[i][j] += qs * simd::load_some<Isa>(k[j] + d, dim - d);
        }
    if constexpr (Queries * Keys < width / 2) {
        for (std::size_t i = 0; i < Queries; ++i)
            for (std::size_t j = 0; j < Keys; ++j) scores[i][at + j] = simd::sum<Isa>(sums[i][j]);
    } else {
        constexpr std::size_t all = Queries * Keys, rounds = (all + width - 1) / width;
        float totals[rounds * width];
        for (std::size_t round = 0; round < rounds; ++round) {
            simd::vec<Isa> some[width] = {};
            for (std::size_t i = 0; i < width && round * width + i < all; ++i)
                some[i] = sums[(round * width + i) / Keys][(round * width + i) % Keys];
            simd::store<Isa>(totals + round * width, simd::sums<Isa>(some));
        }
        for (std::size_t i = 0; i < Queries; ++i)
            for (std::size_t j = 0; j < Keys; ++j) scores[i][at + j] = totals[i * Keys + j];
    }
}

/// Out[i] += sum over keys from … to - 1, in this order, of weights[i][j] * v[j]; D registers of features at once.
template <class Isa, std::size_t Queries, std::size_t D, class Scalar>
FRUGAL_ALWAYS_INLINE void accumulate_tile(float* const (&out)[Queries], const float* const (&weights)[Queries],
                                          const Scalar* const* v, std::size_t from, std::size_t to,
                                          std::size_t feature) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    simd::vec<Isa> sums[Queries][D];
    for (std::size_t i = 0; i < Queries; ++i)
        for (std::size_t d = 0; d < D; ++d) sums[i][d] = simd::load<Isa>(out[i] + feature + d * width);
    for (std::size_t j = from; j < to; ++j) {
        simd::vec<Isa> vs[D];
        for (std::size_t d = 0; d < D; ++d) vs[d] = simd::load<Isa>(v[j] + feature + d * width);
        for (std::size_t i = 0; i < Queries; ++i) {
            const simd::vec<Isa> weight = simd::broadcast<Isa>(weights[i][j]);
            for (std::size_t d = 0; d < D; ++d) sums[i][d] += weight * vs[d];
        }
    }
    for (std::size_t i = 0; i < Queries; ++i)
        for (std::size_t d = 0; d < D; ++d) simd::store<Isa>(out[i] + feature + d * width, sums[i][d]);
}

template <class Isa, std::size_t Queries, class Scalar>
FRUGAL_ALWAYS_INLINE void accumulate(float* const (&out)[Queries], const float* const (&weights)[Queries], const Scalar* const* v,
                                     std::size_t from, std::size_t to, std::size_t dim) noexcept {
    constexpr std::size_t width = simd::width<Isa>, many = Queries == 1 ? 4 : 2;
    if (from >= to) return;
    std::size_t d = 0;
    for (; d + many * width <= dim; d += many * width) accumulate_tile<Isa, Queries, many>(out, weights, v, from, to, d);
    for (; d + width <= dim; d += width) accumulate_tile<Isa, Queries, 1>(out, weights, v, from, to, d);
    if (d == dim) return;
    for (std::size_t i = 0; i < Queries; ++i) {
        simd::vec<Isa> sums = simd::load_some<Isa>(out[i] + d, dim - d);
        for (std::size_t j = from; j < to; ++j)
            sums += simd::broadcast<Isa>(weights[i][j]) * simd::load_some<Isa>(v[j] + d, dim - d);
        simd::store_some<Isa>(out[i] + d, sums, dim - d);
    }
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

/// Turns the raw scores of `count` keys of one query into weights relative to its greatest score so far, rescales what
/// the query has gathered if that grew, and adds the weights to their sum. False if every key so far scored -inf.
template <class Isa>
FRUGAL_ALWAYS_INLINE bool softmax_step(float (&scores)[attention_step], std::size_t count, float scale, float* partial,
                                       std::size_t dim) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    for (std::size_t j = count; j < attention_step; ++j) scores[j] = minus_infinity;
    const simd::vec<Isa> scales = simd::broadcast<Isa>(scale);
    simd::vec<Isa> greatest = simd::broadcast<Isa>(minus_infinity);
    for (std::size_t j = 0; j < attention_step; j += width) {
        const simd::vec<Isa> scaled = simd::load<Isa>(scores + j) * scales;
        simd::store<Isa>(scores + j, scaled);
        greatest = simd::max<Isa>(scaled, greatest);
    }
    float lanes[width];
    simd::store<Isa>(lanes, greatest);
    float& sum = partial[dim];
    float& most = partial[dim + 1];
    float now = most;
    for (std::size_t i = 0; i < width; ++i) now = lanes[i] > now ? lanes[i] : now;
    if (now == minus_infinity) return false;
    // The sum of the weights is scaled in one loop with the output, apart from the additions below: the compiler then
    // cannot fuse a product and a sum in one caller and not in another.
    if (now != most) scale_row<Isa>(partial, exp_one<Isa>(most - now), dim + 1);
    most = now;
    const simd::vec<Isa> shift = simd::broadcast<Isa>(now);
    simd::vec<Isa> sums{};
    for (std::size_t j = 0; j < attention_step; j += width) {
        const simd::vec<Isa> weights = simd::exp<Isa>(simd::load<Isa>(scores + j) - shift);
        simd::store<Isa>(scores + j, weights);
        sums += weights;
    }
    sum += simd::sum<Isa>(sums);
    return true;
}

/// The features of one head, `dim` of them, from a quantised format's blocks.
template <class Format>
FRUGAL_ALWAYS_INLINE void unpack_features(const std::int8_t* from, std::size_t dim, float* to) noexcept {
    for (std::size_t d = 0; d < dim; d += Format::block_size, from += Format::block_bytes)
        Format::decode(reinterpret_cast<const std::byte*>(from), to + d);
}

/// Rows of the step after this one, on their way from memory while this one is computed: rows of a list lie apart, and nothing
/// else would fetch them in time.
template <class Element>
struct rows_ahead {
    const Element *keys[attention_step], *values[attention_step];
    std::size_t count = 0, bytes = 0;

    FRUGAL_ALWAYS_INLINE void fetch(std::size_t j) const noexcept {
        if (j >= count) return;
        for (std::size_t at = 0; at < bytes; at += 64) {
            __builtin_prefetch(reinterpret_cast<const char*>(keys[j]) + at, 0, 2);
            __builtin_prefetch(reinterpret_cast<const char*>(values[j]) + at, 0, 2);
        }
    }
};

/// One step of keys for queries first … first + Queries - 1 of the tile.
template <class Isa, std::size_t Queries, class Scalar, class Element, class Ahead>
FRUGAL_ALWAYS_INLINE void attend_step(const attention_tile<Scalar>& tile, std::size_t first, std::size_t begin, std::size_t keys,
                                      const Element* const* k, const Element* const* v, const Ahead& ahead,
                                      float* partial) noexcept {
    constexpr std::size_t together = Queries == 1 ? 4 : 2;
    const std::size_t dim = tile.head_dim;
    const float* q[Queries];
    float* out[Queries];
    std::size_t count[Queries], most = 0;
    for (std::size_t i = 0; i < Queries; ++i) {
        const std::size_t row = (first + i) / tile.heads, head = (first + i) % tile.heads;
        q[i] = tile.queries + row * tile.row_stride + head * tile.head_stride;
        out[i] = partial + (first + i) * attention_partial(dim);
        const std::size_t left = tile.visible[row] > begin ? tile.visible[row] - begin : 0;
        count[i] = left < keys ? left : keys;
        most = count[i] > most ? count[i] : most;
    }
    if (most == 0) return;
    float scores[Queries][attention_step];
    std::size_t j = 0;
    for (; j + together <= most; j += together) {
        if (first == 0)  // once for all queries
            for (std::size_t i = 0; i < together; ++i) ahead.fetch(j + i);
        score_tile<Isa, Queries, together>(q, k + j, dim, scores, j);
    }
    for (; j < most; ++j) score_tile<Isa, Queries, 1>(q, k + j, dim, scores, j);
    // Keys that a query does not see were scored with its neighbours; they are dropped here.
    const float* weights[Queries];
    std::size_t least = keys;
    for (std::size_t i = 0; i < Queries; ++i) {
        if (count[i] != 0 && !softmax_step<Isa>(scores[i], count[i], tile.scale, out[i], dim)) count[i] = 0;
        weights[i] = scores[i];
        least = count[i] < least ? count[i] : least;
    }
    accumulate<Isa, Queries>(out, weights, v, 0, least, dim);
    if constexpr (Queries > 1)
        for (std::size_t i = 0; i < Queries; ++i) {
            float* const one_out[1] = {out[i]};
            const float* const one_weights[1] = {weights[i]};
            accumulate<Isa, 1>(one_out, one_weights, v, least, count[i], dim);
        }
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
void attend_span(const attention_tile<Scalar>& tile, std::size_t begin, std::size_t end, float* partial, float* room) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const std::size_t dim = tile.head_dim, queries = tile.rows * tile.heads;
    for (std::size_t i = 0; i < queries; ++i) {
        float* one = partial + i * attention_partial(dim);
        for (std::size_t d = 0; d < dim + 1; ++d) one[d] = 0;
        one[dim + 1] = detail::minus_infinity;
    }
    const std::size_t mask = (static_cast<std::size_t>(1) << tile.cache.chunk_shift) - 1;
    using stored = stored_features<Scalar>;
    using element = typename stored::element;
    using rows = detail::rows_ahead<element>;
    const auto find = [&](std::size_t s, rows& to) {
        to.count = s >= end ? 0 : end - s < attention_step ? end - s : attention_step;
        to.bytes = stored::elements(dim) * sizeof(element);
        for (std::size_t j = 0; j < to.count; ++j) {
            const std::size_t token = tile.list != nullptr ? tile.list[s + j] : s + j;
            const std::size_t within = (token & mask) * tile.cache.stride + tile.offset;
            to.keys[j] = tile.cache.keys[token >> tile.cache.chunk_shift] + within;
            to.values[j] = tile.cache.values[token >> tile.cache.chunk_shift] + within;
        }
    };
    rows steps[2];
    find(begin, steps[0]);
    for (std::size_t s = begin, now = 0; s < end; s += attention_step, now ^= 1) {
        const rows& here = steps[now];
        rows& ahead = steps[now ^ 1];
        find(s + attention_step, ahead);
        const auto attend = [&](const auto* const* k, const auto* const* v) {
            for (std::size_t i = 0; i < queries;) {
                const std::size_t left = queries - i;
                if (left >= 12 || left == 6 || left == 7) {
                    detail::attend_step<Isa, 6>(tile, i, s, here.count, k, v, ahead, partial);
                    i += 6;
                } else if (left >= 4) {
                    detail::attend_step<Isa, 4>(tile, i, s, here.count, k, v, ahead, partial);
                    i += 4;
                } else {
                    detail::attend_step<Isa, 1>(tile, i++, s, here.count, k, v, ahead, partial);
                }
            }
        };
        if constexpr (stored::quantised) {
            // Once for all queries of the tile.
            const std::size_t stride = detail::attention_stride<float>(dim);
            const float *k[attention_step], *v[attention_step];
            for (std::size_t j = 0; j < here.count; ++j) {
                float* const features = room + 2 * j * stride;
                detail::unpack_features<typename stored::format>(here.keys[j], dim, features);
                detail::unpack_features<typename stored::format>(here.values[j], dim, features + stride);
                k[j] = features;
                v[j] = features + stride;
            }
            attend(k, v);
        } else {
            // Of the values the same features of all rows are read together. Where rows lie a power of two apart, these fall on
            // few sets of the first cache and drive each other out.
            const std::size_t stride = detail::attention_stride<Scalar>(dim);
            auto* const copies = reinterpret_cast<Scalar*>(room);
            const Scalar* v[attention_step];
            for (std::size_t j = 0; j < here.count; ++j) {
                __builtin_memcpy(copies + j * stride, here.values[j], dim * sizeof(Scalar));
                v[j] = copies + j * stride;
            }
            attend(here.keys, v);
        }
    }
}

template <class Isa>
void merge_attention(float* into, const float* later, std::size_t count, std::size_t head_dim) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t i = 0; i < count; ++i, into += attention_partial(head_dim), later += attention_partial(head_dim)) {
        const float before = into[head_dim + 1], after = later[head_dim + 1];
        if (after == detail::minus_infinity) continue;  // the later span saw nothing
        const float most = after > before ? after : before;
        detail::scale_row<Isa>(into, detail::exp_one<Isa>(before - most), head_dim + 1);
        simd::axpy<Isa>(detail::exp_one<Isa>(after - most), later, into, head_dim + 1);
        into[head_dim + 1] = most;
    }
}

template <class Isa>
void finish_attention(const float* partial, std::size_t rows, std::size_t heads, std::size_t head_dim, float* y,
                      std::size_t row_stride) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t h = 0; h < heads; ++h, partial += attention_partial(head_dim)) {
            float* out = y + r * row_stride + h * head_dim;
            const float sum = partial[head_dim];
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
