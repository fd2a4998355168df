#pragma once
/// A forward pass on a CPU, as operators see it: a device with scratch.
#include <concepts>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// A device::cpu_target that brings scratch along (reuse::cpu_pass). Operators take it in the place of a device; those that need
/// scratch take it in the place of device and scratch.
template <class P>
concept host_pass = cpu_target<P> && requires(P& pass) {
    { pass.scratch() } -> std::same_as<workspace&>;
    { pass.device() } -> std::same_as<typename P::device_type&>;
};

}  // namespace device

FRUGAL_NAMESPACE_END
