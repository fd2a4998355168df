#pragma once
/// What the kernels of products have in common.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/products.hpp"
#include "frugal/quant/panel/layout.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int matvec_warps = 8;  ///< share the columns of a panel; part of the order of summation

template <int Sums>
struct matvec_shared {
    float partial[matvec_warps][Sums];
};

/// What matvec_panels computes.
struct matvec_arguments {
    const std::byte* weights;
    std::size_t panel_bytes;
    int panels, rows, groups;
    const float* values;
    const std::int8_t* codes;
    const std::int16_t* sums;
    const float* scales;
    int tokens;
    float* y;
    std::size_t y_stride;
    // Where each row of y has an expert of its own: its number, bytes of an expert's panels, rows of y that share a row of x.
    const std::int32_t* experts;
    std::size_t expert_bytes;
    int share;
};

}  // namespace ops::cuda

namespace device::gpu::detail {

[[nodiscard]] inline ops::cuda::matvec_arguments matvec_of(const panel_product& product) {
    return {product.weights,
            product.panel_bytes,
            static_cast<int>((product.rows + quant::panel_rows - 1) / quant::panel_rows),
            static_cast<int>(product.rows),
            static_cast<int>(product.x.groups),
            product.x.values,
            product.x.codes,
            product.x.sums,
            product.x.scales,
            static_cast<int>(product.x.tokens),
            product.y,
            product.y_stride,
            nullptr,
            0,
            1};
}

}  // namespace device::gpu::detail

FRUGAL_NAMESPACE_END
