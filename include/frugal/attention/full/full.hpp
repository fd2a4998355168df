#pragma once
/// Full attention with grouped queries, query and key norms, rotary positions and an output gate.
/// Source: transformers, models/qwen3_5, Qwen3_5Attention.
#include <cstddef>
#include <span>
#include <string_view>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/full/gated_heads.hpp"
#include "frugal/attention/kv_cache.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// The full attention variant: each token attends to every token of its sequence up to itself.
/// NormWeight: how the weights of the query and key norms are stored. Scalar: of the cache.
template <ops::norm_weight_policy NormWeight, key_value_scalar Scalar = float>
struct FRUGAL_FLAGGED full {
    static constexpr std::string_view name = "full";
    using dims = full_dims;
    using weights = full_weights;
    using products = full_products;
    using state = basic_kv_cache<Scalar>;

    /// A cache for layers of these sizes. Errors: invalid_argument.
    [[nodiscard]] static result<state> create_state(const dims& d, std::size_t sequences, std::size_t max_tokens) {
        return state::create(d.kv_heads, d.head_dim, sequences, max_tokens);
    }

    /// x, y: [rows, hidden]; y may be the memory of x. Appends the batch to the cache. The bits of a row depend on its own
    /// sequence alone, not on how that was cut into batches. An error changes no sequence.
    /// Errors: invalid_argument, shape_mismatch, unsupported_format, context_overflow, out_of_memory.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, const dims& d, const weights& w, state& cache,
                                        const batch& tokens, matrix_view<const float> x, matrix_view<float> y) {
        reuse::direct_products<Formats, Device, weights> direct(dev, scratch, w);
        return forward<Formats>(dev, scratch, direct, d, w, cache, tokens, x, y);
    }

    /// The same with products of your own: reuse::direct_products, or what reuse::image_store gives for `products`.
    /// Errors: theirs too.
    template <quant::format_list Formats, device::cpu_target Device, class Products>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, Products& multiplier, const dims& d, const weights& w,
                                        state& cache, const batch& tokens, matrix_view<const float> x, matrix_view<float> y) {
        FRUGAL_TRY(detail::check_layer(d, cache, tokens, x, y));
        if (tokens.rows() == 0) return {};
        workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(auto heads, (detail::project<NormWeight>(dev, scratch, multiplier, d, w, tokens, x)));
        FRUGAL_TRY(detail::write_cache(dev, cache, tokens, heads));

        FRUGAL_TRY_ASSIGN(auto views, scratch.array<ops::key_value_view<Scalar>>(tokens.segments.size()));
        FRUGAL_TRY_ASSIGN(auto rows, scratch.array<ops::attention_row<Scalar>>(tokens.rows()));
        for (std::size_t i = 0; i < tokens.segments.size(); ++i) {
            const segment& part = tokens.segments[i];
            const bool live = part.sequence != sequence_id::padding;
            if (live) views[i] = cache.view(part.sequence);
            for (std::size_t r = 0; r < part.count; ++r) {
                rows[part.first + r] = {};
                if (live) rows[part.first + r] = {&views[i], nullptr, cache.length(part.sequence) + r + 1};
            }
        }
        FRUGAL_TRY_ASSIGN(auto attended, scratch.matrix(tokens.rows(), d.heads * d.head_dim));
        FRUGAL_TRY(ops::attention(dev, scratch, heads.queries(d), d.shape(), d.scale(),
                                  std::span<const ops::attention_row<Scalar>>(rows), attended));
        FRUGAL_TRY(detail::gate_and_project(dev, multiplier, d, tokens, heads, attended, y));
        detail::commit(cache, tokens);
        return {};
    }
};

}  // namespace attention

FRUGAL_NAMESPACE_END
