#pragma once
/// CPU kernel of ops::apply_rope: a range of rows.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// Rotates the pairs (j, j + angles.cols() / 2) of every head of rows row_begin <= r < row_end of x, in place.
/// angles: [rows, cosines then sines]. Head h begins at feature h * head_stride.
template <class Isa>
FRUGAL_KERNEL void rotate_rows(matrix_view<const float> angles, matrix_view<float> x, std::size_t heads, std::size_t head_stride,
                               std::size_t row_begin, std::size_t row_end);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/rope/rope_cpu-inl.hpp"
#endif
