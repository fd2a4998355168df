#pragma once
/// What each query of a batch sees of the blocks: as two numbers, and as rows of a bias that are made from these.
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>

#include "frugal/reuse/engine/blocks.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/engine/ubatch.hpp"
#include "frugal/reuse/inputs/token_index.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Whether a query sees the tokens before it only.
enum class causality : bool { non_causal = false, causal = true };

/// Which form the bias has: what is added to a score so that a query sees what it may.
enum class bias_form : std::uint8_t { none, block, cell };

/// No bias: for each query, how many of its sequence's complete blocks it sees and how many tokens behind them. A kernel
/// needs no more than these two numbers.
struct FRUGAL_FLAGGED bias_none {
    static constexpr std::string_view name = "bias_none";
    static constexpr bias_form form = bias_form::none;
    static constexpr std::size_t most_bytes = 0;
};

/// F32 [blocks of the window, tokens of a stream, streams]; the engine adds its attention mask to it once it has been spread
/// over the cells. Made for as many queries at once as fit into `MostBytes`, and for one at least.
template <std::size_t MostBytes = std::size_t{256} << 20>
struct FRUGAL_FLAGGED bias_block {
    static constexpr std::string_view name = "bias_block";
    static constexpr bias_form form = bias_form::block;
    static constexpr std::size_t most_bytes = MostBytes;
};

/// F32 [cells of the window, tokens of a stream, streams]; the same limit.
template <std::size_t MostBytes = std::size_t{256} << 20>
struct FRUGAL_FLAGGED bias_cell {
    static constexpr std::string_view name = "bias_cell";
    static constexpr bias_form form = bias_form::cell;
    static constexpr std::size_t most_bytes = MostBytes;
};

/// What every bias policy says.
template <class P>
concept engine_bias_policy = requires {
    { P::name } -> std::convertible_to<std::string_view>;
    typename std::integral_constant<bias_form, P::form>;
    typename std::integral_constant<std::size_t, P::most_bytes>;
};

/// The values of a bias. `always` swallows the score of what is seen whatever its score is; it is finite, so that no sum is NaN.
inline constexpr float bias_hidden = -std::numeric_limits<float>::infinity(), bias_competes = 0.0f, bias_always = 1e9f;

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
