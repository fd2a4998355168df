#pragma once
/// The cells of an engine's key-value cache, without keys and values: which token each cell holds, and for which sequences.
///
/// It offers every edit that engines make (those of llama.cpp's llama_memory and llama_kv_cells), numbers the contents itself
/// so that no caller can forget to, and says what changed between two numbers. What depends on the cells alone
/// (reuse/engine/inputs.hpp) is kept up to date from that.
///
/// Two kinds of cache: with one stream all sequences live in it and may share cells; else each sequence has a stream of its own.
#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/reuse/inputs/batch.hpp"
#include "frugal/reuse/inputs/change_log.hpp"
#include "frugal/reuse/inputs/sequence_set.hpp"
#include "frugal/reuse/inputs/token_index.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// A cell within a stream.
using cell_index = unit_index<struct cell_unit>;
/// A row of cells.
enum class stream_id : std::uint32_t {};

/// What a cell holds. A cell that belongs to no sequence is empty, and then equal to cell{}.
struct FRUGAL_FLAGGED cell {
    rope_position position;
    set_index set = set_index::empty;
    std::uint64_t order = 0;  ///< grows with every token placed; a token that is copied or moved keeps its number
    friend bool operator==(const cell&, const cell&) = default;
};

/// One change of one cell. The sets of both can be looked up for as long as the change is kept.
struct FRUGAL_FLAGGED cell_change {
    cell_index at;
    cell before, after;
};

/// A change of a sequence's tokens: those at ranks below `first` are what they were, in the same cells.
struct FRUGAL_FLAGGED sequence_change {
    sequence_id sequence = sequence_id::padding;
    token_rank first;
    /// If not padding: the sequence had no tokens, and now shares those of this one from rank copied_first on, `copied` of them.
    sequence_id copied_from = sequence_id::padding;
    token_rank copied_first;
    std::size_t copied = 0;
};

/// Temporal positions begin … end - 1. A negative begin means 0, a negative end means no end, as in llama.cpp.
struct FRUGAL_FLAGGED position_range {
    std::int32_t begin = -1, end = -1;

    [[nodiscard]] constexpr bool contains(std::int32_t temporal) const noexcept {
        return temporal >= begin && (end < 0 || temporal < end);
    }
};

/// A token for an empty cell.
struct FRUGAL_FLAGGED placed_cell {
    stream_id stream{};
    cell_index cell;
    rope_position position;
    sequence_set sequences;  ///< not empty; all live in the stream
};

/// See the head of the file. Every edit either returns an error and changes nothing, or takes effect as a whole; the
/// versions of the streams whose content it changed, and of no others, become new ones.
///
/// Tokens of a sequence have ranks: they are ordered by temporal position, then height, width, order of placing, cell.
/// Copies are checkpoints: assign one back to restore it. Different objects may be used from different threads.
class FRUGAL_FLAGGED cells {
public:
    /// `streams` rows of `size` cells for sequences 0 … sequences - 1. Errors: invalid_argument (no stream, cell or sequence,
    /// more than max_sequences of them, several streams that are not one for each sequence, or too many cells for 32 bits).
    [[nodiscard]] static result<cells> create(std::size_t streams, std::size_t size, std::size_t sequences) {
        if (size == 0 || size > (std::numeric_limits<std::int32_t>::max)() || sequences == 0 || sequences > max_sequences ||
            (streams != 1 && streams != sequences))
            return fail(errc::invalid_argument, "a cache of ", streams, " streams of ", size, " cells for ", sequences,
                        " sequences");
        return cells(streams, size, sequences);
    }

    [[nodiscard]] std::size_t streams() const noexcept { return rows_.size(); }
    [[nodiscard]] std::size_t size() const noexcept { return rows_[0].held.size(); }
    [[nodiscard]] std::size_t sequences() const noexcept { return tokens_.size(); }
    /// Where a sequence lives. Precondition of this and all below that return no status: the arguments exist.
    [[nodiscard]] stream_id stream_of(sequence_id s) const noexcept {
        return static_cast<stream_id>(rows_.size() == 1 ? 0 : static_cast<std::uint32_t>(s));
    }
    [[nodiscard]] const cell& at(stream_id stream, cell_index index) const noexcept { return row_at(stream).held[index.value]; }
    [[nodiscard]] bool empty(stream_id stream, cell_index index) const noexcept {
        return at(stream, index).set == set_index::empty;
    }
    [[nodiscard]] bool belongs(const cell& held, sequence_id s) const noexcept { return set(held.set).contains(s); }
    [[nodiscard]] const sequence_set& set(set_index index) const noexcept { return sets_.at(index); }
    /// One past the last cell that is not empty.
    [[nodiscard]] std::size_t used_end(stream_id stream) const noexcept { return row_at(stream).used_end; }
    /// The cells of a sequence's tokens by rank. Valid until the next edit.
    [[nodiscard]] std::span<const cell_index> tokens(sequence_id s) const noexcept { return list(s); }
    /// Rank of the token in a cell of the sequence's stream, or nothing if the cell is not the sequence's. O(log tokens).
    [[nodiscard]] std::optional<token_rank> rank(sequence_id s, cell_index index) const noexcept {
        if (!belongs(at(stream_of(s), index), s)) return std::nullopt;
        if (list(s).back() == index) return token_rank(list(s).size() - 1);
        const auto found = std::lower_bound(list(s).begin(), list(s).end(), index, earlier_in{row_of(s)});
        return token_rank(static_cast<std::size_t>(found - list(s).begin()));
    }

