#pragma once
/// Queues the work of a step on a GPU: kernels, and products with images. Nothing here allocates or waits, unless the prefill
/// policy of the device does (device::prefill::cublas, when it meets a larger product than before).
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/cuda.hpp"
#include "frugal/device/cuda/kernel_queue.hpp"
#include "frugal/device/cuda/products.hpp"
#include "frugal/device/cuda/room.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/quant/panels.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// Work on one stream. Device: device::cuda<…>, whose policies of activations and prefills products follow.
template <class Device>
class FRUGAL_FLAGGED pass {
    using stream_type = gpu::stream;  // a member has its name

public:
    using device = Device;
    using activations_policy = typename Device::activations;
    using formats = typename Device::image_formats;

    /// `tokens`, `columns`: of the largest input of a product. Errors: out_of_memory, device_failed, device_lost.
    [[nodiscard]] static result<pass> create(const context_ref& on, const stream_type& queue, room& memory, std::size_t tokens,
                                             std::size_t columns) {
        pass out(on, queue);
        if constexpr (activations_policy::quantized) {
            const std::size_t groups = tokens * groups_of(columns);
            FRUGAL_TRY_ASSIGN(out.codes_, memory.template array<std::int8_t>(groups * quant::panel_group));
            FRUGAL_TRY_ASSIGN(out.sums_, memory.template array<std::int16_t>(groups * 2));
            FRUGAL_TRY_ASSIGN(out.scales_, memory.template array<float>(groups));
        }
        return out;
    }

    [[nodiscard]] cudaStream_t stream() const noexcept { return queue_->get(); }
    /// Calls kernel(stream), which starts a kernel there. Errors: that of the start.
    template <class Kernel>
    [[nodiscard]] status start(const Kernel& kernel) const {
        return on_->check("start a kernel", kernel(stream()));
    }

    /// Whether the device's prefill policy may round what is computed of so many tokens at once.
    [[nodiscard]] static constexpr bool may_round(std::size_t tokens) noexcept {
        return Device::prefill::rounds && gpu::may_round(tokens);
    }
    static constexpr bool tiled_delta_rule = tiles_delta_rule<typename Device::prefill>;

    /// Queues that these bytes become `value`.
    [[nodiscard]] status fill(void* memory, int value, std::size_t bytes) const {
        return on_->check("fill memory", cudaMemsetAsync(memory, value, bytes, stream()));
    }
    [[nodiscard]] status zero(void* memory, std::size_t bytes) const { return fill(memory, 0, bytes); }

    /// Queues a copy within the device.
    [[nodiscard]] status copy(void* to, const void* from, std::size_t bytes) const {
        return on_->check("copy on the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()));
    }

    /// x for all products that read it, until the next input: made ready once. x: rows of a room's input_matrix. Errors: of the
    /// start.
    [[nodiscard]] result<activations> input(matrix_view<const float> x) const {
        activations out;
        out.values = x.data();
        out.tokens = x.rows();
        out.groups = groups_of(x.cols());
        if constexpr (activations_policy::quantized) {
            FRUGAL_TRY(start([&](cudaStream_t stream) {
                return quantize_activations<activations_policy>(x.data(), out.tokens, out.groups, codes_, sums_, scales_, stream);
            }));
            out.codes = codes_;
            out.sums = sums_;
            out.scales = scales_;
        }
        return out;
    }

    /// y[i] = x times part i of the image. Errors: of the starts; unsupported_format.
    [[nodiscard]] status multiply(const cuda_image& w, const activations& x, std::initializer_list<matrix_view<float>> y) const {
        const quant::panel_view* part = w.parts().data();
        for (const matrix_view<float>& out : y) FRUGAL_TRY(multiply_part(*part++, x, out));
        return {};
    }

    /// y[i] = x[i / share] times the part of the image that experts[i] names; all parts are alike. groups: of these choices, or
    /// none. Errors: as multiply().
    [[nodiscard]] status multiply_experts(const cuda_image& w, const activations& x, const std::int32_t* experts,
                                          const expert_groups& groups, std::size_t share, matrix_view<float> y) const {
        expert_product product;
        product.panels = of(w.parts().front(), x, y);
        product.experts = experts;
        product.choices = y.rows();
        product.share = share;
        product.groups = groups;
        status started;
        FRUGAL_TRY(quant::visit<formats>(w.parts().front().type, [&]<class Format>(type_tag<Format>) {
            started =
                start_expert_products<Format, activations_policy, typename Device::prefill>(on_, *queue_, prefill_, product);
        }));
        return started;
    }

private:
    [[nodiscard]] static constexpr std::size_t groups_of(std::size_t columns) noexcept {
        return (columns + quant::panel_group - 1) / quant::panel_group;
    }

    pass(context_ref on, const stream_type& queue) : on_(std::move(on)), queue_(&queue) {}

    [[nodiscard]] panel_product of(const quant::panel_view& part, const activations& x, matrix_view<float> y) const {
        panel_product product;
        product.weights = part.data;
        product.rows = part.rows;
        product.panel_bytes = part.panel_bytes;
        product.x = x;
        product.y = y.data();
        product.y_stride = y.stride();
        product.multiprocessors = on_->multiprocessors;
        return product;
    }

    [[nodiscard]] status multiply_part(const quant::panel_view& part, const activations& x, matrix_view<float> y) const {
        const panel_product product = of(part, x, y);
        status started;
        FRUGAL_TRY(quant::visit<formats>(part.type, [&]<class Format>(type_tag<Format>) {
            started = start_product<Format, activations_policy, typename Device::prefill>(on_, *queue_, prefill_, product);
        }));
        return started;
    }

    context_ref on_;
    const stream_type* queue_;
    mutable typename Device::prefill::multiplier prefill_;  ///< of products that may round
    std::int8_t* codes_ = nullptr;
    std::int16_t* sums_ = nullptr;
    float* scales_ = nullptr;
};

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
