#pragma once
/// Several independent products of weights with activations as one parallel region.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/pack_panels.hpp"
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

namespace detail {

/// What multiplies weights of one format from a file's blocks.
struct FRUGAL_FLAGGED row_kernels {
    quant::panel_packer pack = nullptr;
    ops::cpu::panel_kernel multiply = nullptr;
    std::size_t panel_bytes = 0;
};

/// As ops::cpu::matmul_panels, from a file's blocks, with the same bits: some panels are packed, and multiplied before the caches
/// lose them. `scratch`: ops::cpu::matmul_scratch(w.cols) floats.
inline void multiply_rows(const row_kernels& kernels, const quant::weight_view& w, const prepared_activations& x,
                          matrix_view<float> y, std::size_t first, std::size_t last, float* scratch) {
    constexpr std::size_t cached = std::size_t{1} << 14;
    std::byte* const room = reinterpret_cast<std::byte*>(scratch + ops::cpu::panel_scratch);
    const std::size_t together = kernels.panel_bytes < cached / 2 ? cached / (kernels.panel_bytes + 1) : 1;
    const std::size_t most = ops::cpu::matmul_scratch(w.cols) - ops::cpu::panel_scratch;
    while (first < last) {
        std::size_t count = (std::min)(together, last - first);
        count = (std::min)(count, (std::max)(most * sizeof(float) / (kernels.panel_bytes + 1), std::size_t{1}));
        std::memset(room, 0, count * kernels.panel_bytes);
        kernels.pack(w, first, first + count, room);
        const std::size_t row = first * quant::panel_rows, rows = (std::min)(count * quant::panel_rows, w.rows - row);
        kernels.multiply({w.type, room, rows, w.cols, kernels.panel_bytes}, x, y.cols_range(row, rows), 0, count, scratch);
        first += count;
    }
}

}  // namespace detail

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
                           detail::row_kernels kernels;
                           // The type was looked up above, so this cannot fail.
                           (void)quant::visit<Formats>(p.w.type, [&]<class Format>(type_tag<Format>) {
                               FRUGAL_REQUIRE_KERNELS(Format);
                               using isa = typename Device::isa;
                               kernels = {&device::pack_panels<isa, Format>,
                                          &ops::cpu::matmul_panels<isa, Format, device::activations_of<Device>>,
                                          quant::panel_bytes<Format>(p.w.cols)};
                           });
                           detail::multiply_rows(kernels, p.w, p.x, p.y, first, last, room.row(task));
                       });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
