#pragma once
/// The emulated kernel that kernels/xrt/README.md asks for: f32 results of bfloat16 activations and 4-bit tiles. It decodes the
/// tiles by itself, knows nothing of the library under test, and refuses input that was not written and synced for the launch.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "xrt_emulator/emulator.hpp"

namespace xrt_emulator {

struct tile_matmul {
    std::string name = "MLIR_AIE";
    std::size_t tokens = 8;      ///< rows of activations of one launch
    bool shape_scalars = false;  ///< takes tokens, rows and columns as three more arguments
    unsigned spare_buffers = 0;  ///< buffer arguments that it declares and never reads
    std::string tile{};  ///< name of the tiles in the tag: format:ROWSxCOLUMNS:BYTES

    /// opcode, instructions, their count, activations, weights, output [, tokens, rows, columns] [, spare buffers].
    [[nodiscard]] kernel_spec spec() const;
    /// The line that a binary carries about itself.
    [[nodiscard]] std::string tag() const;
    /// A binary of this kernel.
    [[nodiscard]] std::vector<char> binary(std::array<unsigned char, 16> id = {0xF0, 0x0D, 1, 2, 3}) const;
    /// Gives the emulated device the function.
    void install() const;
    /// The instruction stream for one padded shape: here it only says the shape, as the one of a real array would imply it.
    [[nodiscard]] std::vector<std::uint32_t> instructions(std::size_t rows, std::size_t columns) const;

    static constexpr std::uint64_t opcode = 3;
    static constexpr std::size_t tile_rows = 32, tile_columns = 256, tile_bytes = 5120, group = 32;

    /// Weights of a tile, column by column: out[column * 32 + row] = code * scale + offset.
    static void decode(const std::byte* tile, float* out);
};

}  // namespace xrt_emulator
