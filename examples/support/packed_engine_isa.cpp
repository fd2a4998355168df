// As engine_isa.cpp, with weight images in host memory and activations in 8 bits.
#include "engine_isa.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/model/hugging_face_loader.hpp"
#include "model_file.hpp"
#include "typed_engine.hpp"

namespace runner {

using namespace frugal;

template <>
result<std::unique_ptr<engine>> make_packed_engine_for<isa::FRUGAL_ENGINE_ISA>(const model_file& file,
                                                                               device::executor_ref executor,
                                                                               const engine_options& options) {
    using device_type = device::packed_cpu<isa::FRUGAL_ENGINE_ISA, counters_on, quant::all, device::q8_activations>;
    auto dev = std::make_unique<device_type>(executor);
    if (file.gguf) return make_any_engine<model::convention::gguf>(*file.gguf, file.sizes, std::move(dev), options);
    return make_any_engine<model::convention::hugging_face>(*file.checkpoint, file.sizes, std::move(dev), options);
}

}  // namespace runner
