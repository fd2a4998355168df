#pragma once
/// The gated delta rule on a GPU, token by token: the state is read once and written once a call, and lies in registers between.
#include <cmath>
#include <concepts>
#include <cstddef>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.cuh"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cuda.hpp"
#include "frugal/ops/gated_delta_rule/policies.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int delta_columns = 32;    ///< value features of a block: one a lane
inline constexpr int delta_parts = 8;       ///< warps that share the key features; part of the order of summation
inline constexpr int delta_most_rows = 32;  ///< key features of a thread, at most

struct delta_arguments {
    const float *q, *k, *v, *g, *beta;
    std::size_t q_stride, k_stride, v_stride, gate_stride;
    float* state;
    float* out;
    std::size_t out_stride;
    int tokens, key_heads, value_heads, key_dim, value_dim;
    int key_stride, value_stride;  ///< of the state: from one key feature, value feature, to the next
    float scale;
};

struct delta_shared {
    float q[delta_parts * delta_most_rows], k[delta_parts * delta_most_rows];
    float predicted[delta_parts][delta_columns], read[delta_parts][delta_columns];
};

/// A block has 32 value features of one head; warp p has key features Rows * p … of them in registers. Grid: [value features /
/// 32, rounded up; value heads].
template <class Pairing, int Rows>
__global__ void __launch_bounds__(32 * delta_parts, 1) delta_rule_tokens(delta_arguments a) {
    auto& shared = device::gpu::block_shared<delta_shared>();
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, part = thread / 32, head = static_cast<int>(blockIdx.y);
    const int column = static_cast<int>(blockIdx.x) * delta_columns + lane, first = part * Rows;
    const bool inside = column < a.value_dim;
    const auto key_head = static_cast<int>(Pairing::key_head(
        static_cast<std::size_t>(head), static_cast<std::size_t>(a.key_heads), static_cast<std::size_t>(a.value_heads)));
    float* const state =
        a.state + static_cast<std::size_t>(head) * static_cast<std::size_t>(a.key_dim) * static_cast<std::size_t>(a.value_dim) +
        static_cast<std::size_t>(inside ? column : 0) * static_cast<std::size_t>(a.value_stride);
    float s[Rows];
    FRUGAL_UNROLL
    for (int i = 0; i < Rows; ++i)
        s[i] = inside && first + i < a.key_dim
                   ? state[static_cast<std::size_t>(first + i) * static_cast<std::size_t>(a.key_stride)]
                   : 0.0f;

    for (int t = 0; t < a.tokens; ++t) {
        const auto row = static_cast<std::size_t>(t);
        for (int i = thread; i < delta_parts * Rows; i += 32 * delta_parts) {
            const auto at =
                static_cast<std::size_t>(key_head) * static_cast<std::size_t>(a.key_dim) + static_cast<std::size_t>(i);
            shared.q[i] = i < a.key_dim ? a.q[row * a.q_stride + at] : 0.0f;
            shared.k[i] = i < a.key_dim ? a.k[row * a.k_stride + at] : 0.0f;
        }
        const auto gate = row * a.gate_stride + static_cast<std::size_t>(head);
        const float decay = expf(a.g[gate]), beta = a.beta[gate];
        const auto value_at =
            static_cast<std::size_t>(head) * static_cast<std::size_t>(a.value_dim) + static_cast<std::size_t>(column);
        const float v = inside ? a.v[row * a.v_stride + value_at] : 0.0f;
        __syncthreads();  // q and k are here

        float predicted = 0.0f;
        FRUGAL_UNROLL
        for (int i = 0; i < Rows; ++i) {
            s[i] *= decay;
            predicted = fmaf(s[i], shared.k[first + i], predicted);
        }
        shared.predicted[part][lane] = predicted;
        __syncthreads();  // every part's prediction is here
        predicted = 0.0f;
        FRUGAL_UNROLL
        for (int p = 0; p < delta_parts; ++p) predicted += shared.predicted[p][lane];
        const float delta = (v - predicted) * beta;

        float read = 0.0f;
        FRUGAL_UNROLL
        for (int i = 0; i < Rows; ++i) {
            s[i] = fmaf(shared.k[first + i], delta, s[i]);
            read = fmaf(s[i], shared.q[first + i], read);
        }
        shared.read[part][lane] = read;
        __syncthreads();  // every part's reading is here; nobody needs q and k any more
        if (part == 0 && inside) {
            read = 0.0f;
            FRUGAL_UNROLL
            for (int p = 0; p < delta_parts; ++p) read += shared.read[p][lane];
            a.out[row * a.out_stride + value_at] = read * a.scale;
        }
    }
    FRUGAL_UNROLL
    for (int i = 0; i < Rows; ++i)
        if (inside && first + i < a.key_dim)
            state[static_cast<std::size_t>(first + i) * static_cast<std::size_t>(a.key_stride)] = s[i];
}

