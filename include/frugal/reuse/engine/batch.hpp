#pragma once
/// What an engine evaluates at once, and the choices that shape the inputs made for it.
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>

#include "frugal/core/error.hpp"
#include "frugal/reuse/inputs/batch.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/inputs/sequence_set.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Tokens that are evaluated together, each in its cell already. Tokens come stream by stream, as many for each stream.
struct FRUGAL_FLAGGED ubatch {
    std::span<const rope_position> positions;  ///< of each token: what its cell holds
    std::span<const sequence_id> sequences;    ///< that each token continues: the first of them, if it has several
    std::span<const cell_index> cells;         ///< where each token is, within its stream
    std::size_t streams = 1;                   ///< streams that the tokens are of
    std::size_t window = 0;                    ///< first cells of a stream that are looked at; see padded_window
    std::size_t position_components = 1;       ///< 1 for text alone, 3 or 4 where images have heights and widths

    [[nodiscard]] std::size_t size() const noexcept { return positions.size(); }
    /// Tokens of each stream.
    [[nodiscard]] std::size_t tokens_per_stream() const noexcept { return size() / streams; }
    /// Whether heights and widths of positions mean something.
    [[nodiscard]] bool spatial() const noexcept { return position_components >= 3; }
};

/// The first cells of a stream that hold all its tokens: a multiple of `padding`, at least one, at most all.
[[nodiscard]] inline std::size_t padded_window(const cells& held, stream_id stream, std::size_t padding) noexcept {
    const std::size_t used = std::max<std::size_t>(held.used_end(stream), 1);
    return (std::min)(held.size(), (used + padding - 1) / padding * padding);
}
/// The same for a batch: that of its fullest stream.
[[nodiscard]] inline std::size_t padded_window(const cells& held, std::span<const sequence_id> sequences,
                                               std::size_t padding) noexcept {
    std::size_t window = 1;
    for (const sequence_id s : sequences)
        if (is_one_of(s, held.sequences())) window = (std::max)(window, padded_window(held, held.stream_of(s), padding));
    return window;
}

/// What blocks are cut by.
enum class token_grouping : std::uint8_t { rank, position };

/// Block b of a sequence is its visible tokens b * ratio … b * ratio + ratio - 1, the first that is still there being rank 0:
/// the rule of the reference implementation (reuse/inputs/qsa_layout.hpp), right for any first position, after holes, shifts and
/// divisions, and for images. A cell can be in one block only. Where sequences share cells and cut them differently, only the
/// sequences of the batch get blocks; if these do so, the batch is refused.
struct FRUGAL_FLAGGED group_by_rank {
    static constexpr std::string_view name = "group_by_rank";
    static constexpr token_grouping cut_by = token_grouping::rank;
};

/// The blocks of llama.cpp, cut where a position is a multiple of the ratio; see reuse/engine_blocks.hpp. A batch is refused
/// where these are not the blocks by rank: a sequence that does not begin at a multiple of the ratio, a gap or two tokens of
/// one position within a block, a block whose cells are not of the same sequences, or one past the window.
struct FRUGAL_FLAGGED group_by_position {
    static constexpr std::string_view name = "group_by_position";
    static constexpr token_grouping cut_by = token_grouping::position;
};

/// What every grouping policy says.
template <class P>
concept engine_grouping_policy = requires {
    { P::name } -> std::convertible_to<std::string_view>;
    typename std::integral_constant<token_grouping, P::cut_by>;
};
static_assert(engine_grouping_policy<group_by_rank> && engine_grouping_policy<group_by_position>);

/// Whether a query sees the tokens before it only.
enum class causality : bool { non_causal = false, causal = true };

/// The stream of a batch's row of tokens. Precondition: the batch has been checked.
[[nodiscard]] inline stream_id stream_of_row(const cells& held, const ubatch& tokens, std::size_t row) noexcept {
    return held.stream_of(tokens.sequences[row * tokens.tokens_per_stream()]);
}

/// The sequences of a batch's row of tokens. Precondition: the batch has been checked.
[[nodiscard]] inline sequence_set sequences_of_row(const ubatch& tokens, std::size_t row) noexcept {
    sequence_set out;
    const std::size_t each = tokens.tokens_per_stream();
    for (const sequence_id s : tokens.sequences.subspan(row * each, each)) out.add(s);
    return out;
}

/// Checks a batch against the cells. Errors: invalid_argument.
[[nodiscard]] inline status check_batch(const cells& held, const ubatch& tokens) {
    if (tokens.size() == 0 || tokens.sequences.size() != tokens.size() || tokens.cells.size() != tokens.size())
        return fail(errc::invalid_argument, "a batch of ", tokens.size(), " positions, ", tokens.sequences.size(),
                    " sequences and ", tokens.cells.size(), " cells");
    if (tokens.streams == 0 || tokens.streams > held.streams() || tokens.size() % tokens.streams != 0)
        return fail(errc::invalid_argument, tokens.size(), " tokens cannot be shared out evenly among ", tokens.streams,
                    " streams of ", held.streams());
    if (tokens.window == 0 || tokens.window > held.size())
        return fail(errc::invalid_argument, "a window of ", tokens.window, " of ", held.size(), " cells");
    const std::size_t each = tokens.tokens_per_stream();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const sequence_id s = tokens.sequences[i];
        FRUGAL_TRY(check_sequence(s, held.sequences()));
        const stream_id stream = held.stream_of(s);
        if (i % each != 0 && stream != held.stream_of(tokens.sequences[i - 1]))
            return fail(errc::invalid_argument, "token ", i, " is of another stream than the one before it");
        const cell_index at = tokens.cells[i];
        if (at.value >= held.size())
            return fail(errc::invalid_argument, "token ", i, " of the batch is in cell ", at.value, " of ", held.size());
        if (!held.belongs(held.at(stream, at), s))
            return fail(errc::invalid_argument, "token ", i, " of the batch is not in cell ", at.value,
                        "; place the batch before its inputs are made");
        if (at.value >= tokens.window)
            return fail(errc::invalid_argument, "the window of ", tokens.window, " cells leaves out cell ", at.value,
                        " of token ", i, " of the batch; see padded_window");
        const rope_position &told = tokens.positions[i], &placed = held.at(stream, at).position;
        if (tokens.spatial() ? told != placed : told.temporal != placed.temporal)
            return fail(errc::invalid_argument, "token ", i, " of the batch stands at position ", told.temporal, ", ",
                        told.height, ", ", told.width, "; its cell says ", placed.temporal, ", ", placed.height, ", ",
                        placed.width);
    }
    for (std::size_t row = 0; row < tokens.streams; ++row) {
        const stream_id stream = stream_of_row(held, tokens, row);
        if (held.used_end(stream) > tokens.window)
            return fail(errc::invalid_argument, "the window of ", tokens.window, " cells leaves out cell ",
                        held.used_end(stream) - 1);
        for (std::size_t other = 0; other < row; ++other)
            if (stream_of_row(held, tokens, other) == stream)
                return fail(errc::invalid_argument, "rows ", other, " and ", row, " of the batch are of one stream");
    }
    return {};
}

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

}  // namespace reuse

FRUGAL_NAMESPACE_END
