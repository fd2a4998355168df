#pragma once
/// Copies from global to shared memory that run while the thread goes on (PTX cp.async). A copy is visible to its own thread
/// after `async_copy_wait`, to the others after a barrier that follows it.

#include <cstdint>

#include "frugal/device/cuda/portable.cuh"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// Copies 16 bytes; both addresses are 16-byte aligned. With `valid` false the target becomes zero and `from` is not read.
FRUGAL_DEVICE void async_copy_16(void* shared_to, const void* global_from, bool valid = true) {
#if defined(__CUDACC__)
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared_to));
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global_from), "r"(bytes) : "memory");
#else
    simt::copy_async(shared_to, global_from, 16, valid ? 16 : 0, simt::where::here());
#endif
}

/// Copies 4 bytes; both addresses are 4-byte aligned.
FRUGAL_DEVICE void async_copy_4(void* shared_to, const void* global_from) {
#if defined(__CUDACC__)
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared_to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(to), "l"(global_from) : "memory");
#else
    simt::copy_async(shared_to, global_from, 4, 4, simt::where::here());
#endif
}

/// Closes the group of copies issued since the last call.
FRUGAL_DEVICE void async_copy_commit() {
#if defined(__CUDACC__)
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#else
    simt::copy_async_commit();
#endif
}

/// Waits until at most `GroupsLeft` groups are still under way.
template <int GroupsLeft>
FRUGAL_DEVICE void async_copy_wait() {
#if defined(__CUDACC__)
    asm volatile("cp.async.wait_group %0;\n" ::"n"(GroupsLeft) : "memory");
#else
    simt::copy_async_wait(GroupsLeft);
#endif
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
