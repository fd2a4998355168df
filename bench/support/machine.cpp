// The threads and caches that every group runs with.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "bench.hpp"
#include "frugal/device/cpu/fork_join_executor.hpp"

namespace bench {

namespace {

std::size_t threads() {
    const char* value = std::getenv("FRUGAL_BENCH_THREADS");
    const long asked = value == nullptr ? 1 : std::strtol(value, nullptr, 10);
    return asked < 1 ? 1 : static_cast<std::size_t>(asked);
}

}  // namespace

fg::device::executor_ref executor() {
    static fg::device::fork_join_executor pool(threads());
    return pool;
}

std::size_t last_level_cache() {
    const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE), level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const long size = std::max(level3, level2);
    return size > 0 ? static_cast<std::size_t>(size) : std::size_t{32} << 20;
}

}  // namespace bench
