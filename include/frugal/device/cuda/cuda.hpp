#pragma once
/// NVIDIA GPUs as a device target: weights stay on the device in panels, activations go there for each product. Every other
/// operator runs on the host CPU, but for model::cuda_decoder, which runs whole steps there. Needs the CUDA runtime and the
/// kernels: link frugal::cuda and frugal::cuda_kernels. Host code like this is for the host's compiler; nvcc is for the kernels
/// alone (*.cuh, kernels/cuda).
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cuda/activations.hpp"
#include "frugal/device/cuda/arch.hpp"
#include "frugal/device/cuda/errors.hpp"
#include "frugal/device/cuda/memory.hpp"
#include "frugal/device/cuda/prefill.hpp"
#include "frugal/device/cuda/products.hpp"
#include "frugal/device/cuda/runtime.hpp"
#include "frugal/device/host_side.hpp"
#include "frugal/device/image.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/quant/panels.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

namespace gpu::detail {
inline std::atomic<std::uint64_t> generations{0};
}  // namespace gpu::detail

/// Weights on a device: the panels of quant::panel_weights, in the device's memory. Move-only.
class FRUGAL_FLAGGED cuda_image {
public:
    /// Their `data` are addresses of the device.
    [[nodiscard]] std::span<const quant::panel_view> parts() const noexcept { return parts_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return memory_.bytes(); }
    [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

private:
    template <cuda_arch, cpu_target, activation_policy, quant::format_list, prefill_policy>
    friend class cuda;
    gpu::device_memory memory_;
    std::vector<quant::panel_view> parts_;
    std::uint64_t generation_ = 0;
};

/// A GPU with kernels for Arch, and the host CPU beside it. Move-only; one call at a time.
///
/// Products take activations as the policy says, as those of packed_cpu do, and add in an order of their own: each row of y is
/// summed by one block in a fixed order, so its bits depend neither on the batch nor on the device. With f32_activations they
/// are those of the same weights in f32.
///
/// Errors of the device: `device_failed` and `out_of_memory` leave it usable; after `device_lost` every image is gone,
/// `generation()` has changed, and nothing but `reopen()` helps.
template <cuda_arch Arch = sm_90, cpu_target Host = cpu<>, activation_policy Activations = default_activations,
          quant::format_list Formats = quant::all, prefill_policy Prefill = prefill::exact>
class FRUGAL_FLAGGED cuda : public host_side<Host> {
public:
    using arch = Arch;
    using activations = typename cuda_activations<Activations>::type;
    using host_side<Host>::counters;
    using host_side<Host>::run;
    using image = cuda_image;
    using source = quant::weight_view;
    using image_formats = Formats;
    using prefill = Prefill;
    static constexpr std::string_view name = "cuda";

    /// Opens device `index`. `host` are the arguments of the host CPU device, such as an executor. Errors: device_failed (no
    /// such device, no driver or one too old), unsupported (a device that code for Arch does not run on), out_of_memory,
    /// device_lost.
    template <class... HostArgument>
    [[nodiscard]] static result<cuda> open(int index, HostArgument&&... host) {
        cuda out(index, std::make_unique<Host>(std::forward<HostArgument>(host)...));
        FRUGAL_TRY(out.reopen());
        return out;
    }

    /// Closes the device and opens it anew. Every image of it is lost. Where the device had been lost, the process's CUDA
    /// context is reset: whatever else this process keeps on the device is lost with it. Errors: as open().
    [[nodiscard]] status reopen() {
        const bool was_lost = lost_ != nullptr;
        close();
        if (was_lost) FRUGAL_TRY(gpu::check("reset the device", cudaDeviceReset()));
        lost_.reset();
        auto opened = std::make_shared<gpu::context>();
        opened->index = index_;
        opened->generation = generation_;
        int count = 0;
        FRUGAL_TRY(opened->check("find a device", cudaGetDeviceCount(&count)));
        if (index_ < 0 || index_ >= count)
            return fail(errc::device_failed, "CUDA device ", index_, " does not exist; there are ", count,
                        " (cudaErrorInvalidDevice)");
        FRUGAL_TRY(opened->check("use the device", cudaSetDevice(index_)));
        const auto ask = [&](int& value, cudaDeviceAttr attribute) {
            return opened->check("ask what the device is", cudaDeviceGetAttribute(&value, attribute, index_));
        };
        FRUGAL_TRY(ask(opened->major, cudaDevAttrComputeCapabilityMajor));
        FRUGAL_TRY(ask(opened->minor, cudaDevAttrComputeCapabilityMinor));
        FRUGAL_TRY(ask(opened->multiprocessors, cudaDevAttrMultiProcessorCount));
        if (!runs_on<Arch>(opened->major, opened->minor))
            return fail(errc::unsupported, "CUDA device ", index_, " has compute capability ", opened->major, '.', opened->minor,
                        "; this program's kernels are for ", Arch::name,
                        " (cudaErrorNoKernelImageForDevice): use device::cuda of its architecture");
        FRUGAL_TRY_ASSIGN(gpu::stream queue, gpu::stream::create(opened));
        queue_ = std::make_unique<gpu::stream>(std::move(queue));
        context_ = std::move(opened);
        return {};
    }

