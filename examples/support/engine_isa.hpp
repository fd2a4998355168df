#pragma once
/// The engines for one instruction set; engine_isa.cpp and packed_engine_isa.cpp are compiled once for each.
#include <memory>

#include "engine.hpp"
#include "frugal/device/cpu/isa.hpp"

namespace runner {

template <class Isa>
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_engine_for(const model_file& file,
                                                                      frugal::device::executor_ref executor,
                                                                      const engine_options& options);

template <class Isa>
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_packed_engine_for(const model_file& file,
                                                                             frugal::device::executor_ref executor,
                                                                             const engine_options& options);

}  // namespace runner
