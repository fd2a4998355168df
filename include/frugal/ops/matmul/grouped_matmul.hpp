#pragma once
/// Several independent products of weights with activations as one parallel region.
#include <cstddef>
#include <span>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/matmul/matmul_cpu.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// y[t][r] = sum over c of w[r][c] * x[t][c]; x: [tokens, w.cols], made ready by prepare_activations; y: [tokens, w.rows].
struct matmul_product {
    quant::weight_view w;
    prepared_activations x;
    matrix_view<float> y;
};

namespace detail {

/// Parts that grouped_matmul cuts its work into, at most: more than threads, for products differ in their number of tokens, so
/// parts differ in cost.
template <device::cpu_target Device>
[[nodiscard]] std::size_t grouped_matmul_parts(const Device& dev) {
    const std::size_t threads = dev.concurrency();
    return threads <= 1 ? 1 : threads * 4;
}

}  // namespace detail

/// Floats of scratch that grouped_matmul takes for weights of `cols` columns, at most.
template <device::cpu_target Device>
[[nodiscard]] std::size_t grouped_matmul_scratch(const Device& dev, std::size_t cols) {
    return (detail::grouped_matmul_parts(dev) + 1) * ops::cpu::matmul_scratch(cols);
}

/// Computes every product, each with the bits that ops::matmul gives for it alone. All are cut into tasks of one parallel
/// region: a mixture of experts has many small ones. Types may differ; no y may overlap another y or any x.
/// A product without tokens reads nothing. Errors: shape_mismatch, unsupported_format, out_of_memory; nothing is computed then.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status grouped_matmul(Device& dev, workspace& scratch, std::span<const matmul_product> products) {
    const auto panels_of = [](const matmul_product& p) {
        return p.x.rows == 0 ? 0 : (p.w.rows + quant::panel_rows - 1) / quant::panel_rows;
    };
    std::size_t panels = 0, widest = 0;
    for (const matmul_product& p : products) {
        if (p.x.cols != p.w.cols || p.y.cols() != p.w.rows || p.x.rows != p.y.rows())
            return fail(errc::shape_mismatch, "matmul of weights [", p.w.rows, ", ", p.w.cols, "] with x [", p.x.rows, ", ",
                        p.x.cols, "] into y [", p.y.rows(), ", ", p.y.cols(), "]");
        FRUGAL_TRY(quant::visit<Formats>(p.w.type, [](auto) {}));
        if (panels_of(p) == 0) continue;
        panels += panels_of(p);
        widest = p.w.cols > widest ? p.w.cols : widest;
        dev.counters().add(counter::matmul_calls, 1);
        dev.counters().add(counter::dequantize_calls, 1);
        dev.counters().add(counter::weight_bytes_read, p.w.bytes());
    }
    if (panels == 0) return {};
    const std::size_t limit = detail::grouped_matmul_parts(dev);
    const std::size_t parts = panels < limit ? panels : limit;
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(auto room, scratch.matrix(parts, ops::cpu::matmul_scratch(widest)));
    dev.run(parts, [&](std::size_t part) {
        const std::size_t begin = panels * part / parts, end = panels * (part + 1) / parts;
        std::size_t before = 0;  // panels of the products already passed
        for (const matmul_product& p : products) {
            const std::size_t own = panels_of(p);
            if (before >= end) break;
            if (before + own > begin) {
                const std::size_t first = begin > before ? begin - before : 0;
                const std::size_t last = end - before < own ? end - before : own;
                // The type was looked up above, so this cannot fail.
                (void)quant::visit<Formats>(p.w.type, [&]<class Format>(type_tag<Format>) {
                    ops::cpu::matmul_rows<typename Device::isa, Format, device::activations_of<Device>>(p.w, p.x, p.y, first,
                                                                                                        last, room.row(part));
                });
            }
            before += own;
        }
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
