#pragma once
/// The CUDA runtime API on the emulator, as far as the library's host code uses it: memory, copies, streams, events, graphs. A
/// test program links these functions instead of libcudart; no driver is needed.
///
/// Streams are lazy on purpose: what is queued runs when somebody waits for it (a synchronisation, a blocking copy, an event,
/// cudaFree). Host code that reads a result, or reuses a buffer it is copied from, too early gets wrong bytes. The null stream
/// runs at once. A kernel's fault is thrown by the call that waits. All state is per OS thread, as the emulator's is.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include <driver_types.h>

namespace simt {

/// What the emulated machine says of itself. Set before the code under test looks.
struct device_model {
    int devices = 1;
    int major = 9, minor = 0;    ///< compute capability
    int driver_version = 13000;  ///< CUDA version that the driver supports; 0: there is no driver
    int multiprocessors = 4;     ///< few, so that small tests reach every way of cutting work
    std::size_t memory = std::size_t{1} << 30;
};
device_model& device();

/// The call of the named runtime function after `skip` further ones returns `error` and does nothing else. A `sticky` error is
/// then returned by every call that could fail, until cudaDeviceReset: what a device does after a kernel's fault.
void fail_call(std::string_view function, cudaError_t error, int skip = 0, bool sticky = false);

struct runtime_report {
    std::size_t allocations = 0, allocated_bytes = 0, pinned = 0;  ///< alive
    std::size_t streams = 0, events = 0, graphs = 0;               ///< alive
    std::uint64_t kernels = 0, graph_launches = 0, recordings = 0, synchronizations = 0, allocation_calls = 0;
    std::uint64_t bytes_to_device = 0, bytes_to_host = 0;
};
const runtime_report& runtime();
/// As a fresh process: device model, planned failures and counters are back at their defaults. Memory stays as it is.
void reset_runtime();

/// Queues what a kernel launch does; on the null stream runs it at once. Errors: those of the launch itself.
cudaError_t enqueue_kernel(cudaStream_t stream, std::function<void()> kernel);

}  // namespace simt
