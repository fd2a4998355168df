#pragma once
/// Mixture of experts: a router, many small SwiGLU blocks, and one shared block with its own gate.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/layer/experts.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/moe/router.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

namespace detail {

[[nodiscard]] inline status check_moe(const moe_dims& dims, const moe_weights& w, std::size_t hidden) {
    if (w.router.rows != dims.experts || w.router.cols != hidden)
        return fail(errc::shape_mismatch, "router [", w.router.rows, ", ", w.router.cols, "] for ", dims.experts, " experts of ",
                    hidden, " features");
    for (const expert_stack* stack : {&w.gate, &w.up, &w.down})
        if (stack->experts != dims.experts)
            return fail(errc::shape_mismatch, "a stack of ", stack->experts, " experts where there are ", dims.experts);
    if (w.gate.first.cols != hidden || w.up.first.cols != hidden || w.down.first.rows != hidden ||
        w.up.first.rows != w.gate.first.rows || w.down.first.cols != w.gate.first.rows)
        return fail(errc::shape_mismatch, "experts with gate [", w.gate.first.rows, ", ", w.gate.first.cols, "], up [",
                    w.up.first.rows, ", ", w.up.first.cols, "] and down [", w.down.first.rows, ", ", w.down.first.cols, "]");
    if (!w.shared_gate.empty() && w.shared_gate.rows != 1)
        return fail(errc::shape_mismatch, "the shared expert's gate has ", w.shared_gate.rows, " rows, not 1");
    return {};
}

/// The batch's (row, expert) pairs, ordered by expert, then row.
struct FRUGAL_FLAGGED expert_assignment {
    std::span<std::size_t> expert_begin;  ///< [experts + 1]: pairs of expert e are expert_begin[e] … expert_begin[e + 1] - 1
    std::span<std::size_t> row;           ///< [pairs]
    std::span<float> weight;              ///< [pairs]
    std::span<std::size_t> pair_of;       ///< [rows * top_k]: the pairs of row r, ascending, from r * top_k on
};

[[nodiscard]] inline result<expert_assignment> group_by_expert(workspace& scratch, std::size_t experts,
                                                               matrix_view<const std::int32_t> index,
                                                               matrix_view<const float> weight) {
    const std::size_t pairs = index.rows() * index.cols();
    expert_assignment out;
    FRUGAL_TRY_ASSIGN(out.expert_begin, scratch.array<std::size_t>(experts + 1));
    FRUGAL_TRY_ASSIGN(out.row, scratch.array<std::size_t>(pairs));
    FRUGAL_TRY_ASSIGN(out.weight, scratch.array<float>(pairs));
    FRUGAL_TRY_ASSIGN(out.pair_of, scratch.array<std::size_t>(pairs));
    FRUGAL_TRY_ASSIGN(const auto next, scratch.array<std::size_t>(experts));
    FRUGAL_TRY_ASSIGN(const auto seen, scratch.array<std::size_t>(index.rows()));
    std::fill(out.expert_begin.begin(), out.expert_begin.end(), std::size_t{0});
    std::fill(seen.begin(), seen.end(), std::size_t{0});
    for (std::size_t r = 0; r < index.rows(); ++r)
        for (std::size_t k = 0; k < index.cols(); ++k) ++out.expert_begin[static_cast<std::size_t>(index(r, k)) + 1];
    for (std::size_t e = 0; e < experts; ++e) {
        next[e] = out.expert_begin[e];
        out.expert_begin[e + 1] += out.expert_begin[e];
    }
    for (std::size_t r = 0; r < index.rows(); ++r)
        for (std::size_t k = 0; k < index.cols(); ++k) {
            const std::size_t pair = next[static_cast<std::size_t>(index(r, k))]++;
            out.row[pair] = r;
            out.weight[pair] = weight(r, k);
        }
    for (std::size_t pair = 0; pair < pairs; ++pair) {
        const std::size_t r = out.row[pair];
        out.pair_of[r * index.cols() + seen[r]++] = pair;
    }
    return out;
}

}  // namespace detail

