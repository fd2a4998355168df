#pragma once
/// Reads NPU containers (.q4nx): safetensors files whose large matrices are tiles. Open them with io::safetensors_file; the
/// functions here turn its tensors into checked tiles and floats.
///
/// A tensor of tiles has dtype I8 and shape [tiles, bytes of a tile] or [rows of tiles, tiles in a row, bytes of a tile], or,
/// in older files, dtype Q4NX and the shape of the matrix. Only the last says how many rows and columns are meant, and none
/// says which tile format: the model's configuration does, so the caller passes both.
/// Container after FastFlowLM's converter (model_converter.py) and mlir-air (llama32_1b_q4nx_weights.py).
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/io/safetensors.hpp"
#include "frugal/quant/codec.hpp"
#include "frugal/quant/formats/bf16.hpp"
#include "frugal/quant/formats/f16.hpp"
#include "frugal/quant/formats/f32.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/quant/tiles.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// The tiles of a matrix [rows, cols], every scale of which is finite; views into the file.
/// Errors: unsupported_format (the tensor has another dtype, or T does not subtract a zero point although the dtype is Q4NX),
/// shape_mismatch (another number or size of tiles), not_finite.
template <quant::tile_format T>
[[nodiscard]] result<std::span<const std::byte>> tiles_of(const safetensor& tensor, std::size_t rows, std::size_t cols) {
    using sizes = quant::packed_tiles<T>;
    bool fits = false;
    if (tensor.dtype == "I8") {
        const auto& shape = tensor.shape;
        const std::uint64_t down = sizes::row_tiles(rows), across = sizes::col_tiles(cols);
        fits = (shape.size() == 2 && shape[0] == sizes::tile_count(rows, cols) && shape[1] == T::tile_bytes) ||
               (shape.size() == 3 && shape[0] == down && shape[1] == across && shape[2] == T::tile_bytes);
    } else if (tensor.dtype == "Q4NX") {
        if constexpr (requires { requires T::is_additive == false; })
            fits = tensor.shape.size() == 2 && tensor.shape[0] == rows && tensor.shape[1] == cols;
        else
            return fail(errc::unsupported_format, "tensor ", printable(tensor.name),
                        " has dtype Q4NX, whose codes have a zero point to subtract: read it as q4nx_subtractive, not ", T::name);
    } else {
        return fail(errc::unsupported_format, "tensor ", printable(tensor.name), " has dtype ", printable(tensor.dtype),
                    "; tiles have I8 or Q4NX");
    }
    if (!fits || tensor.bytes.size() != sizes::bytes(rows, cols))
        return fail(errc::shape_mismatch, "tensor ", printable(tensor.name), " of ", tensor.bytes.size(),
                    " bytes is not a matrix [", rows, ", ", cols, "] in tiles of ", T::name);
    if (auto checked = quant::check_tiles<T>(tensor.bytes, rows, cols); !checked)
        return fail(checked.error().code, "tensor ", printable(tensor.name), ": ", checked.error().message);
    return tensor.bytes;
}

/// The values of a tensor that is not in tiles: F32, F16 or BF16, such as norms and the convolution.
/// Errors: unsupported_format.
[[nodiscard]] inline result<std::vector<float>> floats_of(const safetensor& tensor) {
    using formats = quant::list<quant::f32, quant::f16, quant::bf16>;
    FRUGAL_TRY_ASSIGN(const quant::type_id type, quant_type_of(tensor));
    FRUGAL_TRY_ASSIGN(const std::size_t width, quant::row_bytes<formats>(type, 1));
    FRUGAL_TRY_ASSIGN(const quant::weight_view view,
                      quant::make_weight_view<formats>(type, tensor.bytes, 1, tensor.bytes.size() / width));
    return quant::dequantize<formats>(view);
}

}  // namespace io

FRUGAL_NAMESPACE_END
