// As engine_isa.cpp, with weight images on an NPU, for GGUF files; the host's kernels are those of FRUGAL_ENGINE_ISA.
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/xrt/xrt.hpp"
#include "frugal/reuse/weights/weight_loading.hpp"
#include "model_file.hpp"
#include "npu_engine.hpp"
#include "typed_engine.hpp"

namespace runner {

using namespace frugal;

template <>
result<std::unique_ptr<engine>> make_npu_engine_for<isa::FRUGAL_ENGINE_ISA>(const model_file& file, device::executor_ref executor,
                                                                            const engine_options& options, bool reload,
                                                                            device::xrt_options program) {
    using device_type = device::xrt<device::cpu<isa::FRUGAL_ENGINE_ISA, counters_on>>;
    FRUGAL_TRY_ASSIGN(auto opened, device_type::open(0, std::move(program), executor));
    auto dev = std::make_unique<device_type>(std::move(opened));
    using model::convention::gguf;
    if (reload) return make_any_engine<gguf, device_type, reuse::reload_always>(*file.gguf, file.sizes, std::move(dev), options);
    return make_any_engine<gguf, device_type, reuse::skip_resident>(*file.gguf, file.sizes, std::move(dev), options);
}

}  // namespace runner