/// y = sum over the row's chosen experts, in ascending order of the expert, of weight * expert(x), plus
/// sigmoid(shared_gate . x) * shared(x). x, y: [rows, hidden]; x and y must not overlap. Router: ops::route.
/// Each chosen expert's weights are read once a batch, those of experts nobody chose are not touched. A row's bits do not
/// depend on the other rows. Zero rows are fine.
/// `multiplier` computes the products of router and shared gate, `shared_expert` those of the shared expert
/// (reuse::direct_products, or steps of a reuse::image_store of moe_products and of dense_ffn_products), `experts` the routed
/// experts (direct_experts, or a step of expert_store).
/// Errors: shape_mismatch, invalid_argument (top_k), not_finite (router), unsupported_format, out_of_memory, and theirs.
/// Source: transformers `Qwen3_5MoeSparseMoeBlock`, `Qwen4ExpTextSparseMoeBlock`.
template <quant::format_list Formats, device::cpu_target Device, class Products, class Experts, class Shared>
[[nodiscard]] status moe(Device& dev, workspace& scratch, Products& multiplier, Experts& experts, Shared& shared_expert,
                         const moe_dims& dims, const moe_weights& weights, matrix_view<const float> x, matrix_view<float> y) {
    FRUGAL_TRY(detail::check_moe(dims, weights, x.cols()));
    FRUGAL_TRY(ops::detail::same_shape("mixture of experts", x, y));
    const std::size_t rows = x.rows(), hidden = x.cols(), width = weights.gate.first.rows;
    if (rows == 0) return {};
    workspace::scope scope(scratch);

    FRUGAL_TRY_ASSIGN(auto logits, scratch.matrix(rows, dims.experts));
    FRUGAL_TRY_ASSIGN(const auto index_memory, scratch.array<std::int32_t>(rows * dims.top_k));
    const matrix_view<std::int32_t> index(index_memory.data(), rows, dims.top_k);
    FRUGAL_TRY_ASSIGN(auto weight, scratch.matrix(rows, dims.top_k));
    FRUGAL_TRY_ASSIGN(const reuse::product_input input, multiplier.share(x));
    FRUGAL_TRY(multiplier.template multiply<router_product>(input, {logits}));
    FRUGAL_TRY(ops::route(dev, logits, dims.renormalise, index, weight));
    FRUGAL_TRY_ASSIGN(const auto chosen, detail::group_by_expert(scratch, dims.experts, index, weight));

    const bool in_floats =
        ops::reads_values<Formats>(dev, weights.gate.first.type) || ops::reads_values<Formats>(dev, weights.up.first.type);
    for (std::size_t r = 0; r < rows; ++r) std::fill_n(y.row(r), hidden, 0.0f);
    // Slices of consecutive experts bound the scratch: at least one expert, then as many as keep within `most_pairs`.
    constexpr std::size_t most_pairs = 1024;
    for (std::size_t first = 0, last = 0; first < dims.experts; first = last) {
        const std::size_t pair_begin = chosen.expert_begin[first];
        last = first + 1;
        while (last < dims.experts && chosen.expert_begin[last + 1] - pair_begin <= most_pairs) ++last;
        const std::size_t pairs = chosen.expert_begin[last] - pair_begin;
        if (pairs == 0) continue;

        workspace::scope slice_scope(scratch);
        FRUGAL_TRY_ASSIGN(const auto gate, scratch.matrix(pairs, width));
        FRUGAL_TRY_ASSIGN(const auto up, scratch.matrix(pairs, width));
        FRUGAL_TRY_ASSIGN(const auto outputs, scratch.matrix(pairs, hidden));
        const std::span<const std::size_t> picked = chosen.row.subspan(pair_begin, pairs);
        FRUGAL_TRY_ASSIGN(const auto inputs, reuse::gather_input(dev, scratch, input, picked, in_floats));

        std::vector<expert_rows> groups;
        for (std::size_t e = first; e < last; ++e) {
            const std::size_t count = chosen.expert_begin[e + 1] - chosen.expert_begin[e];
            if (count != 0) groups.push_back({e, chosen.expert_begin[e] - pair_begin, count});
        }
        FRUGAL_TRY(experts.gate_and_up(groups, inputs, gate, up));
        FRUGAL_TRY(ops::swiglu(dev, gate, up, gate));
        FRUGAL_TRY_ASSIGN(const reuse::product_input inner, experts.share(gate));
        FRUGAL_TRY(experts.down(groups, inner, outputs));
        ops::detail::for_each_run(dev, rows, hidden, [&](std::size_t r, std::size_t c, std::size_t n) {
            for (std::size_t k = 0; k < dims.top_k; ++k) {
                const std::size_t pair = chosen.pair_of[r * dims.top_k + k];
                if (pair < pair_begin || pair >= pair_begin + pairs) continue;
                ops::cpu::add_scaled<typename Device::isa>(chosen.weight[pair], outputs.row(pair - pair_begin) + c, y.row(r) + c,
                                                           n);
            }
        });
    }

    if (weights.shared_down.empty()) return {};
    FRUGAL_TRY_ASSIGN(auto shared, scratch.matrix(rows, hidden));
    FRUGAL_TRY(dense_ffn(dev, scratch, shared_expert, weights.shared_expert(), input, shared));
    if (weights.shared_gate.empty()) return ops::add(dev, shared, y);
    FRUGAL_TRY_ASSIGN(auto scale, scratch.matrix(rows, 1));
    FRUGAL_TRY(multiplier.template multiply<shared_gate_product>(input, {scale}));
    for (std::size_t r = 0; r < rows; ++r) scale(r, 0) = ops::sigmoid(scale(r, 0));
    return ops::add_scaled(dev, std::span<const float>(scale.data(), rows), shared, y);
}

/// The same from the blocks of the file.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status moe(Device& dev, workspace& scratch, const moe_dims& dims, const moe_weights& weights,
                         matrix_view<const float> x, matrix_view<float> y) {
    const dense_ffn_weights shared = weights.shared_expert();
    reuse::direct_products<Formats, Device, moe_weights> products(dev, scratch, weights);
    direct_experts<Formats, Device> experts(dev, scratch, weights);
    reuse::direct_products<Formats, Device, dense_ffn_weights> shared_products(dev, scratch, shared);
    return moe<Formats>(dev, scratch, products, experts, shared_products, dims, weights, x, y);
}

}  // namespace layer

FRUGAL_NAMESPACE_END
