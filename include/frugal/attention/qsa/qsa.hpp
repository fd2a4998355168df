#pragma once
/// QSA: sparse attention over blocks of tokens that an indexer chooses for each query.
/// Source: transformers, models/qwen4_exp, Qwen4ExpTextAttention.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/full/gated_heads.hpp"
#include "frugal/attention/qsa/indexer.hpp"
#include "frugal/attention/qsa/qsa_cache.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/reuse/inputs/qsa_layout.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// The QSA variant. Blocks are `Ratio` consecutive visible tokens of a sequence. A query attends to
/// - the best budget / Ratio of the blocks that are complete for it, its own token included: all of them if there are no
///   more; ranked by score, then by lower index (ops/block_select), and
/// - its tail: the tokens after the last complete block, always.
/// Only those tokens' keys and values are read. With few enough tokens the result has the bits of full attention.
/// NormWeight: how the weights of all norms are stored. Scalar: of keys and values. IndexScalar: of indexer keys; float, half,
/// bfloat16 or std::int8_t (with a scale a block).
template <std::size_t Ratio, ops::norm_weight_policy NormWeight, key_value_scalar Scalar = float,
          index_key_scalar IndexScalar = ops::default_index_key>
struct FRUGAL_FLAGGED qsa {
    static_assert(Ratio > 0, "frugal: a QSA block needs at least one token: write qsa<4, ops::norm_weight::zero_centred>");

    static constexpr std::string_view name = "qsa";
    static constexpr std::size_t ratio = Ratio;
    using dims = qsa_dims;
    using weights = qsa_weights;
    using products = qsa_products;
    using state = qsa_cache<Scalar, IndexScalar>;

    /// A cache for layers of these sizes; see qsa_cache for `raw_history`. Errors: invalid_argument.
    [[nodiscard]] static result<state> create_state(const dims& d, std::size_t sequences, std::size_t max_tokens,
                                                    std::size_t raw_history = state::unlimited) {
        return state::create(d.kv_heads, d.head_dim, d.index_dim, Ratio, sequences, max_tokens, raw_history);
    }

