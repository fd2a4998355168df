#pragma once
/// Mutation of kernels on the emulator: one barrier after the other does nothing, and somebody must notice.
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <simt/emulator.hpp>  // not of this folder where tests run on a GPU

namespace test {

/// The lines of barriers without which `run`, which returns a vector of results, gives the same bytes and no fault under every
/// order of threads. `run` launches one kernel; with more, the barriers of the last are meant.
template <class Run>
std::vector<std::string> unnoticed_barriers(Run&& run) {
    if (!simt::barriers_can_be_removed) return {};
    const auto right = run();
    const auto sites = simt::last_launch().barriers;
    std::vector<std::string> unnoticed;
    for (std::size_t i = 0; i < sites.size(); ++i) {
        bool noticed = false;
        simt::config().remove_barrier = static_cast<int>(i);
        simt::for_each_schedule([&] {
            if (noticed) return;
            try {
                const auto got = run();
                noticed = std::memcmp(got.data(), right.data(), right.size() * sizeof(right[0])) != 0;
            } catch (const simt::kernel_fault&) {
                noticed = true;
            }
        });
        simt::config().remove_barrier = -1;
        if (!noticed) unnoticed.push_back(std::string(sites[i].at.file) + ":" + std::to_string(sites[i].at.line));
    }
    if (sites.empty()) unnoticed.push_back("no barrier at all");
    return unnoticed;
}

}  // namespace test
