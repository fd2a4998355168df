#pragma once
/// Which activation policies a device::cuda takes.
#include "frugal/core/config.hpp"
#include "frugal/device/cpu/activations.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// `type`: the policy, where device::cuda has kernels for it.
template <activation_policy Activations>
struct cuda_activations {
    static_assert(!Activations::rounded,
                  "frugal: device::cuda takes activations as they are or in 8 bits; for products in bfloat16 write "
                  "device::cuda<Arch, Host, device::f32_activations, Formats, device::prefill::bf16_tiles>");
    using type = Activations;
};

}  // namespace device

FRUGAL_NAMESPACE_END
