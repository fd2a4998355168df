#pragma once
/// What a model runs in: a device, scratch, and the images of the model's weights on that device.
#include <utility>

#include "frugal/core/config.hpp"
#include "frugal/device/target.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// Made by transformer::make_pass and kept between calls: scratch grows to what the largest batch needs, and images that were
/// packed once stay. Serves one call of `forward` at a time. Refers to the device, owns the rest. Store: transformer::store_type.
template <device::target Device, class Store>
class FRUGAL_FLAGGED pass {
public:
    pass(Device& dev, Store weights) : dev_(&dev), store_(std::move(weights)) {}

    [[nodiscard]] Device& device() const noexcept { return *dev_; }
    [[nodiscard]] workspace& scratch() noexcept { return scratch_; }
    /// Images and their counters, on a device that keeps images.
    [[nodiscard]] Store& store() noexcept { return store_; }
    [[nodiscard]] const Store& store() const noexcept { return store_; }

private:
    Device* dev_;
    workspace scratch_;
    Store store_;
};

}  // namespace model

FRUGAL_NAMESPACE_END
