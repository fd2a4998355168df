#pragma once
/// Weight matrices cut into tiles: the form in which matrix units read quantised weights.
///
/// A tile format stores `tile_rows` x `tile_cols` weights in `tile_bytes` bytes. A matrix is padded with zeros to whole tiles;
/// its tiles follow each other row of tiles by row of tiles, and within one from the first column to the last.
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// A tile format. `encode_tile(w, stride, tile)` reads finite weights of magnitude up to `largest_weight`, row r at
/// w + r * stride; zeros must encode so that they decode to zeros. `decode_tile(tile, out, stride)` writes the tile's weights;
/// `finite(tile)` tells whether every scale and offset is neither NaN nor infinite. Tiles may lie at any address.
template <class T>
concept tile_format = requires(const float* w, std::size_t stride, std::byte* to, const std::byte* tile, float* out) {
    { T::name } -> std::convertible_to<std::string_view>;
    { T::tile_rows } -> std::convertible_to<std::size_t>;
    { T::tile_cols } -> std::convertible_to<std::size_t>;
    { T::tile_bytes } -> std::convertible_to<std::size_t>;
    { T::group_size } -> std::convertible_to<std::size_t>;
    { T::encode_tile(w, stride, to) }
    noexcept->std::same_as<void>;
    { T::decode_tile(tile, out, stride) }
    noexcept->std::same_as<void>;
    { T::finite(tile) }
    noexcept->std::same_as<bool>;
};

/// A tile format that encodes in two steps, to codes with their scales and from those to the bytes of a tile.
template <class T>
concept coded_tile_format = tile_format<T> && requires(const float* w, std::size_t stride, typename T::codes_type& codes,
                                                       const typename T::codes_type& from, std::byte* to) {
    { T::quantize(w, stride, codes) }
    noexcept->std::same_as<void>;
    { T::pack_codes(from, to) }
    noexcept->std::same_as<void>;
};

/// Whether blocks of F keep their codes in tiles of T: `T::repack(type_tag<F>, block, codes, row, group)` moves one block.
template <class T, class F>
concept repacks = coded_tile_format<T> && format<F> &&
                  F::block_size == T::group_size&& requires(const std::byte* block, typename T::codes_type& to, std::size_t row,
                                                            std::size_t group) {
    { T::repack(type_tag<F>{}, block, to, row, group) }
    noexcept->std::same_as<void>;
};

/// The largest magnitude of a weight that is packed: ranges of twice that, and what rounding adds, stay finite.
inline constexpr float largest_weight = 0x1p126f;

/// Sizes of a matrix in tiles of T. A product beyond the address space is the largest std::size_t: no buffer has that size.
template <tile_format T>
struct packed_tiles {
    /// Rows of tiles of a matrix of `rows` rows.
    [[nodiscard]] static constexpr std::size_t row_tiles(std::size_t rows) noexcept { return up(rows, T::tile_rows); }
    /// Tiles side by side in `cols` columns.
    [[nodiscard]] static constexpr std::size_t col_tiles(std::size_t cols) noexcept { return up(cols, T::tile_cols); }
    [[nodiscard]] static constexpr std::size_t tile_count(std::size_t rows, std::size_t cols) noexcept {
        return times(row_tiles(rows), col_tiles(cols));
    }
    [[nodiscard]] static constexpr std::size_t bytes(std::size_t rows, std::size_t cols) noexcept {
        return times(tile_count(rows, cols), T::tile_bytes);
    }

private:
    [[nodiscard]] static constexpr std::size_t up(std::size_t size, std::size_t tile) noexcept {
        return size / tile + (size % tile != 0 ? 1 : 0);
    }
    [[nodiscard]] static constexpr std::size_t times(std::size_t a, std::size_t b) noexcept {
        constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)();
        return a != 0 && b > most / a ? most : a * b;
    }
};

/// A range of rows of tiles. Different ranges of one matrix may be packed by different threads.
struct tile_row_range {
    std::size_t first = 0, count = (std::numeric_limits<std::size_t>::max)();
};

