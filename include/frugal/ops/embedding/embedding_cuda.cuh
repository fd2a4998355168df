#pragma once
/// Rows of a table in panels on a GPU, decoded to floats.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/panels/reader.cuh"
#include "frugal/device/cuda/portable.cuh"
#include "frugal/ops/embedding/embedding_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// A thread decodes eight columns of a row. Grid: [groups * 4 / Threads, rounded up; look-ups].
template <class Layout, int Threads>
__global__ void __launch_bounds__(Threads)
    decode_rows(const std::byte* __restrict__ table, std::size_t panel_bytes, int groups, int columns,
                const std::int64_t* __restrict__ rows, float* __restrict__ y, std::size_t y_stride) {
    const int i = static_cast<int>(blockIdx.x) * Threads + static_cast<int>(threadIdx.x), group = i / 4, part = i % 4;
    if (group >= groups) return;
    const std::int64_t row = rows[blockIdx.y];
    float* const out = y + blockIdx.y * y_stride;
    using reader = device::gpu::panels::panel_reader<Layout>;
    float w[8][4];
    if (row >= 0) {
        const device::gpu::panels::lane_place at{static_cast<int>(row % 16 / 4), part};
        reader::weights(reader::load(table + static_cast<std::size_t>(row / 16) * panel_bytes, group, at), at, w);
    }
    FRUGAL_UNROLL
    for (int c = 0; c < 8; ++c) {
        const int column = group * 32 + 4 * part + c % 4 + c / 4 * 16;
        float value = 0.0f;
        FRUGAL_UNROLL
        for (int r = 0; r < 4; ++r)
            if (row >= 0 && row % 4 == r) value = w[c][r];
        if (column < columns) out[column] = value;
    }
}

template <class Format>
cudaError_t embedding_rows(const std::byte* table, std::size_t panel_bytes, const std::int64_t* rows, matrix_view<float> y,
                           cudaStream_t stream) {
    constexpr unsigned threads = 128;
    const std::size_t groups = (y.cols() + quant::panel_group - 1) / quant::panel_group;
    if (y.rows() == 0 || groups == 0) return cudaSuccess;
    return device::gpu::launch(decode_rows<quant::panel_of<Format>, threads>,
                               dim3(static_cast<unsigned>((groups * 4 + threads - 1) / threads), static_cast<unsigned>(y.rows())),
                               dim3(threads), 0, stream, table, panel_bytes, static_cast<int>(groups), static_cast<int>(y.cols()),
                               rows, y.data(), y.stride());
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
