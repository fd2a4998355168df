#pragma once
/// Rows of a quantised table, by index or all of them.
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/embedding/embedding_cpu.hpp"
#include "frugal/quant/compiled.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {
/// The kernel for tables of this type, which must be in the list.
template <class Formats, class Isa>
[[nodiscard]] ops::cpu::row_decoder row_decoder_of(quant::type_id type) {
    ops::cpu::row_decoder found = nullptr;
    (void)quant::visit<Formats>(type, [&]<class Format>(type_tag<Format>) {
        FRUGAL_REQUIRE_KERNELS(Format);
        found = &ops::cpu::embedding_rows<Isa, Format>;
    });
    return found;
}
}  // namespace detail

/// y[i] = row rows[i] of the table, decoded to f32. y: [rows.size(), table.cols].
/// Errors: shape_mismatch, unsupported_format, invalid_argument (a row outside the table; nothing is written then).
template <class Formats, device::cpu_target Device>
[[nodiscard]] status embedding_rows(Device& dev, const quant::weight_view& table, std::span<const std::int32_t> rows,
                                    matrix_view<float> y) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    if (y.rows() != rows.size() || y.cols() != table.cols)
        return fail(errc::shape_mismatch, "look-up of ", rows.size(), " rows of a table [", table.rows, ", ", table.cols,
                    "] into y [", y.rows(), ", ", y.cols(), "]");
    FRUGAL_TRY(quant::check_weight_view<Formats>(table));
    for (std::size_t i = 0; i < rows.size(); ++i)
        if (static_cast<std::size_t>(rows[i]) >= table.rows)  // negative numbers are the largest
            return fail(errc::invalid_argument, "row ", rows[i], " (look-up ", i, ") is outside a table of ", table.rows,
                        " rows");
    if (rows.empty() || table.cols == 0) return {};
    dev.counters().add(counter::weight_bytes_read, rows.size() * table.row_bytes);
    const ops::cpu::row_decoder decode = detail::row_decoder_of<Formats, typename Device::isa>(table.type);
    dev.run_ranges(rows.size(), device::grain(table.cols),
                   [&](std::size_t begin, std::size_t end) { decode(table, rows.data(), y, begin, end); });
    return {};
}

/// y = all rows of the matrix, decoded to f32. y: [w.rows, w.cols]. Errors: shape_mismatch, unsupported_format, invalid_argument.
template <class Formats, device::cpu_target Device>
[[nodiscard]] status dequantize(Device& dev, const quant::weight_view& w, matrix_view<float> y) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    if (y.rows() != w.rows || y.cols() != w.cols)
        return fail(errc::shape_mismatch, "weights [", w.rows, ", ", w.cols, "] dequantised into y [", y.rows(), ", ", y.cols(),
                    "]");
    FRUGAL_TRY(quant::check_weight_view<Formats>(w));
    if (w.rows == 0 || w.cols == 0) return {};
    dev.counters().add(counter::weight_bytes_read, w.bytes());
    const ops::cpu::row_decoder decode = detail::row_decoder_of<Formats, typename Device::isa>(w.type);
    dev.run_ranges(w.rows, device::grain(w.cols), [&](std::size_t begin, std::size_t end) { decode(w, nullptr, y, begin, end); });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