    /// A process-wide number: no two devices, and no two openings of one, ever have the same.
    [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }
    /// Whether the device is gone: only reopen() helps.
    [[nodiscard]] bool lost() const noexcept { return context_ == nullptr; }
    /// What lives on the device hangs on these. Precondition: !lost().
    [[nodiscard]] const gpu::context_ref& context() const noexcept { return context_; }
    [[nodiscard]] const gpu::stream& queue() const noexcept { return *queue_; }
    /// Passes on how work of yours on the queue went, and notes where that lost the device.
    [[nodiscard]] status note(status outcome) { return noticing(std::move(outcome)); }

    /// Packs matrices, which may differ in format, and uploads them. An error leaves nothing allocated. Errors:
    /// unsupported_format, shape_mismatch (also unequal columns), invalid_argument, out_of_memory, device_failed, device_lost.
    [[nodiscard]] result<image> pack(std::span<const source> parts) {
        if (lost()) return gone();
        for (const source& part : parts)
            if (part.cols != parts.front().cols)
                return fail(errc::shape_mismatch, "cannot stack a part of ", part.cols, " columns on one of ",
                            parts.front().cols);
        FRUGAL_TRY_ASSIGN(const quant::panel_weights packed,
                          quant::panel_weights::pack<Formats>(
                              parts, [this](std::size_t n, std::size_t grain, auto&& f) { this->run_ranges(n, grain, f); }));
        return noticing(upload(packed));
    }

    /// y[i] = x times part i of the image: see image_target. The workspace is not used. Errors: shape_mismatch, out_of_memory,
    /// device_failed, device_lost (also for an image of an earlier generation or of another device).
    [[nodiscard]] status multiply(workspace&, const image& w, matrix_view<const float> x, std::span<const matrix_view<float>> y) {
        if (lost()) return gone();
        if (w.generation() != generation_)
            return fail(errc::device_lost, "a weight image of generation ", w.generation(), " on a device of generation ",
                        generation_, ": pack it again");
        const auto parts = w.parts();
        FRUGAL_TRY(check_image_product(
            parts.size(), parts.empty() ? 0 : parts.front().cols, [&](std::size_t i) { return parts[i].rows; }, x, y));
        if (x.rows() == 0 || parts.empty()) return {};
        FRUGAL_TRY(noticing(product(parts, x, y)));
        for (const quant::panel_view& part : parts) counters().add(counter::weight_bytes_read, part.bytes());
        counters().add(counter::image_products, 1);
        return {};
    }

private:
    /// Tokens that go to the device at once: bounds the memory of activations.
    static constexpr std::size_t most_tokens = 512;

    cuda(int index, std::unique_ptr<Host> host) : host_side<Host>(std::move(host)), index_(index) {}

    void close() noexcept {
        device_room_ = {};
        host_room_ = {};
        prefill_ = {};
        queue_.reset();
        context_.reset();
        generation_ = gpu::detail::generations.fetch_add(1, std::memory_order_relaxed) + 1;
    }

    [[nodiscard]] result<image> upload(const quant::panel_weights& packed) {
        image out;
        FRUGAL_TRY_ASSIGN(out.memory_, gpu::device_memory::allocate(context_, packed.bytes()));
        out.generation_ = generation_;
        std::byte* to = out.memory_.data();
        for (quant::panel_view part : packed.parts()) {
            FRUGAL_TRY(queue_->upload(to, part.data, part.bytes()));
            part.data = to;
            to += part.bytes();
            out.parts_.push_back(part);
        }
        FRUGAL_TRY(queue_->synchronize());
        counters().add(counter::images_packed, 1);
        counters().add(counter::image_bytes_uploaded, packed.bytes());
        return out;
    }

