#pragma once
/// The indexer of QSA: block keys, indexer queries, and the tokens that each query attends to.
/// Source: transformers, models/qwen4_exp, Qwen4ExpTextQSAIndexer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/full/gated_heads.hpp"
#include "frugal/attention/qsa/qsa_cache.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/grain.hpp"
#include "frugal/device/cpu/pass.hpp"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/inputs/qsa_layout.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// Sizes of a QSA layer. A query attends to the best budget / ratio complete blocks and the incomplete tail: with a budget
/// below one block to the tail alone. The indexer uses the rotary table of the attention: rotary_dim <= index_dim.
struct FRUGAL_FLAGGED qsa_dims : full_dims {
    std::size_t index_heads = 0, index_dim = 0, budget = 0;  ///< budget: tokens
    /// A budget that cuts nothing.
    static constexpr std::size_t unlimited = (std::numeric_limits<std::size_t>::max)() / 2;
};

/// Weights of a QSA layer; not owned.
struct FRUGAL_FLAGGED qsa_weights : full_weights {
    quant::weight_view indexer_q;                           ///< [index_heads * index_dim, hidden]
    quant::weight_view indexer_k;                           ///< [index_dim, hidden]
    std::span<const float> indexer_q_norm, indexer_k_norm;  ///< [index_dim]
};

/// The products of a QSA layer; see reuse/weights/products.hpp. Queries of the indexer are needed only where a choice is to be
/// made.
using indexer_q_product = reuse::small_product<&qsa_weights::indexer_q>;
using indexer_k_product = reuse::small_product<&qsa_weights::indexer_k>;
using qsa_products = reuse::product_list<qsa_weights, qkv_product, out_product, indexer_q_product, indexer_k_product>;

namespace detail {

/// Whether the layout has been given exactly this batch after what the cache holds. Errors: invalid_argument.
template <class Cache>
[[nodiscard]] status check_layout(const reuse::qsa_layout& layout, std::size_t ratio, const Cache& cache, const batch& tokens) {
    if (layout.ratio().tokens() != ratio || cache.ratio().tokens() != ratio)
        return fail(errc::invalid_argument, "QSA with blocks of ", ratio, " tokens was given a layout of ",
                    layout.ratio().tokens(), " and a cache of ", cache.ratio().tokens());
    if (layout.rows().size() != tokens.rows())
        return fail(errc::invalid_argument, "the QSA layout has ", layout.rows().size(), " rows, the batch ", tokens.rows(),
                    "; append the batch to the layout before the layers run");
    for (const segment& part : tokens.segments) {
        if (part.sequence == sequence_id::padding || part.count == 0) continue;
        const reuse::qsa_row &first = layout.rows()[part.first], &last = layout.rows()[part.first + part.count - 1];
        const std::size_t length = cache.length(part.sequence);
        if (first.padding || last.padding || first.rank.value != length || last.rank.value != length + part.count - 1 ||
            layout.length(part.sequence) != length + part.count)
            return fail(errc::invalid_argument, "the QSA layout puts sequence ", static_cast<std::int64_t>(part.sequence),
                        " at token ", first.rank.value, ", its cache holds ", length,
                        "; edit both alike and append each batch once");
    }
    return {};
}

/// Mean of a block's raw keys, added in the order of their ranks, in f32. out: [index_dim].
template <class Scalar>
void pool_block(const token_store<Scalar>& raw_keys, const reuse::block_ratio& ratio, reuse::block_index block,
                float* out) noexcept {
    const std::size_t first = ratio.first_token(block).value, dim = raw_keys.width();
    const Scalar* key = raw_keys.row(first);
    for (std::size_t i = 0; i < dim; ++i) out[i] = to_float(key[i]);
    for (std::size_t t = 1; t < ratio.tokens(); ++t) {
        key = raw_keys.row(first + t);
        for (std::size_t i = 0; i < dim; ++i) out[i] += to_float(key[i]);
    }
    for (std::size_t i = 0; i < dim; ++i) out[i] /= static_cast<float>(ratio.tokens());
}

/// Writes the raw indexer keys of the step, then the keys of the blocks that it completes: mean of the raw keys, norm, rotation
/// at the block's first token. raw: [rows, index_dim]. The cache has room reserved.
template <class NormWeight, device::host_pass Pass, class Cache, class Step>
[[nodiscard]] status write_index_keys(Pass& pass, const qsa_dims& d, const qsa_weights& w, Cache& cache, const Step& of,
                                      matrix_view<const float> raw) {
    struct completed {
        sequence_id sequence;
        reuse::block_index block;
    };
    const reuse::qsa_layout& layout = of.shared;
    const reuse::block_ratio ratio = layout.ratio();
    typename Pass::scope scope(pass);
    FRUGAL_TRY_ASSIGN(auto blocks, pass.template array<completed>(raw.rows()));
    FRUGAL_TRY_ASSIGN(auto positions, pass.template array<rope_position>(raw.rows()));
    std::size_t count = 0;
    for (const segment& part : of.tokens.segments) {
        if (part.sequence == sequence_id::padding) continue;
        for (std::size_t r = part.first; r < part.first + part.count; ++r) {
            const reuse::token_rank rank = layout.rows()[r].rank;
            cache.write_raw_key(part.sequence, rank, raw.row(r));
            if (!ratio.completes(rank)) continue;
            blocks[count] = {part.sequence, ratio.block_of(rank)};
            positions[count++] = layout.first_position(part.sequence, ratio.block_of(rank));
        }
    }
    if (count == 0) return {};
    FRUGAL_TRY_ASSIGN(auto keys, pass.matrix(count, d.index_dim));
    pass.run_ranges(count, device::grain(ratio.tokens() * d.index_dim), [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i)
            pool_block(cache.raw_keys(blocks[i].sequence), ratio, blocks[i].block, keys.row(i));
    });
    FRUGAL_TRY(ops::rms_norm<NormWeight>(pass, w.indexer_k_norm, keys, d.eps, keys));
    FRUGAL_TRY(ops::apply_rope(pass, pass.scratch(), *d.rope, std::span<const rope_position>(positions.first(count)), 1,
                               d.index_dim, keys));
    for (std::size_t i = 0; i < count; ++i) cache.write_block_key(blocks[i].sequence, blocks[i].block, keys.row(i));
    return {};
}

