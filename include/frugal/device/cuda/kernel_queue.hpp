#pragma once
/// What operators on device memory queue their kernels through.
#include <concepts>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/runtime.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// device::gpu::pass, or one of your own. start(kernel): calls kernel(stream), which starts a kernel there and returns what the
/// start returned, and passes that on.
template <class P>
concept kernel_queue = requires(const P& pass, cudaError_t (*kernel)(cudaStream_t)) {
    { pass.start(kernel) } -> std::same_as<status>;
};

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