    [[nodiscard]] status product(std::span<const quant::panel_view> parts, matrix_view<const float> x,
                                 std::span<const matrix_view<float>> y) {
        std::size_t rows = 0;
        for (const quant::panel_view& part : parts) rows += part.rows;
        const std::size_t groups = (x.cols() + quant::panel_group - 1) / quant::panel_group, cols = groups * quant::panel_group;
        const std::size_t batch = (std::min)(x.rows(), most_tokens);
        // Floats, then codes, scales and sums of activations, then results; each part starts aligned to 64 bytes.
        const auto aligned = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
        const std::size_t codes_at = aligned(batch * cols * sizeof(float)), scales_at = codes_at + aligned(batch * cols);
        const std::size_t sums_at = scales_at + aligned(batch * groups * sizeof(float));
        const std::size_t y_at = sums_at + aligned(batch * groups * 2 * sizeof(std::int16_t));
        if (rows > (std::numeric_limits<std::size_t>::max)() / 16 / batch)
            return fail(errc::out_of_memory, "products of ", rows, " rows are beyond the address space");
        const std::size_t bytes = y_at + batch * rows * sizeof(float);
        if (device_room_.bytes() < bytes) {
            device_room_ = {};
            host_room_ = {};
            // Both or none: the next product must not find one without the other.
            FRUGAL_TRY_ASSIGN(gpu::device_memory on_device, gpu::device_memory::allocate(context_, bytes));
            FRUGAL_TRY_ASSIGN(host_room_, gpu::pinned_memory::allocate(context_, bytes));
            device_room_ = std::move(on_device);
        }
        std::byte* const room = device_room_.data();
        auto* const staged = host_room_.as<std::byte>();
        for (std::size_t first = 0; first < x.rows(); first += batch) {
            const std::size_t tokens = (std::min)(batch, x.rows() - first);
            for (std::size_t t = 0; t < tokens; ++t) {
                std::byte* const to = staged + t * cols * sizeof(float);
                std::memcpy(to, x.row(first + t), x.cols() * sizeof(float));
                std::memset(to + x.cols() * sizeof(float), 0, (cols - x.cols()) * sizeof(float));
            }
            FRUGAL_TRY(queue_->upload(room, staged, tokens * cols * sizeof(float)));
            gpu::panel_product product;
            product.x.values = reinterpret_cast<const float*>(room);
            product.x.tokens = tokens;
            product.x.groups = groups;
            product.multiprocessors = context_->multiprocessors;
            product.y_stride = rows;
            if constexpr (Activations::quantized) {
                auto* const codes = reinterpret_cast<std::int8_t*>(room + codes_at);
                auto* const scales = reinterpret_cast<float*>(room + scales_at);
                auto* const sums = reinterpret_cast<std::int16_t*>(room + sums_at);
                FRUGAL_TRY(context_->check("quantise activations",
                                           gpu::quantize_activations<Activations>(product.x.values, tokens, groups, codes, sums,
                                                                                  scales, queue_->get())));
                product.x.sums = sums;
                product.x.codes = codes;
                product.x.scales = scales;
            }
            auto* out = reinterpret_cast<float*>(room + y_at);
            for (const quant::panel_view& part : parts) {
                product.weights = part.data;
                product.rows = part.rows;
                product.panel_bytes = part.panel_bytes;
                product.y = out;
                out += part.rows;
                if (part.rows == 0) continue;
                status started;
                FRUGAL_TRY(quant::visit<Formats>(part.type, [&]<class Format>(type_tag<Format>) {
                    started = gpu::start_product<Format, Activations, Prefill>(context_, *queue_, prefill_, product);
                }));
                FRUGAL_TRY(std::move(started));
            }
            FRUGAL_TRY(queue_->download(staged + y_at, room + y_at, tokens * rows * sizeof(float)));
            FRUGAL_TRY(queue_->synchronize());
            std::size_t at = 0;
            for (std::size_t i = 0; i < parts.size(); at += parts[i++].rows)
                for (std::size_t t = 0; t < tokens && parts[i].rows != 0; ++t)
                    std::memcpy(y[i].row(first + t), staged + y_at + (t * rows + at) * sizeof(float),
                                parts[i].rows * sizeof(float));
        }
        return {};
    }

    [[nodiscard]] error gone() const { return fail(errc::device_lost, "CUDA device ", index_, " is lost; reopen() it"); }

    /// Drops what is left of a device that turned out to be lost.
    template <class Outcome>
    [[nodiscard]] Outcome noticing(Outcome outcome) {
        if (!outcome && outcome.error().code == errc::device_lost) {
            context_->lost = true;
            device_room_ = {};
            host_room_ = {};
            prefill_ = {};
            queue_.reset();
            lost_ = std::move(context_);
            generation_ = gpu::detail::generations.fetch_add(1, std::memory_order_relaxed) + 1;
        }
        return outcome;
    }

    int index_;
    gpu::context_ref context_, lost_;
    std::unique_ptr<gpu::stream> queue_;
    gpu::device_memory device_room_;
    gpu::pinned_memory host_room_;
    typename Prefill::multiplier prefill_;
    std::uint64_t generation_ = 0;
};

static_assert(multiplying_target<cuda<>>, "frugal: device::cuda must model device::multiplying_target");

}  // namespace device

FRUGAL_NAMESPACE_END
