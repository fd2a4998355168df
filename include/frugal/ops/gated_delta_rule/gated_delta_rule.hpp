#pragma once
/// The gated delta rule: a linear-attention memory that decays, predicts, corrects itself and is read, token by token.
#include <cmath>
#include <concepts>
#include <cstddef>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/pass.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cpu.hpp"
#include "frugal/ops/gated_delta_rule/policies.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {

template <class Scan>
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t delta_rule_part_scratch(const delta_rule_dims& dims) noexcept {
    std::size_t floats = 0;
    if constexpr (std::same_as<Scan, scan::recurrent>)
        floats = ops::cpu::delta_rule_recurrent_scratch(dims.key_dim);
    else
        floats = ops::cpu::delta_rule_chunked_scratch(dims.key_dim, dims.value_dim, Scan::chunk);
    return (floats + 15) / 16 * 16;  // each part's slice begins at a cache line
}

}  // namespace detail

/// Floats of scratch that gated_delta_rule takes from its workspace, in one piece.
template <scan_policy Scan, device::cpu_target Device>
[[nodiscard]] std::size_t gated_delta_rule_scratch(const Device& dev, const delta_rule_dims& dims) {
    const std::size_t parts = dev.concurrency() == 0 ? 1 : dev.concurrency();
    return parts * detail::delta_rule_part_scratch<Scan>(dims);
}

/// For every token t and value head h, with S the head's state [key dim, value dim] and i = Pairing::key_head(h):
///   S *= exp(g[t][h]);  delta = (v[t][h] - S' k[t][i]) * beta[t][h];  S += k[t][i] delta';
///   out[t][h] = S' q[t][i] / sqrt(key dim).
/// One sequence a call. q, k: [tokens, key_heads * key_dim], l2-normalised by the caller; v, out: [tokens, value_heads *
/// value_dim]; g, beta: [tokens, value_heads] of one stride, g <= 0 (-inf: the state is forgotten), beta in [0, 1]; state:
/// dims.state_size() floats in `Layout`, read and updated, always f32 (rounding it to 16 bits after every token costs three
/// digits of the output within 512 tokens). out must not overlap the inputs. No tokens change nothing.
/// The same bits for any number of threads, and for both layouts; with scan::recurrent also for any split of the tokens.
/// Errors: shape_mismatch, out_of_memory; nothing changed.
/// Source: Yang, Kautz, Hatamizadeh 2024 (arXiv:2412.06464); transformers, modeling_qwen3_5.py,
/// torch_recurrent_gated_delta_rule and torch_chunk_gated_delta_rule.
template <head_pairing_policy Pairing, state_layout_policy Layout = state_layout::key_major, scan_policy Scan = scan::recurrent,
          device::cpu_target Device>