namespace detail {

/// Rows of several matrices stacked on each other; Part has rows() or a member rows.
struct stacked_shape {
    std::size_t rows = 0, cols = 0;
};

[[nodiscard]] FRUGAL_FLAGGED inline std::size_t rows_of(const matrix_view<const float>& part) noexcept { return part.rows(); }
[[nodiscard]] FRUGAL_FLAGGED inline std::size_t cols_of(const matrix_view<const float>& part) noexcept { return part.cols(); }
[[nodiscard]] FRUGAL_FLAGGED inline std::size_t rows_of(const weight_view& part) noexcept { return part.rows; }
[[nodiscard]] FRUGAL_FLAGGED inline std::size_t cols_of(const weight_view& part) noexcept { return part.cols; }

/// Checks that `bytes` are exactly the tiles of a matrix. Errors: shape_mismatch.
template <tile_format T>
[[nodiscard]] status check_bytes(std::size_t bytes, std::size_t rows, std::size_t cols) {
    const std::size_t want = packed_tiles<T>::bytes(rows, cols);
    if (bytes == want) return {};
    return fail(errc::shape_mismatch, "a matrix [", rows, ", ", cols, "] in tiles of ", T::name, " has ", want, " bytes, not ",
                bytes);
}

/// Checks that the parts have equal columns and that `out` is exactly their tiles. Errors: shape_mismatch.
template <tile_format T, class Part>
[[nodiscard]] result<stacked_shape> check_parts(std::span<const Part> parts, std::size_t out_bytes) {
    stacked_shape shape;
    for (const Part& part : parts) {
        if (&part == parts.data()) shape.cols = cols_of(part);
        if (cols_of(part) != shape.cols)
            return fail(errc::shape_mismatch, "matrices of ", shape.cols, " and ", cols_of(part), " columns cannot be stacked");
        if (rows_of(part) > (std::numeric_limits<std::size_t>::max)() - T::tile_rows - shape.rows)
            return fail(errc::shape_mismatch, "the stacked matrices have more rows than can be counted");
        shape.rows += rows_of(part);
    }
    FRUGAL_TRY(check_bytes<T>(out_bytes, shape.rows, shape.cols));
    return shape;
}

/// Walks the parts row by row, from a given row of the stack on.
template <class Part>
class FRUGAL_FLAGGED stacked_rows {
public:
    stacked_rows(std::span<const Part> parts, std::size_t row) noexcept : parts_(parts), row_(row) { settle(); }
    [[nodiscard]] bool at_end() const noexcept { return part_ == parts_.size(); }
    [[nodiscard]] const Part& part() const noexcept { return parts_[part_]; }
    [[nodiscard]] std::size_t row() const noexcept { return row_; }
    [[nodiscard]] std::size_t rows_left() const noexcept { return rows_of(part()) - row_; }
    void next() noexcept {
        ++row_;
        settle();
    }

private:
    void settle() noexcept {
        while (part_ < parts_.size() && row_ >= rows_of(parts_[part_])) row_ -= rows_of(parts_[part_++]);
    }
    std::span<const Part> parts_;
    std::size_t part_ = 0, row_;
};

/// Whether every weight of a tile is finite and not beyond largest_weight.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool all_packable(const float* w, std::size_t stride, std::size_t rows,
                                                     std::size_t cols) noexcept {
    constexpr std::int32_t most = 0x7E800000;  // bits of largest_weight
    std::int32_t sign = 0;
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < cols; ++c) {
            std::int32_t bits;
            std::memcpy(&bits, w + r * stride + c, sizeof(bits));
            sign |= most - (bits & 0x7FFFFFFF);
        }
    return sign >= 0;
}

/// The error that names the first weight that cannot be packed; `row` and `col` are where the tile begins.
[[gnu::noinline, gnu::cold]] inline error not_packable(const float* w, std::size_t stride, std::size_t rows, std::size_t cols,
                                                       std::size_t row, std::size_t col) {
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < cols; ++c) {
            const float value = w[r * stride + c];
            if (value >= -largest_weight && value <= largest_weight) continue;
            if (value - value == 0.0f)
                return fail(errc::not_finite, "the weight in row ", row + r, ", column ", col + c, " is ", value,
                            ": beyond 2^126 its scale may not be finite");
            return fail(errc::not_finite, "the weight in row ", row + r, ", column ", col + c, " is ", value);
        }
    return fail(errc::not_finite, "a weight is not finite");
}

/// Columns first … first + count - 1 of a row in blocks of F; blocks need not divide the tile.
template <format F>
FRUGAL_ALWAYS_INLINE void decode_columns(const std::byte* row, std::size_t first, std::size_t count, float* out) noexcept {
    constexpr std::size_t size = F::block_size;
    for (std::size_t done = 0; done < count;) {
        const std::size_t block = (first + done) / size, skip = (first + done) % size;
        const std::size_t take = (std::min)(size - skip, count - done);
        const std::byte* from = row + block * F::block_bytes;
        if (take == size) {
            F::decode(from, out + done);
        } else {
            float values[size];
            F::decode(from, values);
            std::memcpy(out + done, values + skip, take * sizeof(float));
        }
        done += take;
    }
}

