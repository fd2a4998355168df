#pragma once
#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/block_select/block_select_cpu.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// Adds max(0, q . key) of `Heads` heads, in their order, to the scores of `Blocks` blocks.
template <class Isa, std::size_t Heads, std::size_t Blocks, class Scalar>
FRUGAL_ALWAYS_INLINE void add_relu_dots(const float* q, const Scalar* const (&keys)[Blocks], std::size_t dim,
                                        float (&scores)[Blocks]) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    simd::vec<Isa> sums[Heads][Blocks] = {};
    std::size_t d = 0;
    for (; d + width <= dim; d += width) {
        simd::vec<Isa> ks[Blocks];
        for (std::size_t b = 0; b < Blocks; ++b) ks[b] = simd::load<Isa>(keys[b] + d);
        for (std::size_t h = 0; h < Heads; ++h) {
            const simd::vec<Isa> qs = simd::load<Isa>(q + h * dim + d);
            for (std::size_t b = 0; b < Blocks; ++b) sums[h][b] += qs * ks[b];
        }
    }
    if (d < dim)
        for (std::size_t h = 0; h < Heads; ++h) {
            const simd::vec<Isa> qs = simd::load_some<Isa>(q + h * dim + d, dim - d);
            for (std::size_t b = 0; b < Blocks; ++b) sums[h][b] += qs * simd::load_some<Isa>(keys[b] + d, dim - d);
        }
    for (std::size_t h = 0; h < Heads; ++h)
        for (std::size_t b = 0; b < Blocks; ++b) {
            const float product = simd::sum<Isa>(sums[h][b]);
            // Written so that NaN stays NaN: it has to rank last, not as a 0.
            scores[b] += product < 0.0f ? 0.0f : product;
        }
}

template <class Isa, std::size_t Blocks, class Scalar>
FRUGAL_ALWAYS_INLINE void score_some(const float* q, std::size_t heads, std::size_t dim, const block_key_view<Scalar>& blocks,
                                     float divisor, std::size_t first, float* scores) noexcept {
    const std::size_t mask = (static_cast<std::size_t>(1) << blocks.chunk_shift) - 1;
    const Scalar* keys[Blocks];
    float sums[Blocks] = {};
    for (std::size_t b = 0; b < Blocks; ++b)
        keys[b] = blocks.keys[(first + b) >> blocks.chunk_shift] + ((first + b) & mask) * blocks.stride;
    std::size_t h = 0;
    for (; h + 4 <= heads; h += 4) add_relu_dots<Isa, 4, Blocks>(q + h * dim, keys, dim, sums);
    for (; h < heads; ++h) add_relu_dots<Isa, 1, Blocks>(q + h * dim, keys, dim, sums);
    for (std::size_t b = 0; b < Blocks; ++b) scores[first + b] = sums[b] / divisor;
}

}  // namespace detail

template <class Isa, class Scalar>
void score_blocks(const float* q, std::size_t heads, std::size_t dim, const block_key_view<Scalar>& blocks, float divisor,
                  std::size_t begin, std::size_t end, float* scores) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    std::size_t b = begin;
    for (; b + 2 <= end; b += 2) detail::score_some<Isa, 2>(q, heads, dim, blocks, divisor, b, scores);
    for (; b < end; ++b) detail::score_some<Isa, 1>(q, heads, dim, blocks, divisor, b, scores);
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
