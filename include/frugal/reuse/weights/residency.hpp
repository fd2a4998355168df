#pragma once
/// Which packed weight images are on a device, for which version of the weights, and the leases that keep them there for a step.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/reuse/weights/reader_table.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// A version of weights. Taken from one counter of the process, so that no two models, and no two states of one model's
/// weights, ever have the same; files of other flags take theirs from it too.
enum class weight_version : std::uint64_t { none = 0 };

[[nodiscard]] FRUGAL_ALWAYS_INLINE weight_version next_weight_version() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return weight_version{last.fetch_add(1, std::memory_order_relaxed) + 1};
}

/// What a host buffer holds: a layer's weights of one version. 16 bytes, compared before every read.
struct FRUGAL_FLAGGED stamp {
    std::uint64_t layer = (std::numeric_limits<std::uint64_t>::max)();
    weight_version version = weight_version::none;
    friend bool operator==(const stamp&, const stamp&) = default;
};

struct FRUGAL_FLAGGED residency_options {
    std::size_t layers = 0, images = 0;  ///< images: of a layer, numbered from 0; at most 64
    /// Images beyond this many bytes are refused. Nothing is evicted to make room: a decode step visits the layers in a
    /// circle, in which the least recently used image is the one needed next.
    std::size_t byte_budget = (std::numeric_limits<std::size_t>::max)();
    bool keep = true;  ///< false: an image lives as long as the lease under which it was packed
};

template <class Image>
class FRUGAL_FLAGGED lease;

/// The images of one device. All members may be called from any thread.
template <class Image>
class FRUGAL_FLAGGED residency {
public:
    /// Errors: invalid_argument.
    [[nodiscard]] static result<residency> create(residency_options options) {
        if (options.images > 64) return fail(errc::invalid_argument, options.images, " images a layer; at most 64 are possible");
        return residency(options);
    }

    [[nodiscard]] std::size_t layers() const noexcept { return options_.layers; }
    [[nodiscard]] std::size_t images() const noexcept { return options_.images; }
    /// Bytes of all images held.
    [[nodiscard]] std::size_t bytes() const {
        const std::lock_guard guard(*lock_);
        return bytes_;
    }
    /// The images of a layer that are here, of whatever version.
    [[nodiscard]] bit_set resident(std::size_t layer) const {
        const std::lock_guard guard(*lock_);
        return layers_[layer].resident;
    }
    /// The images of a layer that could not be made; the host does their work until `retry`.
    [[nodiscard]] bit_set refused(std::size_t layer) const {
        const std::lock_guard guard(*lock_);
        return layers_[layer].refused;
    }

    /// Drops one image. Returns false, with nothing changed, while a lease holds its layer or if it is not there.
    bool evict(std::size_t layer, std::size_t image) {
        const std::lock_guard guard(*lock_);
        if (layers_[layer].pins != 0 || !at(layer, image)) return false;
        drop(layer, image);
        return true;
    }
    /// Images that could not be made are tried again from now on: after memory of the device has become free.
    void retry() {
        const std::lock_guard guard(*lock_);
        for (layer_state& layer : layers_) layer.refused = 0;
    }
    /// Drops every image that no lease holds.
    void clear() {
        const std::lock_guard guard(*lock_);
        for (std::size_t layer = 0; layer < layers_.size(); ++layer)
            if (layers_[layer].pins == 0) drop_all(layer);
    }

private:
    friend class lease<Image>;

    struct layer_state {
        bit_set resident = 0, refused = 0;
        weight_version version = weight_version::none;
        std::uint64_t generation = 0;
        std::size_t pins = 0;
    };

    explicit residency(residency_options options)
        : options_(options), layers_(options.layers), slots_(options.layers * options.images) {}

