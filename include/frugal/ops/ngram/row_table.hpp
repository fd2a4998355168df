#pragma once
/// An embedding table cut by rows into shards, as large n-gram tables are stored.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Rows 0, 1, … lie in the first shard, then in the second, …; shards may differ in length and format, not in row length.
class FRUGAL_FLAGGED row_table {
public:
    /// Where a row lies.
    struct place {
        std::size_t shard = 0, row = 0;
    };

    row_table() = default;
    /// A table in one piece.
    explicit row_table(quant::weight_view whole) : shards_{whole}, ends_{whole.rows} {}
    /// Errors: shape_mismatch (no shards; row lengths that differ).
    [[nodiscard]] static result<row_table> make(std::vector<quant::weight_view> shards) {
        if (shards.empty()) return fail(errc::shape_mismatch, "a table needs at least one shard");
        row_table out;
        std::size_t end = 0;
        for (std::size_t i = 0; i < shards.size(); ++i) {
            if (shards[i].cols != shards[0].cols)
                return fail(errc::shape_mismatch, "shard ", i, " has rows of ", shards[i].cols, ", shard 0 of ", shards[0].cols);
            out.ends_.push_back(end += shards[i].rows);
        }
        out.shards_ = std::move(shards);
        return out;
    }

    [[nodiscard]] std::span<const quant::weight_view> shards() const noexcept { return shards_; }
    [[nodiscard]] std::size_t rows() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
    /// Length of a row.
    [[nodiscard]] std::size_t cols() const noexcept { return shards_.empty() ? 0 : shards_[0].cols; }
    /// Precondition: row < rows().
    [[nodiscard]] place lookup(std::size_t row) const noexcept {
        const auto shard = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
        return {shard, row - (shard == 0 ? 0 : ends_[shard - 1])};
    }

private:
    std::vector<quant::weight_view> shards_;
    std::vector<std::size_t> ends_;  ///< [shards]: number of rows up to and including each shard
};

/// y[i] = row rows[i] of the table, decoded to f32; a negative entry gives zeros. y: [rows.size(), table.cols()].
/// Errors: shape_mismatch, invalid_argument (a row beyond the table), unsupported_format; nothing is written then.
template <class Formats, device::cpu_target Device>
[[nodiscard]] status table_rows(Device& dev, const row_table& table, std::span<const std::int64_t> rows, matrix_view<float> y) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    if (y.rows() != rows.size() || y.cols() != table.cols())
        return fail(errc::shape_mismatch, rows.size(), " rows of ", table.cols(), " into [", y.rows(), ", ", y.cols(), "]");
    for (const quant::weight_view& shard : table.shards()) FRUGAL_TRY(quant::visit<Formats>(shard.type, [](auto) {}));
    std::uint64_t bytes = 0;
    for (const std::int64_t row : rows) {
        if (row < 0) continue;
        if (static_cast<std::uint64_t>(row) >= table.rows())
            return fail(errc::invalid_argument, "row ", row, " of a table of ", table.rows());
        bytes += table.shards()[table.lookup(static_cast<std::size_t>(row)).shard].row_bytes;
    }
    dev.counters().add(counter::weight_bytes_read, bytes);
    // Rows lie anywhere: a miss of all caches is worth some hundred elements.
    dev.run_ranges(rows.size(), device::grain(512 + table.cols()), [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            if (rows[i] < 0) {
                std::fill_n(y.row(i), y.cols(), 0.0f);
                continue;
            }
            const row_table::place at = table.lookup(static_cast<std::size_t>(rows[i]));
            const quant::weight_view& shard = table.shards()[at.shard];
            // The type was looked up above, so this cannot fail.
            detail::row_decoder_of<Formats, typename Device::isa>(shard.type)(shard.rows_range(at.row, 1), nullptr,
                                                                              y.rows_range(i, 1), 0, 1);
        }
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
