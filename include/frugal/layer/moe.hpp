#pragma once
/// Mixture of experts: a router, many small SwiGLU blocks, and one shared block with its own gate.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/ops/moe/grouped_matmul.hpp"
#include "frugal/ops/moe/router.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// One weight matrix for each expert, all of one format and shape: at a fixed distance, or each at a place of its own.
struct expert_stack {
    quant::weight_view first;
    std::size_t experts = 0, stride_bytes = 0;
    std::vector<const std::byte*> places;  ///< where each expert's matrix starts; empty: at the fixed distance

    /// Precondition: e < experts.
    [[nodiscard]] quant::weight_view expert(std::size_t e) const noexcept {
        quant::weight_view w = first;
        w.data = places.empty() ? first.data + e * stride_bytes : places[e];
        return w;
    }
    /// Matrices that lie anywhere, as checkpoints with one tensor an expert have them. Errors: shape_mismatch.
    [[nodiscard]] static result<expert_stack> separate(std::span<const quant::weight_view> matrices) {
        expert_stack out;
        if (matrices.empty()) return out;
        out.first = matrices.front();
        out.experts = matrices.size();
        for (const quant::weight_view& m : matrices) {
            if (m.type != out.first.type || m.rows != out.first.rows || m.cols != out.first.cols)
                return fail(errc::shape_mismatch, "expert ", out.places.size(), " is [", m.rows, ", ", m.cols, "] of type ",
                            static_cast<std::uint32_t>(m.type), ", expert 0 is [", out.first.rows, ", ", out.first.cols,
                            "] of type ", static_cast<std::uint32_t>(out.first.type));
            out.places.push_back(m.data);
        }
        return out;
    }
    /// `all` holds the rows of expert 0, then of expert 1, …; takes rows row_begin … row_begin + rows - 1 of each expert.
    /// A fused stack [experts, 2 * width, hidden] gives gate with (0, width) and up with (width, width).
    /// Errors: shape_mismatch.
    [[nodiscard]] static result<expert_stack> part(const quant::weight_view& all, std::size_t experts, std::size_t row_begin,
                                                   std::size_t rows) {
        if (experts == 0 || all.rows % experts != 0)
            return fail(errc::shape_mismatch, all.rows, " rows cannot be those of ", experts, " experts");
        const std::size_t each = all.rows / experts;
        if (row_begin > each || rows > each - row_begin)
            return fail(errc::shape_mismatch, "rows ", row_begin, " … of an expert with ", each, " rows: ", rows,
                        " are not there");
        return expert_stack{all.rows_range(row_begin, rows), experts, each * all.row_bytes, {}};
    }
    /// All rows of each expert.
    [[nodiscard]] static result<expert_stack> whole(const quant::weight_view& all, std::size_t experts) {
        return part(all, experts, 0, experts == 0 ? 0 : all.rows / experts);
    }
};

/// router: [experts, hidden]; gate and up of an expert: [width, hidden]; down: [hidden, width].
/// The shared expert: shared_gate_proj and shared_up [shared width, hidden], shared_down [hidden, shared width]; absent if
/// shared_down is empty. shared_gate: [1, hidden], its sigmoid scales the shared expert; not scaled if empty.
struct moe_weights {
    quant::weight_view router;
    expert_stack gate, up, down;
    quant::weight_view shared_gate, shared_gate_proj, shared_up, shared_down;
};

struct moe_dims {
    std::size_t experts = 0, top_k = 0;
    bool renormalise = true;  ///< divide a row's weights by their sum
};

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
struct expert_assignment {
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
/// Errors: shape_mismatch, invalid_argument (top_k), not_finite (router), unsupported_format, out_of_memory.
/// Source: transformers `Qwen3_5MoeSparseMoeBlock`, `Qwen4ExpTextSparseMoeBlock`.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status moe(Device& dev, workspace& scratch, const moe_dims& dims, const moe_weights& weights,
                         matrix_view<const float> x, matrix_view<float> y) {
    FRUGAL_TRY(detail::check_moe(dims, weights, x.cols()));
    FRUGAL_TRY(ops::detail::same_shape("mixture of experts", x, y));
    const std::size_t rows = x.rows(), hidden = x.cols(), width = weights.gate.first.rows;
    if (rows == 0) return {};
    workspace::scope scope(scratch);

    FRUGAL_TRY_ASSIGN(auto logits, scratch.matrix(rows, dims.experts));
    FRUGAL_TRY_ASSIGN(const auto index_memory, scratch.array<std::int32_t>(rows * dims.top_k));
    const matrix_view<std::int32_t> index(index_memory.data(), rows, dims.top_k);
    FRUGAL_TRY_ASSIGN(auto weight, scratch.matrix(rows, dims.top_k));
    FRUGAL_TRY(ops::matmul<Formats>(dev, scratch, weights.router, x, logits));
    FRUGAL_TRY(ops::route(dev, logits, dims.renormalise, index, weight));
    FRUGAL_TRY_ASSIGN(const auto chosen, detail::group_by_expert(scratch, dims.experts, index, weight));

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
        FRUGAL_TRY_ASSIGN(const auto inputs, scratch.matrix(pairs, hidden));
        FRUGAL_TRY_ASSIGN(const auto gate, scratch.matrix(pairs, width));
        FRUGAL_TRY_ASSIGN(const auto up, scratch.matrix(pairs, width));
        FRUGAL_TRY_ASSIGN(const auto outputs, scratch.matrix(pairs, hidden));
        for (std::size_t i = 0; i < pairs; ++i) std::copy_n(x.row(chosen.row[pair_begin + i]), hidden, inputs.row(i));

        std::vector<ops::matmul_product> into, out_of;
        for (std::size_t e = first; e < last; ++e) {
            const std::size_t at = chosen.expert_begin[e] - pair_begin;
            const std::size_t count = chosen.expert_begin[e + 1] - chosen.expert_begin[e];
            if (count == 0) continue;
            into.push_back({weights.gate.expert(e), inputs.rows_range(at, count), gate.rows_range(at, count)});
            into.push_back({weights.up.expert(e), inputs.rows_range(at, count), up.rows_range(at, count)});
            out_of.push_back({weights.down.expert(e), gate.rows_range(at, count), outputs.rows_range(at, count)});
        }
        FRUGAL_TRY(ops::grouped_matmul<Formats>(dev, scratch, into));
        FRUGAL_TRY(ops::swiglu(dev, gate, up, gate));
        FRUGAL_TRY(ops::grouped_matmul<Formats>(dev, scratch, out_of));
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
    FRUGAL_TRY(dense_ffn<Formats>(dev, scratch, {weights.shared_gate_proj, weights.shared_up, weights.shared_down}, x, shared));
    if (weights.shared_gate.empty()) return ops::add(dev, shared, y);
    FRUGAL_TRY_ASSIGN(auto scale, scratch.matrix(rows, 1));
    FRUGAL_TRY(ops::matmul<Formats>(dev, scratch, weights.shared_gate, x, scale));
    for (std::size_t r = 0; r < rows; ++r) scale(r, 0) = ops::sigmoid(scale(r, 0));
    return ops::add_scaled(dev, std::span<const float>(scale.data(), rows), shared, y);
}

}  // namespace layer

FRUGAL_NAMESPACE_END
