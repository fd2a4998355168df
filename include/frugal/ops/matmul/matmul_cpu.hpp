#pragma once
/// CPU kernels of products: a range of panels of 16 weight rows against all rows of activations.
#include <cstddef>

#include "frugal/device/cpu/activations.hpp"
#include "frugal/device/cpu/isa.hpp"
#include "frugal/ops/matmul/activations_cpu.hpp"
#include "frugal/quant/panels.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// Rows of activations that a kernel keeps sums for.
inline constexpr std::size_t matmul_slice = 512;
/// Floats of scratch that matmul_panels needs.
inline constexpr std::size_t panel_scratch = matmul_slice * quant::panel_rows;
/// Floats of scratch for a product from a file's blocks, rows of `cols` weights: those of matmul_panels and a panel of f32.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t matmul_scratch(std::size_t cols) noexcept {
    return panel_scratch + quant::panel_rows * ((cols + quant::panel_group - 1) / quant::panel_group * quant::panel_group);
}

/// y[t][r] = sum over c of w[r][c] * x[t][c] for the rows r of panels panel_begin <= p < panel_end and every row t of x;
/// Activations: device::f32_activations; q8_activations where x has codes, bf16_activations where it has them rounded. Each sum
/// runs in one order whatever the ranges and the number of rows of x, so any split gives the same bits. `scratch`: panel_scratch
/// floats of the caller's.
template <class Isa, class Format, class Activations>
FRUGAL_KERNEL void matmul_panels(const quant::panel_view& w, const prepared_activations& x, matrix_view<float> y,
                                 std::size_t panel_begin, std::size_t panel_end, float* scratch);

/// An instance of matmul_panels.
using panel_kernel = void (*)(const quant::panel_view& w, const prepared_activations& x, matrix_view<float> y,
                              std::size_t panel_begin, std::size_t panel_end, float* scratch);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/matmul/matmul_cpu-inl.hpp"
#endif
