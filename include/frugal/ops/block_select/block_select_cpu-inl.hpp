#pragma once
#include <cstring>
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/device/cpu/simd_integer.hpp"
#include "frugal/ops/block_select/block_select_cpu.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// Blocks of a register tile of four heads: their sums and keys fit the registers, and fill whole ones.
template <class Isa>
inline constexpr std::size_t tile_blocks = simd::width<Isa> > 8 ? 4 : 2;

/// max(0, .), written so that NaN stays NaN: it has to rank last, not as a 0.
template <class Isa>
FRUGAL_ALWAYS_INLINE simd::vec<Isa> relu(const simd::vec<Isa>& values) noexcept {
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    const ints below = values < simd::vec<Isa>{};
    return reinterpret_cast<simd::vec<Isa>>(reinterpret_cast<ints>(values) & ~below);
}

/// How keys of a precision are multiplied with queries: one register of products summed up, for a head and a block.
template <class Isa, class Scalar>
struct key_products {
    using query = float;
    using sum = simd::vec<Isa>;
    static constexpr std::size_t width = simd::width<Isa>;
    FRUGAL_ALWAYS_INLINE static const float* first(const block_queries<Scalar>& q) noexcept { return q.values; }
    FRUGAL_ALWAYS_INLINE static auto load(const float* from) noexcept { return simd::load_once<Isa>(from); }
    FRUGAL_ALWAYS_INLINE static auto load(const Scalar* from) noexcept requires(!std::is_same_v<Scalar, float>) {
        return simd::load<Isa>(from);
    }
    FRUGAL_ALWAYS_INLINE static void add(sum& to, const sum& q, const sum& key) noexcept {
        to = simd::multiply_add<Isa>(q, key, to);
    }
    FRUGAL_ALWAYS_INLINE static simd::vec<Isa> totals(sum (&values)[simd::width<Isa>]) noexcept {
        return relu<Isa>(simd::sums<Isa>(values));
    }
};

/// Sums of products of 8 by 16 bits are exact: ops::block_query_limit keeps them within 32.
template <class Isa>
struct key_products<Isa, std::int8_t> {
    using query = std::int16_t;
    using sum = simd::ints<Isa>;
    static constexpr std::size_t width = simd::short_integers<Isa>::width;
    FRUGAL_ALWAYS_INLINE static const std::int16_t* first(const block_queries<std::int8_t>& q) noexcept { return q.codes; }
    template <class Code>
    FRUGAL_ALWAYS_INLINE static simd::shorts<Isa> load(const Code* from) noexcept {
        return simd::load_shorts<Isa>(from);
    }
    FRUGAL_ALWAYS_INLINE static void add(sum& to, const simd::shorts<Isa>& q, const simd::shorts<Isa>& key) noexcept {
        to = simd::add_pair_products<Isa>(to, q, key);
    }
    FRUGAL_ALWAYS_INLINE static simd::vec<Isa> totals(sum (&values)[simd::width<Isa>]) noexcept {
        const sum dots = simd::sums<Isa>(values);
        return __builtin_convertvector(dots & ~(dots >> 31), simd::vec<Isa>);
    }
};

