#pragma once
/// What a caller says about the device program that multiplies: see kernels/xrt/README.md for what it must do.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// A kernel by name, and which of its arguments is what. The defaults are those of kernels built with MLIR-AIE.
struct FRUGAL_FLAGGED xrt_kernel_layout {
    static constexpr int absent = -1;

    std::string name = "MLIR_AIE";
    std::uint64_t opcode_value = 3;  ///< run the instruction stream
    int opcode = 0;                  ///< u64
    int instructions = 1;            ///< buffer of u32 words
    int instruction_count = 2;       ///< u32, words
    int activations = 3;             ///< buffer: bf16 [tokens of a launch, columns]
    int weights = 4;                 ///< buffer: tiles
    int output = 5;                  ///< buffer: f32 [tokens of a launch, rows]
    int tokens = absent;             ///< u32, for kernels that take the shape as scalars: rows of activations of a launch
    int rows = absent;               ///< u32, rows of the weights, whole tiles
    int columns = absent;            ///< u32, columns of the weights, whole tiles
};

struct FRUGAL_FLAGGED xrt_options {
    /// The device program (xclbin): its bytes, or, where there are none, the file to read it from.
    std::vector<char> binary;
    std::string path;
    /// The id that the binary must have, as 32 hexadecimal digits with or without hyphens; empty: any.
    std::string id;
    xrt_kernel_layout kernel;
    /// The instruction stream for weights of `rows` x `columns` (whole tiles); an empty one says that this shape is not served.
    /// Called once for each shape.
    std::function<std::vector<std::uint32_t>(std::size_t rows, std::size_t columns)> instructions;
    /// How long one launch may take before it is aborted.
    std::chrono::milliseconds limit{10000};
};

}  // namespace device

FRUGAL_NAMESPACE_END
