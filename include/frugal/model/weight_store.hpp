#pragma once
/// Who multiplies with a model's weights: the CPU from the file, or a device from images that stay there.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/device/image.hpp"
#include "frugal/layer/experts.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/weights/image_products.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// The language model head, or some consecutive rows of it.
struct FRUGAL_FLAGGED head_weights {
    quant::weight_view head;
};
using head_product = reuse::product<&head_weights::head>;
using head_products = reuse::product_list<head_weights, head_product>;

/// Every product is the CPU's, from the blocks of the file. Holds nothing.
template <quant::format_list Formats, reuse::activation_sharing_policy Sharing = reuse::default_activation_sharing>
class FRUGAL_FLAGGED direct_store : public reuse::direct_store<Formats, Sharing> {
public:
    static constexpr std::size_t head_rows = (std::numeric_limits<std::size_t>::max)();
};

struct FRUGAL_FLAGGED weight_store_options {
    /// Bytes of images of each kind of layer, and of all routed experts together. What is beyond the first stays with the
    /// host; of experts the most recently used stay.
    std::size_t byte_budget = (std::numeric_limits<std::size_t>::max)();
    std::size_t expert_byte_budget = (std::numeric_limits<std::size_t>::max)();
    bool keep = true;  ///< false: images are packed anew in every step
    reuse::on_device_failure on_failure = reuse::on_device_failure::use_host;
    reuse::source_unneeded source_unneeded = nullptr;  ///< may be empty
};

/// Images of a whole model on one device. List: the product lists of the model's kinds of layers.
template <device::image_target Device, quant::format_list Formats, reuse::weight_loading_policy Loading,
          reuse::activation_sharing_policy Sharing, class Poisoning, class... List>
class FRUGAL_FLAGGED image_weight_store {
public:
    using formats = Formats;
    using sharing = Sharing;
    using counters_type = std::remove_cvref_t<decltype(std::declval<Device&>().counters())>;
    template <class L>
    using kind = reuse::image_store<L, Device, Formats, Loading, counters_type, Poisoning, Sharing>;
    using expert_kind = layer::expert_store<Device, Formats, Loading, counters_type, Sharing>;
    /// Kinds of layers, and the number of one.
    static constexpr std::size_t kinds = sizeof...(List);
    template <class L>
    [[nodiscard]] static constexpr std::size_t number_of() noexcept {
        return type_list<List...>::template index_of<L>();
    }
    /// The head is many times the size of a layer: its images are of so many rows each, which bounds the host buffer too.
    static constexpr std::size_t head_rows = 8192;

    /// `layers`: for each list in order. Errors: invalid_argument.
    [[nodiscard]] static result<image_weight_store> create(std::span<const std::size_t> layers, std::size_t decoder_layers,
                                                           std::size_t experts, const weight_store_options& options) {
        if (layers.size() != kinds)
            return fail(errc::invalid_argument, layers.size(), " layer counts for ", kinds, " kinds of layers");
        image_weight_store out(layer::expert_store_options{experts == 0 ? 0 : decoder_layers, experts, options.expert_byte_budget,
                                                           options.on_failure, options.source_unneeded});
        std::size_t next = 0;
        status done;
        const auto add = [&]<class L>(std::optional<kind<L>>& to) {
            if (!done) return;
            auto made =
                kind<L>::create({layers[next++], options.byte_budget, options.keep, options.on_failure, options.source_unneeded});
            if (made)
                to.emplace(std::move(*made));
            else
                done = std::move(made).error();
        };
        (add.template operator()<List>(std::get<std::optional<kind<List>>>(out.kinds_)), ...);
        FRUGAL_TRY(std::move(done));
        return out;
    }

    /// The images of one kind of layer.
    template <class L>
    [[nodiscard]] kind<L>& of() noexcept {
        return *std::get<std::optional<kind<L>>>(kinds_);
    }
    template <class L>
    [[nodiscard]] const kind<L>& of() const noexcept {
        return *std::get<std::optional<kind<L>>>(kinds_);
    }
    [[nodiscard]] expert_kind& experts() noexcept { return experts_; }
    [[nodiscard]] const expert_kind& experts() const noexcept { return experts_; }

    template <class L>
    [[nodiscard]] result<typename kind<L>::step> begin(Device& dev, workspace& scratch, std::size_t layer,
                                                       const typename L::weights& w) {
        return of<L>().begin(dev, scratch, layer, w);
    }
    [[nodiscard]] typename expert_kind::step begin_experts(Device& dev, workspace& scratch, std::size_t layer,
                                                           const layer::moe_weights& w) {
        return experts_.begin(dev, scratch, layer, w);
    }

    /// Sum over all kinds of layers.
    [[nodiscard]] std::uint64_t counted(counter which) const noexcept {
        return (experts_.counters().read(which) + ... + of<List>().counters().read(which));
    }
    /// Bytes of all images.
    [[nodiscard]] std::size_t bytes() const { return (experts_.images().bytes() + ... + of<List>().images().bytes()); }
    /// Whether the host computes everything, from the next step on.
    void use_host(bool on) noexcept {
        (of<List>().use_host(on), ...);
        experts_.use_host(on);
    }
    /// All weights have changed: no image and no host copy of the old ones is used any more.
    void weights_changed() noexcept {
        (of<List>().weights_changed(), ...);
        experts_.weights_changed();
    }
    /// Products that failed on the device are tried there again.
    void retry() {
        (of<List>().retry(), ...);
        experts_.retry();
    }
    /// Why the host had to take over, if it had to: the last reason of the first kind of layer that has one.
    [[nodiscard]] std::optional<error> last_failure() const {
        std::optional<error> out = experts_.last_failure();
        ((out = out ? out : of<List>().last_failure()), ...);
        return out;
    }

private:
    explicit image_weight_store(layer::expert_store_options options) : experts_(std::move(options)) {}

    std::tuple<std::optional<kind<List>>...> kinds_;
    expert_kind experts_;
};

}  // namespace model

FRUGAL_NAMESPACE_END
