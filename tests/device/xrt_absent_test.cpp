// A process with XRT but without a device of any kind: the emulated one is not linked here.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "frugal/device/xrt/xrt.hpp"
#include "xrt_emulator/kernel_spec.hpp"
#include "xrt_emulator/xclbin_builder.hpp"

namespace fg = frugal;
namespace emu = xrt_emulator;

TEST_CASE("without a device or its driver, opening one is a clear error") {
    const emu::kernel_spec kernel{"MLIR_AIE",
                                  {emu::u64_argument("opcode"), emu::buffer_argument("instructions"),
                                   emu::u32_argument("instruction_count"), emu::buffer_argument("activations"),
                                   emu::buffer_argument("weights"), emu::buffer_argument("output")}};
    fg::device::xrt_options options;
    options.binary = emu::xclbin_builder()
                         .add(kernel)
                         .tag("frugal-tile-matmul 1 tokens=1 tile=" + fg::device::xrt<>::tile_name())
                         .build();
    options.instructions = [](std::size_t, std::size_t) { return std::vector<std::uint32_t>{1}; };
    for (int i = 0; i < 2; ++i) {
        const auto device = fg::device::xrt<>::open(0, options);
        REQUIRE_FALSE(device);
        CHECK(device.error().code == fg::errc::device_failed);
        CHECK(device.error().message.find("XRT cannot open the device: ") != std::string::npos);
        MESSAGE(device.error().message);
    }
}
