#pragma once
/// Products of weights in panels with few activations: a stream of weights through registers, many rows a block.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cpu/activations.hpp"
#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/products.hpp"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/matmul/panel_reader.cuh"
#include "frugal/quant/formats.hpp"

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
    const float* scales;
    int tokens;
    float* y;
    std::size_t y_stride;
    // Where each row of y has an expert of its own: its number, bytes of an expert's panels, rows of y that share a row of x.
    const std::int32_t* experts;
    std::size_t expert_bytes;
    int share;
};

/// y of up to `Tokens` tokens for `Panels` panels of weights a block. Grid: [panels / Panels, tokens / Tokens], both rounded
/// up; blocks of 32 * matvec_warps threads. A row's sum is made of the same terms in the same order whatever Panels, Tokens and
/// the format are.
template <class Layout, bool Quantized, int Panels, int Tokens, bool Experts = false>
__global__ void __launch_bounds__(32 * matvec_warps) matvec_panels(matvec_arguments a) {
    using reader = panel_reader<Layout>;
    constexpr int sums = Panels * Tokens * static_cast<int>(quant::panel_rows);
    constexpr int step = 2 * matvec_warps;  // groups that the block takes at once
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const lane_place at{lane % 4, lane / 4 % 4};
    const int first_panel = static_cast<int>(blockIdx.x) * Panels, first_token = static_cast<int>(blockIdx.y) * Tokens;
    const int column = 4 * at.part;

    static_assert(!Experts || Tokens == 1, "frugal: rows with experts of their own share no weights");
    const std::byte* __restrict__ const weights =
        Experts ? a.weights + static_cast<std::size_t>(a.experts[blockIdx.y]) * a.expert_bytes : a.weights;
    const float* __restrict__ const values = a.values;
    const std::int8_t* __restrict__ const codes = a.codes;
    const float* __restrict__ const scales = a.scales;
    const int groups = a.groups, tokens = a.tokens;
    const std::byte* panel[Panels];
    FRUGAL_UNROLL
    for (int p = 0; p < Panels; ++p)  // beyond the end: the last one again, for nothing
        panel[p] = weights + static_cast<std::size_t>(min(first_panel + p, a.panels - 1)) * a.panel_bytes;
    std::size_t row[Tokens];
    FRUGAL_UNROLL
    for (int t = 0; t < Tokens; ++t)
        row[t] = static_cast<std::size_t>(Experts ? first_token / a.share : min(first_token + t, tokens - 1)) *
                 static_cast<std::size_t>(groups);

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
        if constexpr (Quantized) {
            constexpr unsigned ones = 0x01010101u;
            code_words words[Panels];
            lane_scales by[Panels];
            FRUGAL_UNROLL
            for (int p = 0; p < Panels; ++p) {
                words[p] = reader::codes(now[p], at);
                reader::scales(now[p], by[p]);
            }
            FRUGAL_UNROLL
            for (int t = 0; t < Tokens; ++t) {
                const std::size_t g = row[t] + static_cast<std::size_t>(group);
                const int low = __ldg(reinterpret_cast<const int*>(codes + g * 32 + column));
                const int high = __ldg(reinterpret_cast<const int*>(codes + g * 32 + 16 + column));
                const float scale = __ldg(scales + g);
                const int low_sum = __dp4a(static_cast<int>(ones), low, 0), high_sum = __dp4a(static_cast<int>(ones), high, 0);
                FRUGAL_UNROLL
                for (int p = 0; p < Panels; ++p) {
                    FRUGAL_UNROLL
                    for (int i = 0; i < 4; ++i) {
                        float& to = sum[p][t][i];
                        const int low_dot = __dp4a(static_cast<int>(words[p].low[i]), low, -reader::offset * low_sum);
                        if constexpr (reader::runs == 2) {
                            const int high_dot = __dp4a(static_cast<int>(words[p].high[i]), high, -reader::offset * high_sum);
                            to = fmaf(static_cast<float>(low_dot), by[p].scale[0][i] * scale, to);
                            to = fmaf(static_cast<float>(high_dot), by[p].scale[1][i] * scale, to);
                        } else {
                            const int dot = __dp4a(static_cast<int>(words[p].high[i]), high, low_dot - reader::offset * high_sum);
                            to = fmaf(static_cast<float>(dot), by[p].scale[0][i] * scale, to);
                        }
                        if constexpr (reader::has_offsets)
                            to = fmaf(static_cast<float>(low_sum + high_sum), by[p].offset[i] * scale, to);
                    }
                }
            }
        } else {
            float x[Tokens][8];
            FRUGAL_UNROLL
            for (int t = 0; t < Tokens; ++t) {
                const float* const from = values + (row[t] + static_cast<std::size_t>(group)) * 32 + column;
                const float4 low = __ldg(reinterpret_cast<const float4*>(from));
                const float4 high = __ldg(reinterpret_cast<const float4*>(from + 16));
                x[t][0] = low.x, x[t][1] = low.y, x[t][2] = low.z, x[t][3] = low.w;
                x[t][4] = high.x, x[t][5] = high.y, x[t][6] = high.z, x[t][7] = high.w;
            }
            FRUGAL_UNROLL
            for (int p = 0; p < Panels; ++p) {
                float w[8][4];
                reader::weights(now[p], at, w);
                FRUGAL_UNROLL
                for (int c = 0; c < 8; ++c) {
                    FRUGAL_UNROLL
                    for (int t = 0; t < Tokens; ++t) {
                        FRUGAL_UNROLL
                        for (int i = 0; i < 4; ++i) sum[p][t][i] = fmaf(w[c][i], x[t][c], sum[p][t][i]);
                    }
                }
            }
        }
    }

    // Over the lanes of a row, then over the warps.
    auto& shared = device::gpu::block_shared<matvec_shared<sums>>();
    FRUGAL_UNROLL
    for (int p = 0; p < Panels; ++p) {
        FRUGAL_UNROLL
        for (int t = 0; t < Tokens; ++t) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) {
                const float all = device::gpu::lane_sum<4>(sum[p][t][i]);
                if (lane < 4) shared.partial[warp][(p * Tokens + t) * 16 + 4 * lane + i] = all;
            }
        }
    }
    __syncthreads();
    for (int s = thread; s < sums; s += 32 * matvec_warps) {
        float all = 0.0f;
        FRUGAL_UNROLL
        for (int w = 0; w < matvec_warps; ++w) all += shared.partial[w][s];
        const int p = s / (Tokens * 16), t = first_token + s / 16 % Tokens, r = (first_panel + p) * 16 + s % 16;
        if (t < tokens && r < a.rows) a.y[static_cast<std::size_t>(t) * a.y_stride + static_cast<std::size_t>(r)] = all;
    }
}

