#pragma once
/// CPU kernel of ops::matmul: a range of weight rows against all rows of activations.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"
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

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/matmul/matmul_cpu-inl.hpp"
#endif
