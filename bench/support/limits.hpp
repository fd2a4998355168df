#pragma once
// What this machine can do at best, measured: the yardstick beside every figure.
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

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

/// Ways to read memory: which one is fastest differs from machine to machine.
enum class reading { plain, prefetching, huge_pages };
inline constexpr reading readings[] = {reading::plain, reading::prefetching, reading::huge_pages};

/// Memory far beyond the last-level cache. Each call goes on where the last one ended, so no cache holds what it reads.
class memory {
public:
    memory();
    memory(const memory&) = delete;
    memory& operator=(const memory&) = delete;
    ~memory();

    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    /// The executor's threads read so many bytes together, at most bytes().
    void read(frugal::device::executor_ref executor, reading way, std::size_t count);
    /// They read half as many and write them back changed.
    void update(frugal::device::executor_ref executor, std::size_t count);

private:
    [[nodiscard]] std::uint64_t* next(std::uint64_t* from, std::size_t count);
    std::size_t bytes_, at_ = 0;
    std::uint64_t *ordinary_, *huge_;
};

/// Bytes a second that the executor's threads read together: best of several passes of every way of reading.
double read_bandwidth(frugal::device::executor_ref executor, memory& from);

/// f32 operations a second of one thread in `Isa`, a multiplication and an addition each: best of several runs.
template <class Isa>
double peak_flops();

/// The same for products of bytes that are added up in 32 bits.
template <class Isa>
double peak_int8();

struct peaks {
    double f32 = 0, int8 = 0;
};
/// Of every instruction set that this run uses, one thread.
std::map<std::string, peaks, std::less<>> measure_peaks();

}  // namespace bench