    [[nodiscard]] std::optional<Image>& at(std::size_t layer, std::size_t image) {
        return slots_[layer * options_.images + image];
    }
    void drop(std::size_t layer, std::size_t image) {
        std::optional<Image>& slot = at(layer, image);
        if (!slot) return;
        bytes_ -= slot->bytes();
        slot.reset();
        layers_[layer].resident &= ~(bit_set{1} << image);
    }
    void drop_all(std::size_t layer) {
        for (std::size_t image = 0; image < options_.images; ++image) drop(layer, image);
    }

    // A reset takes the images of all layers at once: what is lost must not count against the budget. Layers that a step still
    // uses follow when that step is over.
    void forget_other_generations(std::uint64_t generation) {
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            layer_state& layer = layers_[i];
            if (layer.pins != 0 || layer.generation == generation) continue;
            drop_all(i);
            layer.refused = 0;
            layer.generation = generation;
        }
    }
    // What a lease asks for. Images of another version of the weights or generation of the device go first.
    // Writes which images are resident and which refused: one visit, for this is on the way of every step.
    [[nodiscard]] status pin(stamp now, std::uint64_t generation, bit_set& resident, bit_set& refused) {
        const std::lock_guard guard(*lock_);
        if (now.layer >= layers_.size())
            return fail(errc::invalid_argument, "layer ", now.layer, " of a residency of ", layers_.size(), " layers");
        layer_state& layer = layers_[now.layer];
        if (layer.version != now.version || layer.generation != generation) {
            if (layer.pins != 0)
                return fail(errc::invalid_argument, "weights of layer ", now.layer,
                            " changed, or their device was reset, while a step still uses them; end the step first");
            drop_all(now.layer);
            layer.refused = 0;
            layer.version = now.version;
            if (layer.generation != generation) forget_other_generations(generation);
            layer.generation = generation;
        }
        ++layer.pins;
        resident = layer.resident;
        refused = layer.refused;
        return {};
    }
    void unpin(std::size_t layer) {
        const std::lock_guard guard(*lock_);
        if (--layers_[layer].pins == 0 && !options_.keep) drop_all(layer);
    }
    [[nodiscard]] status put(std::size_t layer, std::size_t image, Image made) {
        const std::lock_guard guard(*lock_);
        if (image >= options_.images)
            return fail(errc::invalid_argument, "image ", image, " of a residency of ", options_.images, " images a layer");
        std::optional<Image>& slot = at(layer, image);
        if (slot) return {};  // another thread was faster; the images are equal
        if (made.bytes() > options_.byte_budget - bytes_)
            return fail(errc::out_of_memory, "image ", image, " of layer ", layer, " of ", made.bytes(), " bytes: ", bytes_,
                        " of ", options_.byte_budget, " bytes for images are taken");
        bytes_ += made.bytes();
        slot.emplace(std::move(made));
        layers_[layer].resident |= bit_set{1} << image;
        return {};
    }
    void refuse(std::size_t layer, std::size_t image) {
        const std::lock_guard guard(*lock_);
        layers_[layer].refused |= bit_set{1} << image;
    }
    [[nodiscard]] std::pair<bit_set, bit_set> state_of(std::size_t layer) const {
        const std::lock_guard guard(*lock_);
        return {layers_[layer].resident, layers_[layer].refused};
    }

    residency_options options_;
    std::vector<layer_state> layers_;
    std::vector<std::optional<Image>> slots_;  // never resized: a lease's images stay where they are
    std::size_t bytes_ = 0;
    std::unique_ptr<std::mutex> lock_ = std::make_unique<std::mutex>();  // apart, so that a residency can move
};

/// A device for a lease: its images and the device's generation (device::image_target).
template <class Image>
struct FRUGAL_FLAGGED resident_device {
    residency<Image>* images = nullptr;
    std::uint64_t generation = 0;
};

