#pragma once
// What this machine can do at best, measured: the yardstick beside every figure.
#include <time.h>

#include <cstddef>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/executor.hpp"

namespace bench {

/// Processor time of this thread, in seconds.
FRUGAL_ALWAYS_INLINE double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Time of the clock, in seconds from some moment.
FRUGAL_ALWAYS_INLINE double clock_seconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Bytes a second that the executor's threads read together from a buffer far larger than the last-level cache: best of
/// several passes.
double read_bandwidth(frugal::device::executor_ref executor, std::size_t cache_bytes);

/// f32 operations a second of one thread in `Isa`, a multiplication and an addition each: best of several runs.
template <class Isa>
double peak_flops();

}  // namespace bench
