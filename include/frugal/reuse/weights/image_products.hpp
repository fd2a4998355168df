#pragma once
/// Products from weight images that stay on a device, with the host's work derived from what is resident there.
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/device/image.hpp"
#include "frugal/ops/matmul/image_matmul.hpp"
#include "frugal/reuse/weights/host_buffers.hpp"
#include "frugal/reuse/weights/host_weights.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/reuse/weights/residency.hpp"
#include "frugal/reuse/weights/weight_loading.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What happens where a device cannot hold or multiply an image.
enum class on_device_failure {
    use_host,      ///< the host computes that product, from then on until image_store::retry; counted as host_fallbacks
    return_error,  ///< the step fails
};

struct FRUGAL_FLAGGED image_store_options {
    std::size_t layers = 0;
    std::size_t byte_budget = (std::numeric_limits<std::size_t>::max)();  ///< of images; what is beyond stays with the host
    bool keep = true;                                                   ///< false: images are packed anew in every step
    on_device_failure on_failure = on_device_failure::use_host;
    reuse::source_unneeded source_unneeded = nullptr;  ///< may be empty
};

/// Whether an error is the device's (`unsupported`: it has no program for the shape), so that the host can do its work; others
/// are the caller's.
[[nodiscard]] inline bool is_device_failure(const error& e) noexcept {
    return e.code == errc::out_of_memory || e.code == errc::device_failed || e.code == errc::device_lost ||
           e.code == errc::unsupported;
}

/// What a store does where its device fails, and why it had to last.
class FRUGAL_FLAGGED device_failures {
public:
    explicit device_failures(on_device_failure rule) noexcept : rule_(rule) {}

    /// Whether the host computes in the place of a device whose product failed so. If it does, that is counted, and the error
    /// is kept here.
    template <counter_policy Counters>
    [[nodiscard]] bool host_takes_over(status& failed, Counters& counters) {
        if (rule_ == on_device_failure::return_error || !is_device_failure(failed.error())) return false;
        counters.add(counter::host_fallbacks, 1);
        last_ = std::move(failed).error();
        return true;
    }
    [[nodiscard]] const std::optional<error>& last() const noexcept { return last_; }

private:
    on_device_failure rule_;
    std::optional<error> last_;
};

/// y[i] = x times the image's matrix i, by the device or by the library's kernels; see ops::image_matmul.
template <device::image_target Device, std::size_t N>
[[nodiscard]] status multiply_image(Device& dev, workspace& scratch, const typename Device::image& image, const product_input& x,
                                    const std::array<matrix_view<float>, N>& y) {
    const std::span<const matrix_view<float>> all(y);
    if constexpr (!device::multiplying_target<Device>)
        if (x.ready) return ops::image_matmul(dev, scratch, image, *x.ready, all);
    return ops::image_matmul(dev, scratch, image, x.x, all);
}

/// Images of all layers of one kind, and the host buffers that they are packed from.
/// List: a product_list. Formats: of the file's weights. One step at a time.
template <class List, device::image_target Device, quant::format_list Formats,
          weight_loading_policy Loading = default_weight_loading, counter_policy Counters = counters_off,
          class Poisoning = unpoisoned, activation_sharing_policy Sharing = default_activation_sharing>
class FRUGAL_FLAGGED image_store {
    using image = typename Device::image;
    using content = host_weights<typename Device::source>;
    using kept = typename List::template kept<device::packs_small_products<Device>>;
    using table = typename kept::table;
    using buffers_type = host_buffers<table, content, Loading, Counters, Poisoning>;

public:
    using weights = typename List::weights;