/// Adds max(0, q . key) of `Heads` heads, in their order, to the sums of `Blocks` blocks. Each product has a running register of
/// its own, so its bits do not depend on the tile.
template <class Isa, std::size_t Heads, std::size_t Blocks, class Scalar>
FRUGAL_ALWAYS_INLINE void add_relu_dots(const typename key_products<Isa, Scalar>::query* q, const Scalar* const (&keys)[Blocks],
                                        std::size_t dim, float* scores) noexcept {
    using products = key_products<Isa, Scalar>;
    using sum = typename products::sum;
    using simd::detail::unrolled;  // loops over registers, which must not become loops over memory
    constexpr std::size_t dots = Heads * Blocks, width = simd::width<Isa>, rounds = (dots + width - 1) / width;
    sum sums[rounds * width];
    unrolled<rounds * width>([&](auto i) __attribute__((always_inline)) { sums[i] = sum{}; });
    const auto add = [&](const auto* from, std::size_t step, const auto* const(&to)[Blocks]) __attribute__((always_inline)) {
        decltype(products::load(to[0])) ks[Blocks];
        unrolled<Blocks>([&](auto b) __attribute__((always_inline)) { ks[b] = products::load(to[b]); });
        unrolled<Heads>([&](auto h) __attribute__((always_inline)) {
            const auto qs = products::load(from + h * step);
            unrolled<Blocks>([&](auto b) __attribute__((always_inline)) { products::add(sums[h * Blocks + b], qs, ks[b]); });
        });
    };
    std::size_t d = 0;
    for (; d + products::width <= dim; d += products::width) {
        const Scalar* at[Blocks];
        unrolled<Blocks>([&](auto b) __attribute__((always_inline)) { at[b] = keys[b] + d; });
        add(q + d, dim, at);
    }
    if (d < dim) {
        // The tail, in rows that go on with zeros.
        typename products::query of_q[Heads][products::width] = {};
        Scalar of_keys[Blocks][products::width] = {};
        const Scalar* at[Blocks];
        for (std::size_t h = 0; h < Heads; ++h) std::memcpy(of_q[h], q + h * dim + d, (dim - d) * sizeof(of_q[0][0]));
        for (std::size_t b = 0; b < Blocks; ++b) {
            std::memcpy(of_keys[b], keys[b] + d, (dim - d) * sizeof(Scalar));
            at[b] = of_keys[b];
        }
        add(of_q[0], products::width, at);
    }
    float totals[rounds * width];
    unrolled<rounds>([&](auto round) __attribute__((always_inline)) {
        sum some[width];
        unrolled<width>([&](auto i) __attribute__((always_inline)) { some[i] = sums[round * width + i]; });
        simd::store<Isa>(totals + round * width, products::totals(some));
    });
    for (std::size_t h = 0; h < Heads; ++h)
        for (std::size_t b = 0; b < Blocks; ++b) scores[b] += totals[h * Blocks + b];
}

template <class Isa, std::size_t Blocks, class Scalar>
FRUGAL_ALWAYS_INLINE void score_tile(const block_queries<Scalar>& q, std::size_t heads, std::size_t dim,
                                     const block_key_view<Scalar>& blocks, std::size_t first, float* scores) noexcept {
    using products = key_products<Isa, Scalar>;
    const std::size_t mask = (static_cast<std::size_t>(1) << blocks.chunk_shift) - 1;
    const Scalar* keys[Blocks];
    float sums[Blocks] = {};
    for (std::size_t b = 0; b < Blocks; ++b)
        keys[b] = blocks.keys[(first + b) >> blocks.chunk_shift] + ((first + b) & mask) * blocks.stride;
    const auto* of_head = products::first(q);
    std::size_t h = 0;
    for (; h + 4 <= heads; h += 4, of_head += 4 * dim) add_relu_dots<Isa, 4, Blocks, Scalar>(of_head, keys, dim, sums);
    for (; h < heads; ++h, of_head += dim) add_relu_dots<Isa, 1, Blocks, Scalar>(of_head, keys, dim, sums);
    for (std::size_t b = 0; b < Blocks; ++b) scores[b] = sums[b];
}

/// Bytes between the key being scored and the one being fetched.
inline constexpr std::size_t prefetch_distance = 4096;

template <class Scalar>
FRUGAL_ALWAYS_INLINE void prefetch_key(const block_key_view<Scalar>& blocks, std::size_t dim, std::size_t block) noexcept {
    const std::size_t mask = (static_cast<std::size_t>(1) << blocks.chunk_shift) - 1;
    const Scalar* const key = blocks.keys[block >> blocks.chunk_shift] + (block & mask) * blocks.stride;
    for (std::size_t d = 0; d < dim; d += 64 / sizeof(Scalar)) __builtin_prefetch(key + d);
}

