#pragma once
/// Activations as the CPU kernels of products take them.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cpu/activations.hpp"
#include "frugal/device/cpu/isa.hpp"
#include "frugal/quant/panel/scalars.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Rows of activations in groups of 32 columns; not owned. The last group is filled up with zeros.
struct prepared_activations {
    std::size_t rows = 0, cols = 0, groups = 0, stride = 0;  ///< stride: floats from one row of `values` to the next
    const float* values = nullptr;
    // Only where the device quantises activations; row r of `codes` starts at r * groups * 32, of `scales` at r * groups, of
    // `code_sums` (of 16 codes each) at r * groups * 2.
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr;
    const std::int16_t* code_sums = nullptr;
    // Only where the device rounds them to bfloat16; row r of `rounded` starts at r * groups * 32, of `sums` (of 32 columns) at
    // r * groups.
    const bfloat16* rounded = nullptr;
    const float* sums = nullptr;

    /// Rows first … first + count - 1.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE prepared_activations rows_range(std::size_t first, std::size_t count) const noexcept {
        prepared_activations out = *this;
        out.rows = count;
        if (values != nullptr) out.values += first * stride;
        if (codes != nullptr) {
            out.codes += first * groups * quant::panel_group;
            out.scales += first * groups;
            out.code_sums += first * groups * 2;
        }
        if (rounded != nullptr) {
            out.rounded += first * groups * quant::panel_group;
            out.sums += first * groups;
        }
        return out;
    }
};

/// Whether a product with weights in a layout of panels reads codes of activations, or activations rounded to bfloat16; if
/// neither, it reads them as they are.
template <class Activations, class Layout>
inline constexpr bool reads_codes = Activations::quantized&& quant::coded_layout<Layout>;
template <class Activations, class Layout>
inline constexpr bool reads_rounded = Activations::rounded && (quant::coded_layout<Layout> || quant::paired_layout<Layout>);

namespace cpu {

/// Quantises rows row_begin … row_end - 1 of x.values by the rule of quant::q8_activation<32>.
template <class Isa>
FRUGAL_KERNEL void quantize_rows(const prepared_activations& x, std::int8_t* codes, float* scales, std::int16_t* sums,
                                 std::size_t row_begin, std::size_t row_end);

/// Rounds rows row_begin … row_end - 1 of x.values to bfloat16, magnitudes below 2^-126 to 0; `sums`: of 32 rounded columns.
template <class Isa>
FRUGAL_KERNEL void round_rows(const prepared_activations& x, bfloat16* rounded, float* sums, std::size_t row_begin,
                              std::size_t row_end);

}  // namespace cpu
}  // namespace ops

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/matmul/activations_cpu-inl.hpp"
#endif
