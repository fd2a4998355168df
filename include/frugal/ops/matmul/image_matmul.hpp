#pragma once
/// Product of a weight image with a batch of activations.
#include <cstddef>
#include <span>

#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/device/image.hpp"
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
        const std::span<const quant::interleaved_view> parts = image.parts();
        FRUGAL_TRY(device::check_image_product(
            parts.size(), parts.empty() ? 0 : parts.front().cols, [&](std::size_t i) { return parts[i].rows; }, x, y));
        if (x.rows() == 0) return {};
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const quant::interleaved_view& w = parts[i];
            const std::size_t limit = dev.concurrency() == 0 ? 1 : dev.concurrency();
            const std::size_t tasks = w.groups() < limit ? w.groups() : limit;
            workspace::scope scope(scratch);
            FRUGAL_TRY_ASSIGN(auto decoded, scratch.matrix(limit, ops::cpu::matmul_scratch(w.cols)));
            dev.counters().add(counter::matmul_calls, 1);
            dev.counters().add(counter::weight_bytes_read, w.bytes());
            FRUGAL_TRY(quant::visit<typename Device::image_formats>(w.type, [&]<class Format>(type_tag<Format>) {
                dev.run(tasks, [&](std::size_t task) {
                    ops::cpu::matmul_interleaved<typename Device::isa, Format>(
                        w, x, y[i], w.groups() * task / tasks, w.groups() * (task + 1) / tasks, decoded.row(task));
                });
            }));
        }
        return {};
    }
}

}  // namespace ops

FRUGAL_NAMESPACE_END
