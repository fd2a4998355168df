#pragma once
/// Engines whose products run on an NPU through XRT. The programs here bring an emulated one with them, so that they run
/// anywhere; with a real one, give your own xclbin and instruction streams to device::xrt::open (kernels/xrt/README.md).
#include <memory>

#include "engine.hpp"
#include "frugal/device/xrt/options.hpp"

namespace runner {

/// reload: the host's copies of the weights are prepared in every step, as if it were not known that nobody reads them.
template <class Isa>
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_npu_engine_for(const model_file& file,
                                                                          frugal::device::executor_ref executor,
                                                                          const engine_options& options, bool reload,
                                                                          frugal::device::xrt_options program);

/// An engine on the emulated NPU with `memory` bytes (0: plenty). The file must be GGUF.
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_emulated_npu_engine(const model_file& file,
                                                                               frugal::device::executor_ref executor,
                                                                               const engine_options& options, bool reload,
                                                                               std::size_t memory);

}  // namespace runner
