#pragma once
/// Products of weights in panels with few activations: a stream of weights through registers, many rows a block.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cpu/activations.hpp"
#include "frugal/device/cuda/panels/arguments.cuh"
#include "frugal/device/cuda/panels/codes.cuh"
#include "frugal/device/cuda/panels/reader.cuh"
#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/products.hpp"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu::panels {

/// y of up to `Tokens` tokens (block_rows) for `Panels` panels of weights a block, which it reads once. Grid: [panels / Panels,
/// tokens / Tokens or tiles], rounded up; blocks of 32 * matvec_warps threads. A row's sum is made of the same terms in the same
/// order whatever Panels, Tokens and the format are.
template <class Layout, int Panels, int Tokens, bool Experts = false>
__global__ void __launch_bounds__(32 * matvec_warps, 1) matvec_panels(matvec_arguments a) {
    using reader = panel_reader<Layout>;
    constexpr int sums = Panels * Tokens * static_cast<int>(quant::panel_rows);
    constexpr int step = 2 * matvec_warps;  // groups that the block takes at once
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const lane_place at{lane % 4, lane / 4 % 4};
    const int first_panel = static_cast<int>(blockIdx.x) * Panels, column = 4 * at.part;

    const block_rows<Tokens, Experts> rows(a);
    if (rows.count == 0) return;  // the whole block leaves
    const std::byte* __restrict__ const weights = rows.weights;
    const float* __restrict__ const values = a.values;
    const int groups = a.groups;
    const std::byte* panel[Panels];
    FRUGAL_UNROLL
    for (int p = 0; p < Panels; ++p)  // beyond the end: the last one again, for nothing
        panel[p] = weights + static_cast<std::size_t>((min)(first_panel + p, a.panels - 1)) * a.panel_bytes;
    std::size_t row[Tokens];
    FRUGAL_UNROLL
    for (int t = 0; t < Tokens; ++t) row[t] = static_cast<std::size_t>(rows.x(a, t)) * static_cast<std::size_t>(groups);

    float sum[Panels][Tokens][4];
    FRUGAL_UNROLL
    for (int p = 0; p < Panels; ++p) {
        FRUGAL_UNROLL
        for (int t = 0; t < Tokens; ++t) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) sum[p][t][i] = 0.0f;
        }
    }

    int group = 2 * warp + lane / 16;
    typename reader::raw next[Panels];
    if (group < groups) {
        FRUGAL_UNROLL
        for (int p = 0; p < Panels; ++p) next[p] = reader::load(panel[p], group, at);
    }
    for (; group < groups; group += step) {
        typename reader::raw now[Panels];
        FRUGAL_UNROLL
        for (int p = 0; p < Panels; ++p) now[p] = next[p];
        if (group + step < groups) {  // the next ones are on their way while these are multiplied
            FRUGAL_UNROLL
            for (int p = 0; p < Panels; ++p) next[p] = reader::load(panel[p], group + step, at);
        }
        float x[Tokens][8];
        FRUGAL_UNROLL
        for (int t = 0; t < Tokens; ++t) {
            const float* const from = values + (row[t] + static_cast<std::size_t>(group)) * 32 + column;
            float4 low{}, high{};
            if (rows.wants(t)) {
                low = __ldg(reinterpret_cast<const float4*>(from));
                high = __ldg(reinterpret_cast<const float4*>(from + 16));
            }
            x[t][0] = low.x, x[t][1] = low.y, x[t][2] = low.z, x[t][3] = low.w;
            x[t][4] = high.x, x[t][5] = high.y, x[t][6] = high.z, x[t][7] = high.w;
        }
        FRUGAL_UNROLL
        for (int p = 0; p < Panels; ++p) {
            float w[8][4];
            reader::weights(now[p], at, w);
            FRUGAL_UNROLL
            for (int t = 0; t < Tokens; ++t) {
                if (!rows.wants(t)) break;
                FRUGAL_UNROLL
                for (int c = 0; c < 8; ++c) {
                    FRUGAL_UNROLL
                    for (int i = 0; i < 4; ++i) sum[p][t][i] = fmaf(w[c][i], x[t][c], sum[p][t][i]);
                }
            }
        }
    }

    // Over the lanes of a row, then over the warps.
    auto& shared = block_shared<matvec_shared<sums>>();
    FRUGAL_UNROLL
    for (int p = 0; p < Panels; ++p) {
        FRUGAL_UNROLL
        for (int t = 0; t < Tokens; ++t) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) {
                const float all = lane_sum<4>(sum[p][t][i]);
                if (lane < 4) shared.partial[warp][(p * Tokens + t) * 16 + 4 * lane + i] = all;
            }
        }
    }
    __syncthreads();
    store_sums<Tokens>(a, rows, first_panel, shared);
}

}  // namespace device::gpu::panels

