#pragma once
/// How much work makes a task.
#include <cstddef>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// Items of a task, at least, for run_ranges: as many as are worth starting it (some microseconds). `work` of one item: the
/// elements that it reads and writes, eight for each vector exponential, 64 for each function that is computed one by one.
/// No result depends on it.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t grain(std::size_t work) noexcept {
    constexpr std::size_t task = 16384;
    return work >= task ? 1 : task / (work + 1) + 1;
}

}  // namespace device

FRUGAL_NAMESPACE_END
