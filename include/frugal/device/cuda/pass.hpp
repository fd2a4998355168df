#pragma once
/// Queues the work of a step on a GPU, kernels and products with images, and lends it scratch. Once settled nothing here
/// allocates or waits, unless the prefill policy of the device does (device::prefill::cublas, at a larger product than before).
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
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

/// Work on one stream, and its scratch. Device: device::cuda<…>, whose policies of activations and prefills products follow.
template <class Device>
class FRUGAL_FLAGGED pass {
    using stream_type = gpu::stream;  // a member has its name

public:
    using device = Device;
    using activations_policy = typename Device::activations;
    using formats = typename Device::image_formats;

    /// A pass that measures: it counts scratch, and starts and copies nothing until it is settled. What scratch it hands out
    /// until then is nowhere.
    pass(context_ref on, const stream_type& queue) : on_(std::move(on)), queue_(&queue) {}

    /// Takes as much scratch as the steps so far have wanted at most. From here on steps run, and one like them finds its arrays
    /// where it found them before: recorded, it may run again. Errors: out_of_memory, device_failed, device_lost.
    [[nodiscard]] status settle(room& memory) {
        if constexpr (activations_policy::quantized) {
            FRUGAL_TRY_ASSIGN(codes_, memory.template array<std::int8_t>(input_groups_ * quant::panel_group));
            FRUGAL_TRY_ASSIGN(sums_, memory.template array<std::int16_t>(input_groups_ * 2));
            FRUGAL_TRY_ASSIGN(scales_, memory.template array<float>(input_groups_));
        }
        FRUGAL_TRY_ASSIGN(scratch_, memory.template array<std::byte>(most_));
        measures_ = false;
        return {};
    }

    /// Scratch that is taken while it lives is given back at its end.
    class scope {
    public:
        explicit scope(pass& of) noexcept : of_(&of), used_(of.used_) {}
        scope(const scope&) = delete;
        scope& operator=(const scope&) = delete;
        ~scope() { of_->used_ = used_; }

    private:
        pass* of_;
        std::size_t used_;
    };