namespace device::gpu {

namespace detail {

/// A kernel for so many panels and tokens a block.
[[nodiscard]] inline cudaError_t start_matvec(void (*kernel)(panels::matvec_arguments), const panels::matvec_arguments& a,
                                              int panels_a_block, int tokens_a_block, cudaStream_t stream) {
    return start_rows(kernel, a, panels::matvec_warps, panels_a_block, (a.tokens + tokens_a_block - 1) / tokens_a_block, stream);
}

}  // namespace detail

template <class Format, activation_policy Activations>
cudaError_t multiply_panels(const panel_product& product, cudaStream_t stream) {
    using layout = quant::panel_of<Format>;
    const panels::matvec_arguments a = detail::matvec_of(product);
    if (a.panels == 0 || a.tokens == 0) return cudaSuccess;
    // Two panels share their activations, where there are blocks enough to fill the device several times over.
    const bool many = a.panels >= 8 * product.multiprocessors;
    if constexpr (Activations::quantized && quant::coded_layout<layout>) {
        if (a.tokens > 16) {
            constexpr int warps = panels::tile_warps, tokens = panels::tile_tokens;
            return detail::start_rows(panels::multiply_code_tiles<layout>, a, warps, warps, (a.tokens + tokens - 1) / tokens,
                                      stream);
        }
        if (a.tokens > 4) return detail::start_matvec(panels::matvec_codes<layout, 1, 8>, a, 1, 8, stream);
        if (a.tokens > 1) return detail::start_matvec(panels::matvec_codes<layout, 1, 4>, a, 1, 4, stream);
        if (many) return detail::start_matvec(panels::matvec_codes<layout, 2, 1>, a, 2, 1, stream);
        return detail::start_matvec(panels::matvec_codes<layout, 1, 1>, a, 1, 1, stream);
    } else {
        if (a.tokens > 4) return detail::start_matvec(panels::matvec_panels<layout, 1, 8>, a, 1, 8, stream);
        if (a.tokens > 1) return detail::start_matvec(panels::matvec_panels<layout, 1, 4>, a, 1, 4, stream);
        if (many) return detail::start_matvec(panels::matvec_panels<layout, 2, 1>, a, 2, 1, stream);
        return detail::start_matvec(panels::matvec_panels<layout, 1, 1>, a, 1, 1, stream);
    }
}

template <class Format, activation_policy Activations>
cudaError_t multiply_expert_panels(const expert_product& product, cudaStream_t stream) {
    using layout = quant::panel_of<Format>;
    constexpr int few = expert_groups::few, warps = panels::matvec_warps;
    panels::matvec_arguments a = detail::matvec_of(product);
    if (a.panels == 0 || a.tokens == 0) return cudaSuccess;
    const bool grouped = product.groups.order != nullptr;
    if constexpr (Activations::quantized && quant::coded_layout<layout>) {
        if (!grouped) return detail::start_matvec(panels::matvec_codes<layout, 1, 1, true>, a, 1, 1, stream);
        if (product.choices > 4 * product.groups.experts) {  // matrix units, of which eight choices are the least work
            constexpr int tile_warps = panels::tile_warps;
            const int tiles = detail::take_tiles(a, product, expert_groups::many);
            return detail::start_rows(panels::multiply_code_tiles<layout, true>, a, tile_warps, tile_warps, tiles, stream);
        }
        const int tiles = detail::take_tiles(a, product, few);
        return detail::start_rows(panels::matvec_codes<layout, 1, few, true>, a, warps, 1, tiles, stream);
    } else {
        if (!grouped) return detail::start_matvec(panels::matvec_panels<layout, 1, 1, true>, a, 1, 1, stream);
        const int tiles = detail::take_tiles(a, product, few);
        return detail::start_rows(panels::matvec_panels<layout, 1, few, true>, a, warps, 1, tiles, stream);
    }
}

template <activation_policy Activations>
    requires(Activations::quantized)
cudaError_t quantize_activations(const float* values, std::size_t tokens, std::size_t groups, std::int8_t* codes,
                                 std::int16_t* sums, float* scales, cudaStream_t stream) {
    constexpr unsigned warps = 8;
    const std::size_t all = tokens * groups;
    if (all == 0) return cudaSuccess;
    return launch(panels::quantize_groups<warps>, dim3(static_cast<unsigned>((all + warps - 1) / warps)), dim3(32 * warps), 0,
                  stream, values, all, codes, sums, scales);
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
