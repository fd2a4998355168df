#pragma once
/// Product of a quantised weight matrix with a batch of activations.
#include <cstddef>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/matmul/matmul_cpu.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// y[t][r] = sum over c of w[r][c] * x[t][c], accumulated in f32 over weights decoded to f32.
/// x: [tokens, w.cols], y: [tokens, w.rows]; x and y must not overlap. The same bits for any number of threads and any
/// split of the tokens. Errors: shape_mismatch, unsupported_format, out_of_memory.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status matmul(Device& dev, workspace& scratch, const quant::weight_view& w, matrix_view<const float> x,
                            matrix_view<float> y) {
    if (x.cols() != w.cols || y.cols() != w.rows || x.rows() != y.rows())
        return fail(errc::shape_mismatch, "matmul of weights [", w.rows, ", ", w.cols, "] with x [", x.rows(), ", ", x.cols(),
                    "] into y [", y.rows(), ", ", y.cols(), "]");
    if (x.rows() == 0 || w.rows == 0) return {};
    workspace::scope scope(scratch);
    const std::size_t parts_limit = dev.concurrency() == 0 ? 1 : dev.concurrency();
    const std::size_t per_part = ops::cpu::matmul_scratch(w.cols);
    FRUGAL_TRY_ASSIGN(auto decoded, scratch.matrix(parts_limit, per_part));
    dev.counters().add(counter::matmul_calls, 1);
    dev.counters().add(counter::dequantize_calls, 1);
    dev.counters().add(counter::weight_bytes_read, w.bytes());
    return quant::visit<Formats>(w.type, [&]<class Format>(type_tag<Format>) {
        // Cut in whole groups of four rows; each part owns one slice of the scratch.
        const std::size_t groups = (w.rows + 3) / 4;
        const std::size_t parts = groups < parts_limit ? groups : parts_limit;
        dev.run(parts, [&](std::size_t part) {
            const std::size_t begin = groups * part / parts * 4;
            const std::size_t end = groups * (part + 1) / parts * 4;
            ops::cpu::matmul_rows<typename Device::isa, Format>(w, x, y, begin, end < w.rows ? end : w.rows,
                                                                decoded.row(part));
        });
    });
}

}  // namespace ops

FRUGAL_NAMESPACE_END
