#pragma once
#include <cstring>
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/block_select/block_select_cpu.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// Blocks of a register tile of four heads: their sums and keys fit the registers, and fill whole ones.
template <class Isa>
inline constexpr std::size_t tile_blocks = simd::width<Isa> > 8 ? 4 : 2;

/// max(0, .), written so that NaN stays NaN: it has to rank last, not as a 0.
FRUGAL_ALWAYS_INLINE float relu(float value) noexcept { return value < 0.0f ? 0.0f : value; }
template <class Isa>
FRUGAL_ALWAYS_INLINE simd::vec<Isa> relu(const simd::vec<Isa>& values) noexcept {
    typedef std::int32_t ints __attribute__((vector_size(Isa::vector_bytes)));
    const ints below = values < simd::vec<Isa>{};
    return reinterpret_cast<simd::vec<Isa>>(reinterpret_cast<ints>(values) & ~below);
}

/// Adds max(0, q . key) of `Heads` heads, in their order, to the scores of `Blocks` blocks. Each product has a running
/// register of its own, so its bits do not depend on the tile.
template <class Isa, std::size_t Heads, std::size_t Blocks, class Scalar>
FRUGAL_ALWAYS_INLINE void add_relu_dots(const float* q, const Scalar* const (&keys)[Blocks], std::size_t dim,
                                        float* scores) noexcept {
    constexpr std::size_t width = simd::width<Isa>, dots = Heads * Blocks;
    simd::vec<Isa> sums[dots];
    for (std::size_t i = 0; i < dots; ++i) sums[i] = simd::vec<Isa>{};  // g++ makes an initialiser a fill of memory
    std::size_t d = 0;
    for (; d + width <= dim; d += width) {
        simd::vec<Isa> ks[Blocks];
        for (std::size_t b = 0; b < Blocks; ++b) ks[b] = simd::load<Isa>(keys[b] + d);
        for (std::size_t h = 0; h < Heads; ++h) {
            const simd::vec<Isa> qs = simd::load_once<Isa>(q + h * dim + d);
            for (std::size_t b = 0; b < Blocks; ++b) sums[h * Blocks + b] += qs * ks[b];
        }
    }
    if (d < dim)
        for (std::size_t h = 0; h < Heads; ++h) {
            const simd::vec<Isa> qs = simd::load_some<Isa>(q + h * dim + d, dim - d);
            for (std::size_t b = 0; b < Blocks; ++b) sums[h * Blocks + b] += qs * simd::load_some<Isa>(keys[b] + d, dim - d);
        }
    float products[dots];
    if constexpr (dots % width == 0) {
        for (std::size_t i = 0; i < dots; i += width) {
            simd::vec<Isa> some[width];
            for (std::size_t j = 0; j < width; ++j) some[j] = sums[i + j];
            simd::store<Isa>(products + i, relu<Isa>(simd::sums<Isa>(some)));
        }
    } else {
        for (std::size_t i = 0; i < dots; ++i) products[i] = relu(simd::sum<Isa>(sums[i]));
    }
    for (std::size_t h = 0; h < Heads; ++h)
        for (std::size_t b = 0; b < Blocks; ++b) scores[b] += products[h * Blocks + b];
}

template <class Isa, std::size_t Blocks, class Scalar>
FRUGAL_ALWAYS_INLINE void score_tile(const float* q, std::size_t heads, std::size_t dim, const block_key_view<Scalar>& blocks,
                                     float divisor, std::size_t first, float* scores) noexcept {
    const std::size_t mask = (static_cast<std::size_t>(1) << blocks.chunk_shift) - 1;
    const Scalar* keys[Blocks];
    float sums[Blocks] = {};
    for (std::size_t b = 0; b < Blocks; ++b)
        keys[b] = blocks.keys[(first + b) >> blocks.chunk_shift] + ((first + b) & mask) * blocks.stride;
    std::size_t h = 0;
    for (; h + 4 <= heads; h += 4) add_relu_dots<Isa, 4, Blocks>(q + h * dim, keys, dim, sums);
    for (; h < heads; ++h) add_relu_dots<Isa, 1, Blocks>(q + h * dim, keys, dim, sums);
    for (std::size_t b = 0; b < Blocks; ++b) {
        if constexpr (std::is_same_v<Scalar, std::int8_t>)
            sums[b] *= blocks.scales[(first + b) >> blocks.chunk_shift][(first + b) & mask];
        scores[b] = sums[b] / divisor;
    }
}

/// Blocks between the one being scored and the one being fetched. Only keys of 4 bytes are limited by memory.
inline constexpr std::size_t prefetch_distance = 8;

template <class Scalar>
FRUGAL_ALWAYS_INLINE void prefetch_key(const block_key_view<Scalar>& blocks, std::size_t dim, std::size_t block) noexcept {
    const std::size_t mask = (static_cast<std::size_t>(1) << blocks.chunk_shift) - 1;
    const Scalar* const key = blocks.keys[block >> blocks.chunk_shift] + (block & mask) * blocks.stride;
    for (std::size_t d = 0; d < dim; d += 64 / sizeof(Scalar)) __builtin_prefetch(key + d);
}

/// The scores of blocks first … first + count - 1. Keys of f32 are fetched ahead, up to block `prefetch_end`.
template <class Isa, class Scalar>
FRUGAL_ALWAYS_INLINE void score_range(const float* q, std::size_t heads, std::size_t dim, const block_key_view<Scalar>& blocks,
                                      float divisor, std::size_t first, std::size_t count, std::size_t prefetch_end,
                                      float* scores) noexcept {
    constexpr std::size_t tile = tile_blocks<Isa>;
    std::size_t b = 0;
    for (; b + tile <= count; b += tile) {
        if constexpr (std::is_same_v<Scalar, float>)
            for (std::size_t at = first + b + prefetch_distance, end = at + tile; at < end && at < prefetch_end; ++at)
                prefetch_key(blocks, dim, at);
        score_tile<Isa, tile>(q, heads, dim, blocks, divisor, first + b, scores + b);
    }
    for (; b < count; ++b) score_tile<Isa, 1>(q, heads, dim, blocks, divisor, first + b, scores + b);
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
void score_blocks(const float* q, std::size_t heads, std::size_t dim, const block_key_view<Scalar>& blocks, float divisor,
                  std::size_t begin, std::size_t end, float* scores) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    if (begin < end) detail::score_range<Isa>(q, heads, dim, blocks, divisor, begin, end - begin, end, scores + begin);
}

template <class Isa, class Scalar>
std::size_t keep_blocks(const float* q, std::size_t heads, std::size_t dim, const block_key_view<Scalar>& blocks, float divisor,
                        std::size_t begin, std::size_t end, std::size_t prefetch_end, std::uint64_t threshold,
                        std::uint64_t* kept, std::size_t count) {
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