    /// Number of a stream's content; see next_content_version(). Becomes another one if and only if an edit changes the content;
    /// cells that are loaded always get new ones.
    [[nodiscard]] std::uint64_t version(stream_id stream) const noexcept { return row_at(stream).version; }
    /// The changes since a version, the oldest first; nothing if they are no longer known. Valid until the next edit.
    [[nodiscard]] std::optional<std::span<const cell_change>> changes_since(stream_id stream,
                                                                            std::uint64_t version) const noexcept {
        return row_at(stream).cell_changes.since(version);
    }
    /// The same, seen from the sequences.
    [[nodiscard]] std::optional<std::span<const sequence_change>> sequence_changes_since(stream_id stream,
                                                                                         std::uint64_t version) const noexcept {
        return row_at(stream).sequence_changes.since(version);
    }

    // Edits. Errors of all: invalid_argument (no such stream, cell or sequence).

    /// Puts tokens into empty cells. O(tokens) if they are the newest of their sequences. Errors: invalid_argument (a cell that
    /// is not empty or named twice, no sequence or one of another stream, a negative temporal position).
    [[nodiscard]] status place(std::span<const placed_cell> placed);
    /// Takes the tokens of the highest ranks from a sequence. O(tokens). Errors: cannot_rollback.
    [[nodiscard]] status rollback(sequence_id s, std::size_t tokens);
    /// Takes a range from a sequence; cells that belong to no other become empty.
    [[nodiscard]] status remove(sequence_id s, position_range range);
    /// Takes a range from every sequence.
    void remove(position_range range);
    /// Empties a cell, whatever sequences it belongs to, as an engine does that is about to use it for another token.
    [[nodiscard]] status remove(stream_id stream, cell_index index);
    /// Takes all tokens from every other sequence.
    [[nodiscard]] status keep(sequence_id s);
    /// Within a stream: cells of `from` in the range belong to `to` as well, besides what `to` had. Across streams: what `to` has
    /// in the range is replaced by copies in cells of the same numbers. Errors: invalid_argument (such a cell of the other
    /// stream holds a token outside the range).
    [[nodiscard]] status copy(sequence_id from, sequence_id to, position_range range = {});
    /// Moves a range of a sequence by `delta` positions, also for the other sequences of these cells. What would come before
    /// position 0 is removed. Errors: unsupported (a token whose three positions are not the same one, i.e. of an image: the
    /// reference engine refuses too), invalid_argument (a position of more than 31 bits).
    [[nodiscard]] status shift(sequence_id s, position_range range, std::int32_t delta);
    /// Divides the positions of a range by `divisor`, rounding down, also for the other sequences of these cells. Errors:
    /// unsupported (as in shift), invalid_argument (a divisor below 1).
    [[nodiscard]] status divide(sequence_id s, position_range range, std::int32_t divisor);
    /// Sets where a token stands in its image. Errors: invalid_argument (an empty cell).
    [[nodiscard]] status set_extent(stream_id stream, cell_index index, std::int32_t height, std::int32_t width);
    /// Moves a token to an empty cell, as a defragmentation does. Errors: invalid_argument (`from` is empty, `to` is not).
    [[nodiscard]] status move(stream_id stream, cell_index from, cell_index to);
    /// Empties every cell.
    void clear() { remove(position_range{}); }

    void save(byte_writer& out) const;
    /// Every stream gets a new version. Errors: malformed_file; shape_mismatch (another number of streams, cells or sequences).
    [[nodiscard]] status load(byte_reader& in);

private:
    struct row {
        row(std::size_t size, std::size_t capacity)
            : held(size), version(next_content_version()), cell_changes(version, capacity), sequence_changes(version, capacity) {}

