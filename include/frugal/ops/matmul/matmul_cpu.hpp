#pragma once
/// CPU kernels of ops::matmul, ops::matmul_q8 and ops::image_matmul: a range of weight rows against all rows of activations.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"
#include "frugal/quant/interleaved.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// Floats of scratch that matmul_rows needs for rows of `cols` weights.
[[nodiscard]] constexpr std::size_t matmul_scratch(std::size_t cols) noexcept { return 4 * cols; }

/// y[t][r] = sum over c of w[r][c] * x[t][c] for row_begin <= r < row_end and every row t of x; f32 accumulation.
/// Each sum runs in one order whatever the ranges and the number of rows of x, so any split gives the same bits.
/// `scratch` holds matmul_scratch(w.cols) floats of the caller's.
template <class Isa, class Format>
void matmul_rows(const quant::weight_view& w, matrix_view<const float> x, matrix_view<float> y, std::size_t row_begin,
                 std::size_t row_end, float* scratch);

/// The same for groups group_begin <= g < group_end of interleaved rows, with the same bits.
template <class Isa, class Format>
void matmul_interleaved(const quant::interleaved_view& w, matrix_view<const float> x, matrix_view<float> y,
                        std::size_t group_begin, std::size_t group_end, float* scratch);

/// Quantises rows row_begin … row_end - 1 of x, whose columns are a multiple of Activation::block_size, into blocks:
/// out[r * (x.cols() / block_size) + b]. `Activation` is one of quant::q8_activation, `Block` its block.
template <class Isa, class Activation, class Block>
void quantize_rows(matrix_view<const float> x, Block* out, std::size_t row_begin, std::size_t row_end);

/// y[t][r] = sum over blocks b of Format::dot(w[r][b], x[t][b]), in double and in the order of b, rounded once to float, for
/// row_begin <= r < row_end and t < tokens. `x` as quantize_rows leaves it. The same bits on every instruction set.
/// `Block` is quant::activation_of<Format>::block. Does nothing for formats without integer dot products.
template <class Isa, class Format, class Block>
void matmul_q8_rows(const quant::weight_view& w, const Block* x, std::size_t tokens, matrix_view<float> y, std::size_t row_begin,
                    std::size_t row_end);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/matmul/matmul_cpu-inl.hpp"
#endif
