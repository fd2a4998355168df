// The threads and caches that every group runs with.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

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

fg::device::executor_ref executor() { return executor(threads()); }

fg::device::executor_ref executor(std::size_t count) {
    static std::map<std::size_t, fg::device::fork_join_executor> pools;
    return pools.try_emplace(count, count).first->second;
}

std::size_t last_level_cache() {
    std::size_t most = 0;
    for (int index = 0;; ++index) {
        std::ifstream file(fg::concat("/sys/devices/system/cpu/cpu0/cache/index", index, "/size"));
        std::size_t size = 0;
        char unit = 0;
        if (!(file >> size)) break;
        file >> unit;
        most = std::max(most, size << (unit == 'K' ? 10 : (unit == 'M' ? 20 : 0)));
    }
    if (most > 0) return most;
    const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE), level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const long size = std::max(level3, level2);
    return size > 0 ? static_cast<std::size_t>(size) : std::size_t{32} << 20;
}

}  // namespace bench
