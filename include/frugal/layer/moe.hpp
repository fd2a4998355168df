#pragma once
/// Mixture of experts: a router, many small SwiGLU blocks, and one shared block with its own gate.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/pass.hpp"
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/layer/experts.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/matmul/grouped_matmul.hpp"
#include "frugal/ops/moe/router.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/tensor_name.hpp"
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

/// The routed experts of a layer for a pass on a CPU: the store's, or from the blocks of the file.
template <device::host_pass Pass>
[[nodiscard]] auto begin_experts(Pass& pass, std::size_t layer, const moe_weights& w) {
    if constexpr (requires { pass.store().begin_experts(pass.device(), pass.scratch(), layer, w); })
        return pass.store().begin_experts(pass.device(), pass.scratch(), layer, w);
    else
        return direct_experts<typename Pass::formats, typename Pass::device_type, typename Pass::sharing>(pass.device(),
                                                                                                          pass.scratch(), w);
}

/// y = sum over the row's chosen experts, in ascending order of the expert, of weight * expert(x).
template <device::host_pass Pass>
[[nodiscard]] status run_experts(Pass& pass, std::size_t layer, const moe_dims& d, const moe_weights& w,
                                 const reuse::product_input& input, matrix_view<const std::int32_t> index,
                                 matrix_view<const float> weight, matrix_view<float> y) {
    const std::size_t rows = y.rows(), hidden = y.cols(), width = w.gate.first.rows;
    typename Pass::scope scope(pass);
    auto experts = begin_experts(pass, layer, w);
    FRUGAL_TRY_ASSIGN(const auto chosen, group_by_expert(pass.scratch(), d.experts, index, weight));

    const bool in_floats = ops::reads_values<typename Pass::formats>(pass, w.gate.first.type) ||
                           ops::reads_values<typename Pass::formats>(pass, w.up.first.type);
    for (std::size_t r = 0; r < rows; ++r) std::fill_n(y.row(r), hidden, 0.0f);
    // Slices of consecutive experts bound the scratch: at least one expert, then as many as keep within `most_pairs`.
    constexpr std::size_t most_pairs = 1024;
    for (std::size_t first = 0, last = 0; first < d.experts; first = last) {
        const std::size_t pair_begin = chosen.expert_begin[first];
        last = first + 1;
        while (last < d.experts && chosen.expert_begin[last + 1] - pair_begin <= most_pairs) ++last;
        const std::size_t pairs = chosen.expert_begin[last] - pair_begin;
        if (pairs == 0) continue;

        typename Pass::scope slice_scope(pass);
        FRUGAL_TRY_ASSIGN(const auto gate, pass.matrix(pairs, width));
        FRUGAL_TRY_ASSIGN(const auto up, pass.matrix(pairs, width));
        FRUGAL_TRY_ASSIGN(const auto outputs, pass.matrix(pairs, hidden));
        const std::span<const std::size_t> picked = chosen.row.subspan(pair_begin, pairs);
        FRUGAL_TRY_ASSIGN(const auto inputs, reuse::gather_input(pass, pass.scratch(), input, picked, in_floats));

        std::vector<expert_rows> groups;
        for (std::size_t e = first; e < last; ++e) {
            const std::size_t count = chosen.expert_begin[e + 1] - chosen.expert_begin[e];
            if (count != 0) groups.push_back({e, chosen.expert_begin[e] - pair_begin, count});
        }
        FRUGAL_TRY(experts.gate_and_up(groups, inputs, gate, up));
        FRUGAL_TRY(ops::swiglu(pass, gate, up, gate));
        FRUGAL_TRY_ASSIGN(const reuse::product_input inner, experts.share(gate));
        FRUGAL_TRY(experts.down(groups, inner, outputs));
        ops::detail::for_each_run(pass, rows, hidden, [&](std::size_t r, std::size_t c, std::size_t n) {
            for (std::size_t k = 0; k < d.top_k; ++k) {
                const std::size_t pair = chosen.pair_of[r * d.top_k + k];
                if (pair < pair_begin || pair >= pair_begin + pairs) continue;
                ops::cpu::add_scaled<typename Pass::isa>(chosen.weight[pair], outputs.row(pair - pair_begin) + c, y.row(r) + c,
                                                         n);
            }
        });
    }

    return {};
}

