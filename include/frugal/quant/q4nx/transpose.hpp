#pragma once
/// Transposing codes between the rows of a tile and the lanes that a vector unit reads, 16 columns at a time.
#include <cstddef>
#include <cstdint>

#include "frugal/core/config.hpp"
#include "frugal/quant/vectors.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant::detail {

/// Count x 16 bytes, seen as one array, riffled like two halves of a pack of cards: the address of each byte, as a binary
/// number, is rotated left by one bit. So log2(Count) riffles take byte [row][column] to [column][row], and four take it back.
template <std::size_t Count>
FRUGAL_ALWAYS_INLINE void riffle(bytes_16 (&v)[Count]) noexcept {
    bytes_16 out[Count];
    for (std::size_t i = 0; i < Count / 2; ++i) {
        const bytes_16 a = v[i], b = v[i + Count / 2];
        out[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        out[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (std::size_t i = 0; i < Count; ++i) v[i] = out[i];
}

template <std::size_t Count>
    requires(Count == 8 || Count == 16)
FRUGAL_ALWAYS_INLINE void rows_to_columns(bytes_16 (&v)[Count]) noexcept {
    riffle(v), riffle(v), riffle(v);
    if constexpr (Count == 16) riffle(v);
}

template <std::size_t Count>
    requires(Count == 8 || Count == 16)
FRUGAL_ALWAYS_INLINE void columns_to_rows(bytes_16 (&v)[Count]) noexcept { riffle(v), riffle(v), riffle(v), riffle(v); }

/// 4-bit codes of 32 rows to [2 lanes of 16 rows][Cols][8 bytes]: byte j holds row 2 j (low nibble) and 2 j + 1 of the lane.
template <std::size_t Cols>
FRUGAL_ALWAYS_INLINE void pack_lanes(const std::uint8_t (&codes)[32][Cols], std::byte* to) noexcept {
    for (std::size_t lane = 0; lane < 2; ++lane)
        for (std::size_t c = 0; c < Cols; c += 16) {
            bytes_16 pairs[8];
            for (std::size_t j = 0; j < 8; ++j)
                pairs[j] = (load_bytes(codes[16 * lane + 2 * j] + c) & 15) | (load_bytes(codes[16 * lane + 2 * j + 1] + c) << 4);
            rows_to_columns(pairs);
            for (std::size_t j = 0; j < 8; ++j) store_bytes(to + (lane * Cols + c) * 8 + 16 * j, pairs[j]);
        }
}

/// The inverse of pack_lanes.
template <std::size_t Cols>
FRUGAL_ALWAYS_INLINE void unpack_lanes(const std::byte* from, std::uint8_t (&codes)[32][Cols]) noexcept {
    for (std::size_t lane = 0; lane < 2; ++lane)
        for (std::size_t c = 0; c < Cols; c += 16) {
            bytes_16 pairs[8];
            for (std::size_t j = 0; j < 8; ++j) pairs[j] = load_bytes(from + (lane * Cols + c) * 8 + 16 * j);
            columns_to_rows(pairs);
            for (std::size_t j = 0; j < 8; ++j) {
                store_bytes(codes[16 * lane + 2 * j] + c, pairs[j] & 15);
                store_bytes(codes[16 * lane + 2 * j + 1] + c, pairs[j] >> 4);
            }
        }
}

}  // namespace quant::detail

FRUGAL_NAMESPACE_END
