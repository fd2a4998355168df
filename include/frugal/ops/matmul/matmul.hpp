#pragma once
/// Product of a quantised weight matrix with a batch of activations.
#include <cstddef>
#include <span>
#include <utility>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/matmul/matmul_cpu.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {
template <quant::format_list Formats>
[[nodiscard]] status check_matmul(const quant::weight_view& w, matrix_view<const float> x, matrix_view<float> y) {
    if (x.cols() != w.cols || y.cols() != w.rows || x.rows() != y.rows())
        return fail(errc::shape_mismatch, "matmul of weights [", w.rows, ", ", w.cols, "] with x [", x.rows(), ", ", x.cols(),
                    "] into y [", y.rows(), ", ", y.cols(), "]");
    return quant::check_weight_view<Formats>(w);
}
}  // namespace detail

/// y[t][r] = sum over c of w[r][c] * x[t][c], accumulated in f32 over weights decoded to f32.
/// x: [tokens, w.cols], y: [tokens, w.rows]; x and y must not overlap. The same bits for any number of threads and any
/// split of the tokens. Errors: shape_mismatch, unsupported_format, invalid_argument, out_of_memory.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status matmul(Device& dev, workspace& scratch, const quant::weight_view& w, matrix_view<const float> x,
                            matrix_view<float> y) {
    FRUGAL_TRY(detail::check_matmul<Formats>(w, x, y));
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

/// As matmul, with the activations quantised to 8 bits (quant::q8_activation, once for each row of x) and the products of a
/// block summed exactly in integers. The same bits for any number of threads, any split of the tokens and every instruction
/// set. Formats without an integer dot product (f32, f16, bf16) are served by matmul.
///
/// Error beside matmul's: each activation is off by at most half of its block's scale (largest magnitude / 254), so y is off
/// by at most the sum over c of |w[r][c]| * that. A block of x with a NaN or an infinity makes its row of y NaN.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status matmul_q8(Device& dev, workspace& scratch, const quant::weight_view& w, matrix_view<const float> x,
                               matrix_view<float> y) {
    FRUGAL_TRY(detail::check_matmul<Formats>(w, x, y));
    if (x.rows() == 0 || w.rows == 0) return {};
    status done;
    FRUGAL_TRY(quant::visit<Formats>(w.type, [&]<class Format>(type_tag<Format>) {
        if constexpr (quant::integer_dot_format<Format>) {
            done = [&]() -> status {
                using activation = quant::activation_of<Format>;
                using isa = typename Device::isa;
                workspace::scope scope(scratch);
                const std::size_t blocks = w.cols / activation::block_size;
                FRUGAL_TRY_ASSIGN(const std::span<typename activation::block> quantized,
                                  scratch.template array<typename activation::block>(x.rows() * blocks));
                dev.counters().add(counter::matmul_calls, 1);
                dev.counters().add(counter::activation_quantize_calls, 1);
                dev.counters().add(counter::weight_bytes_read, w.bytes());
                dev.run_ranges(x.rows(), 1, [&](std::size_t begin, std::size_t end) {
                    ops::cpu::quantize_rows<isa, activation>(x, quantized.data(), begin, end);
                });
                dev.run_ranges(w.rows, 4, [&](std::size_t begin, std::size_t end) {
                    ops::cpu::matmul_q8_rows<isa, Format>(w, quantized.data(), x.rows(), y, begin, end);
                });
                return {};
            }();
        } else {
            done = matmul<Formats>(dev, scratch, w, x, y);
        }
    }));
    return done;
}

}  // namespace ops

FRUGAL_NAMESPACE_END
