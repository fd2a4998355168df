#pragma once
/// Products of integer codes with 8-bit activations: few tokens by dot products of four bytes, many by matrix units.
///
/// Both make, for each group of 32 columns, exact integer sums and add them, scaled, to the same running sums: sixteen a row,
/// one for every group number modulo 16, which are then added in order. So the bits of a row are the same whatever the batch.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/panels/arguments.cuh"
#include "frugal/device/cuda/panels/reader.cuh"
#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/tensor_core.cuh"
#include "frugal/device/cuda/warp.cuh"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu::panels {

/// What a group adds to the running sum of a row: the integer sums of its two halves of columns, codes counted from 0, and
/// those of the activations.
template <class Reader>
FRUGAL_DEVICE void add_group(float& sum, int low, int high, int low_sum, int high_sum, const row_scales& by, float scale) {
    if constexpr (Reader::runs == 2) {
        sum = fmaf(static_cast<float>(low - Reader::offset * low_sum), by.scale[0] * scale, sum);
        sum = fmaf(static_cast<float>(high - Reader::offset * high_sum), by.scale[1] * scale, sum);
    } else {
        sum = fmaf(static_cast<float>(low + high - Reader::offset * (low_sum + high_sum)), by.scale[0] * scale, sum);
    }
    if constexpr (Reader::has_offsets) sum = fmaf(static_cast<float>(low_sum + high_sum), by.offset * scale, sum);
}

/// Sums over the four lanes that share a quad of rows; lane `part` gets that of row `part`: at each step a lane gives half of its
/// sums away.
FRUGAL_DEVICE int sum_of_own_row(const int (&rows)[4], int lane) {
    const unsigned mask = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;  // the other half may be a group ahead
    const bool upper = (lane & 8) != 0, odd = (lane & 4) != 0;
    const int first = (upper ? rows[2] : rows[0]) + __shfl_xor_sync(mask, upper ? rows[0] : rows[2], 8);
    const int second = (upper ? rows[3] : rows[1]) + __shfl_xor_sync(mask, upper ? rows[1] : rows[3], 8);
    return (odd ? second : first) + __shfl_xor_sync(mask, odd ? first : second, 4);
}