/// y += sigmoid(scale) * x, a scale a row. scale: [rows, 1], used up.
template <device::host_pass Pass>
[[nodiscard]] status add_gated(Pass& pass, matrix_view<float> scale, matrix_view<const float> x, matrix_view<float> y) {
    for (std::size_t r = 0; r < scale.rows(); ++r) scale(r, 0) = ops::sigmoid(scale(r, 0));
    return ops::add_scaled(pass, std::span<const float>(scale.data(), scale.rows()), x, y);
}

}  // namespace detail

/// Mixture of experts as a part of a model (model/spec.hpp): the feed-forward of its layers, a shared expert included.
/// y = sum over the row's chosen experts, in ascending order of the expert, of weight * expert(x), plus
/// sigmoid(shared_gate . x) * shared(x). Router: ops::route. Each chosen expert's weights are read once a batch, those of experts
/// nobody chose are not touched. A row's bits do not depend on the other rows.
/// Source: transformers `Qwen3_5MoeSparseMoeBlock`, `Qwen4ExpTextSparseMoeBlock`.
struct FRUGAL_FLAGGED mixture_of_experts {
    static constexpr std::string_view name = "mixture_of_experts";
    using weights = moe_weights;
    struct dims : moe_dims {
        std::size_t hidden = 0, width = 0, shared_width = 0;
    };

    /// Sizes: model::config. Errors: invalid_argument.
    template <class Sizes>
    [[nodiscard]] static status validate_sizes(const Sizes& c) {
        FRUGAL_TRY(c.positive(c.experts, "expert count"));
        FRUGAL_TRY(c.positive(c.experts_used, "number of experts a token"));
        FRUGAL_TRY(c.positive(c.expert_intermediate, "expert size"));
        FRUGAL_TRY(c.positive(c.shared_intermediate, "shared expert size"));
        if (c.experts_used > c.experts)
            return fail(errc::invalid_argument, "a token cannot use ", c.experts_used, " of ", c.experts, " experts");
        return {};
    }
    template <class Sizes>
    [[nodiscard]] static dims make_dims(const Sizes& c) {
        return {{c.experts, c.experts_used, c.renormalise_experts}, c.hidden, c.expert_intermediate, c.shared_intermediate};
    }
    /// File: model::layer_file. Errors: its own.
    template <class File>
    [[nodiscard]] static status bind(File& file, const dims& d, weights& w) {
        FRUGAL_TRY(file.matrix({"ffn_gate_inp.weight", "mlp.gate.weight"}, d.experts, d.hidden, w.router));
        constexpr tensor_name gate_up{"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"};
        constexpr tensor_name down{"ffn_down_exps.weight", "mlp.experts.down_proj"};
        FRUGAL_TRY_ASSIGN(const bool fused, file.has(gate_up));
        FRUGAL_TRY_ASSIGN(const bool stacked, file.has(down));
        quant::weight_view all;
        if (!stacked && file.is_checkpoint()) {
            FRUGAL_TRY(bind_separate(file, d, w));
        } else {
            if (fused) {
                FRUGAL_TRY(file.stack(gate_up, d.experts, 2 * d.width, d.hidden, all));
                FRUGAL_TRY_ASSIGN(w.gate, expert_stack::part(all, d.experts, 0, d.width));
                FRUGAL_TRY_ASSIGN(w.up, expert_stack::part(all, d.experts, d.width, d.width));
            } else {
                FRUGAL_TRY(file.stack({"ffn_gate_exps.weight", ""}, d.experts, d.width, d.hidden, all));
                FRUGAL_TRY_ASSIGN(w.gate, expert_stack::whole(all, d.experts));
                FRUGAL_TRY(file.stack({"ffn_up_exps.weight", ""}, d.experts, d.width, d.hidden, all));
                FRUGAL_TRY_ASSIGN(w.up, expert_stack::whole(all, d.experts));
            }
            FRUGAL_TRY(file.stack(down, d.experts, d.hidden, d.width, all));
            FRUGAL_TRY_ASSIGN(w.down, expert_stack::whole(all, d.experts));
        }
        FRUGAL_TRY(file.matrix({"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"}, 1, d.hidden, w.shared_gate));
        FRUGAL_TRY(file.matrix({"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"}, d.shared_width, d.hidden,
                               w.shared_gate_proj));
        FRUGAL_TRY(
            file.matrix({"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"}, d.shared_width, d.hidden, w.shared_up));
        return file.matrix({"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"}, d.hidden, d.shared_width,
                           w.shared_down);
    }
    using product_lists = type_list<dense_ffn_products, moe_products>;
    /// Calls `f(type_tag<List>{}, layer, weights) -> status` for the product lists of a layer. Routed experts are not among them.
    template <class F>
    [[nodiscard]] static status for_each_list(std::size_t layer, const weights& w, F&& f) {
        const dense_ffn_weights shared = w.shared_expert();
        FRUGAL_TRY(f(type_tag<dense_ffn_products>{}, layer, shared));
        return f(type_tag<moe_products>{}, layer, w);
    }

