#pragma once
/// Product of a weight image with a batch of activations.
#include <cstddef>
#include <span>

#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/device/image.hpp"
#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/matmul/matmul_cpu.hpp"
#include "frugal/ops/matmul/panel_runs.hpp"
#include "frugal/quant/compiled.hpp"
#include "frugal/quant/panels.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// One matrix of an image times activations that prepare_activations made ready.
/// y[t][r] = sum over c of w[r][c] * x[t][c]. x: [tokens, w.cols], y: [tokens, w.rows].
struct FRUGAL_FLAGGED image_product {
    quant::panel_view w;
    prepared_activations x;
    matrix_view<float> y;
};

namespace detail {

/// `product(i)` gives image_product i of `count`, as one parallel region.
template <device::image_target Device, class Product>
[[nodiscard]] status multiply_images(Device& dev, workspace& scratch, std::size_t count, const Product& product) {
    std::size_t panels = 0;
    bool even = true;
    const auto panels_of = [&](std::size_t i) {
        const image_product p = product(i);
        return p.x.rows == 0 ? 0 : p.w.panels();
    };
    for (std::size_t i = 0; i < count; ++i) {
        const image_product p = product(i);
        if (p.x.cols != p.w.cols || p.y.cols() != p.w.rows || p.x.rows != p.y.rows())
            return fail(errc::shape_mismatch, "product of an image [", p.w.rows, ", ", p.w.cols, "] with x [", p.x.rows, ", ",
                        p.x.cols, "] into y [", p.y.rows(), ", ", p.y.cols(), "]");
        if (panels_of(i) == 0) continue;
        panels += p.w.panels();
        even = even && p.x.rows == product(0).x.rows;
        dev.counters().add(counter::matmul_calls, 1);
        dev.counters().add(counter::weight_bytes_read, p.w.bytes());
    }
    const std::size_t tasks = panel_tasks(dev, panels, even);
    if (tasks == 0) return {};
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(auto room, scratch.matrix(tasks, ops::cpu::panel_scratch));
    run_panels(dev, count, panels, tasks, panels_of, [&](std::size_t i, std::size_t first, std::size_t last, std::size_t task) {
        const image_product p = product(i);
        ops::cpu::panel_kernel multiply = nullptr;
        // The type was in the list when the image was packed, so this cannot fail.
        (void)quant::visit<typename Device::image_formats>(p.w.type, [&]<class Format>(type_tag<Format>) {
            FRUGAL_REQUIRE_KERNELS(Format);
            multiply = &ops::cpu::matmul_panels<typename Device::isa, Format, device::activations_of<Device>>;
        });
        multiply(p.w, p.x, p.y, first, last, room.row(task));
    });
    return {};
}

}  // namespace detail

/// Computes every product, each with the bits that it has alone, as one parallel region, for devices whose products the
/// library's kernels compute. No y may overlap another y or any x. A product without tokens reads nothing.
/// Errors: shape_mismatch, out_of_memory; nothing is computed then.
template <device::image_target Device>
    requires(!device::multiplying_target<Device>)
[[nodiscard]] status grouped_image_matmul(Device& dev, workspace& scratch, std::span<const image_product> products) {
    return detail::multiply_images(dev, scratch, products.size(), [&](std::size_t i) { return products[i]; });
}

/// y[i][t][r] = sum over c of w_i[r][c] * x[t][c] for each matrix w_i of the image, with activations that prepare_activations
/// made ready. Errors: shape_mismatch, out_of_memory.
template <device::image_target Device>
    requires(!device::multiplying_target<Device>)
[[nodiscard]] status image_matmul(Device& dev, workspace& scratch, const typename Device::image& image,
                                  const prepared_activations& x, std::span<const matrix_view<float>> y) {
    const std::span<const quant::panel_view> parts = image.parts();
    if (y.size() != parts.size())
        return fail(errc::shape_mismatch, "product of an image of ", parts.size(), " matrices into ", y.size());
    return detail::multiply_images(dev, scratch, parts.size(), [&](std::size_t i) { return image_product{parts[i], x, y[i]}; });
}

/// The same with activations as they are. x: [tokens, columns]; y[i]: [tokens, rows of w_i]. On the CPU: the bits of ops::matmul
/// with the weights that the image was packed from. Errors: those of a device that computes itself too.
template <device::image_target Device>
[[nodiscard]] status image_matmul(Device& dev, workspace& scratch, const typename Device::image& image,
                                  matrix_view<const float> x, std::span<const matrix_view<float>> y) {
    if constexpr (device::multiplying_target<Device>) {
        return dev.multiply(scratch, image, x, y);
    } else {
        workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(const prepared_activations ready, prepare_activations(dev, scratch, x));
        return image_matmul(dev, scratch, image, ready, y);
    }
}

}  // namespace ops

FRUGAL_NAMESPACE_END