/// As matvec_panels, of codes.
template <class Layout, int Panels, int Tokens, bool Experts = false>
__global__ void __launch_bounds__(32 * matvec_warps, 1) matvec_codes(matvec_arguments a) {
    using reader = panel_reader<Layout>;
    constexpr int sums = Panels * Tokens * static_cast<int>(quant::panel_rows);
    constexpr int step = 2 * matvec_warps;  // groups that the block takes at once
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const lane_place at{lane % 4, lane / 4 % 4};
    const int own_row = 4 * at.quad + at.part, column = 4 * at.part;
    const int first_panel = static_cast<int>(blockIdx.x) * Panels;
    const block_rows<Tokens, Experts> rows(a);
    if (rows.count == 0) return;  // the whole block leaves
    const std::byte* __restrict__ const weights = rows.weights;

    const std::byte* panel[Panels];
    FRUGAL_UNROLL
    for (int p = 0; p < Panels; ++p)  // beyond the end: the last one again, for nothing
        panel[p] = weights + static_cast<std::size_t>((min)(first_panel + p, a.panels - 1)) * a.panel_bytes;
    std::size_t row[Tokens];
    FRUGAL_UNROLL
    for (int t = 0; t < Tokens; ++t) row[t] = static_cast<std::size_t>(rows.x(a, t)) * static_cast<std::size_t>(a.groups);
    float sum[Panels][Tokens];
    FRUGAL_UNROLL
    for (int p = 0; p < Panels; ++p) {
        FRUGAL_UNROLL
        for (int t = 0; t < Tokens; ++t) sum[p][t] = 0.0f;
    }

    int group = 2 * warp + lane / 16;
    decltype(reader::load_codes(nullptr, 0, at)) next[Panels];
    row_scales next_scales[Panels] = {};
    if (group < a.groups) {
        FRUGAL_UNROLL
        for (int p = 0; p < Panels; ++p) {
            next[p] = reader::load_codes(panel[p], group, at);
            next_scales[p] = reader::scales_of_row(panel[p], group, own_row);
        }
    }
    for (; group < a.groups; group += step) {
        code_words words[Panels];
        row_scales by[Panels];
        FRUGAL_UNROLL
        for (int p = 0; p < Panels; ++p) {
            words[p] = reader::unpack(next[p], at);
            by[p] = next_scales[p];
        }
        if (group + step < a.groups) {  // the next ones are on their way while these are multiplied
            FRUGAL_UNROLL
            for (int p = 0; p < Panels; ++p) {
                next[p] = reader::load_codes(panel[p], group + step, at);
                next_scales[p] = reader::scales_of_row(panel[p], group + step, own_row);
            }
        }
        FRUGAL_UNROLL
        for (int t = 0; t < Tokens; ++t) {
            if (!rows.wants(t)) break;
            const std::size_t g = row[t] + static_cast<std::size_t>(group);
            const int low = __ldg(reinterpret_cast<const int*>(a.codes + g * 32 + column));
            const int high = __ldg(reinterpret_cast<const int*>(a.codes + g * 32 + 16 + column));
            const float scale = __ldg(a.scales + g);
            const int low_sum = __ldg(a.sums + 2 * g), high_sum = __ldg(a.sums + 2 * g + 1);
            FRUGAL_UNROLL
            for (int p = 0; p < Panels; ++p) {
                int dots[4];
                FRUGAL_UNROLL
                for (int i = 0; i < 4; ++i) dots[i] = __dp4a(static_cast<int>(words[p].low[i]), low, 0);
                if constexpr (reader::runs == 2) {
                    const int low_dot = sum_of_own_row(dots, lane);
                    FRUGAL_UNROLL
                    for (int i = 0; i < 4; ++i) dots[i] = __dp4a(static_cast<int>(words[p].high[i]), high, 0);
                    add_group<reader>(sum[p][t], low_dot, sum_of_own_row(dots, lane), low_sum, high_sum, by[p], scale);
                } else {
                    FRUGAL_UNROLL
                    for (int i = 0; i < 4; ++i) dots[i] = __dp4a(static_cast<int>(words[p].high[i]), high, dots[i]);
                    add_group<reader>(sum[p][t], sum_of_own_row(dots, lane), 0, low_sum, high_sum, by[p], scale);
                }
            }
        }
    }
    __syncwarp();  // its halves may have left the loop at different times

    // Over the two groups of a warp, then over the warps.
    auto& shared = block_shared<matvec_shared<sums>>();
    FRUGAL_UNROLL
    for (int p = 0; p < Panels; ++p) {
        FRUGAL_UNROLL
        for (int t = 0; t < Tokens; ++t) {
            const float both = sum[p][t] + __shfl_xor_sync(full_warp, sum[p][t], 16);
            if (lane < 16) shared.partial[warp][(p * Tokens + t) * 16 + own_row] = both;
        }
    }
    __syncthreads();
    store_sums<Tokens>(a, rows, first_panel, shared);
}

inline constexpr int tile_warps = 4;    ///< panels of a block: one a warp
inline constexpr int tile_tokens = 32;  ///< tokens of a block: as many as three sums each leave registers for
static_assert(tile_tokens == expert_groups::many);

