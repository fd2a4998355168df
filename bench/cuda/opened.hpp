#pragma once
/// The device as host code of the library wants it.
#include <cstdio>
#include <cstdlib>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/memory.hpp"

namespace bench {

struct opened {
    frugal::device::gpu::context_ref on;
    frugal::device::gpu::stream queue;
};

/// Ends the program with the error's sentence.
inline void must(const frugal::status& outcome) {
    if (outcome) return;
    std::fprintf(stderr, "%s\n", outcome.error().message.c_str());
    std::exit(1);
}

}  // namespace bench