/// The scores of blocks first … first + count - 1. Keys are fetched ahead, up to block `prefetch_end`.
template <class Isa, class Scalar>
FRUGAL_ALWAYS_INLINE void score_range(const block_queries<Scalar>& q, std::size_t heads, std::size_t dim,
                                      const block_key_view<Scalar>& blocks, float divisor, std::size_t first, std::size_t count,
                                      std::size_t prefetch_end, float* scores) noexcept {
    constexpr std::size_t tile = tile_blocks<Isa>;
    const std::size_t distance = prefetch_distance / (dim * sizeof(Scalar) + 1) + tile;
    std::size_t b = 0;
    for (; b + tile <= count; b += tile) {
        for (std::size_t at = first + b + distance, end = at + tile; at < end && at < prefetch_end; ++at)
            prefetch_key(blocks, dim, at);
        score_tile<Isa, tile>(q, heads, dim, blocks, first + b, scores + b);
    }
    for (; b < count; ++b) score_tile<Isa, 1>(q, heads, dim, blocks, first + b, scores + b);
    if constexpr (std::is_same_v<Scalar, std::int8_t>) {
        const std::size_t mask = (static_cast<std::size_t>(1) << blocks.chunk_shift) - 1;
        for (b = 0; b < count; ++b) scores[b] *= q.scale * blocks.scales[(first + b) >> blocks.chunk_shift][(first + b) & mask];
    }
    for (b = 0; b < count; ++b) scores[b] /= divisor;
}

/// Whether one of `n` scores, a multiple of the width, is greater than the limit.
template <class Isa>
FRUGAL_ALWAYS_INLINE bool any_above(const float* scores, std::size_t n, const simd::vec<Isa>& limit) noexcept {
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    ints above{};
    for (std::size_t i = 0; i < n; i += simd::width<Isa>) above |= simd::load<Isa>(scores + i) > limit;
    std::uint64_t words[Isa::vector_bytes / sizeof(std::uint64_t)], any = 0;
    std::memcpy(words, &above, sizeof(above));
    for (const std::uint64_t word : words) any |= word;
    return any != 0;
}

}  // namespace detail

template <class Isa, class Scalar>
void score_blocks(std::type_identity_t<block_queries<Scalar>> q, std::size_t heads, std::size_t dim,
                  const block_key_view<Scalar>& blocks, float divisor, std::size_t begin, std::size_t end, float* scores) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    if (begin < end) detail::score_range<Isa>(q, heads, dim, blocks, divisor, begin, end - begin, end, scores + begin);
}

template <class Isa, class Scalar>
std::size_t keep_blocks(std::type_identity_t<block_queries<Scalar>> q, std::size_t heads, std::size_t dim,
                        const block_key_view<Scalar>& blocks, float divisor, std::size_t begin, std::size_t end,
                        std::size_t prefetch_end, std::uint64_t threshold, std::uint64_t* kept, std::size_t count) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t piece = 64, window = 32;
    // Blocks come in ascending order, so among equal scores those kept are the lower ones: only greater scores can be better.
    const auto key = static_cast<std::uint32_t>(threshold >> 32);
    const bool is_number = key != 0;
    const simd::vec<Isa> limit = simd::broadcast<Isa>(is_number ? ops::detail::score_of_key(key) : 0.0f);
    alignas(Isa::vector_bytes) float scores[piece];
    for (std::size_t first = begin; first < end; first += piece) {
        const std::size_t n = end - first < piece ? end - first : piece;
        detail::score_range<Isa>(q, heads, dim, blocks, divisor, first, n, prefetch_end, scores);
        for (std::size_t w = 0; w < n; w += window) {
            const std::size_t last = n - w < window ? n : w + window;
            if (is_number && last - w == window && !detail::any_above<Isa>(scores + w, window, limit)) continue;
            for (std::size_t i = w; i < last; ++i) {
                // Written always, counted where it is better: no branch to mispredict.
                kept[count] = ops::detail::rank_block(scores[i], first + i);
                count += kept[count] > threshold ? 1 : 0;
            }
        }
    }
    return count;
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