    /// Products of one layer for one step: what a layer's forward takes. Holds the layer's images until it is destroyed.
    class step {
    public:
        /// x for several products; see share_input.
        [[nodiscard]] result<product_input> share(matrix_view<const float> x) { return share_input<Sharing>(dev_, scratch_, x); }
        /// As direct_products::multiply. Errors: besides those, the device's, where the store does not let the host do its work.
        template <class Product>
        [[nodiscard]] status multiply(const product_input& x, const std::array<matrix_view<float>, Product::size>& y) {
            static_assert(
                List::template contains<Product>,
                "frugal: this product is not in the layer's product_list; add it there, so that its weights are loaded");
            if constexpr (kept::template contains<Product>)
                return multiply_kept<Product>(x, y);
            else
                return multiply_each<Formats>(dev_, scratch_, Product::of(weights_), x, y);
        }

    private:
        friend class image_store;
        step(image_store& store, Device& dev, workspace& scratch, const weights& w, lease<image> held)
            : store_(store), dev_(dev), scratch_(scratch), weights_(w), lease_(std::move(held)) {}

        template <class Product>
        [[nodiscard]] status multiply_kept(const product_input& x, const std::array<matrix_view<float>, Product::size>& y) {
            constexpr std::size_t index = kept::template index_of<Product>();
            constexpr bit_set bit = bit_set{1} << index;
            if ((lease_.modes() & bit) == 0) {
                status done = on_device<Product>(index, x, y);
                if (done || !store_.failures_.host_takes_over(done, store_.counters())) return done;
                lease_.refuse(index);
                lease_.turn_on(bit);
                // What was skipped because the image was there is needed now.
                if constexpr (Loading::skips_resident) FRUGAL_TRY(store_.load(dev_, lease_, weights_));
            }
            return store_.buffers_.template run<typename kept::template host_reader<Product>>(
                lease_, [&](const auto&... matrix) -> status {
                    const std::array<quant::weight_view, Product::size> w = {matrix.weights()...};
                    return multiply_each<typename content::template host_formats<Formats>>(dev_, scratch_, w, x, y);
                });
        }

        /// Makes the images that are absent, of products whose matrices are there; `packed(bytes)` is told of every product's
        /// matrices in the file. The host takes over where it may, as in multiply.
        template <class Packed>
        [[nodiscard]] status pack_all(Packed& packed) {
            status done;
            kept::for_each([&]<class Product>(type_tag<Product>) {
                if (!done || Product::of(weights_).front().empty()) return;
                constexpr std::size_t index = kept::template index_of<Product>();
                if ((lease_.modes() & (bit_set{1} << index)) == 0) {
                    done = make_image<Product>();
                    if (!done) {
                        if (!store_.failures_.host_takes_over(done, store_.counters())) return;
                        lease_.refuse(index);
                        done = status();
                    }
                }
                packed(Product::source_bytes(weights_));
            });
            return done;
        }

        /// Packs the product's image, unless it is there.
        template <class Product>
        [[nodiscard]] status make_image() {
            bool fresh = false;
            FRUGAL_TRY(store_.buffers_.template run<typename kept::template packer<Product>>(
                lease_, [&](const auto&... matrix) -> result<image> {
                    const std::array<typename Device::source, Product::size> parts = {matrix.source()...};
                    fresh = true;
                    return dev_.pack(std::span<const typename Device::source>(parts));
                }));
            if (fresh && store_.options_.source_unneeded)
                for (const quant::weight_view& w : Product::of(weights_))
                    store_.options_.source_unneeded(std::span<const std::byte>(w.data, w.bytes()));
            return {};
        }

        template <class Product>
        [[nodiscard]] status on_device(std::size_t index, const product_input& x,
                                       const std::array<matrix_view<float>, Product::size>& y) {
            FRUGAL_TRY(make_image<Product>());
            const image* resident = lease_.find(0, index);
            if (resident == nullptr)
                return fail(errc::device_failed, "image ", index, " of layer ", lease_.now().layer, " is not on the device");
            const count_time<Counters> timed(store_.counters(), counter::device_nanoseconds);
            FRUGAL_TRY(multiply_image(dev_, scratch_, *resident, x, y));
            store_.counters().add(counter::image_products, 1);
            return {};
        }

