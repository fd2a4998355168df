#pragma once
/// Weights in panels decoded to rows of bfloat16, and numbers rounded to it: what a library of dense products needs.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/panels/arguments.cuh"
#include "frugal/device/cuda/panels/reader.cuh"
#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/products.hpp"
#include "frugal/device/cuda/tensor_core.cuh"
#include "frugal/quant/formats.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu::panels {

inline constexpr int decode_warps = 8;  ///< groups of a block: one a warp

/// A warp decodes 16 rows of one group of columns. Grid: [groups / decode_warps, rounded up; panels].
template <class Layout>
__global__ void __launch_bounds__(32 * decode_warps) decode_panel_rows(matvec_arguments a, bfloat16* out) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int group = static_cast<int>(blockIdx.x) * decode_warps + warp, across = lane / 4, part = lane % 4;
    const auto panel = static_cast<std::size_t>(blockIdx.y);
    if (group >= a.groups) return;
    FRUGAL_UNROLL
    for (int half = 0; half < 2; ++half) {
        const std::size_t row = panel * 16 + static_cast<std::size_t>(8 * half + across);
        if (row >= static_cast<std::size_t>(a.rows)) continue;
        float values[8];
        panel_reader<Layout>::row_weights(a.weights + panel * a.panel_bytes, group, 8 * half + across, part, values);
        bfloat16* const to = out + (row * static_cast<std::size_t>(a.groups) + static_cast<std::size_t>(group)) * 32 + 4 * part;
        FRUGAL_UNROLL
        for (int i = 0; i < 2; ++i)
            *reinterpret_cast<uint2*>(to + 16 * i) =
                uint2{pack_bf16(values[4 * i], values[4 * i + 1]), pack_bf16(values[4 * i + 2], values[4 * i + 3])};
    }
}

/// Four numbers a thread.
template <int Threads>
__global__ void __launch_bounds__(Threads) round_to_bfloat16(const float* from, std::size_t count, bfloat16* to) {
    const std::size_t i = (blockIdx.x * static_cast<std::size_t>(Threads) + threadIdx.x) * 4;
    if (i >= count) return;
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    *reinterpret_cast<uint2*>(to + i) = uint2{pack_bf16(four.x, four.y), pack_bf16(four.z, four.w)};
}

}  // namespace device::gpu::panels

namespace device::gpu {

template <class Format>
cudaError_t decode_panels(const panel_product& weights, bfloat16* out, cudaStream_t stream) {
    constexpr int warps = panels::decode_warps;
    const panels::matvec_arguments a = detail::matvec_of(weights);
    if (a.panels == 0 || a.groups == 0) return cudaSuccess;
    return launch(panels::decode_panel_rows<quant::panel_of<Format>>,
                  dim3(static_cast<unsigned>((a.groups + warps - 1) / warps), static_cast<unsigned>(a.panels)), dim3(32 * warps),
                  0, stream, a, out);
}

template <class To>
cudaError_t round_values(const float* from, std::size_t count, To* to, cudaStream_t stream) {
    constexpr unsigned threads = 256;
    if (count == 0) return cudaSuccess;
    return launch(panels::round_to_bfloat16<threads>, dim3(static_cast<unsigned>((count / 4 + threads - 1) / threads)),
                  dim3(threads), 0, stream, from, count, to);
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END