/// Indexer queries, normed and rotated, into out: [rows, index_heads * index_dim].
template <class NormWeight, class Pass, class Products, class Step, class Input>
[[nodiscard]] status index_queries(Pass& pass, Products& products, const qsa_dims& d, const qsa_weights& w, const Step& of,
                                   const Input& x, matrix_view<float> out) {
    FRUGAL_TRY(products.template multiply<indexer_q_product>(x, {out}));
    const auto heads = heads_as_rows(out, d.index_heads, d.index_dim);
    FRUGAL_TRY(ops::rms_norm<NormWeight>(pass, w.indexer_q_norm, heads, d.eps, heads));
    return ops::apply_rope(pass, *d.rope, of.angles, d.index_heads, d.index_dim, out);
}

/// Most tokens that a query attends to.
[[nodiscard]] constexpr std::size_t most_chosen(const reuse::block_ratio& ratio, std::size_t top) noexcept {
    return (top + 1) * ratio.tokens() - 1;
}

/// The tokens that each row attends to, ascending: those of its `top` best blocks, then its tail. Row i writes
/// lists[i * most_chosen(ratio, top) …] and counts[i]. choices[i] names row i's block keys and how many are complete.
template <class Device, class Scalar>
[[nodiscard]] status choose_tokens(Device& dev, workspace& scratch, const qsa_dims& d, const reuse::block_ratio& ratio,
                                   std::span<const reuse::qsa_row> rows, std::span<const ops::block_row<Scalar>> choices,
                                   matrix_view<const float> queries, std::span<std::uint32_t> lists,
                                   std::span<std::size_t> counts) {
    const std::size_t top = d.budget / ratio.tokens(), width = most_chosen(ratio, top);
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(auto chosen, scratch.array<std::uint32_t>(rows.size() * top));
    FRUGAL_TRY(ops::select_blocks(dev, scratch, queries, choices, d.index_heads, top, chosen, counts));
    dev.run_ranges(rows.size(), device::grain(width), [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r) {
            std::uint32_t* list = lists.data() + r * width;
            std::size_t n = 0;
            for (std::size_t i = 0; i < counts[r]; ++i) {
                const std::size_t first = ratio.first_token(reuse::block_index(chosen[r * top + i])).value;
                for (std::size_t t = 0; t < ratio.tokens(); ++t) list[n++] = static_cast<std::uint32_t>(first + t);
            }
            if (!rows[r].padding)
                for (std::size_t t = rows[r].tail_start.value; t <= rows[r].rank.value; ++t)
                    list[n++] = static_cast<std::uint32_t>(t);
            counts[r] = n;
        }
    });
    return {};
}

}  // namespace detail

}  // namespace attention

FRUGAL_NAMESPACE_END