        image_store& store_;
        Device& dev_;
        workspace& scratch_;
        const weights& weights_;
        lease<image> lease_;
    };

    /// Errors: invalid_argument.
    [[nodiscard]] static result<image_store> create(image_store_options options) {
        FRUGAL_TRY_ASSIGN(auto images, residency<image>::create({options.layers, kept::size, options.byte_budget, options.keep}));
        return image_store(std::move(options), std::move(images));
    }

    /// Begins a step of one layer: loads the host weights that its readers will read. `w` outlives the step.
    /// Errors: those of ops::dequantize, out_of_memory (of the host), invalid_argument (another step of the layer is not over).
    [[nodiscard]] result<step> begin(Device& dev, workspace& scratch, std::size_t layer, const weights& w) {
        const count_time<Counters> timed(counters(), counter::load_nanoseconds);
        slot_ = {&images_, dev.generation()};
        const bit_set on_host = on_host_ ? kept::all_on_host : 0;
        FRUGAL_TRY_ASSIGN(auto held, lease<image>::begin({&slot_, 1}, {layer, version_}, on_host));
        held.turn_on(held.settled() & ~held.resident() & kept::all_on_host);  // refused images
        FRUGAL_TRY(load(dev, held, w));
        return step(*this, dev, scratch, w, std::move(held));
    }

    /// Packs the images of a layer that are absent, those that its steps would pack when they multiply. Nothing is packed where
    /// the host computes, or where images do not outlive a step. `packed(bytes)` is called after each product with the bytes of
    /// its matrices in the file, also where the image was there: source_bytes() in all.
    /// Errors: those of begin, and the device's, where the store does not let the host do its work.
    template <class Packed>
    [[nodiscard]] status pack(Device& dev, workspace& scratch, std::size_t layer, const weights& w, Packed&& packed) {
        if (!options_.keep || on_host_) {
            packed(source_bytes(w));
            return {};
        }
        FRUGAL_TRY_ASSIGN(step all, begin(dev, scratch, layer, w));
        return all.pack_all(packed);
    }
    /// Bytes of the file that a layer's images are packed from.
    [[nodiscard]] static std::size_t source_bytes(const weights& w) noexcept {
        std::size_t sum = 0;
        kept::for_each([&]<class Product>(type_tag<Product>) { sum += Product::source_bytes(w); });
        return sum;
    }

    /// Whether the host computes all products, from the next step on. Images stay where they are.
    void use_host(bool on) noexcept { on_host_ = on; }
    /// The weights have changed (an update, a LoRA merge): images and host copies of the old ones are not used any more.
    void weights_changed() noexcept { version_ = next_weight_version(); }
    /// Products that failed on the device are tried there again.
    void retry() { images_.retry(); }
    [[nodiscard]] const residency<image>& images() const noexcept { return images_; }
    [[nodiscard]] residency<image>& images() noexcept { return images_; }
    /// Loads, skips, packed images and fallbacks of this kind of layer.
    [[nodiscard]] Counters& counters() noexcept { return buffers_.counters(); }
    [[nodiscard]] const Counters& counters() const noexcept { return buffers_.counters(); }
    /// Why the host had to take over last, if it had to.
    [[nodiscard]] const std::optional<error>& last_failure() const noexcept { return failures_.last(); }

private:
    image_store(image_store_options options, residency<image> images)
        : options_(std::move(options)),
          images_(std::move(images)),
          version_(next_weight_version()),
          failures_(options_.on_failure) {}

    [[nodiscard]] status load(Device& dev, const lease<image>& held, const weights& w) {
        return buffers_.load(
            held, [&]<auto Member>(constant<Member>, content & to) { return to.template load<Formats>(dev, w.*Member); });
    }

    image_store_options options_;
    residency<image> images_;
    buffers_type buffers_;
    weight_version version_;
    resident_device<image> slot_;
    bool on_host_ = false;
    device_failures failures_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
