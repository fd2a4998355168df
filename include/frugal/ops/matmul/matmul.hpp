#pragma once
/// Product of a quantised weight matrix with a batch of activations.
#include <cstddef>
#include <span>
#include <utility>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/matmul/grouped_matmul.hpp"
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

/// y[t][r] = sum over c of w[r][c] * x[t][c], accumulated in f32, with activations in the form that the device names
/// (device/cpu/activations.hpp). x: [tokens, w.cols], y: [tokens, w.rows]; x and y must not overlap.
/// The same bits for any number of threads and any split of the tokens, and as from an image of the same weights.
/// Errors: shape_mismatch, unsupported_format, invalid_argument, out_of_memory.
template <class Formats, device::cpu_target Device>
[[nodiscard]] status matmul(Device& dev, workspace& scratch, const quant::weight_view& w, matrix_view<const float> x,
                            matrix_view<float> y) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    FRUGAL_TRY(detail::check_matmul<Formats>(w, x, y));
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(const prepared_activations ready, prepare_activations(dev, scratch, x));
    const matmul_product one{w, ready, y};
    return grouped_matmul<Formats>(dev, scratch, std::span<const matmul_product>(&one, 1));
}

}  // namespace ops

FRUGAL_NAMESPACE_END
