#pragma once
/// What an engine evaluates at once: tokens that are in their cells already.
#include <algorithm>
#include <cstddef>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/inputs/batch.hpp"
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

}  // namespace reuse

FRUGAL_NAMESPACE_END
