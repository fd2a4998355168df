#pragma once
/// Product of a weight image with a batch of activations.
#include <cstddef>
#include <span>

#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/device/image.hpp"
#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/matmul/matmul_cpu.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// y[i][t][r] = sum over c of w_i[r][c] * x[t][c] for each matrix w_i of the image. x: [tokens, columns]; y[i]: [tokens,
/// rows of w_i]. On the CPU: the bits of ops::matmul with the weights that the image was packed from.
/// Errors: shape_mismatch, out_of_memory, and those of a device that computes itself.
template <device::image_target Device>
[[nodiscard]] status image_matmul(Device& dev, workspace& scratch, const typename Device::image& image,
                                  matrix_view<const float> x, std::span<const matrix_view<float>> y) {
    if constexpr (device::multiplying_target<Device>) {
        return dev.multiply(scratch, image, x, y);
    } else {
        const std::span<const quant::panel_view> parts = image.parts();
        FRUGAL_TRY(device::check_image_product(
            parts.size(), parts.empty() ? 0 : parts.front().cols, [&](std::size_t i) { return parts[i].rows; }, x, y));
        if (x.rows() == 0) return {};
        workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(const prepared_activations ready, prepare_activations(dev, scratch, x));
        return image_matmul(dev, scratch, image, ready, y);
    }
}

/// The same with activations that prepare_activations made ready, for devices whose products the library's kernels compute.
template <device::image_target Device>
    requires(!device::multiplying_target<Device>)
[[nodiscard]] status image_matmul(Device& dev, workspace& scratch, const typename Device::image& image,
                                  const prepared_activations& x, std::span<const matrix_view<float>> y) {
    using activations = device::activations_of<Device>;
    const std::span<const quant::panel_view> parts = image.parts();
    std::size_t panels = 0;
    for (const quant::panel_view& w : parts) {
        panels += w.panels();
        dev.counters().add(counter::matmul_calls, 1);
        dev.counters().add(counter::weight_bytes_read, w.bytes());
    }
    const std::size_t limit = dev.concurrency() == 0 ? 1 : dev.concurrency();
    const std::size_t tasks = panels < limit ? panels : limit;
    if (tasks == 0) return {};
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(auto room, scratch.matrix(tasks, ops::cpu::panel_scratch));
    // One parallel region over the panels of all parts.
    dev.run(tasks, [&](std::size_t task) {
        std::size_t begin = panels * task / tasks, end = panels * (task + 1) / tasks;
        for (std::size_t i = 0; i < parts.size() && end != 0; ++i) {
            const std::size_t own = parts[i].panels(), last = end < own ? end : own;
            if (begin < last)
                // The type was in the list when the image was packed, so this cannot fail.
                (void)quant::visit<typename Device::image_formats>(parts[i].type, [&]<class Format>(type_tag<Format>) {
                    ops::cpu::matmul_panels<typename Device::isa, Format, activations>(parts[i], x, y[i], begin, last,
                                                                                       room.row(task));
                });
            begin = begin < own ? 0 : begin - own;
            end -= last;
        }
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
