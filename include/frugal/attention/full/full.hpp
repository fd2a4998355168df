#pragma once
/// Full attention with grouped queries, query and key norms, rotary positions and an output gate.
/// Source: transformers, models/qwen3_5, Qwen3_5Attention.
#include <cstddef>
#include <span>
#include <string_view>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/full/gated_heads.hpp"
#include "frugal/attention/kv_cache.hpp"
#include "frugal/attention/variant.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

namespace detail {

/// Attends each row to its sequence up to itself, after the step has been appended to the cache.
template <device::host_pass Pass, class Scalar>
[[nodiscard]] status attend_all(Pass& pass, const full_dims& d, const basic_kv_cache<Scalar>& cache, const step& of,
                                matrix_view<const float> queries, matrix_view<float> attended) {
    FRUGAL_TRY_ASSIGN(auto views, pass.template array<ops::key_value_view<Scalar>>(of.tokens.segments.size()));
    FRUGAL_TRY_ASSIGN(auto rows, pass.template array<ops::attention_row<Scalar>>(of.rows()));
    for (std::size_t i = 0; i < of.tokens.segments.size(); ++i) {
        const segment& part = of.tokens.segments[i];
        const bool live = part.sequence != sequence_id::padding;
        if (live) views[i] = cache.view(part.sequence);
        for (std::size_t r = 0; r < part.count; ++r) {
            rows[part.first + r] = {};
            if (live) rows[part.first + r] = {&views[i], nullptr, cache.length(part.sequence) + r + 1};
        }
    }
    return ops::attention(pass.device(), pass.scratch(), queries, std::span<const ops::attention_row<Scalar>>(rows), d.shape(),
                          d.scale(), attended);
}

}  // namespace detail

/// The full attention variant: each token attends to every token of its sequence up to itself.
/// NormWeight: how the weights of the query and key norms are stored. Scalar: of the cache.
template <ops::norm_weight_policy NormWeight, key_value_scalar Scalar = float>
struct FRUGAL_FLAGGED full {
    static constexpr std::string_view name = "full";
    static constexpr bool is_recurrent = false;
    using norm_weight = NormWeight;
    using key_value = Scalar;
    using dims = full_dims;
    using weights = full_weights;
    using products = full_products;
    using state = basic_kv_cache<Scalar>;

    /// The sizes of a model's layer. Sizes: model::config. Errors: invalid_argument.
    template <class Sizes>
    [[nodiscard]] static status validate_sizes(const Sizes& c) {
        return detail::validate_heads(c);
    }
    template <class Sizes>
    [[nodiscard]] static dims make_dims(const Sizes& c, std::size_t /*layer*/) {
        return detail::make_heads<dims>(c);
    }
    /// Reads a layer's weights. File: model::layer_file. Errors: its own.
    template <class File>
    [[nodiscard]] static status bind(File& file, const dims& d, weights& w) {
        return detail::bind_heads(file, d, w);
    }
    /// A cache for layers of these sizes. Errors: invalid_argument.
    [[nodiscard]] static result<state> make_state(const dims& d, const state_sizes& sizes) {
        return create_state(d, sizes.sequences, sizes.max_tokens);
    }
    [[nodiscard]] static result<state> create_state(const dims& d, std::size_t sequences, std::size_t max_tokens) {
        return state::create(d.kv_heads, d.head_dim, sequences, max_tokens);
    }

    /// x, y: [rows, hidden]; y may be the memory of x. Appends the step to the cache. The bits of a row depend on its own
    /// sequence alone, not on how that was cut into steps. An error changes no sequence.
    /// Errors: invalid_argument, shape_mismatch, unsupported_format, context_overflow, out_of_memory, those of the products.
    template <class Pass, class State, class Step>
    [[nodiscard]] static status forward(Pass& pass, std::size_t layer, const dims& d, const weights& w, State& cache,
                                        const Step& of, matrix_view<const float> x, matrix_view<float> y) {
        if constexpr (device::host_pass<Pass>) FRUGAL_TRY(detail::check_layer(d, cache, of, x, y));
        if (of.rows() == 0) return {};
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(auto products, pass.template begin<full_products>(layer, w));
        FRUGAL_TRY_ASSIGN(const auto input, products.share(x));
        FRUGAL_TRY_ASSIGN(const auto heads, (detail::project<NormWeight>(pass, products, d, w, of, input)));
        FRUGAL_TRY(cache.append(pass, of, heads.keys, heads.values));
        FRUGAL_TRY_ASSIGN(const auto attended, pass.input_matrix(of.rows(), d.heads * d.head_dim));
        FRUGAL_TRY(detail::attend_all(pass, d, cache, of, heads.queries_and_gates, attended));
        FRUGAL_TRY(detail::gate_and_project(pass, products, d, heads, attended, y));
        cache.commit(of);
        return clear_padding(of, y);
    }

    /// The same by itself, from the blocks of the file.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, const dims& d, const weights& w, state& cache,
                                        const batch& tokens, matrix_view<const float> x, matrix_view<float> y) {
        reuse::direct_store<Formats> store;
        reuse::cpu_pass pass(dev, scratch, store);
        workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(const step alone, detail::lone_step(pass, d, tokens));
        return forward(pass, 0, d, w, cache, alone, x, y);
    }
};

static_assert(variant<full<ops::norm_weight::plain>>);

}  // namespace attention

FRUGAL_NAMESPACE_END
