#pragma once
/// The engine for one instruction set; engine_isa.cpp is compiled once for each.
#include <memory>

#include "engine.hpp"
#include "frugal/device/cpu/isa.hpp"

namespace runner {

template <class Isa>
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_engine_for(const model_file& file,
                                                                      frugal::device::executor_ref executor,
                                                                      const engine_options& options);

}  // namespace runner