/// Codes and scales of quant::q8_activation<32>: one warp a group. Grid: groups of all tokens / Warps, rounded up.
template <int Warps>
__global__ void __launch_bounds__(32 * Warps) quantize_groups(const float* __restrict__ values, std::size_t groups,
                                                              std::int8_t* __restrict__ codes, float* __restrict__ scales) {
    const std::size_t group = static_cast<std::size_t>(blockIdx.x) * Warps + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (group >= groups) return;  // whole warps leave; there is no block barrier below
    const float value = values[group * 32 + lane];
    // Magnitudes of floats order like their bits, with NaN above infinity above everything finite.
    const unsigned most = __reduce_max_sync(device::gpu::full_warp, __float_as_uint(value) & 0x7FFFFFFFu);
    constexpr unsigned infinity_bits = 0x7F800000u, least_bits = (127u - 120u) << 23;
    float scale = 0.0f;
    int code = 0;
    if (most >= infinity_bits) {
        scale = __uint_as_float(0x7FC00000u);
    } else if (most >= least_bits) {
        const float largest = __uint_as_float(most), inverse = 127.0f / largest;
        scale = largest / 127.0f;
        // The exact product to the nearest integer, ties to even. Its float is on the same side of every half as it is, or is
        // that half; then the rest that was rounded off decides.
        const float product = __fmul_rn(value, inverse), rest = fmaf(value, inverse, -product);
        const float nearest = rintf(product), beyond = product - nearest;
        code = static_cast<int>(nearest);
        if (fabsf(beyond) == 0.5f && rest != 0.0f) code = static_cast<int>(product + copysignf(0.5f, rest));
    }
    codes[group * 32 + lane] = static_cast<std::int8_t>(code);
    if (lane == 0) scales[group] = scale;
}

}  // namespace ops::cuda