/// The same for many tokens, by matrix units: a warp multiplies the 16 rows of its panel with 32 tokens, eight at a time.
/// Grid: [panels / tile_warps, tokens / tile_tokens or tiles], rounded up.
template <class Layout, bool Experts = false>
__global__ void __launch_bounds__(32 * tile_warps, 1) multiply_code_tiles(matvec_arguments a) {
    using reader = panel_reader<Layout>;
    constexpr int tiles = tile_tokens / 8, classes = 2 * matvec_warps;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int panel_number = static_cast<int>(blockIdx.x) * tile_warps + warp;
    const block_rows<tile_tokens, Experts> rows(a);
    if (panel_number >= a.panels || rows.count == 0) return;  // whole warps leave; there is no block barrier below
    // As mma wants it: of its operands a lane has rows (tokens) `across` and + 8, columns 4 * part … and 16 on; of the result
    // tokens 2 * part and + 1 of rows `across` and + 8.
    const int across = lane / 4, part = lane % 4;
    const std::byte* __restrict__ const panel = rows.weights + static_cast<std::size_t>(panel_number) * a.panel_bytes;
    const auto group_at = [&](int row, int group) {
        return static_cast<std::size_t>(row) * static_cast<std::size_t>(a.groups) + static_cast<std::size_t>(group);
    };
    int operand_row[tiles], scale_row[tiles][2];  // of x
    FRUGAL_UNROLL
    for (int n = 0; n < tiles; ++n) {
        operand_row[n] = rows.x(a, 8 * n + across);
        FRUGAL_UNROLL
        for (int odd = 0; odd < 2; ++odd) scale_row[n][odd] = rows.x(a, 8 * n + 2 * part + odd);
    }

    float total[tiles][4];
    FRUGAL_UNROLL
    for (int n = 0; n < tiles; ++n) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) total[n][i] = 0.0f;
    }
    for (int pair = 0; pair < classes; pair += 2) {
        float both[tiles][4];
        for (int half = 0; half < 2; ++half) {
            float sum[tiles][4];
            FRUGAL_UNROLL
            for (int n = 0; n < tiles; ++n) {
                FRUGAL_UNROLL
                for (int i = 0; i < 4; ++i) sum[n][i] = 0.0f;
            }
            for (int group = pair + half; group < a.groups; group += classes) {
                const row_words upper = reader::row_codes(panel, group, across, part);
                const row_words lower = reader::row_codes(panel, group, across + 8, part);
                const row_scales by[2] = {reader::scales_of_row(panel, group, across),
                                          reader::scales_of_row(panel, group, across + 8)};
                FRUGAL_UNROLL
                for (int n = 0; n < tiles; ++n) {
                    if (!rows.wants(8 * n)) break;
                    const std::size_t from = group_at(operand_row[n], group) * 32 + static_cast<std::size_t>(4 * part);
                    const auto low_x = static_cast<std::uint32_t>(__ldg(reinterpret_cast<const int*>(a.codes + from)));
                    const auto high_x = static_cast<std::uint32_t>(__ldg(reinterpret_cast<const int*>(a.codes + from + 16)));
                    fragment_sums low{}, high{};
                    if constexpr (reader::runs == 2) {
                        multiply_add(low, upper.low, lower.low, low_x);
                        multiply_add(high, upper.high, lower.high, high_x);
                    } else {
                        multiply_add(low, {{upper.low, lower.low, upper.high, lower.high}}, {{low_x, high_x}});
                    }
                    FRUGAL_UNROLL
                    for (int odd = 0; odd < 2; ++odd) {
                        const std::size_t g = group_at(scale_row[n][odd], group);
                        const float scale = __ldg(a.scales + g);
                        const int low_sum = __ldg(a.sums + 2 * g), high_sum = __ldg(a.sums + 2 * g + 1);
                        add_group<reader>(sum[n][odd], low.x[odd], high.x[odd], low_sum, high_sum, by[0], scale);
                        add_group<reader>(sum[n][2 + odd], low.x[2 + odd], high.x[2 + odd], low_sum, high_sum, by[1], scale);
                    }
                }
            }
            FRUGAL_UNROLL
            for (int n = 0; n < tiles; ++n) {
                FRUGAL_UNROLL
                for (int i = 0; i < 4; ++i) both[n][i] = half == 0 ? sum[n][i] : both[n][i] + sum[n][i];
            }
        }
        FRUGAL_UNROLL
        for (int n = 0; n < tiles; ++n) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) total[n][i] += both[n][i];
        }
    }
    FRUGAL_UNROLL
    for (int n = 0; n < tiles; ++n) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int t = 8 * n + 2 * part + i % 2, r = panel_number * 16 + across + i / 2 * 8;
            if (t < rows.count && r < a.rows)
                a.y[static_cast<std::size_t>(rows.y(a, t)) * a.y_stride + static_cast<std::size_t>(r)] = total[n][i];
        }
    }
}

/// Codes, sums and scales of quant::q8_activation<32>: one warp a group. Grid: groups of all tokens / Warps, rounded up.
template <int Warps>
__global__ void __launch_bounds__(32 * Warps)
    quantize_groups(const float* __restrict__ values, std::size_t groups, std::int8_t* __restrict__ codes,
                    std::int16_t* __restrict__ sums, float* __restrict__ scales) {
    const std::size_t group = static_cast<std::size_t>(blockIdx.x) * Warps + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (group >= groups) return;  // whole warps leave; there is no block barrier below
    const float value = values[group * 32 + lane];
    // Magnitudes of floats order like their bits, with NaN above infinity above everything finite.
    const unsigned most = __reduce_max_sync(full_warp, __float_as_uint(value) & 0x7FFFFFFFu);
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
    int sum = code;
    FRUGAL_UNROLL
    for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(full_warp, sum, offset);
    if (lane % 16 == 0) sums[2 * group + lane / 16] = static_cast<std::int16_t>(sum);
    if (lane == 0) scales[group] = scale;
}

}  // namespace device::gpu::panels

FRUGAL_NAMESPACE_END