    /// x, y: [rows, hidden]; y may be the memory of x. `layout` has had this batch appended; the layers of one ratio share
    /// it. Appends the batch to the cache. The bits of a row depend on its own sequence alone, not on how that was cut into
    /// batches. An error changes no sequence (the layout is the caller's to roll back).
    /// Errors: invalid_argument, shape_mismatch, unsupported_format, context_overflow, out_of_memory.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, const dims& d, const weights& w, state& cache,
                                        const batch& tokens, const reuse::qsa_layout& layout, matrix_view<const float> x,
                                        matrix_view<float> y) {
        reuse::direct_products<Formats, Device, weights> direct(dev, scratch, w);
        return forward<Formats>(dev, scratch, direct, d, w, cache, tokens, layout, x, y);
    }

    /// The same with products of your own: reuse::direct_products, or what reuse::image_store gives for `products`.
    /// Errors: theirs too.
    template <quant::format_list Formats, device::cpu_target Device, class Products>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, Products& multiplier, const dims& d, const weights& w,
                                        state& cache, const batch& tokens, const reuse::qsa_layout& layout,
                                        matrix_view<const float> x, matrix_view<float> y) {
        FRUGAL_TRY(detail::check_layer(d, cache, tokens, x, y));
        FRUGAL_TRY(detail::check_layout(layout, Ratio, cache, tokens));
        if (d.index_heads == 0 || d.index_dim != cache.index_dim())
            return fail(errc::shape_mismatch, "QSA of ", d.index_heads, " indexer heads of ", d.index_dim,
                        " features with a cache of ", cache.index_dim());
        if (tokens.rows() == 0) return {};
        workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(const reuse::product_input input, multiplier.share(x));
        FRUGAL_TRY_ASSIGN(auto heads, (detail::project<NormWeight>(dev, scratch, multiplier, d, w, tokens, input)));
        FRUGAL_TRY(detail::write_cache(dev, cache, tokens, heads));
        FRUGAL_TRY((detail::write_index_keys<NormWeight>(dev, scratch, multiplier, d, w, cache, layout, tokens, input)));

        // What each row may see. Rows that see every block need neither a list nor the indexer's queries.
        const std::size_t top = d.budget / Ratio;
        FRUGAL_TRY_ASSIGN(auto views, scratch.array<sequence_views>(tokens.segments.size()));
        FRUGAL_TRY_ASSIGN(auto rows, scratch.array<ops::attention_row<Scalar>>(tokens.rows()));
        FRUGAL_TRY_ASSIGN(auto choices, scratch.array<ops::block_row<IndexScalar>>(tokens.rows()));
        bool any_cut = false;
        for (std::size_t i = 0; i < tokens.segments.size(); ++i) {
            const segment& part = tokens.segments[i];
            const bool live = part.sequence != sequence_id::padding;
            if (live) views[i] = {cache.view(part.sequence), cache.block_view(part.sequence)};
            for (std::size_t r = part.first; r < part.first + part.count; ++r) {
                rows[r] = {};
                choices[r] = {};
                if (!live) continue;
                const reuse::qsa_row& row = layout.rows()[r];
                rows[r] = {&views[i].tokens, nullptr, row.rank.value + 1};
                choices[r] = {&views[i].blocks, row.open_block.value};
                any_cut = any_cut || row.open_block.value > top;
            }
        }
        FRUGAL_TRY_ASSIGN(auto attended, scratch.matrix(tokens.rows(), d.heads * d.head_dim));
        const auto attend = [&](std::size_t first, std::size_t count) -> status {
            return ops::attention(dev, scratch, heads.queries(d).rows_range(first, count), d.shape(), d.scale(),
                                  std::span<const ops::attention_row<Scalar>>(rows.subspan(first, count)),
                                  attended.rows_range(first, count));
        };
        if (!any_cut) {
            FRUGAL_TRY(attend(0, tokens.rows()));
        } else {
            FRUGAL_TRY_ASSIGN(auto queries, scratch.matrix(tokens.rows(), d.index_heads * d.index_dim));
            FRUGAL_TRY((detail::index_queries<NormWeight>(dev, multiplier, d, w, heads.angles, input, queries)));
            // Some rows at a time, so that their lists of tokens stay small.
            const std::size_t width = detail::most_chosen(layout.ratio(), top);
            const std::size_t most = (std::min)(tokens.rows(), (std::max)(rows_at_once, 4 * dev.concurrency()));
            FRUGAL_TRY_ASSIGN(auto lists, scratch.array<std::uint32_t>(most * width));
            FRUGAL_TRY_ASSIGN(auto counts, scratch.array<std::size_t>(most));
            for (std::size_t first = 0; first < tokens.rows(); first += most) {
                const std::size_t count = (std::min)(most, tokens.rows() - first);
                FRUGAL_TRY(detail::choose_tokens(dev, scratch, d, layout.ratio(), layout.rows().subspan(first, count),
                                                 std::span<const ops::block_row<IndexScalar>>(choices.subspan(first, count)),
                                                 matrix_view<const float>(queries.rows_range(first, count)), lists,
                                                 counts.first(count)));
                for (std::size_t r = 0; r < count; ++r)
                    if (choices[first + r].complete > top) {
                        rows[first + r].list = lists.data() + r * width;
                        rows[first + r].visible = counts[r];
                    }
                FRUGAL_TRY(attend(first, count));
            }
        }
        FRUGAL_TRY(detail::gate_and_project(dev, multiplier, d, tokens, heads, attended, y));
        detail::commit(cache, tokens);
        return {};
    }

private:
    static constexpr std::size_t rows_at_once = 128;
    struct sequence_views {
        ops::key_value_view<Scalar> tokens;
        ops::block_key_view<IndexScalar> blocks;
    };
};

}  // namespace attention

FRUGAL_NAMESPACE_END
