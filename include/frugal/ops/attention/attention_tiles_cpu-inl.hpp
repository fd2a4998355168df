#pragma once
/// The register tiles of attention: scores of a few queries with a few keys, and their weighted sums of values.
#include <cstddef>
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu::detail {

/// Calls body(constant<n>, first) for tiles of 6, 4 or 1 queries that cover all: as few single ones as possible.
template <class Body>
FRUGAL_ALWAYS_INLINE void for_each_query_tile(std::size_t queries, Body&& body) noexcept {
    for (std::size_t i = 0; i < queries;) {
        const std::size_t left = queries - i;
        if (left >= 12 || left == 6 || left == 7) {
            body(std::integral_constant<std::size_t, 6>{}, i);
            i += 6;
        } else if (left >= 4) {
            body(std::integral_constant<std::size_t, 4>{}, i);
            i += 4;
        } else {
            body(std::integral_constant<std::size_t, 1>{}, i++);
        }
    }
}

/// Rows of the step after this one, on their way from memory while this one is computed: evenly, a line at a time, or there would
/// be more under way than the processor can keep. Where nothing is to come they are rows at hand, which costs little.
template <class Element>
struct rows_ahead {
    const Element* const* keys = nullptr;
    const Element* const* values = nullptr;
    std::size_t offset = 0;

    /// Where `feature` of row `j` lies, or close by: in blocks of a quantised format features have a little more than a byte.
    FRUGAL_ALWAYS_INLINE void fetch(const Element* const* rows, std::size_t j, std::size_t feature) const noexcept {
        __builtin_prefetch(rows[j] + offset + feature, 0, 2);
    }
};
/// The same for the step's other tiles, which need not ask again.
struct nothing_ahead {
    static constexpr const void *keys = nullptr, *values = nullptr;
    FRUGAL_ALWAYS_INLINE void fetch(const void*, std::size_t, std::size_t) const noexcept {}
};

/// Queries x keys dot products, unscaled, into scores[query][at + key]. One running register a product, and the lanes of each
/// are added alike: the same bits in every tile shape. q: [Queries] rows of whole registers.
template <class Isa, std::size_t Queries, std::size_t Keys, class Scalar, class Ahead, std::size_t Step>
FRUGAL_ALWAYS_INLINE void score_tile(const float* q, std::size_t q_stride, const Scalar* const* k, std::size_t dim,
                                     float (*scores)[Step], std::size_t at, const Ahead& ahead) noexcept {
    // Two keys at a time fill the registers; the sums of all are added up together, which wastes no lanes.
    constexpr std::size_t width = simd::width<Isa>, pass = Keys % 2 == 0 && Queries > 1 ? 2 : Keys, all = Queries * Keys;
    constexpr std::size_t rounds = (all + width - 1) / width;
    using simd::detail::unrolled;  // loops over registers, which must not become loops over memory
    alignas(Isa::vector_bytes) float lanes[all][width];
    unrolled<Keys / pass>([&](auto turn) __attribute__((always_inline)) {
        constexpr std::size_t first = turn * pass;
        simd::vec<Isa> sums[Queries * pass];
        unrolled<Queries * pass>([&](auto i) __attribute__((always_inline)) { sums[i] = simd::vec<Isa>{}; });
        const auto add = [&](const auto* const(&from)[pass], std::size_t d) __attribute__((always_inline)) {
            simd::vec<Isa> ks[pass];
            unrolled<pass>([&](auto j) __attribute__((always_inline)) { ks[j] = simd::load<Isa>(from[j]); });
            unrolled<Queries>([&](auto i) __attribute__((always_inline)) {
                const simd::vec<Isa> qs = simd::load_once<Isa>(q + i * q_stride + d);
                unrolled<pass>([&](auto j) __attribute__((always_inline)) {
                    sums[i * pass + j] = simd::multiply_add<Isa>(qs, ks[j], sums[i * pass + j]);
                });
            });
        };
        std::size_t d = 0;
        for (; d + width <= dim; d += width) {
            const Scalar* from[pass];
            unrolled<pass>([&](auto j) __attribute__((always_inline)) {
                ahead.fetch(ahead.keys, at + first + j, d);
                from[j] = k[first + j] + d;
            });
            add(from, d);
        }
        if (d < dim) {
            float last[pass][width];
            const float* from[pass];
            for (std::size_t j = 0; j < pass; ++j) {
                simd::store<Isa>(last[j], simd::load_some<Isa>(k[first + j] + d, dim - d));
                from[j] = last[j];
            }
            add(from, d);
        }
        unrolled<Queries * pass>([&](auto i) __attribute__((always_inline)) {
            simd::store<Isa>(lanes[i / pass * Keys + first + i % pass], sums[i]);
        });
    });
    float totals[rounds * width];
    unrolled<rounds>([&](auto round) __attribute__((always_inline)) {
        simd::vec<Isa> some[width];
        unrolled<width>([&](auto i) __attribute__((always_inline)) {
            if constexpr (round * width + i < all)
                some[i] = simd::load<Isa>(lanes[round * width + i]);
            else
                some[i] = simd::vec<Isa>{};
        });
        simd::store<Isa>(totals + round * width, simd::sums<Isa>(some));
    });
    unrolled<Queries>([&](auto i) __attribute__((always_inline)) {
        __builtin_memcpy(scores[i] + at, totals + i * Keys, Keys * sizeof(float));
    });
}

/// out[i] += sum over keys from … to - 1, in this order, of weights[i][j] * v[j]; D registers of features at once, from
/// `feature` on.
template <class Isa, std::size_t Queries, std::size_t D, class Scalar, class Ahead, std::size_t Step>
FRUGAL_ALWAYS_INLINE void accumulate_tile(float* out, std::size_t out_stride, const float (*weights)[Step], const Scalar* v,
                                          std::size_t v_stride, std::size_t from, std::size_t to, const Ahead& ahead,
                                          std::size_t feature) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    using simd::detail::unrolled;
    simd::vec<Isa> sums[Queries * D];
    unrolled<Queries * D>([&](auto i) __attribute__((always_inline)) {
        sums[i] = simd::load<Isa>(out + i / D * out_stride + i % D * width);
    });
    v += from * v_stride;
    for (std::size_t j = from; j < to; ++j, v += v_stride) {
        ahead.fetch(ahead.values, j, feature);
        simd::vec<Isa> vs[D];
        unrolled<D>([&](auto d) __attribute__((always_inline)) { vs[d] = simd::load<Isa>(v + d * width); });
        unrolled<Queries>([&](auto i) __attribute__((always_inline)) {
            const simd::vec<Isa> weight = simd::broadcast<Isa>(weights[i][j]);
            unrolled<D>([&](auto d) __attribute__((always_inline)) {
                sums[i * D + d] = simd::multiply_add<Isa>(weight, vs[d], sums[i * D + d]);
            });
        });
    }
    unrolled<Queries * D>([&](auto i) __attribute__((always_inline)) {
        simd::store<Isa>(out + i / D * out_stride + i % D * width, sums[i]);
    });
}

}  // namespace ops::cpu::detail

FRUGAL_NAMESPACE_END