    /// x, y: [rows, hidden]; x and y must not overlap. Zero rows are fine. Errors: shape_mismatch, invalid_argument (top_k),
    /// not_finite (router), unsupported_format, out_of_memory, those of the pass's products.
    template <class Pass>
    [[nodiscard]] static status forward(Pass& pass, std::size_t layer, const moe_dims& d, const weights& w,
                                        matrix_view<const float> x, matrix_view<float> y) {
        FRUGAL_TRY(detail::check_moe(d, w, x.cols()));
        FRUGAL_TRY(ops::detail::same_shape("mixture of experts", x, y));
        const std::size_t rows = x.rows();
        if (rows == 0) return {};
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(auto products, pass.template begin<moe_products>(layer, w));
        FRUGAL_TRY_ASSIGN(const auto logits, pass.matrix(rows, d.experts));
        FRUGAL_TRY_ASSIGN(const auto chosen, pass.template array<std::int32_t>(rows * d.top_k));
        const matrix_view<std::int32_t> index(chosen.data(), rows, d.top_k);
        FRUGAL_TRY_ASSIGN(const auto weight, pass.matrix(rows, d.top_k));
        FRUGAL_TRY_ASSIGN(const auto input, products.share(x));
        FRUGAL_TRY(products.template multiply<router_product>(input, {logits}));
        FRUGAL_TRY(ops::route(pass, logits, d.renormalise, index, weight));
        FRUGAL_TRY(detail::run_experts(pass, layer, d, w, input, index, weight, y));
        if (w.shared_down.empty()) return {};
        FRUGAL_TRY_ASSIGN(const auto shared, pass.matrix(rows, x.cols()));
        const dense_ffn_weights shared_expert = w.shared_expert();
        {
            FRUGAL_TRY_ASSIGN(auto own, pass.template begin<dense_ffn_products>(layer, shared_expert));
            FRUGAL_TRY(dense_ffn(pass, own, shared_expert, input, shared));
        }
        if (w.shared_gate.empty()) return ops::add(pass, shared, y);
        FRUGAL_TRY_ASSIGN(const auto scale, pass.matrix(rows, 1));
        FRUGAL_TRY(products.template multiply<shared_gate_product>(input, {scale}));
        return detail::add_gated(pass, scale, shared, y);
    }

private:
    /// One tensor an expert, as older and FP8 checkpoints have it.
    template <class File>
    [[nodiscard]] static status bind_separate(File& file, const dims& d, weights& w) {
        std::vector<quant::weight_view> gate(d.experts), up(d.experts), down(d.experts);
        for (std::size_t e = 0; e < d.experts; ++e) {
            const std::string each = concat("mlp.experts.", e, ".");
            const auto part = [&](const char* name, std::size_t rows, std::size_t cols, quant::weight_view& out) -> status {
                const std::string full = each + name;
                return file.matrix({"", full}, rows, cols, out);
            };
            FRUGAL_TRY(part("gate_proj.weight", d.width, d.hidden, gate[e]));
            FRUGAL_TRY(part("up_proj.weight", d.width, d.hidden, up[e]));
            FRUGAL_TRY(part("down_proj.weight", d.hidden, d.width, down[e]));
        }
        FRUGAL_TRY_ASSIGN(w.gate, expert_stack::separate(gate));
        FRUGAL_TRY_ASSIGN(w.up, expert_stack::separate(up));
        FRUGAL_TRY_ASSIGN(w.down, expert_stack::separate(down));
        return {};
    }
};

/// The same by itself, from the blocks of the file.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status moe(Device& dev, workspace& scratch, const moe_dims& dims, const moe_weights& weights,
                         matrix_view<const float> x, matrix_view<float> y) {
    reuse::direct_store<Formats> store;
    reuse::cpu_pass pass(dev, scratch, store);
    return mixture_of_experts::forward(pass, 0, dims, weights, x, y);
}

}  // namespace layer

FRUGAL_NAMESPACE_END
