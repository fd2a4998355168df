#pragma once
/// Several independent products of weights with activations as one parallel region.
#include <cstddef>
#include <span>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/matmul/matmul_cpu.hpp"
#include "frugal/ops/matmul/panel_runs.hpp"
#include "frugal/quant/compiled.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// y[t][r] = sum over c of w[r][c] * x[t][c]; x: [tokens, w.cols], made ready by prepare_activations; y: [tokens, w.rows].
struct FRUGAL_FLAGGED matmul_product {
    quant::weight_view w;
    prepared_activations x;
    matrix_view<float> y;
};

/// Floats of scratch that grouped_matmul takes for weights of `cols` columns, at most.
template <device::cpu_target Device>
[[nodiscard]] std::size_t grouped_matmul_scratch(const Device& dev, std::size_t cols) {
    return (detail::most_panel_tasks(dev) + 1) * ops::cpu::matmul_scratch(cols);
}

/// Computes every product, each with the bits that ops::matmul gives for it alone. All are cut into tasks of one parallel
/// region: a mixture of experts has many small ones. Types may differ; no y may overlap another y or any x.
/// A product without tokens reads nothing. Errors: shape_mismatch, unsupported_format, out_of_memory; nothing is computed then.
template <class Formats, device::cpu_target Device>
[[nodiscard]] status grouped_matmul(Device& dev, workspace& scratch, std::span<const matmul_product> products) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    const auto panels_of = [&](std::size_t i) {
        return products[i].x.rows == 0 ? 0 : (products[i].w.rows + quant::panel_rows - 1) / quant::panel_rows;
    };
    std::size_t panels = 0, widest = 0;
    bool even = true;
    for (std::size_t i = 0; i < products.size(); ++i) {
        const matmul_product& p = products[i];
        if (p.x.cols != p.w.cols || p.y.cols() != p.w.rows || p.x.rows != p.y.rows())
            return fail(errc::shape_mismatch, "matmul of weights [", p.w.rows, ", ", p.w.cols, "] with x [", p.x.rows, ", ",
                        p.x.cols, "] into y [", p.y.rows(), ", ", p.y.cols(), "]");
        FRUGAL_TRY(quant::visit<Formats>(p.w.type, [](auto) {}));
        if (panels_of(i) == 0) continue;
        panels += panels_of(i);
        widest = p.w.cols > widest ? p.w.cols : widest;
        even = even && p.x.rows == products.front().x.rows;
        dev.counters().add(counter::matmul_calls, 1);
        dev.counters().add(counter::dequantize_calls, 1);
        dev.counters().add(counter::weight_bytes_read, p.w.bytes());
    }
    const std::size_t tasks = detail::panel_tasks(dev, panels, even);
    if (tasks == 0) return {};
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(auto room, scratch.matrix(tasks, ops::cpu::matmul_scratch(widest)));
    detail::run_panels(dev, products.size(), panels, tasks, panels_of,
                       [&](std::size_t i, std::size_t first, std::size_t last, std::size_t task) {
                           const matmul_product& p = products[i];
                           // The type was looked up above, so this cannot fail.
                           (void)quant::visit<Formats>(p.w.type, [&]<class Format>(type_tag<Format>) {
                               FRUGAL_REQUIRE_KERNELS(Format);
                               ops::cpu::matmul_rows<typename Device::isa, Format, device::activations_of<Device>>(
                                   p.w, p.x, p.y, first, last, room.row(task));
                           });
                       });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
