#pragma once
/// QSA: sparse attention over blocks of tokens that an indexer chooses for each query.
/// Source: transformers, models/qwen4_exp, Qwen4ExpTextAttention.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "frugal/attention/full/gated_heads.hpp"
#include "frugal/attention/qsa/indexer.hpp"
#include "frugal/attention/qsa/qsa_cache.hpp"
#include "frugal/attention/variant.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/reuse/inputs/qsa_layout.hpp"
#include "frugal/reuse/inputs/qsa_layouts.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

namespace detail {

/// Attends each row to the tokens that it chooses and to its tail, after the step has been appended to the cache and its index
/// keys have been written. Rows that see every block need neither a list nor the indexer's queries.
template <class NormWeight, device::host_pass Pass, class Products, class Scalar, class IndexScalar, class Step>
[[nodiscard]] status attend_blocks(Pass& pass, Products& products, const qsa_dims& d, const qsa_weights& w,
                                   const qsa_cache<Scalar, IndexScalar>& cache, const Step& of, const reuse::product_input& input,
                                   matrix_view<const float> queries, matrix_view<float> attended) {
    struct sequence_views {
        ops::key_value_view<Scalar> tokens;
        ops::block_key_view<IndexScalar> blocks;
    };
    constexpr std::size_t rows_at_once = 128;
    const reuse::qsa_layout& layout = of.shared;
    const std::size_t count = of.rows(), top = d.budget / layout.ratio().tokens();
    FRUGAL_TRY_ASSIGN(auto views, pass.template array<sequence_views>(of.tokens.segments.size()));
    FRUGAL_TRY_ASSIGN(auto rows, pass.template array<ops::attention_row<Scalar>>(count));
    FRUGAL_TRY_ASSIGN(auto choices, pass.template array<ops::block_row<IndexScalar>>(count));
    bool any_cut = false;
    for (std::size_t i = 0; i < of.tokens.segments.size(); ++i) {
        const segment& part = of.tokens.segments[i];
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
    const auto attend = [&](std::size_t first, std::size_t n) -> status {
        return ops::attention(pass.device(), pass.scratch(), queries.rows_range(first, n),
                              std::span<const ops::attention_row<Scalar>>(rows.subspan(first, n)), d.shape(), d.scale(),
                              attended.rows_range(first, n));
    };
    if (!any_cut) return attend(0, count);
    FRUGAL_TRY_ASSIGN(auto asked, pass.matrix(count, d.index_heads * d.index_dim));
    FRUGAL_TRY((index_queries<NormWeight>(pass, products, d, w, of, input, asked)));
    // Some rows at a time, so that their lists of tokens stay small.
    const std::size_t width = most_chosen(layout.ratio(), top);
    const std::size_t most = (std::min)(count, (std::max)(rows_at_once, 4 * pass.concurrency()));
    FRUGAL_TRY_ASSIGN(auto lists, pass.template array<std::uint32_t>(most * width));
    FRUGAL_TRY_ASSIGN(auto counts, pass.template array<std::size_t>(most));
    for (std::size_t first = 0; first < count; first += most) {
        const std::size_t n = (std::min)(most, count - first);
        FRUGAL_TRY(choose_tokens(pass.device(), pass.scratch(), d, layout.ratio(), layout.rows().subspan(first, n),
                                 std::span<const ops::block_row<IndexScalar>>(choices.subspan(first, n)),
                                 matrix_view<const float>(asked.rows_range(first, n)), lists, counts.first(n)));
        for (std::size_t r = 0; r < n; ++r)
            if (choices[first + r].complete > top) {
                rows[first + r].list = lists.data() + r * width;
                rows[first + r].visible = counts[r];
            }
        FRUGAL_TRY(attend(first, n));
    }
    return {};
}

}  // namespace detail

/// The QSA variant. Blocks are `Ratio` consecutive visible tokens of a sequence. A query attends to
/// - the best budget / Ratio of the blocks that are complete for it, its own token included: all of them if there are no
///   more; ranked by score, then by lower index (ops/block_select), and
/// - its tail: the tokens after the last complete block, always.
/// Only those tokens' keys and values are read. With few enough tokens the result has the bits of full attention.
/// NormWeight: how the weights of all norms are stored. Scalar: of keys and values. IndexScalar: of indexer keys; float, half,
/// bfloat16 or std::int8_t (with a scale a block). Inputs: how a model keeps the layouts that its layers share.
template <std::size_t Ratio, ops::norm_weight_policy NormWeight, key_value_scalar Scalar = float,
          index_key_scalar IndexScalar = ops::default_index_key, reuse::shared_input_policy Inputs = reuse::default_shared_inputs>
struct FRUGAL_FLAGGED qsa {
    static_assert(Ratio > 0, "frugal: a QSA block needs at least one token: write qsa<4, ops::norm_weight::zero_centred>");