    /// Scratch, contents unspecified. Errors: out_of_memory where a step wants more than those that were measured.
    template <class T>
    [[nodiscard]] result<std::span<T>> array(std::size_t count) {
        static_assert(std::is_trivially_copyable_v<T>);
        if (count > (std::numeric_limits<std::size_t>::max)() / 4 / sizeof(T))
            return fail(errc::out_of_memory, "an array of ", count, " elements is beyond the address space");
        const std::size_t bytes = (count * sizeof(T) + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
        if (!measures_ && bytes > most_ - used_)
            return fail(errc::out_of_memory, "a step on the GPU wants more scratch than the ", most_,
                        " bytes it was measured for");
        auto* const data = reinterpret_cast<T*>(scratch_ + used_);
        used_ += bytes;
        most_ = most_ < used_ ? used_ : most_;
        return std::span<T>(data, count);
    }
    /// Rows without gaps. Errors: as array().
    [[nodiscard]] result<matrix_view<float>> matrix(std::size_t rows, std::size_t cols) {
        if (cols != 0 && rows > (std::numeric_limits<std::size_t>::max)() / 8 / cols)
            return fail(errc::out_of_memory, "a matrix [", rows, ", ", cols, "] is beyond the address space");
        FRUGAL_TRY_ASSIGN(const std::span<float> data, array<float>(rows * cols));
        return matrix_view<float>(data.data(), rows, cols);
    }
    /// As an input of a product is laid out: each row is followed by zeros up to whole groups of columns. Write `cols` of them.
    /// Errors: as array(), that of the start.
    [[nodiscard]] result<matrix_view<float>> input_matrix(std::size_t rows, std::size_t cols) {
        FRUGAL_TRY_ASSIGN(const auto whole, matrix(rows, groups_of(cols) * quant::panel_group));
        if (whole.cols() != cols) FRUGAL_TRY(zero(whole.data(), rows * whole.cols() * sizeof(float)));
        return whole.cols_range(0, cols);
    }

    [[nodiscard]] cudaStream_t stream() const noexcept { return queue_->get(); }
    /// Calls kernel(stream), which starts a kernel there. Errors: that of the start.
    template <class Kernel>
    [[nodiscard]] status start(const Kernel& kernel) const {
        return measures_ ? status() : on_->check("start a kernel", kernel(stream()));
    }

    /// Whether the device's prefill policy may round what is computed of so many tokens at once.
    [[nodiscard]] static constexpr bool may_round(std::size_t tokens) noexcept {
        return Device::prefill::rounds && gpu::may_round(tokens);
    }
    static constexpr bool tiled_delta_rule = tiles_delta_rule<typename Device::prefill>;

    /// Queues that these bytes become `value`.
    [[nodiscard]] status fill(void* memory, int value, std::size_t bytes) const {
        return measures_ ? status() : on_->check("fill memory", cudaMemsetAsync(memory, value, bytes, stream()));
    }
    [[nodiscard]] status zero(void* memory, std::size_t bytes) const { return fill(memory, 0, bytes); }

    /// Queues a copy within the device.
    [[nodiscard]] status copy(void* to, const void* from, std::size_t bytes) const {
        return measures_ ? status()
                         : on_->check("copy on the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()));
    }

    /// Queues a copy from or to pinned memory of the host.
    [[nodiscard]] status upload(void* to, const void* from, std::size_t bytes) const {
        return measures_ ? status() : queue_->upload(to, from, bytes);
    }
    [[nodiscard]] status download(void* to, const void* from, std::size_t bytes) const {
        return measures_ ? status() : queue_->download(to, from, bytes);
    }

    /// x for all products that read it, until the next input: made ready once. x: rows of an input_matrix. Errors: of the
    /// start.
    [[nodiscard]] result<activations> input(matrix_view<const float> x) {
        activations out;
        out.values = x.data();
        out.tokens = x.rows();
        out.groups = groups_of(x.cols());
        if constexpr (activations_policy::quantized) {
            const std::size_t groups = out.tokens * out.groups;
            if (measures_) input_groups_ = input_groups_ < groups ? groups : input_groups_;
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
    [[nodiscard]] status multiply(const cuda_image& w, const activations& x, std::initializer_list<matrix_view<float>> y) {
        if (measures_) return {};
        const quant::panel_view* part = w.parts().data();
        for (const matrix_view<float>& out : y) FRUGAL_TRY(multiply_part(*part++, x, out));
        return {};
    }

    /// y[i] = x[i / share] times the part of the image that experts[i] names; all parts are alike. groups: of these choices, or
    /// none. Errors: as multiply().
    [[nodiscard]] status multiply_experts(const cuda_image& w, const activations& x, const std::int32_t* experts,
                                          const expert_groups& groups, std::size_t share, matrix_view<float> y) {
        if (measures_) return {};
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
    static constexpr std::size_t scratch_alignment = 256;

    [[nodiscard]] static constexpr std::size_t groups_of(std::size_t columns) noexcept {
        return (columns + quant::panel_group - 1) / quant::panel_group;
    }

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

    [[nodiscard]] status multiply_part(const quant::panel_view& part, const activations& x, matrix_view<float> y) {
        const panel_product product = of(part, x, y);
        status started;
        FRUGAL_TRY(quant::visit<formats>(part.type, [&]<class Format>(type_tag<Format>) {
            started = start_product<Format, activations_policy, typename Device::prefill>(on_, *queue_, prefill_, product);
        }));
        return started;
    }

    context_ref on_;
    const stream_type* queue_;
    typename Device::prefill::multiplier prefill_;  ///< of products that may round
    std::int8_t* codes_ = nullptr;
    std::int16_t* sums_ = nullptr;
    float* scales_ = nullptr;
    bool measures_ = true;
    std::byte* scratch_ = reinterpret_cast<std::byte*>(scratch_alignment);  ///< while it measures, an address that nothing reads
    std::size_t used_ = 0, most_ = 0;                                       ///< bytes
    std::size_t input_groups_ = 0;                                          ///< of the largest input
};

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