[[nodiscard]] status gated_delta_rule(Device& dev, workspace& scratch, matrix_view<const float> q, matrix_view<const float> k,
                                      matrix_view<const float> v, matrix_view<const float> g, matrix_view<const float> beta,
                                      const delta_rule_dims& dims, std::span<float> state, matrix_view<float> out) {
    const std::size_t tokens = q.rows();
    if (dims.key_heads == 0 || dims.key_dim == 0 || dims.value_dim == 0 || dims.value_heads == 0 ||
        dims.value_heads % dims.key_heads != 0)
        return fail(errc::shape_mismatch, "gated delta rule with ", dims.key_heads, " key heads of ", dims.key_dim, " and ",
                    dims.value_heads, " value heads of ", dims.value_dim);
    if (k.rows() != tokens || v.rows() != tokens || g.rows() != tokens || beta.rows() != tokens || out.rows() != tokens)
        return fail(errc::shape_mismatch, "gated delta rule: rows of q ", tokens, ", k ", k.rows(), ", v ", v.rows(), ", g ",
                    g.rows(), ", beta ", beta.rows(), ", out ", out.rows());
    if (q.cols() != dims.key_heads * dims.key_dim || k.cols() != q.cols() || v.cols() != dims.value_heads * dims.value_dim ||
        out.cols() != v.cols() || g.cols() != dims.value_heads || beta.cols() != g.cols())
        return fail(errc::shape_mismatch, "gated delta rule: columns of q ", q.cols(), ", k ", k.cols(), ", v ", v.cols(), ", g ",
                    g.cols(), ", beta ", beta.cols(), ", out ", out.cols(), " for ", dims.key_heads, " key heads of ",
                    dims.key_dim, " and ", dims.value_heads, " value heads of ", dims.value_dim);
    if (state.size() != dims.state_size())
        return fail(errc::shape_mismatch, "gated delta rule: state of ", state.size(), " floats, not ", dims.state_size());
    if (beta.stride() != g.stride() && tokens > 1)
        return fail(errc::shape_mismatch, "gated delta rule: g and beta have strides ", g.stride(), " and ", beta.stride());
    if (tokens == 0) return {};

    const auto head = [&](std::size_t h) {
        const std::size_t i = Pairing::key_head(h, dims.key_heads, dims.value_heads);
        constexpr bool key_major = std::same_as<Layout, state_layout::key_major>;
        return ops::cpu::delta_rule_head{q.cols_range(i * dims.key_dim, dims.key_dim),
                                         k.cols_range(i * dims.key_dim, dims.key_dim),
                                         v.cols_range(h * dims.value_dim, dims.value_dim),
                                         g.data() + h,
                                         beta.data() + h,
                                         g.stride(),
                                         state.data() + h * dims.key_dim * dims.value_dim,
                                         key_major ? dims.value_dim : 1,
                                         key_major ? 1 : dims.key_dim,
                                         out.cols_range(h * dims.value_dim, dims.value_dim),
                                         1.0f / std::sqrt(static_cast<float>(dims.key_dim))};
    };
    const std::size_t parts_limit = dev.concurrency() == 0 ? 1 : dev.concurrency();
    const std::size_t per_part = detail::delta_rule_part_scratch<Scan>(dims);
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(float* memory, scratch.floats(parts_limit * per_part));
    // The chunked scan shares a head's small matrices among its columns, so a head is one piece of work; the recurrent scan
    // cuts heads into panels of columns.
    constexpr bool recurrent = std::same_as<Scan, scan::recurrent>;
    const std::size_t panels = recurrent ? (dims.value_dim + ops::cpu::delta_rule_panel - 1) / ops::cpu::delta_rule_panel : 1;
    const std::size_t units = dims.value_heads * panels;
    const std::size_t parts = units < parts_limit ? units : parts_limit;
    dev.run(parts, [&](std::size_t part) {
        float* own = memory + part * per_part;
        for (std::size_t unit = units * part / parts; unit < units * (part + 1) / parts; ++unit) {
            const ops::cpu::delta_rule_head one = head(unit / panels);
            if constexpr (recurrent) {
                const std::size_t begin = unit % panels * ops::cpu::delta_rule_panel;
                const std::size_t end = begin + ops::cpu::delta_rule_panel;
                // While a head is in the second cache, the next one comes there, in the order of memory.
                const bool fetches =
                    dims.value_dim % ops::cpu::delta_rule_panel == 0 && unit + panels < units * (part + 1) / parts;
                const float* const ahead =
                    fetches ? state.data() + (unit + panels) * ops::cpu::delta_rule_panel * dims.key_dim : nullptr;
                ops::cpu::delta_rule_recurrent<typename Device::isa>(one, begin, end < dims.value_dim ? end : dims.value_dim,
                                                                     ahead, own);
            } else {
                ops::cpu::delta_rule_chunked<typename Device::isa>(one, Scan::chunk, own);
            }
        }
    });
    return {};
}
/// The same in a pass, which brings the scratch.
template <head_pairing_policy Pairing, state_layout_policy Layout = state_layout::key_major, scan_policy Scan = scan::recurrent,
          device::host_pass Pass>
[[nodiscard]] status gated_delta_rule(Pass& pass, matrix_view<const float> q, matrix_view<const float> k,
                                      matrix_view<const float> v, matrix_view<const float> g, matrix_view<const float> beta,
                                      const delta_rule_dims& dims, std::span<float> state, matrix_view<float> out) {
    return gated_delta_rule<Pairing, Layout, Scan>(pass.device(), pass.scratch(), q, k, v, g, beta, dims, state, out);
}

/// The two gates of a Gated DeltaNet layer, in f32 whatever the activations are:
/// g = a_neg_exp * softplus(a + dt_bias) <= 0, with a_neg_exp = -exp(A_log), and beta = sigmoid(b).
/// a, b, g, beta: [tokens, value heads]; a_neg_exp, dt_bias: [value heads]. g may be a, beta may be b. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status delta_gates(Device& dev, std::span<const float> a_neg_exp, std::span<const float> dt_bias,
                                 matrix_view<const float> a, matrix_view<const float> b, matrix_view<float> g,
                                 matrix_view<float> beta) {
    const std::size_t tokens = a.rows(), heads = a.cols();
    if (b.rows() != tokens || g.rows() != tokens || beta.rows() != tokens || b.cols() != heads || g.cols() != heads ||
        beta.cols() != heads || a_neg_exp.size() != heads || dt_bias.size() != heads)
        return fail(errc::shape_mismatch, "delta gates: a [", tokens, ", ", heads, "], b [", b.rows(), ", ", b.cols(), "], g [",
                    g.rows(), ", ", g.cols(), "], beta [", beta.rows(), ", ", beta.cols(), "], ", a_neg_exp.size(), " decays, ",
                    dt_bias.size(), " biases");
    dev.run_ranges(tokens, device::grain(64 * heads), [&](std::size_t begin, std::size_t end) {
        ops::cpu::delta_gates_rows<typename Device::isa>(a, b, a_neg_exp.data(), dt_bias.data(), g, beta, begin, end);
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
