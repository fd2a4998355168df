#pragma once
/// What each query of a batch sees of the blocks: as rows of a bias, or as two numbers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/reuse/cells.hpp"
#include "frugal/reuse/engine_batch.hpp"
#include "frugal/reuse/engine_blocks.hpp"
#include "frugal/reuse/token_index.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

namespace detail {

/// The index of a query; see reuse/engine_blocks.hpp. Where indices are ranks, that of the last token that is not behind it.
template <std::size_t Ratio>
[[nodiscard]] std::int64_t query_index(const cells& held, const engine_blocks<Ratio>& blocks, std::size_t row, sequence_id s,
                                       const rope_position& at) noexcept {
    if (!blocks.ranked(row)) return at.temporal;
    const std::span<const cell_index> tokens = held.tokens(s);
    const auto visible = [&](cell_index c) { return held.at(held.stream_of(s), c).position <= at; };
    return std::partition_point(tokens.begin(), tokens.end(), visible) - tokens.begin() - 1;
}

/// Whether cells belong to one sequence. Neighbours mostly have the same set, and sets are looked up only where they differ.
class membership {
public:
    membership(const cells& held, sequence_id s) noexcept : held_(held), s_(s) {}
    [[nodiscard]] bool operator()(const cell& c) noexcept {
        if (c.set != set_) {
            set_ = c.set;
            member_ = held_.belongs(c, s_);
        }
        return member_;
    }

private:
    const cells& held_;
    sequence_id s_;
    set_index set_ = set_index::empty;
    bool member_ = false;
};

/// One row of a bias_block. to: [blocks].
template <causality Sees, std::size_t Ratio>
void write_block_bias(const cells& held, const engine_blocks<Ratio>& blocks, std::size_t row, sequence_id s, std::int64_t query,
                      float* to) noexcept {
    const stream_id stream = held.stream_of(s);
    const std::int64_t ratio = Ratio, tail_start = (query + 1) / ratio * ratio;
    const std::size_t complete = blocks.complete(row);
    const std::int32_t* const cells_of = blocks.blk_cells().data() + row * blocks.blocks() * Ratio;
    membership mine(held, s);
    for (std::size_t b = 0; b < complete; ++b) {
        const cell& first = held.at(stream, cell_index(static_cast<std::size_t>(cells_of[b * Ratio])));
        const bool in_tail = Sees == causality::causal && blocks.first_index(row, b) >= tail_start;
        to[b] = !mine(first) ? bias_hidden : in_tail ? bias_always : bias_competes;
    }
    std::fill(to + complete, to + blocks.blocks(), bias_hidden);
    if (complete < blocks.blocks()) to[complete] = bias_always;  // the tokens that are in no block
}

/// One row of a bias_cell. to: [window].
template <causality Sees, std::size_t Ratio>
void write_cell_bias(const cells& held, const engine_blocks<Ratio>& blocks, std::size_t row, sequence_id s, std::int64_t query,
                     float* to) noexcept {
    const stream_id stream = held.stream_of(s);
    const std::int64_t ratio = Ratio, tail_start = (query + 1) / ratio * ratio;
    const auto complete = static_cast<std::int64_t>(blocks.complete(row));
    const std::int32_t* const block_of = blocks.cell_blk().data() + row * blocks.window();
    const auto value = [&](std::size_t at, std::int64_t index) {
        const bool pooled = block_of[at] < complete;
        if constexpr (Sees == causality::non_causal) {
            return pooled ? bias_competes : bias_always;
        } else {
            if (index > query) return bias_hidden;
            return index >= tail_start ? bias_always : pooled ? bias_competes : bias_hidden;
        }
    };
    if (blocks.ranked(row)) {
        std::fill_n(to, blocks.window(), bias_hidden);
        const std::span<const cell_index> tokens = held.tokens(s);
        for (std::size_t rank = 0; rank < tokens.size(); ++rank)
            to[tokens[rank].value] = value(tokens[rank].value, static_cast<std::int64_t>(rank));
        return;
    }
    const std::size_t used = held.used_end(stream);
    membership mine(held, s);
    for (std::size_t j = 0; j < used; ++j) {
        const cell& c = held.at(stream, cell_index(j));
        to[j] = mine(c) ? value(j, c.position.temporal) : bias_hidden;
    }
    std::fill(to + used, to + blocks.window(), bias_hidden);
}

}  // namespace detail

/// Values of one row of a bias.
template <bias_form Form, std::size_t Ratio>
[[nodiscard]] std::size_t bias_width(const engine_blocks<Ratio>& blocks) noexcept {
    return Form == bias_form::none ? 0 : Form == bias_form::block ? blocks.blocks() : blocks.window();
}

/// Rows of a bias for consecutive tokens of a batch, the first being token `first`. to: [tokens, bias_width].
template <bias_form Form, causality Sees, std::size_t Ratio>
void write_bias(const cells& held, const engine_blocks<Ratio>& blocks, const ubatch& tokens, std::size_t first,
                std::span<float> to) noexcept {
    const std::size_t width = bias_width<Form>(blocks);
    for (std::size_t i = 0; i * width < to.size(); ++i) {
        const std::size_t row = (first + i) / tokens.tokens_per_stream();
        const sequence_id s = tokens.sequences[first + i];
        const std::int64_t query = detail::query_index(held, blocks, row, s, tokens.positions[first + i]);
        if constexpr (Form == bias_form::block)
            detail::write_block_bias<Sees>(held, blocks, row, s, query, to.data() + i * width);
        else if constexpr (Form == bias_form::cell)
            detail::write_cell_bias<Sees>(held, blocks, row, s, query, to.data() + i * width);
    }
}

/// What a query sees of its own sequence: that many complete blocks compete, that many tokens behind them are always seen.
struct query_view {
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

}  // namespace reuse

FRUGAL_NAMESPACE_END
