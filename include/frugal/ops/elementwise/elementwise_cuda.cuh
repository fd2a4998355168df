#pragma once
/// Elementwise operators on a GPU: those of ops/elementwise, the output gate of attention heads, the streams of
/// ops/hyper_connection.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// f(row, column) for every element. Grid: [columns / Threads, rows], rounded up.
template <class F, int Threads>
__global__ void __launch_bounds__(Threads) for_elements(F f, int columns) {
    const int column = static_cast<int>(blockIdx.x) * Threads + static_cast<int>(threadIdx.x);
    if (column < columns) f(static_cast<std::size_t>(blockIdx.y), static_cast<std::size_t>(column));
}

template <class F>
[[nodiscard]] cudaError_t start_elements(F f, std::size_t rows, std::size_t columns, cudaStream_t stream) {
    constexpr unsigned threads = 256;
    if (rows == 0 || columns == 0) return cudaSuccess;
    return device::gpu::launch(for_elements<F, threads>,
                               dim3(static_cast<unsigned>((columns + threads - 1) / threads), static_cast<unsigned>(rows)),
                               dim3(threads), 0, stream, f, static_cast<int>(columns));
}

/// A matrix as kernels take it.
template <class T>
struct device_rows {
    T* data;
    std::size_t stride;
    template <class U>
    device_rows(matrix_view<U> m) : data(m.data()), stride(m.stride()) {}
    FRUGAL_DEVICE T& operator()(std::size_t row, std::size_t column) const { return data[row * stride + column]; }
};

struct swiglu_element {
    device_rows<const float> gate, up;
    device_rows<float> y;
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const { y(r, c) = ops::silu(gate(r, c)) * up(r, c); }
};
struct add_element {
    device_rows<const float> x;
    device_rows<float> y;
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const { y(r, c) += x(r, c); }
};
struct add_scaled_element {
    const float* scale;
    device_rows<const float> x;
    device_rows<float> y;
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const { y(r, c) = fmaf(scale[r], x(r, c), y(r, c)); }
};
struct gate_heads_element {
    device_rows<const float> gate;
    device_rows<float> y;
    std::size_t head_dim, gate_head;  ///< features of a head; from one head's gate to the next
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const {
        y(r, c) *= ops::sigmoid(gate(r, c / head_dim * gate_head + c % head_dim));
    }
};
struct divided_silu_element {
    float divisor;
    device_rows<float> x;
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const { x(r, c) = ops::silu(x(r, c) / divisor); }
};
struct divided_double_sigmoid_element {
    float divisor;
    device_rows<float> x;
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const { x(r, c) = 2.0f * ops::sigmoid(x(r, c) / divisor); }
};
struct gated_stream_mean_element {
    device_rows<const float> gate, x;
    device_rows<float> y;
    std::size_t streams, hidden;
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const {
        float sum = 0.0f;
        for (std::size_t s = 0; s < streams; ++s) sum = fmaf(ops::sigmoid(gate(r, s * hidden + c)), x(r, s * hidden + c), sum);
        y(r, c) = sum / static_cast<float>(streams);
    }
};
struct expand_streams_element {
    device_rows<const float> x;
    device_rows<float> y;
    std::size_t hidden;
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const { y(r, c) = x(r, c % hidden); }
};
template <class T>
struct keep_before_token_element {
    const T* state;
    std::size_t size;
    const std::uint32_t* visible;
    T* kept;
    std::uint32_t rows;
    FRUGAL_DEVICE void operator()(std::size_t, std::size_t c) const { kept[(*visible - 1) % rows * size + c] = state[c]; }
};
struct store_number_element {
    std::uint32_t *to, value;
    FRUGAL_DEVICE void operator()(std::size_t, std::size_t) const { *to = value; }
};
struct add_to_streams_element {
    device_rows<const float> scale, x;
    device_rows<float> streams;
    std::size_t count, hidden;
    FRUGAL_DEVICE void operator()(std::size_t r, std::size_t c) const {
        const float value = x(r, c);
        for (std::size_t s = 0; s < count; ++s) {
            float& to = streams(r, s * hidden + c);
            to = fmaf(scale(r, s), value, to);
        }
    }
};

template <class Unit>
cudaError_t swiglu(matrix_view<const float> gate, matrix_view<const float> up, matrix_view<float> y, cudaStream_t stream) {
    return start_elements(swiglu_element{gate, up, y}, y.rows(), y.cols(), stream);
}
template <class Unit>
cudaError_t add(matrix_view<const float> x, matrix_view<float> y, cudaStream_t stream) {
    return start_elements(add_element{x, y}, y.rows(), y.cols(), stream);
}
template <class Unit>
cudaError_t add_scaled(const float* scale, matrix_view<const float> x, matrix_view<float> y, cudaStream_t stream) {
    return start_elements(add_scaled_element{scale, x, y}, y.rows(), y.cols(), stream);
}
template <class Unit>
cudaError_t gate_heads(matrix_view<const float> gate, std::size_t heads, matrix_view<float> y, cudaStream_t stream) {
    return start_elements(gate_heads_element{gate, y, y.cols() / heads, gate.cols() / heads}, y.rows(), y.cols(), stream);
}
template <class Unit>
cudaError_t divided_silu(float divisor, matrix_view<float> x, cudaStream_t stream) {
    return start_elements(divided_silu_element{divisor, x}, x.rows(), x.cols(), stream);
}
template <class Unit>
cudaError_t divided_double_sigmoid(float divisor, matrix_view<float> x, cudaStream_t stream) {
    return start_elements(divided_double_sigmoid_element{divisor, x}, x.rows(), x.cols(), stream);
}
template <class Unit>
cudaError_t gated_stream_mean(matrix_view<const float> gate, matrix_view<const float> x, std::size_t streams,
                              matrix_view<float> y, cudaStream_t stream) {
    return start_elements(gated_stream_mean_element{gate, x, y, streams, y.cols()}, y.rows(), y.cols(), stream);
}
template <class Unit>
cudaError_t add_to_streams(matrix_view<const float> scale, matrix_view<const float> x, matrix_view<float> streams,
                           cudaStream_t stream) {
    return start_elements(add_to_streams_element{scale, x, streams, scale.cols(), x.cols()}, x.rows(), x.cols(), stream);
}
template <class Unit>
cudaError_t expand_streams(matrix_view<const float> x, matrix_view<float> y, cudaStream_t stream) {
    return start_elements(expand_streams_element{x, y, x.cols()}, y.rows(), y.cols(), stream);
}

template <class T>
cudaError_t keep_before_token(const T* state, std::size_t size, const std::uint32_t* visible, T* kept, std::size_t rows,
                              cudaStream_t stream) {
    return start_elements(keep_before_token_element<T>{state, size, visible, kept, static_cast<std::uint32_t>(rows)}, 1, size,
                          stream);
}
template <class Unit>
cudaError_t store_number(std::uint32_t* to, std::uint32_t value, cudaStream_t stream) {
    return start_elements(store_number_element{to, value}, 1, 1, stream);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
