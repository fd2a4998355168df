#pragma once
/// CPU kernels of ops::select_blocks: scores of a range of blocks for one query, and those of them that may be chosen.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/isa.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Block keys of one sequence, not owned: block b lies in chunk b >> chunk_shift, and there `stride` scalars after the
/// block before it.
template <class Scalar>
struct block_key_view {
    const Scalar* const* keys = nullptr;
    std::size_t chunk_shift = 0, stride = 0;
};

/// Keys of 8 bits: that of block b is its codes times one scale. Chunks of scales hold one a block.
/// ops::encode_block_key makes both.
template <>
struct block_key_view<std::int8_t> {
    const std::int8_t* const* keys = nullptr;
    const float* const* scales = nullptr;
    std::size_t chunk_shift = 0, stride = 0;
};

/// A row's queries as keys of a precision are scored with: [heads][dim] floats …
template <class Scalar>
struct block_queries {
    const float* values = nullptr;
    FRUGAL_ALWAYS_INLINE constexpr block_queries(const float* from) noexcept
        : values(from) {}  // NOLINT: implicit, as the floats are all there is
};
/// … or, with keys of 8 bits, codes with one scale. ops::encode_block_queries makes both.
template <>
struct block_queries<std::int8_t> {
    const std::int16_t* codes = nullptr;
    float scale = 0;
};

namespace detail {

/// An integer that orders as the rule of block_select.hpp says, NaN lowest: 0.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::uint32_t score_key(float score) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(score);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return 0;
    if (magnitude == 0) return 0x80000000u;
    return bits > magnitude ? ~bits : bits | 0x80000000u;
}

/// A score that has this key, which is not that of NaN.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr float score_of_key(std::uint32_t key) noexcept {
    return std::bit_cast<float>(key >= 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

/// A block and its score as one integer: the greater one is chosen first. Never 0.
using ranked_block = std::uint64_t;

[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr ranked_block rank_block(float score, std::size_t block) noexcept {
    return static_cast<ranked_block>(score_key(score)) << 32 | static_cast<std::uint32_t>(~static_cast<std::uint32_t>(block));
}
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::uint32_t block_of(ranked_block ranked) noexcept {
    return ~static_cast<std::uint32_t>(ranked);
}

}  // namespace detail

namespace cpu {

/// scores[b] = sum over heads of max(0, q[h] . key[b]) / divisor for begin <= b < end.
/// Scalar: float, half, bfloat16, or std::int8_t, whose products of codes are summed as integers, exactly, and multiplied by
/// both scales. The bits of a score depend on the queries and its block alone.
template <class Isa, class Scalar>
FRUGAL_KERNEL void score_blocks(std::type_identity_t<block_queries<Scalar>> q, std::size_t heads, std::size_t dim,
                                const block_key_view<Scalar>& blocks, float divisor, std::size_t begin, std::size_t end,
                                float* scores);

/// Scores the same blocks and appends, ascending, those that rank above `threshold` (0: all of them) to kept[count …], which
/// has room for end - begin. Returns the new count. end <= 2^32 - 1. Keys up to block `prefetch_end` may be fetched ahead; 0
/// where they have just been read.
template <class Isa, class Scalar>
FRUGAL_KERNEL std::size_t keep_blocks(std::type_identity_t<block_queries<Scalar>> q, std::size_t heads, std::size_t dim,
                                      const block_key_view<Scalar>& blocks, float divisor, std::size_t begin, std::size_t end,
                                      std::size_t prefetch_end, std::uint64_t threshold, std::uint64_t* kept, std::size_t count);

}  // namespace cpu

}  // namespace ops

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/block_select/block_select_cpu-inl.hpp"
#endif
