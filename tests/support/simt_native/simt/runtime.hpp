#pragma once
/// What tests of host code use of the emulated machine, on a GPU: counts of what the runtime was asked for, calls that fail on
/// demand, and a bound on its memory. The linker sends the calls through runtime.cpp (--wrap). One thread.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include <driver_types.h>

namespace simt {

struct device_model {
    std::size_t memory = std::numeric_limits<std::size_t>::max();  ///< bytes that cudaMalloc gives at most
};
device_model& device();

/// The call of the named function ("launch": the start of a kernel) after `skip` further ones returns `error` and does nothing
/// else. A `sticky` error is then returned by every call that is counted here, until cudaDeviceReset.
void fail_call(std::string_view function, cudaError_t error, int skip = 0, bool sticky = false);

struct runtime_report {
    std::size_t allocations = 0, allocated_bytes = 0, pinned = 0;  ///< alive
    std::size_t streams = 0, graphs = 0;                           ///< alive
    std::uint64_t kernels = 0, graph_launches = 0, recordings = 0, synchronizations = 0, allocation_calls = 0;
    std::uint64_t bytes_to_device = 0, bytes_to_host = 0;
};
const runtime_report& runtime();
/// Bound, planned failures and counters are back at their defaults. Memory stays as it is.
void reset_runtime();

}  // namespace simt