    static constexpr std::string_view name = "qsa";
    static constexpr bool is_recurrent = false;
    static constexpr std::size_t ratio = Ratio;
    using norm_weight = NormWeight;
    using key_value = Scalar;
    using index = IndexScalar;
    using dims = qsa_dims;
    using weights = qsa_weights;
    using products = qsa_products;
    using state = qsa_cache<Scalar, IndexScalar>;
    /// What the layers of a model share, a sequence state: appended to before a pass, `of_layer(i)` is what layer i of this kind
    /// finds in its step.
    using shared_inputs = reuse::qsa_layouts<Inputs>;

    /// The sizes of a model's layer. Sizes: model::config. Errors: invalid_argument, unsupported (another ratio).
    template <class Sizes>
    [[nodiscard]] static status validate_sizes(const Sizes& c) {
        FRUGAL_TRY(detail::validate_heads(c));
        FRUGAL_TRY(c.positive(c.index_heads, "indexer head count"));
        FRUGAL_TRY(c.positive(c.index_dim, "indexer head size"));
        FRUGAL_TRY(c.positive(c.index_budget, "indexer budget"));
        if (c.index_dim < c.rotary_dim)
            return fail(errc::invalid_argument, "the indexer's heads of ", c.index_dim, " cannot rotate ", c.rotary_dim,
                        " values");
        if (c.qsa_ratios.size() != c.layers.size())
            return fail(errc::invalid_argument, c.qsa_ratios.size(), " compress ratios for ", c.layers.size(), " layers");
        for (std::size_t i = 0; i < c.layers.size(); ++i)
            if (c.is_attention(i) && c.qsa_ratios[i] != 0 && c.qsa_ratios[i] != Ratio)
                return fail(errc::unsupported, "layer ", i, " has compress ratio ", c.qsa_ratios[i],
                            "; this instantiation computes ratio ", Ratio);
        return {};
    }
    /// A layer of ratio 0 attends to everything.
    template <class Sizes>
    [[nodiscard]] static dims make_dims(const Sizes& c, std::size_t layer) {
        dims d = detail::make_heads<dims>(c);
        d.index_heads = c.index_heads;
        d.index_dim = c.index_dim;
        d.budget = c.qsa_ratios[layer] == 0 ? dims::unlimited : c.index_budget;
        return d;
    }
    /// Reads a layer's weights. File: model::layer_file. Errors: its own.
    template <class File>
    [[nodiscard]] static status bind(File& file, const dims& d, weights& w) {
        FRUGAL_TRY(detail::bind_heads(file, d, w));
        const std::size_t query_rows = d.index_heads * d.index_dim;
        constexpr tensor_name fused_name{"", "self_attn.indexer.index_qk_proj.weight"};
        if (!file.has_name(fused_name)) {
            FRUGAL_TRY(file.matrix({"indexer.q_proj.weight", ""}, query_rows, d.hidden, w.indexer_q));
            FRUGAL_TRY(file.matrix({"indexer.k_proj.weight", ""}, d.index_dim, d.hidden, w.indexer_k));
        } else {
            quant::weight_view fused;
            FRUGAL_TRY(file.matrix(fused_name, query_rows + d.index_dim, d.hidden, fused));
            w.indexer_q = fused.rows_range(0, query_rows);
            w.indexer_k = fused.rows_range(query_rows, d.index_dim);
        }
        FRUGAL_TRY(file.vector({"indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight"}, d.index_dim, w.indexer_q_norm));
        return file.vector({"indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight"}, d.index_dim, w.indexer_k_norm);
    }

