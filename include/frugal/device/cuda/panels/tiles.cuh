#pragma once
/// Products of weights in panels with many tokens by matrix units, both rounded to bfloat16: device::prefill::bf16_tiles.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/panels/arguments.cuh"
#include "frugal/device/cuda/panels/reader.cuh"
#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/products.hpp"
#include "frugal/device/cuda/tensor_core.cuh"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu::panels {

inline constexpr int bf16_warps = 4;    ///< panels of a block: one a warp
inline constexpr int bf16_tokens = 64;  ///< tokens of a block

/// y of 16 rows and Tokens tokens (block_rows) a warp. Grid: [panels / bf16_warps, tokens / Tokens or tiles], rounded up. A row
/// and a token are summed over the groups of columns in their order, whatever stands beside them.
template <class Layout, int Tokens, bool Experts = false>
__global__ void __launch_bounds__(32 * bf16_warps, 1) multiply_panel_tiles(matvec_arguments a) {
    using reader = panel_reader<Layout>;
    constexpr int tiles = Tokens / 8;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int panel_number = static_cast<int>(blockIdx.x) * bf16_warps + warp;
    const block_rows<Tokens, Experts> rows(a);
    if (panel_number >= a.panels || rows.count == 0) return;  // whole warps leave; there is no block barrier below
    // Where mma wants columns 2 * part, + 1, + 8, + 9 of 16, a lane takes columns 4 * part … + 3, of weights and activations
    // alike: a sum does not mind.
    const int across = lane / 4, part = lane % 4;
    const std::byte* __restrict__ const panel = rows.weights + static_cast<std::size_t>(panel_number) * a.panel_bytes;
    int operand_row[tiles];  // of x
    FRUGAL_UNROLL
    for (int n = 0; n < tiles; ++n) operand_row[n] = rows.x(a, 8 * n + across);

    fragment_c sum[tiles];
    FRUGAL_UNROLL
    for (int n = 0; n < tiles; ++n) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) sum[n].x[i] = 0.0f;
    }
    for (int group = 0; group < a.groups; ++group) {
        float upper[8], lower[8];
        reader::row_weights(panel, group, across, part, upper);
        reader::row_weights(panel, group, across + 8, part, lower);
        fragment_a weights[2];  // of the low and the high 16 columns
        FRUGAL_UNROLL
        for (int half = 0; half < 2; ++half) {
            FRUGAL_UNROLL
            for (int i = 0; i < 2; ++i) {
                weights[half].x[2 * i] = pack_bf16(upper[4 * half + 2 * i], upper[4 * half + 2 * i + 1]);
                weights[half].x[2 * i + 1] = pack_bf16(lower[4 * half + 2 * i], lower[4 * half + 2 * i + 1]);
            }
        }
        FRUGAL_UNROLL
        for (int n = 0; n < tiles; ++n) {
            if (!rows.wants(8 * n)) break;
            const std::size_t row = static_cast<std::size_t>(operand_row[n]);
            const float* const from =
                a.values + (row * static_cast<std::size_t>(a.groups) + static_cast<std::size_t>(group)) * 32 + 4 * part;
            FRUGAL_UNROLL
            for (int half = 0; half < 2; ++half) {
                const float4 x = __ldg(reinterpret_cast<const float4*>(from + 16 * half));
                multiply_add(sum[n], weights[half], fragment_b{{pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)}});
            }
        }
    }
    FRUGAL_UNROLL
    for (int n = 0; n < tiles; ++n) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int t = 8 * n + 2 * part + i % 2, r = panel_number * 16 + across + i / 2 * 8;
            if (t < rows.count && r < a.rows)
                a.y[static_cast<std::size_t>(rows.y(a, t)) * a.y_stride + static_cast<std::size_t>(r)] = sum[n].x[i];
        }
    }
}

}  // namespace device::gpu::panels

namespace device::gpu {

template <class Format>
cudaError_t multiply_panel_tiles(const panel_product& product, cudaStream_t stream) {
    const panels::matvec_arguments a = detail::matvec_of(product);
    if (a.panels == 0 || a.tokens == 0) return cudaSuccess;
    constexpr int warps = panels::bf16_warps, tokens = panels::bf16_tokens;
    return detail::start_rows(panels::multiply_panel_tiles<quant::panel_of<Format>, tokens>, a, warps, warps,
                              (a.tokens + tokens - 1) / tokens, stream);
}

template <class Format>
cudaError_t multiply_expert_panel_tiles(const expert_product& product, cudaStream_t stream) {
    panels::matvec_arguments a = detail::matvec_of(product);
    if (a.panels == 0 || a.tokens == 0) return cudaSuccess;
    constexpr int warps = panels::bf16_warps, tokens = expert_groups::many;
    const int tiles = detail::take_tiles(a, product, tokens);
    return detail::start_rows(panels::multiply_panel_tiles<quant::panel_of<Format>, tokens, true>, a, warps, warps, tiles,
                              stream);
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
