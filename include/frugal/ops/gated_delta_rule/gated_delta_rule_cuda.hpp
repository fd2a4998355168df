#pragma once
/// The gated delta rule on a GPU, declared; see ops/README.md.
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/kernel_queue.hpp"
#include "frugal/device/cuda/runtime.hpp"
#include "frugal/ops/gated_delta_rule/policies.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// As ops::gated_delta_rule with scan::recurrent, on device memory: the same bits for any split of the tokens and both layouts.
/// Precondition: the shapes that ops::gated_delta_rule asks for. Errors: cudaErrorInvalidValue for key heads of more than 256
/// features.
template <head_pairing_policy Pairing, state_layout_policy Layout>
[[nodiscard]] cudaError_t gated_delta_rule(const delta_rule_dims& dims, matrix_view<const float> q, matrix_view<const float> k,
                                           matrix_view<const float> v, matrix_view<const float> g, matrix_view<const float> beta,
                                           float* state, matrix_view<float> out, cudaStream_t stream);

/// As ops::gated_delta_rule with scan::chunked<32>, on device memory: chunks begin where a call begins, so different splits of
/// the tokens agree within rounding only; both layouts have the same bits. Within 5e-6 of the greatest output and state of the
/// rule in double. Heads of more than 224 key features are taken token by token. Errors: as gated_delta_rule.
template <head_pairing_policy Pairing, state_layout_policy Layout>
[[nodiscard]] cudaError_t gated_delta_rule_chunked(const delta_rule_dims& dims, matrix_view<const float> q,
                                                   matrix_view<const float> k, matrix_view<const float> v,
                                                   matrix_view<const float> g, matrix_view<const float> beta, float* state,
                                                   matrix_view<float> out, cudaStream_t stream);

/// The same with the products of keys and queries by matrix units: numbers are split into two bfloat16, so such a product is off
/// by at most 2^-16 of the sum of its terms' magnitudes. Within 2e-5 of the greatest output and state of the rule in double.
/// Heads of more than 208 key features go as gated_delta_rule_chunked takes them. Errors: as gated_delta_rule.
template <head_pairing_policy Pairing, state_layout_policy Layout>
[[nodiscard]] cudaError_t gated_delta_rule_tiles(const delta_rule_dims& dims, matrix_view<const float> q,
                                                 matrix_view<const float> k, matrix_view<const float> v,
                                                 matrix_view<const float> g, matrix_view<const float> beta, float* state,
                                                 matrix_view<float> out, cudaStream_t stream);

/// As ops::delta_gates, on device memory.
template <class Unit = void>
[[nodiscard]] cudaError_t delta_gates(matrix_view<const float> a, matrix_view<const float> b, const float* a_neg_exp,
                                      const float* dt_bias, matrix_view<float> g, matrix_view<float> beta, cudaStream_t stream);

}  // namespace ops::cuda

namespace ops {

/// As ops::gated_delta_rule, on device memory: queued. Which scan it is says the device's prefill policy: token by token, or,
/// where that may round so many tokens, in chunks, by matrix units if the policy wants them. Errors: of the start.
template <head_pairing_policy Pairing, state_layout_policy Layout = state_layout::key_major, device::gpu::kernel_queue Pass>
[[nodiscard]] status gated_delta_rule(const Pass& pass, matrix_view<const float> q, matrix_view<const float> k,
                                      matrix_view<const float> v, matrix_view<const float> g, matrix_view<const float> beta,
                                      const delta_rule_dims& dims, std::span<float> state, matrix_view<float> out) {
    return pass.start([&](cudaStream_t stream) {
        auto rule = &cuda::gated_delta_rule<Pairing, Layout>;
        if (Pass::may_round(q.rows()))
            rule = Pass::tiled_delta_rule ? &cuda::gated_delta_rule_tiles<Pairing, Layout>
                                          : &cuda::gated_delta_rule_chunked<Pairing, Layout>;
        return rule(dims, q, k, v, g, beta, state.data(), out, stream);
    });
}

/// As ops::delta_gates, on device memory: queued. Errors: of the start.
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status delta_gates(const Pass& pass, std::span<const float> a_neg_exp, std::span<const float> dt_bias,
                                 matrix_view<const float> a, matrix_view<const float> b, matrix_view<float> g,
                                 matrix_view<float> beta) {
    return pass.start(
        [&](cudaStream_t stream) { return cuda::delta_gates(a, b, a_neg_exp.data(), dt_bias.data(), g, beta, stream); });
}

}  // namespace ops

FRUGAL_NAMESPACE_END
