#include "npu_engine.hpp"

#include "frugal/device/cpu/dispatch.hpp"
#include "frugal/device/xrt/xrt.hpp"
#include "model_file.hpp"
#include "xrt_emulator/emulator.hpp"
#include "xrt_emulator/tile_matmul.hpp"

namespace runner {

using namespace frugal;

using host_isas = type_list<FRUGAL_ENGINE_ISAS>;
template <>
result<std::unique_ptr<engine>> make_npu_engine_for<isa::baseline>(const model_file&, device::executor_ref, const engine_options&,
                                                                   bool, device::xrt_options);
template <>
result<std::unique_ptr<engine>> make_npu_engine_for<isa::avx2>(const model_file&, device::executor_ref, const engine_options&,
                                                               bool, device::xrt_options);
template <>
result<std::unique_ptr<engine>> make_npu_engine_for<isa::avx512>(const model_file&, device::executor_ref, const engine_options&,
                                                                 bool, device::xrt_options);

result<std::unique_ptr<engine>> make_emulated_npu_engine(const model_file& file, device::executor_ref executor,
                                                         const engine_options& options, bool reload, std::size_t memory) {
    if (!file.gguf) return fail(errc::unsupported, "this program runs GGUF files only");
    xrt_emulator::settings machine;
    if (memory != 0) machine.memory_bytes = memory;
    xrt_emulator::restart();
    xrt_emulator::configure(machine);
    xrt_emulator::tile_matmul kernel;
    kernel.tile = device::xrt<>::tile_name();
    kernel.install();
    device::xrt_options program;
    program.binary = kernel.binary();
    program.kernel.name = kernel.name;
    program.instructions = [kernel](std::size_t rows, std::size_t columns) { return kernel.instructions(rows, columns); };
    return load_engine(options, [&](const engine_options& o) -> result<std::unique_ptr<engine>> {
        std::unique_ptr<engine> out;
        FRUGAL_TRY(device::dispatch<host_isas>([&]<class Isa>(type_tag<Isa>) -> status {
            FRUGAL_TRY_ASSIGN(out, make_npu_engine_for<Isa>(file, executor, o, reload, program));
            return {};
        }));
        return out;
    });
}

}  // namespace runner