/// Blocks of one row whose codes are kept: groups of the tile that begins at column `first`. The column of the first block with
/// a scale that is not finite, or `none`.
inline constexpr std::size_t none = (std::numeric_limits<std::size_t>::max)();
template <class T, class F>
[[nodiscard]] FRUGAL_ALWAYS_INLINE std::size_t repack_columns(const std::byte* row, std::size_t first, std::size_t count,
                                                              typename T::codes_type& codes, std::size_t to_row) noexcept {
    for (std::size_t group = 0; group < count / T::group_size; ++group) {
        const std::byte* block = row + (first / T::group_size + group) * F::block_bytes;
        if constexpr (checkable_format<F>)
            if (!F::finite(block)) return first + group * T::group_size;
        T::repack(type_tag<F>{}, block, codes, to_row, group);
    }
    return none;
}

/// The last row of tiles of the range, plus one.
[[nodiscard]] FRUGAL_FLAGGED inline std::size_t end_of(const tile_row_range& range, std::size_t tiles) noexcept {
    return range.first >= tiles ? tiles : range.first + (std::min)(range.count, tiles - range.first);
}

}  // namespace detail

/// Packs matrices of floats, stacked by rows, into tiles. `parts` have equal columns; `out` has
/// packed_tiles<T>::bytes(all rows, columns) bytes, of which the rows of tiles in `range` are written.
/// Errors: shape_mismatch; not_finite, naming row (of the stack) and column of a weight that is NaN, infinite or beyond
/// largest_weight. After an error the bytes of the range are unspecified.
template <tile_format T>
[[nodiscard]] status pack_tiles(std::span<const matrix_view<const float>> parts, std::span<std::byte> out,
                                tile_row_range range = {}) {
    FRUGAL_TRY_ASSIGN(const detail::stacked_shape shape, detail::check_parts<T>(parts, out.size()));
    const std::size_t across = packed_tiles<T>::col_tiles(shape.cols);
    const std::size_t end = detail::end_of(range, packed_tiles<T>::row_tiles(shape.rows));
    float edge[T::tile_rows * T::tile_cols];
    for (std::size_t down = range.first; down < end; ++down) {
        const std::size_t first_row = down * T::tile_rows, rows = std::min<std::size_t>(T::tile_rows, shape.rows - first_row);
        const detail::stacked_rows<matrix_view<const float>> start(parts, first_row);
        for (std::size_t tile = 0; tile < across; ++tile) {
            const std::size_t first_col = tile * T::tile_cols;
            const std::size_t cols = std::min<std::size_t>(T::tile_cols, shape.cols - first_col);
            std::byte* to = out.data() + (down * across + tile) * T::tile_bytes;
            const float* from = edge;
            std::size_t stride = T::tile_cols;
            if (cols == T::tile_cols && start.rows_left() >= T::tile_rows) {
                from = start.part().row(start.row()) + first_col;
                stride = start.part().stride();
            } else {
                std::fill(std::begin(edge), std::end(edge), 0.0f);
                auto at = start;
                for (std::size_t r = 0; r < rows; ++r, at.next())
                    std::copy_n(at.part().row(at.row()) + first_col, cols, edge + r * T::tile_cols);
            }
            if (!detail::all_packable(from, stride, T::tile_rows, T::tile_cols))
                return detail::not_packable(from, stride, rows, cols, first_row, first_col);
            T::encode_tile(from, stride, to);
        }
    }
    return {};
}

/// Packs one matrix of floats; see above.
template <tile_format T>
[[nodiscard]] status pack_tiles(matrix_view<const float> w, std::span<std::byte> out, tile_row_range range = {}) {
    return pack_tiles<T>(std::span<const matrix_view<const float>>(&w, 1), out, range);
}

