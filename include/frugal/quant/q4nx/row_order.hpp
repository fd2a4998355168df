#pragma once
/// Rows in another order, without copying them: as parts to be stacked by pack_tiles.
#include <cstddef>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/quant/tiles.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// Rows that lie as [outer][inner][rows of a block] in the order [inner][outer][rows of a block]; `part` is a weight_view or a
/// matrix_view. What NPU containers of Qwen3.5 change against the files that they are made from:
/// - the query projection of full attention, per head a query and its gate, has all queries first, then all gates:
///   transpose_row_blocks(q, heads, 2);
/// - rows of value heads, which Hugging Face groups by key head and GGUF tiles, are grouped in the larger models:
///   transpose_row_blocks(v, value_heads / key_heads, key_heads) from GGUF; the arguments the other way round make GGUF's order
///   of Hugging Face's.
/// Errors: shape_mismatch (the rows are not outer * inner equal blocks).
template <class Part>
[[nodiscard]] result<std::vector<Part>> transpose_row_blocks(const Part& part, std::size_t outer, std::size_t inner) {
    const std::size_t rows = detail::rows_of(part);
    if (outer == 0 || inner == 0 || rows % outer != 0 || rows / outer % inner != 0)
        return fail(errc::shape_mismatch, rows, " rows are not ", outer, " x ", inner, " blocks of equal size");
    const std::size_t block = rows / outer / inner;
    std::vector<Part> out;
    for (std::size_t i = 0; i < inner && block != 0; ++i)
        for (std::size_t o = 0; o < outer; ++o) out.push_back(part.rows_range((o * inner + i) * block, block));
    return out;
}

}  // namespace quant

FRUGAL_NAMESPACE_END
