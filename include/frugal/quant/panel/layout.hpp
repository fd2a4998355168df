#pragma once
/// Panels: weights in the order in which CPU kernels take them. A panel is 16 rows of a matrix; it is cut into groups of 32
/// columns. Column k of row r of a group of codes is number code_index(r, k): four columns of a row lie together, then come the
/// other rows, so that one register holds some columns of many rows (what the integer dot products of AVX2, AVX-512 VNNI and AMX
/// take), and a sum over columns never crosses the lanes of a register.
///
/// What a panel stores is said by a *layout*, a type with
/// - `columns`, `bytes`: a panel block covers so many columns in so many bytes; the blocks of a panel follow one another;
/// - `pack<Format>(rows, cols, out)`: fills a zeroed panel from 16 rows of the format, null where the matrix has no more;
/// - either `kind`, `codes` and `scales` (panel/coded.hpp), or `decode` and `column` (panel/scalars.hpp).
#include <cstddef>
#include <cstdint>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

inline constexpr std::size_t panel_rows = 16;   ///< rows of a panel
inline constexpr std::size_t panel_group = 32;  ///< columns of a group
inline constexpr std::size_t panel_codes = panel_rows * panel_group;

/// Where column k of row r of a group lies among its codes.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t code_index(std::size_t r, std::size_t k) noexcept {
    return k / 4 * (4 * panel_rows) + 4 * r + k % 4;
}

/// How the codes of a layout enter integer dot products. level = code - Offset; codes are bytes 0 … Most, or signed bytes
/// (then Most is 127 and Offset 0). Columns share a scale in runs of Run (16 or 32).
template <bool Signed, int Most, int Offset, std::size_t Run>
struct code_kind {
    static constexpr bool is_signed = Signed;
    static constexpr int most = Most, offset = Offset;
    static constexpr std::size_t run = Run;
    static_assert(Run == 16 || Run == 32, "frugal: columns of a panel share a scale in runs of 16 or 32");
    static_assert(!Signed || Offset == 0, "frugal: signed codes of a panel have no offset");
};

/// The fields of one block of a format, one element an entry: what coded panels are packed from.
/// Formats give them as `fields(block)`; scales are the bits that the block holds (a half, or the byte of an E8M0 scale).
template <std::size_t Size, std::size_t Run>
struct block_fields {
    static constexpr std::size_t size = Size, run = Run;
    std::uint16_t scale, offset_scale;
    std::int8_t run_scales[Size / Run];
    std::uint8_t run_offsets[Size / Run];
    std::uint8_t codes[Size];
};

}  // namespace quant

FRUGAL_NAMESPACE_END
