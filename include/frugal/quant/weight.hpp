#pragma once
/// A weight matrix as it lies in a file: typed blocks, row after row.
#include <cstddef>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/quant/list.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// `rows` x `cols` weights of one format; not owned. Row r starts at data + r * row_bytes.
struct weight_view {
    type_id type{};
    const std::byte* data = nullptr;
    std::size_t rows = 0, cols = 0, row_bytes = 0;

    [[nodiscard]] const std::byte* row(std::size_t r) const noexcept { return data + r * row_bytes; }
    [[nodiscard]] std::size_t bytes() const noexcept { return rows * row_bytes; }
    [[nodiscard]] bool empty() const noexcept { return data == nullptr; }
    /// Rows first … first + count - 1.
    [[nodiscard]] weight_view rows_range(std::size_t first, std::size_t count) const noexcept {
        return {type, row(first), count, cols, row_bytes};
    }
};

/// Checks that `data` holds exactly rows x cols weights of a format of the list, and makes the view.
/// Errors: unsupported_format (names the type and the list), shape_mismatch (row not a multiple of the block; too few or too many bytes).
template <class Formats>
[[nodiscard]] result<weight_view> make_weight_view(type_id type, std::span<const std::byte> data, std::size_t rows,
                                                   std::size_t cols) {
    std::size_t row_size = 0;
    status checked;
    FRUGAL_TRY(visit<Formats>(type, [&]<class F>(type_tag<F>) {
        if (cols % F::block_size != 0) {
            checked = fail(errc::shape_mismatch, "rows of ", cols, " weights cannot be ", F::name, ": its blocks hold ",
                           F::block_size);
            return;
        }
        row_size = cols / F::block_size * F::block_bytes;
    }));
    FRUGAL_TRY(std::move(checked));
    if (row_size != 0 && rows > data.size() / row_size)
        return fail(errc::shape_mismatch, rows, " rows of ", row_size, " bytes do not fit in ", data.size(), " bytes");
    if (rows * row_size != data.size())
        return fail(errc::shape_mismatch, rows, " rows of ", row_size, " bytes are not ", data.size(), " bytes");
    return weight_view{type, data.data(), rows, cols, row_size};
}

}  // namespace quant

FRUGAL_NAMESPACE_END
