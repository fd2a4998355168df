#pragma once
/// What each query of a batch sees of the blocks: as two numbers, and as rows of a bias that are made from these.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/engine/batch.hpp"
#include "frugal/reuse/engine/blocks.hpp"
#include "frugal/reuse/inputs/token_index.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What a query sees of its own sequence: that many complete blocks compete, that many tokens behind them are always seen.
/// Block b is in the tensors under the number that cell_blk gives for the cell of the sequence's token of rank b * ratio.
struct FRUGAL_FLAGGED query_view {
    std::int32_t blocks = 0, tail = 0;
    friend bool operator==(const query_view&, const query_view&) = default;
};

/// The view of a token in a cell of its sequence's stream, by rank: the rule of the reference implementation. O(log tokens).
template <std::size_t Ratio, causality Sees>
[[nodiscard]] query_view view_of(const cells& held, sequence_id s, cell_index at) noexcept {
    constexpr block_ratio ratio(Ratio);
    const std::size_t last =
        Sees == causality::causal ? held.rank(s, at).value_or(token_rank()).value : held.tokens(s).size() - 1;
    const std::size_t blocks = ratio.open_block(token_rank(last)).value;
    return {static_cast<std::int32_t>(blocks), static_cast<std::int32_t>(last + 1 - blocks * Ratio)};
}

namespace detail {

/// One row of a bias_block. to: [blocks].
template <std::size_t Ratio, class Grouping>
void write_block_bias(const cells& held, const engine_blocks<Ratio, Grouping>& blocks, std::size_t row, sequence_id s,
                      const query_view& view, float* to) noexcept {
    const std::span<const cell_index> tokens = held.tokens(s);
    const std::int32_t* const block_of = blocks.cell_blk().data() + row * blocks.window();
    const std::size_t in_blocks = tokens.size() / Ratio * Ratio, competing = static_cast<std::size_t>(view.blocks) * Ratio;
    std::fill_n(to, blocks.blocks(), bias_hidden);
    for (std::size_t rank = 0; rank < in_blocks; rank += Ratio)
        to[block_of[tokens[rank].value]] = rank < competing ? bias_competes : bias_always;
    // Tokens of the tail may be in a block of a sequence that shares their cells.
    for (std::size_t rank = in_blocks; rank < tokens.size(); ++rank)
        if (const auto block = static_cast<std::size_t>(block_of[tokens[rank].value]); block < blocks.complete(row))
            to[block] = bias_always;
    if (blocks.complete(row) < blocks.blocks()) to[blocks.complete(row)] = bias_always;  // the tokens that are in no block
}

/// One row of a bias_cell. to: [window].
template <std::size_t Ratio, class Grouping>
void write_cell_bias(const cells& held, const engine_blocks<Ratio, Grouping>& blocks, sequence_id s, const query_view& view,
                     float* to) noexcept {
    const auto competing = static_cast<std::size_t>(view.blocks) * Ratio, seen = competing + static_cast<std::size_t>(view.tail);
    const std::span<const cell_index> tokens = held.tokens(s).first(seen);
    std::fill_n(to, blocks.window(), bias_hidden);
    for (std::size_t rank = 0; rank < seen; ++rank) to[tokens[rank].value] = rank < competing ? bias_competes : bias_always;
}

}  // namespace detail

/// Values of one row of a bias.
template <bias_form Form, std::size_t Ratio, class Grouping>
[[nodiscard]] std::size_t bias_width(const engine_blocks<Ratio, Grouping>& blocks) noexcept {
    return Form == bias_form::none ? 0 : Form == bias_form::block ? blocks.blocks() : blocks.window();
}

/// Rows of a bias for consecutive tokens of a batch, the first being token `first`. sequences, views: of all tokens of the
/// batch; to: [tokens, bias_width].
template <bias_form Form, std::size_t Ratio, class Grouping>
void write_bias(const cells& held, const engine_blocks<Ratio, Grouping>& blocks, std::span<const sequence_id> sequences,
                std::span<const query_view> views, std::size_t first, std::span<float> to) noexcept {
    const std::size_t width = bias_width<Form>(blocks), each = sequences.size() / blocks.streams();
    for (std::size_t i = first; (i - first) * width < to.size(); ++i) {
        float* const row = to.data() + (i - first) * width;
        if constexpr (Form == bias_form::block)
            detail::write_block_bias(held, blocks, i / each, sequences[i], views[i], row);
        else if constexpr (Form == bias_form::cell)
            detail::write_cell_bias(held, blocks, sequences[i], views[i], row);
    }
}

}  // namespace reuse

FRUGAL_NAMESPACE_END