        std::vector<cell> held;
        std::size_t used_end = 0;
        std::uint64_t version;
        change_log<cell_change> cell_changes;
        change_log<sequence_change> sequence_changes;
        bool changed = false;  // by the edit in progress
    };
    /// The order of the tokens in a stream.
    struct earlier_in {
        const row& stream;
        [[nodiscard]] bool operator()(cell_index a, cell_index b) const noexcept {
            const cell &left = stream.held[a.value], &right = stream.held[b.value];
            return std::tie(left.position, left.order, a) < std::tie(right.position, right.order, b);
        }
    };
    static constexpr std::uint32_t save_tag = 0x4C4C4543;  // "CELL"
    static constexpr std::size_t most_logged = 4096;       // per stream; with more changes than cells, a rebuild is cheaper
    static constexpr std::size_t untouched = (std::numeric_limits<std::size_t>::max)();
    static constexpr set_index reserved{(std::numeric_limits<std::uint32_t>::max)()};  // marks a cell named twice

    cells(std::size_t streams, std::size_t size, std::size_t sequences)
        : rows_(streams, row(size, (std::min)(size, most_logged))), tokens_(sequences), first_changed_(sequences, untouched) {
        for (row& r : rows_) r = row(size, (std::min)(size, most_logged));  // a version for each
    }

    [[nodiscard]] row& row_at(stream_id stream) noexcept { return rows_[static_cast<std::size_t>(stream)]; }
    [[nodiscard]] const row& row_at(stream_id stream) const noexcept { return rows_[static_cast<std::size_t>(stream)]; }
    [[nodiscard]] row& row_of(sequence_id s) noexcept { return row_at(stream_of(s)); }
    [[nodiscard]] const row& row_of(sequence_id s) const noexcept { return row_at(stream_of(s)); }
    [[nodiscard]] std::vector<cell_index>& list(sequence_id s) noexcept { return tokens_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] const std::vector<cell_index>& list(sequence_id s) const noexcept {
        return tokens_[static_cast<std::size_t>(s)];
    }
    [[nodiscard]] status check(sequence_id s) const { return check_sequence(s, sequences()); }
    [[nodiscard]] status check(stream_id stream, cell_index index) const {
        if (static_cast<std::size_t>(stream) < streams() && index.value < size()) return {};
        return fail(errc::invalid_argument, "no cell ", index.value, " of stream ", static_cast<std::uint32_t>(stream));
    }
    [[nodiscard]] status check(const placed_cell& token) const;

    /// The first rank at or behind a temporal position.
    [[nodiscard]] std::size_t first_from(sequence_id s, std::int64_t temporal) const noexcept {
        const auto earlier = [&](cell_index i) { return row_of(s).held[i.value].position.temporal < temporal; };
        return static_cast<std::size_t>(std::partition_point(list(s).begin(), list(s).end(), earlier) - list(s).begin());
    }
    /// The ranks of a range: first and one past the last.
    [[nodiscard]] std::pair<std::size_t, std::size_t> ranks(sequence_id s, position_range range) const noexcept {
        const std::size_t first = first_from(s, range.begin);
        return {first, range.end < 0 ? list(s).size() : (std::max)(first, first_from(s, range.end))};
    }
    [[nodiscard]] static std::ptrdiff_t offset(std::size_t rank) noexcept { return static_cast<std::ptrdiff_t>(rank); }

    /// The only way to change a cell.
    void write(row& to, cell_index index, const cell& after);
    /// Notes that the ranks of a sequence from `rank` on may have changed.
    void touch(sequence_id s, std::size_t rank) {
        std::size_t& first = first_changed_[static_cast<std::size_t>(s)];
        if (first == untouched) touched_.push_back(s);
        first = (std::min)(first, rank);
    }
    /// Ends an edit. `copied`: what is known of one of the changed sequences.
    void commit(const sequence_change& copied = {});
    /// The cell without or with a sequence.
    [[nodiscard]] cell without(const cell& held, sequence_id s);
    [[nodiscard]] cell with(const cell& held, sequence_id s);
    /// Takes ranks first … last - 1 from a sequence.
    void take(sequence_id s, std::size_t first, std::size_t last);
    /// Puts the tokens that were appended after the first `sorted` where they belong.
    void settle(sequence_id s, std::size_t sorted);
    /// Restores the order of a sequence from a rank on, after positions changed or cells were emptied.
    void reorder(sequence_id s, std::size_t first);
    /// Gives the positions of a range new values; a negative one removes the token.
    template <class NewPosition>
    [[nodiscard]] status renumber(sequence_id s, position_range range, NewPosition&& position_of);
    void copy_across(sequence_id from, sequence_id to, std::pair<std::size_t, std::size_t> copied, position_range range);

    std::vector<row> rows_;
    std::vector<std::vector<cell_index>> tokens_;  // of each sequence, by rank
    sequence_sets sets_;
    std::uint64_t next_order_ = 1;
    // of the edit in progress
    std::vector<std::size_t> first_changed_;  // of each sequence
    std::vector<sequence_id> touched_;
    std::vector<std::pair<sequence_id, std::size_t>> grown_;  // and their lengths before
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

#include "frugal/reuse/engine/cells-inl.hpp"