/// One step of one layer: what was resident when it began stays so until the lease ends. Of one thread.
template <class Image>
class FRUGAL_FLAGGED lease {
public:
    /// Pins the layer on every device that executes it; an image counts as resident if all of them have it. `devices` outlive
    /// the lease. `modes`: the host modes that are on. Errors: invalid_argument; nothing is pinned then.
    [[nodiscard]] static result<lease> begin(std::span<const resident_device<Image>> devices, stamp now, bit_set modes) {
        if (devices.empty()) return fail(errc::invalid_argument, "a lease of a layer needs at least one device");
        lease out;
        out.now_ = now;
        out.modes_ = modes;
        out.resident_ = ~bit_set{0};
        for (const resident_device<Image>& device : devices) {
            bit_set resident = 0, refused = 0;
            FRUGAL_TRY(device.images->pin(now, device.generation, resident, refused));
            out.devices_ = devices.first(out.devices_.size() + 1);
            out.resident_ &= resident;
            out.refused_ |= refused;
        }
        return out;
    }

    lease(const lease&) = delete;
    lease& operator=(const lease&) = delete;
    lease(lease&& other) noexcept
        : devices_(std::exchange(other.devices_, {})), now_(other.now_), resident_(other.resident_), refused_(other.refused_),
          modes_(other.modes_) {}
    lease& operator=(lease&& other) noexcept {
        if (this != &other) {
            release();
            devices_ = std::exchange(other.devices_, {});
            now_ = other.now_;
            resident_ = other.resident_;
            refused_ = other.refused_;
            modes_ = other.modes_;
        }
        return *this;
    }
    ~lease() { release(); }

    [[nodiscard]] stamp now() const noexcept { return now_; }
    /// Images that every device has.
    [[nodiscard]] bit_set resident() const noexcept { return resident_; }
    /// Images that no reader of this step packs: those that are resident or refused.
    [[nodiscard]] bit_set settled() const noexcept { return resident_ | refused_; }
    [[nodiscard]] bit_set modes() const noexcept { return modes_; }
    [[nodiscard]] std::size_t devices() const noexcept { return devices_.size(); }

    /// Turns a host mode on for the rest of the step. Load again afterwards: more buffers may be read now.
    void turn_on(bit_set modes) noexcept { modes_ |= modes; }
    /// Whether a device lacks an image.
    [[nodiscard]] bool lacks(std::size_t device, std::size_t image) const {
        return (devices_[device].images->state_of(layer()).first >> image & 1u) == 0;
    }
    /// Gives an image to a device. Errors: out_of_memory (over the budget), invalid_argument; the image is dropped then.
    [[nodiscard]] status put(std::size_t device, std::size_t image, Image made) {
        FRUGAL_TRY(devices_[device].images->put(layer(), image, std::move(made)));
        refresh();
        return {};
    }
    /// The image could not be made: this step and later ones do without, until residency::retry or new weights.
    void refuse(std::size_t image) {
        for (const resident_device<Image>& device : devices_) device.images->refuse(layer(), image);
        refresh();
    }
    /// An image of a device, or null. It stays valid as long as the lease.
    [[nodiscard]] const Image* find(std::size_t device, std::size_t image) const {
        residency<Image>& images = *devices_[device].images;
        const std::lock_guard guard(*images.lock_);
        const std::optional<Image>& slot = images.at(layer(), image);
        return slot ? &*slot : nullptr;
    }

private:
    lease() = default;
    [[nodiscard]] std::size_t layer() const noexcept { return static_cast<std::size_t>(now_.layer); }
    void refresh() {
        resident_ = ~bit_set{0};
        refused_ = 0;
        for (const resident_device<Image>& device : devices_) {
            const auto [resident, refused] = device.images->state_of(layer());
            resident_ &= resident;
            refused_ |= refused;
        }
    }
    void release() noexcept {
        for (const resident_device<Image>& device : devices_) device.images->unpin(layer());
        devices_ = {};
    }

    std::span<const resident_device<Image>> devices_;
    stamp now_;
    bit_set resident_ = 0, refused_ = 0, modes_ = 0;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
