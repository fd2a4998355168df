#pragma once
// What this machine can do at best, measured: the yardstick beside every figure.
#include <cstddef>

#include "frugal/device/cpu/executor.hpp"

namespace bench {

/// Bytes a second that the executor's threads read together from a buffer far larger than the last-level cache: best of
/// several passes.
double read_bandwidth(frugal::device::executor_ref executor, std::size_t cache_bytes);

/// f32 operations a second of one thread in `Isa`, a multiplication and an addition each: best of several runs.
template <class Isa>
double peak_flops();

}  // namespace bench
