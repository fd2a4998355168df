#pragma once
/// Elementwise operators on matrices of activations.
#include <cstddef>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/elementwise/elementwise_cpu.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {

/// Cuts a [rows, cols] matrix into runs of at most 2048 columns and calls `f(row, first column, count)` on each, in parallel.
/// The cuts depend on nothing but the shape, and fall on register borders, so they never change a bit.
template <device::cpu_target Device, class F>
void for_each_run(Device& dev, std::size_t rows, std::size_t cols, F&& f) {
    constexpr std::size_t run = 2048;
    const std::size_t a_row = (cols + run - 1) / run;
    dev.run_ranges(rows * a_row, device::grain(4 * run), [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            const std::size_t first = i % a_row * run;
            f(i / a_row, first, cols - first < run ? cols - first : run);
        }
    });
}

[[nodiscard]] inline status same_shape(const char* what, matrix_view<const float> a, matrix_view<const float> b) {
    if (a.rows() == b.rows() && a.cols() == b.cols()) return {};
    return fail(errc::shape_mismatch, what, " of [", a.rows(), ", ", a.cols(), "] and [", b.rows(), ", ", b.cols(), "]");
}

}  // namespace detail

/// y = silu(gate) * up, elementwise; all [rows, width]. y may be the memory of gate or of up. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status swiglu(Device& dev, matrix_view<const float> gate, matrix_view<const float> up, matrix_view<float> y) {
    FRUGAL_TRY(detail::same_shape("swiglu", gate, up));
    FRUGAL_TRY(detail::same_shape("swiglu", gate, y));
    detail::for_each_run(dev, y.rows(), y.cols(), [&](std::size_t r, std::size_t c, std::size_t n) {
        ops::cpu::swiglu<typename Device::isa>(gate.row(r) + c, up.row(r) + c, y.row(r) + c, n);
    });
    return {};
}

/// y += x, elementwise (a residual connection); both [rows, width]. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status add(Device& dev, matrix_view<const float> x, matrix_view<float> y) {
    FRUGAL_TRY(detail::same_shape("add", x, y));
    detail::for_each_run(dev, y.rows(), y.cols(), [&](std::size_t r, std::size_t c, std::size_t n) {
        ops::cpu::add<typename Device::isa>(x.row(r) + c, y.row(r) + c, n);
    });
    return {};
}

/// y[r] += scale[r] * x[r] for every row r; x and y [rows, width], scale [rows]. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status add_scaled(Device& dev, std::span<const float> scale, matrix_view<const float> x, matrix_view<float> y) {
    FRUGAL_TRY(detail::same_shape("add_scaled", x, y));
    if (scale.size() != x.rows())
        return fail(errc::shape_mismatch, "add_scaled of ", x.rows(), " rows with ", scale.size(), " scales");
    detail::for_each_run(dev, y.rows(), y.cols(), [&](std::size_t r, std::size_t c, std::size_t n) {
        ops::cpu::add_scaled<typename Device::isa>(scale[r], x.row(r) + c, y.row(r) + c, n);
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
