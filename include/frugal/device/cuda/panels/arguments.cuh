#pragma once
/// What the kernels of products have in common.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/products.hpp"
#include "frugal/quant/panel/layout.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu::panels {

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
    // Where each row of y has an expert of its own: its number, bytes of an expert's panels, rows of y that share a row of x;
    // these rows by expert, as expert_groups has them, in tiles of one size.
    const std::int32_t* experts;
    std::size_t expert_bytes;
    int share;
    const std::int32_t* order;
    const choice_tile* tiles;
};

/// The rows of y that the blocks of one blockIdx.y make, `Most` at most, and whose weights: consecutive ones of one matrix. With
/// Experts the one row whose number the block has, or, of several at once, those of a tile of an expert's.
template <int Most, bool Experts>
struct block_rows {
    static constexpr bool grouped = Experts && Most > 1;
    const std::byte* weights;
    int first, count;

    FRUGAL_DEVICE explicit block_rows(const matvec_arguments& a) : weights(a.weights) {
        if constexpr (grouped) {
            const choice_tile tile = a.tiles[blockIdx.y];
            first = tile.first, count = tile.count;
            weights += static_cast<std::size_t>(tile.expert) * a.expert_bytes;
        } else {
            first = static_cast<int>(blockIdx.y) * Most, count = (min)(Most, a.tokens - first);
            if constexpr (Experts) weights += static_cast<std::size_t>(a.experts[first]) * a.expert_bytes;
        }
    }
    /// Row t of y; beyond the last one, the last one again. Of x that which it is multiplied with.
    FRUGAL_DEVICE int y(const matvec_arguments& a, int t) const {
        const int at = first + (min)(t, count - 1);
        return grouped ? a.order[at] : at;
    }
    FRUGAL_DEVICE int x(const matvec_arguments& a, int t) const { return Experts ? y(a, t) / a.share : y(a, t); }
    /// Whether row t is worth computing. All threads of a block agree, so in a tile that is not full none waits for nothing.
    FRUGAL_DEVICE bool wants(int t) const { return !grouped || t < count; }
};

/// Adds the partial sums of the block's warps, [panel][token][row], and stores them into its rows of y, those of panels from
/// `first_panel` on. After a barrier of the block.
template <int Tokens, class Rows, int Sums>
FRUGAL_DEVICE void store_sums(const matvec_arguments& a, const Rows& rows, int first_panel, const matvec_shared<Sums>& shared) {
    for (int s = static_cast<int>(threadIdx.x); s < Sums; s += 32 * matvec_warps) {
        float all = 0.0f;
        FRUGAL_UNROLL
        for (int w = 0; w < matvec_warps; ++w) all += shared.partial[w][s];
        const int p = s / (Tokens * 16), t = s / 16 % Tokens, r = (first_panel + p) * 16 + s % 16;
        if (t < rows.count && r < a.rows)
            a.y[static_cast<std::size_t>(rows.y(a, t)) * a.y_stride + static_cast<std::size_t>(r)] = all;
    }
}

}  // namespace device::gpu::panels

namespace device::gpu::detail {

[[nodiscard]] inline panels::matvec_arguments matvec_of(const panel_product& product) {
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
            1,
            nullptr,
            nullptr};
}

/// Without tiles yet.
[[nodiscard]] inline panels::matvec_arguments matvec_of(const expert_product& product) {
    panels::matvec_arguments a = matvec_of(product.panels);
    a.tokens = static_cast<int>(product.choices);
    a.experts = product.experts;
    a.expert_bytes = static_cast<std::size_t>(a.panels) * a.panel_bytes;
    a.share = static_cast<int>(product.share);
    a.order = product.groups.order;
    return a;
}

/// Tiles of `size` choices as blocks of a grid, at most; a takes them.
[[nodiscard]] inline int take_tiles(panels::matvec_arguments& a, const expert_product& product, std::size_t size) {
    a.tiles = size == expert_groups::few ? product.groups.of_few : product.groups.of_many;
    return static_cast<int>(expert_groups::most_tiles(product.choices, product.groups.experts, size));
}

/// A kernel of so many warps for so many panels a block, and blocks beside one another for the rows of y.
[[nodiscard]] inline cudaError_t start_rows(void (*kernel)(panels::matvec_arguments), const panels::matvec_arguments& a,
                                            int warps, int panels_a_block, int blocks, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>((a.panels + panels_a_block - 1) / panels_a_block), static_cast<unsigned>(blocks));
    return launch(kernel, grid, dim3(static_cast<unsigned>(32 * warps)), 0, stream, a);
}

}  // namespace device::gpu::detail

FRUGAL_NAMESPACE_END
