#pragma once
/// A weight matrix as it lies in a file: typed blocks, row after row.
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

#include "frugal/core/error.hpp"
#include "frugal/quant/list.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// `rows` x `cols` weights of one format; not owned. Row r starts at data + r * row_bytes.
struct weight_view {
    type_id type{};
    const std::byte* data = nullptr;
    std::size_t rows = 0, cols = 0, row_bytes = 0;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE const std::byte* row(std::size_t r) const noexcept { return data + r * row_bytes; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE std::size_t bytes() const noexcept { return rows * row_bytes; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE bool empty() const noexcept { return data == nullptr; }
    /// Rows first … first + count - 1.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE weight_view rows_range(std::size_t first, std::size_t count) const noexcept {
        return {type, row(first), count, cols, row_bytes};
    }
};

/// Bytes of a row of `cols` weights. Errors: unsupported_format (names the type and the list), shape_mismatch (`cols` is not a
/// multiple of the format's block), out_of_memory (beyond the address space).
template <class Formats>
[[nodiscard]] result<std::size_t> row_bytes(type_id type, std::size_t cols) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    std::size_t block = 1, bytes = 0;
    std::string_view name;
    FRUGAL_TRY(
        visit<Formats>(type, [&]<class F>(type_tag<F>) { block = F::block_size, bytes = F::block_bytes, name = F::name; }));
    if (cols % block != 0)
        return fail(errc::shape_mismatch, "rows of ", cols, " weights cannot be ", name, ": its blocks hold ", block);
    if (cols / block > (std::numeric_limits<std::size_t>::max)() / bytes)
        return fail(errc::out_of_memory, "rows of ", cols, " weights are beyond the address space");
    return cols / block * bytes;
}

/// Checks that a view made by hand can be read: type in the list, whole blocks, rows that do not overlap, data present.
/// Errors: those of row_bytes; shape_mismatch, invalid_argument.
template <class Formats>
[[nodiscard]] status check_weight_view(const weight_view& w) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    FRUGAL_TRY_ASSIGN(const std::size_t bytes, row_bytes<Formats>(w.type, w.cols));
    if (w.row_bytes < bytes)
        return fail(errc::shape_mismatch, "weight rows ", w.row_bytes, " bytes apart cannot hold rows of ", bytes, " bytes");
    if (w.data == nullptr && w.rows != 0 && bytes != 0)
        return fail(errc::invalid_argument, "weights [", w.rows, ", ", w.cols, "] without data");
    return {};
}

/// Checks that `data` holds exactly rows x cols weights of a format of the list, and makes the view.
/// Errors: those of row_bytes; shape_mismatch (too few or too many bytes).
template <class Formats>
[[nodiscard]] result<weight_view> make_weight_view(type_id type, std::span<const std::byte> data, std::size_t rows,
                                                   std::size_t cols) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    FRUGAL_TRY_ASSIGN(const std::size_t row_size, row_bytes<Formats>(type, cols));
    if (row_size != 0 && rows > data.size() / row_size)
        return fail(errc::shape_mismatch, rows, " rows of ", row_size, " bytes do not fit in ", data.size(), " bytes");
    if (rows * row_size != data.size())
        return fail(errc::shape_mismatch, rows, " rows of ", row_size, " bytes are not ", data.size(), " bytes");
    return weight_view{type, data.data(), rows, cols, row_size};
}

}  // namespace quant

FRUGAL_NAMESPACE_END