namespace device::gpu {

namespace detail {
[[nodiscard]] inline ops::cuda::matvec_arguments matvec_of(const panel_product& product) {
    return {product.weights,
            product.panel_bytes,
            static_cast<int>((product.rows + quant::panel_rows - 1) / quant::panel_rows),
            static_cast<int>(product.rows),
            static_cast<int>(product.x.groups),
            product.x.values,
            product.x.codes,
            product.x.scales,
            static_cast<int>(product.x.tokens),
            product.y,
            product.y_stride,
            nullptr,
            0,
            1};
}
}  // namespace detail

template <class Format, activation_policy Activations>
cudaError_t multiply_panels(const panel_product& product, cudaStream_t stream) {
    using layout = quant::panel_of<Format>;
    constexpr bool quantized = Activations::quantized && quant::coded_layout<layout>;
    const ops::cuda::matvec_arguments a = detail::matvec_of(product);
    const auto start = [&](auto kernel, int panels_a_block, int tokens_a_block) {
        const dim3 grid(static_cast<unsigned>((a.panels + panels_a_block - 1) / panels_a_block),
                        static_cast<unsigned>((a.tokens + tokens_a_block - 1) / tokens_a_block));
        return launch(kernel, grid, dim3(32 * ops::cuda::matvec_warps), 0, stream, a);
    };
    if (a.panels == 0 || a.tokens == 0) return cudaSuccess;
    if (a.tokens > 4) return start(ops::cuda::matvec_panels<layout, quantized, 1, 8>, 1, 8);
    if (a.tokens > 1) return start(ops::cuda::matvec_panels<layout, quantized, 1, 4>, 1, 4);
    // Two panels share their activations, where there are blocks enough to fill the device several times over.
    if (a.panels >= 8 * product.multiprocessors) return start(ops::cuda::matvec_panels<layout, quantized, 2, 1>, 2, 1);
    return start(ops::cuda::matvec_panels<layout, quantized, 1, 1>, 1, 1);
}

template <class Format, activation_policy Activations>
cudaError_t multiply_expert_panels(const expert_product& product, cudaStream_t stream) {
    using layout = quant::panel_of<Format>;
    constexpr bool quantized = Activations::quantized && quant::coded_layout<layout>;
    ops::cuda::matvec_arguments a = detail::matvec_of(product.panels);
    a.tokens = static_cast<int>(product.choices);
    a.experts = product.experts;
    a.expert_bytes = static_cast<std::size_t>(a.panels) * a.panel_bytes;
    a.share = static_cast<int>(product.share);
    if (a.panels == 0 || a.tokens == 0) return cudaSuccess;
    return launch(ops::cuda::matvec_panels<layout, quantized, 1, 1, true>,
                  dim3(static_cast<unsigned>(a.panels), static_cast<unsigned>(a.tokens)), dim3(32 * ops::cuda::matvec_warps), 0,
                  stream, a);
}

template <activation_policy Activations>
    requires(Activations::quantized)
cudaError_t quantize_activations(const float* values, std::size_t tokens, std::size_t groups, std::int8_t* codes, float* scales,
                                 cudaStream_t stream) {
    constexpr unsigned warps = 8;
    const std::size_t all = tokens * groups;
    if (all == 0) return cudaSuccess;
    return launch(ops::cuda::quantize_groups<warps>, dim3(static_cast<unsigned>((all + warps - 1) / warps)), dim3(32 * warps), 0,
                  stream, values, all, codes, scales);
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