/// Packs weights as they lie in a file, stacked by rows; the parts may be of different formats. A format that T repacks keeps
/// its codes, so that only scales and offsets are rounded; every other one is decoded and encoded again.
/// Errors: those of check_weight_view and of packing floats; not_finite for a scale names the first column of its block.
template <tile_format T, format_list Formats>
[[nodiscard]] status pack_tiles(std::span<const weight_view> parts, std::span<std::byte> out, tile_row_range range = {}) {
    FRUGAL_TRY_ASSIGN(const detail::stacked_shape shape, detail::check_parts<T>(parts, out.size()));
    for (const weight_view& part : parts) FRUGAL_TRY(check_weight_view<Formats>(part));
    const std::size_t across = packed_tiles<T>::col_tiles(shape.cols);
    const std::size_t end = detail::end_of(range, packed_tiles<T>::row_tiles(shape.rows));
    float values[T::tile_rows * T::tile_cols];
    for (std::size_t down = range.first; down < end; ++down) {
        const std::size_t first_row = down * T::tile_rows, rows = std::min<std::size_t>(T::tile_rows, shape.rows - first_row);
        const detail::stacked_rows<weight_view> start(parts, first_row);
        for (std::size_t tile = 0; tile < across; ++tile) {
            const std::size_t first_col = tile * T::tile_cols;
            const std::size_t cols = std::min<std::size_t>(T::tile_cols, shape.cols - first_col);
            std::byte* to = out.data() + (down * across + tile) * T::tile_bytes;
            // Rows that are decoded come first: encoding them writes the whole tile. Rows that keep their codes follow.
            std::size_t decoded = 0;
            std::fill(std::begin(values), std::end(values), 0.0f);
            auto at = start;
            for (std::size_t r = 0; r < rows; ++r, at.next())
                FRUGAL_TRY(visit<Formats>(at.part().type, [&]<class F>(type_tag<F>) {
                    if constexpr (!repacks<T, F>) {
                        detail::decode_columns<F>(at.part().row(at.row()), first_col, cols, values + r * T::tile_cols);
                        ++decoded;
                    }
                }));
            if (decoded != 0 && !detail::all_packable(values, T::tile_cols, T::tile_rows, T::tile_cols))
                return detail::not_packable(values, T::tile_cols, rows, cols, first_row, first_col);
            if constexpr (!coded_tile_format<T>) {
                T::encode_tile(values, T::tile_cols, to);
            } else {
                typename T::codes_type codes;
                if (decoded != 0)
                    T::quantize(values, T::tile_cols, codes);
                else
                    codes = {};
                at = start;
                std::size_t bad = detail::none;
                for (std::size_t r = 0; r < rows && decoded != rows; ++r, at.next()) {
                    FRUGAL_TRY(visit<Formats>(at.part().type, [&]<class F>(type_tag<F>) {
                        if constexpr (repacks<T, F>)
                            bad = detail::repack_columns<T, F>(at.part().row(at.row()), first_col, cols, codes, r);
                    }));
                    if (bad != detail::none)
                        return fail(errc::not_finite, "the scale of the weights from row ", first_row + r, ", column ", bad,
                                    " on is not finite");
                }
                T::pack_codes(codes, to);
            }
        }
    }
    return {};
}

/// Packs one matrix of weights; see above.
template <tile_format T, format_list Formats>
[[nodiscard]] status pack_tiles(const weight_view& w, std::span<std::byte> out, tile_row_range range = {}) {
    return pack_tiles<T, Formats>(std::span<const weight_view>(&w, 1), out, range);
}

/// Checks that `tiles` holds a matrix [rows, cols] and that all its scales and offsets are finite, as readers of files should.
/// Errors: shape_mismatch; not_finite, naming where the first bad tile begins.
template <tile_format T>
[[nodiscard]] status check_tiles(std::span<const std::byte> tiles, std::size_t rows, std::size_t cols) {
    FRUGAL_TRY(detail::check_bytes<T>(tiles.size(), rows, cols));
    const std::size_t across = packed_tiles<T>::col_tiles(cols);
    for (std::size_t i = 0; i < tiles.size() / T::tile_bytes; ++i)
        if (!T::finite(tiles.data() + i * T::tile_bytes))
            return fail(errc::not_finite, "the tile at row ", i / across * T::tile_rows, ", column ", i % across * T::tile_cols,
                        " has a scale or offset that is not finite");
    return {};
}

/// Decodes a matrix [rows, cols]; padding is left out. Errors: shape_mismatch.
template <tile_format T>
[[nodiscard]] status unpack_tiles(std::span<const std::byte> tiles, std::size_t rows, std::size_t cols, matrix_view<float> out) {
    FRUGAL_TRY(detail::check_bytes<T>(tiles.size(), rows, cols));
    const std::size_t across = packed_tiles<T>::col_tiles(cols);
    if (out.rows() != rows || out.cols() != cols)
        return fail(errc::shape_mismatch, "a matrix [", rows, ", ", cols, "] cannot be unpacked to [", out.rows(), ", ",
                    out.cols(), "]");
    float edge[T::tile_rows * T::tile_cols];
    for (std::size_t down = 0; down * T::tile_rows < rows; ++down) {
        const std::size_t first_row = down * T::tile_rows, count = std::min<std::size_t>(T::tile_rows, rows - first_row);
        for (std::size_t tile = 0; tile < across; ++tile) {
            const std::size_t first_col = tile * T::tile_cols, width = std::min<std::size_t>(T::tile_cols, cols - first_col);
            const std::byte* from = tiles.data() + (down * across + tile) * T::tile_bytes;
            if (count == T::tile_rows && width == T::tile_cols) {
                T::decode_tile(from, out.row(first_row) + first_col, out.stride());
                continue;
            }
            T::decode_tile(from, edge, T::tile_cols);
            for (std::size_t r = 0; r < count; ++r)
                std::copy_n(edge + r * T::tile_cols, width, out.row(first_row + r) + first_col);
        }
    }
    return {};
}

}  // namespace quant

FRUGAL_NAMESPACE_END