    /// A cache for layers of these sizes; see qsa_cache for `raw_history`. Errors: invalid_argument.
    [[nodiscard]] static result<state> make_state(const dims& d, const state_sizes& sizes) {
        return create_state(d, sizes.sequences, sizes.max_tokens);
    }
    [[nodiscard]] static result<state> create_state(const dims& d, std::size_t sequences, std::size_t max_tokens,
                                                    std::size_t raw_history = state::unlimited) {
        return state::create(d.kv_heads, d.head_dim, d.index_dim, Ratio, sequences, max_tokens, raw_history);
    }
    /// Layouts for so many layers. Errors: invalid_argument.
    [[nodiscard]] static result<shared_inputs> make_shared_inputs(std::size_t layers, const state_sizes& sizes) {
        const std::vector<std::size_t> ratios(layers, Ratio);
        return shared_inputs::create(ratios, sizes.sequences);
    }

    /// x, y: [rows, hidden]; y may be the memory of x. The step's layout (`of.shared`) has had the step appended; the layers of
    /// one ratio share it. Appends the step to the cache. The bits of a row depend on its own sequence alone, not on how that was
    /// cut into steps. An error changes no sequence (the layout is the caller's to roll back).
    /// Errors: invalid_argument, shape_mismatch, unsupported_format, context_overflow, out_of_memory, those of the products.
    template <class Pass, class State, class Step>
    [[nodiscard]] static status forward(Pass& pass, std::size_t layer, const dims& d, const weights& w, State& cache,
                                        const Step& of, matrix_view<const float> x, matrix_view<float> y) {
        if constexpr (device::host_pass<Pass>) {
            FRUGAL_TRY(detail::check_layer(d, cache, of, x, y));
            FRUGAL_TRY(detail::check_layout(of.shared, Ratio, cache, of.tokens));
            if (d.index_heads == 0 || d.index_dim != cache.index_dim())
                return fail(errc::shape_mismatch, "QSA of ", d.index_heads, " indexer heads of ", d.index_dim,
                            " features with a cache of ", cache.index_dim());
        }
        if (of.rows() == 0) return {};
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(auto products, pass.template begin<qsa_products>(layer, w));
        FRUGAL_TRY_ASSIGN(const auto input, products.share(x));
        FRUGAL_TRY_ASSIGN(const auto heads, (detail::project<NormWeight>(pass, products, d, w, of, input)));
        FRUGAL_TRY(cache.append(pass, of, heads.keys, heads.values));
        {
            typename Pass::scope keys_scope(pass);
            FRUGAL_TRY_ASSIGN(const auto raw, pass.matrix(of.rows(), d.index_dim));
            FRUGAL_TRY(products.template multiply<indexer_k_product>(input, {raw}));
            FRUGAL_TRY(detail::write_index_keys<NormWeight>(pass, d, w, cache, of, raw));
        }
        FRUGAL_TRY_ASSIGN(const auto attended, pass.input_matrix(of.rows(), d.heads * d.head_dim));
        FRUGAL_TRY(detail::attend_blocks<NormWeight>(pass, products, d, w, cache, of, input, heads.queries_and_gates, attended));
        FRUGAL_TRY(detail::gate_and_project(pass, products, d, heads, attended, y));
        cache.commit(of);
        return clear_padding(of, y);
    }

    /// The same by itself, from the blocks of the file.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, const dims& d, const weights& w, state& cache,
                                        const batch& tokens, const reuse::qsa_layout& layout, matrix_view<const float> x,
                                        matrix_view<float> y) {
        reuse::direct_store<Formats> store;
        reuse::cpu_pass pass(dev, scratch, store);
        workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(const step alone, detail::lone_step(pass, d, tokens));
        return forward(pass, 0, d, w, cache, shared_step<reuse::qsa_layout>{alone, layout}, x, y);
    }
};

static_assert(variant<qsa<4, ops::norm_weight::plain>>);

}  // namespace attention

FRUGAL_NAMESPACE_END