/// What the kernels of a gated delta rule compute.
template <state_layout_policy Layout>
[[nodiscard]] delta_arguments delta_arguments_of(const delta_rule_dims& dims, matrix_view<const float> q,
                                                 matrix_view<const float> k, matrix_view<const float> v,
                                                 matrix_view<const float> g, matrix_view<const float> beta, float* state,
                                                 matrix_view<float> out) {
    constexpr bool key_major = std::same_as<Layout, state_layout::key_major>;
    return {q.data(),
            k.data(),
            v.data(),
            g.data(),
            beta.data(),
            q.stride(),
            k.stride(),
            v.stride(),
            g.stride(),
            state,
            out.data(),
            out.stride(),
            static_cast<int>(q.rows()),
            static_cast<int>(dims.key_heads),
            static_cast<int>(dims.value_heads),
            static_cast<int>(dims.key_dim),
            static_cast<int>(dims.value_dim),
            static_cast<int>(key_major ? dims.value_dim : 1),
            static_cast<int>(key_major ? 1 : dims.key_dim),
            1.0f / std::sqrt(static_cast<float>(dims.key_dim))};
}
/// Blocks of its kernels.
[[nodiscard]] inline dim3 delta_grid(const delta_rule_dims& dims) {
    return dim3(static_cast<unsigned>((dims.value_dim + delta_columns - 1) / delta_columns),
                static_cast<unsigned>(dims.value_heads));
}

/// As ops::gated_delta_rule with scan::recurrent, on device memory: the same bits for any split of the tokens and both layouts.
/// Precondition: the shapes that ops::gated_delta_rule asks for. Errors: cudaErrorInvalidValue for key heads of more than 256
/// features.
template <head_pairing_policy Pairing, state_layout_policy Layout = state_layout::key_major>
[[nodiscard]] cudaError_t gated_delta_rule(const delta_rule_dims& dims, matrix_view<const float> q, matrix_view<const float> k,
                                           matrix_view<const float> v, matrix_view<const float> g, matrix_view<const float> beta,
                                           float* state, matrix_view<float> out, cudaStream_t stream) {
    if (q.rows() == 0) return cudaSuccess;
    if (dims.key_dim > static_cast<std::size_t>(delta_parts * delta_most_rows)) return cudaErrorInvalidValue;
    const delta_arguments a = delta_arguments_of<Layout>(dims, q, k, v, g, beta, state, out);
    const auto start = [&](auto kernel) {
        return device::gpu::launch(kernel, delta_grid(dims), dim3(32 * delta_parts), 0, stream, a);
    };
    if (dims.key_dim <= 4 * delta_parts) return start(delta_rule_tokens<Pairing, 4>);
    if (dims.key_dim <= 8 * delta_parts) return start(delta_rule_tokens<Pairing, 8>);
    if (dims.key_dim <= 16 * delta_parts) return start(delta_rule_tokens<Pairing, 16>);
    return start(delta_rule_tokens<Pairing, 32>);
}

struct delta_gates_element {
    device_rows<const float> a, b;
    const float *a_neg_exp, *dt_bias;
    device_rows<float> g, beta;
    FRUGAL_DEVICE void operator()(std::size_t t, std::size_t h) const {
        g(t, h) = a_neg_exp[h] * ops::softplus(a(t, h) + dt_bias[h]);
        beta(t, h) = ops::sigmoid(b(t, h));
    }
};

template <class Unit>
cudaError_t delta_gates(matrix_view<const float> a, matrix_view<const float> b, const float* a_neg_exp, const float* dt_bias,
                        matrix_view<float> g, matrix_view<float> beta, cudaStream_t stream) {
    return start_elements(delta_gates_element{a, b, a_neg_exp, dt_bias, g, beta}, a.rows(), a.cols(), stream);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
