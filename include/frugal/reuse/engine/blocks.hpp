#pragma once
/// Which cells form which block, as tensors: cell_blk, blk_cells and blk_pos of llama.cpp's QSA inputs.
///
/// By rank, a token's index is its rank in its sequence. The tokens of a sequence whose indices divided by the ratio are equal
/// form a block if there are `Ratio` of them; sequences that share all cells of a block share the block, whose index is then
/// the lowest. Blocks are numbered by index; of several at one index, the one whose first cell is the last comes first.
///
/// By position, the tensors are llama.cpp's value for value. A token's index is its temporal position, and blocks are cut by
/// index and by the exact set of sequences: the cells of one set whose indices divided by the ratio are equal form a block, if
/// all `Ratio` places in it are taken; if cells share a place, the last of them has it. If places are shared, positions have
/// heights and widths and the stream holds one sequence, then the index of a token is its rank instead. The numbers are given
/// as by rank. A batch for whose sequences these would not be the blocks by rank is refused.
///
/// Where sequences hold positions 0, 1, 2, … once each and share nothing, or whole blocks alone, the two are the same bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/engine/grouping.hpp"
#include "frugal/reuse/engine/ubatch.hpp"
#include "frugal/reuse/inputs/batch.hpp"
#include "frugal/reuse/inputs/sequence_set.hpp"
#include "frugal/reuse/inputs/token_index.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// The tensors of one ratio over the windows of some streams. Memory for all cells of all streams is taken once.
template <std::size_t Ratio, class Grouping>
class FRUGAL_FLAGGED engine_blocks {
    static_assert(Ratio >= 1 && Ratio <= 64, "frugal: an engine's QSA blocks hold 1 to 64 tokens: write engine_inputs<4>");

public:
    engine_blocks(std::size_t streams, std::size_t size)
        : cell_blk_(streams * size),
          blk_cells_(streams * blocks_in(size) * Ratio),
          blk_pos_(streams * blocks_in(size) * 4),
          by_rank_(ranks ? size / Ratio : 0),
          rows_(streams) {
        if constexpr (!ranks) groups_.reserve(blocks_in(size));
        freed_.reserve(4 * Ratio);
        ordered_.reserve(8);
    }

    /// Blocks that a window has room for.
    [[nodiscard]] static constexpr std::size_t blocks_in(std::size_t window) noexcept { return (window + Ratio - 1) / Ratio; }

    [[nodiscard]] std::size_t streams() const noexcept { return streams_; }
    [[nodiscard]] std::size_t window() const noexcept { return window_; }
    [[nodiscard]] std::size_t blocks() const noexcept { return blocks_in(window_); }
    /// [window, streams]: the block of each cell; the number behind the last block for cells that are in none.
    [[nodiscard]] std::span<const std::int32_t> cell_blk() const noexcept {
        return std::span(cell_blk_).first(streams_ * window_);
    }
    /// [Ratio * blocks, streams]: the cells of each block in the order of their indices; 0 behind the last block.
    [[nodiscard]] std::span<const std::int32_t> blk_cells() const noexcept {
        return std::span(blk_cells_).first(streams_ * blocks() * Ratio);
    }
    /// [blocks, streams, 4]: temporal, height, width and once more temporal position of each block's first token, where
    /// positions have heights and widths, else four times the temporal one; by position the latter also then, unless indices
    /// are ranks; 0 behind the last block.
    [[nodiscard]] std::span<const std::int32_t> blk_pos() const noexcept {
        return std::span(blk_pos_).first(streams_ * blocks() * 4);
    }
    /// Blocks of a row.
    [[nodiscard]] std::size_t complete(std::size_t row) const noexcept { return rows_[row].complete; }
    /// Whether a token of a row stands past the window, so that no block can hold it.
    [[nodiscard]] bool outside(std::size_t row) const noexcept { return rows_[row].outside; }
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = (cell_blk_.capacity() + blk_cells_.capacity() + blk_pos_.capacity()) * sizeof(std::int32_t) +
                          groups_.capacity() * sizeof(group) + by_rank_.bytes() + rows_.capacity() * sizeof(row_state) +
                          freed_.capacity() * sizeof(std::int32_t);
        for (const row_state& row : rows_)
            sum += row.holes.capacity() * sizeof(std::int32_t) + row.sequences.capacity() * sizeof(kept_sequence);
        return sum;
    }

    /// Makes room for other rows; what they hold is lost.
    void reshape(std::size_t streams, std::size_t window) noexcept {
        streams_ = streams;
        window_ = window;
        for (row_state& row : rows_) row.kept = false;
    }

    /// Fills a row from all cells of its stream, for the sequences of a batch's row. Errors: unsupported (no tensor can hold the
    /// blocks of these sequences; see the grouping); the row holds nothing of use then.
    [[nodiscard]] status fill(const cells& held, std::size_t row, const ubatch& tokens) {
        row_state& state = rows_[row];
        const stream_id stream = stream_of_row(held, tokens, row);
        const sequence_set asked = sequences_of_row(tokens, row);
        state.kept = state.ranked = state.outside = false;
        state.spatial = tokens.spatial();
        if constexpr (ranks) {
            return fill_by_rank(held, row, stream, asked);
        } else {
            fill_by_position(held, row, stream);
            status done;
            asked.for_each([&](sequence_id s) {
                if (done) done = detail::check_positions<Ratio>(held, s, state.ranked, state.spatial, blocks());
            });
            return done;
        }
    }

    /// Remembers what `update` needs, after a fill. O(tokens).
    void keep(const cells& held, std::size_t row, stream_id stream) {
        row_state& state = rows_[row];
        state.stream = stream;
        state.sequences.clear();
        std::size_t tokens = 0;
        for (std::size_t i = 0; i < held.sequences(); ++i) {
            const auto s = static_cast<sequence_id>(i);
            if (held.stream_of(s) != stream || held.tokens(s).empty()) continue;
            state.sequences.push_back({s, 0, 0, never, {}});
            if constexpr (!ranks) {
                const auto order = order_of(held, s, state.spatial, 0, never);
                if (!order || order->ranked != state.ranked) return;
                state.sequences.back().first_repeated = order->first_repeated;
            }
            tokens += held.tokens(s).size();
        }
        state.holes.clear();
        note_holes(held, state, 0, held.used_end(stream));
        if (held.used_end(stream) - state.holes.size() != tokens) return;  // some cell is of several sequences
        remember(held, state);
        state.kept = true;
    }

    /// Brings a row up to date if its cells are, as before, of one sequence each; by position, also if the ranks of every
    /// sequence are its indices. False if that cannot be done or more than half of the blocks would only get other numbers; then
    /// the tensors are what they were: fill the row. O(tokens changed + blocks with other numbers + empty cells of the window).
    /// Another window is possible if there is one row only.
    [[nodiscard]] bool update(const cells& held, std::size_t row, stream_id stream, bool spatial, std::size_t window) {
        row_state& state = rows_[row];
        if (!state.kept || state.spatial != spatial || (window != window_ && streams_ != 1)) return false;
        const auto changes = held.sequence_changes_since(stream, state.version);  // of another stream, there are none
        if (!changes) return false;
        note_changes(state, *changes);
        const auto plan = plan_update(held, state, window);
        const std::size_t used = held.used_end(stream), before = state.complete;
        if (!plan || plan->moved > plan->complete / 2) return false;

        std::int32_t* const cells_of = blk_cells_.data() + row * blocks() * Ratio;
        std::int32_t* const block_of = cell_blk_.data() + row * window_;  // at 0 if the window changes
        freed_.assign(cells_of + plan->kept * Ratio, cells_of + before * Ratio);
        for (const kept_sequence& of : state.sequences)
            for (std::size_t rank = of.tokens / Ratio * Ratio; rank < of.tokens; ++rank) freed_.push_back(of.tail[rank % Ratio]);
        const auto hole = [&](std::int32_t c) {
            return static_cast<std::size_t>(c) < used && held.empty(stream, cell_index(static_cast<std::size_t>(c)));
        };
        state.holes.erase(std::remove_if(state.holes.begin(), state.holes.end(), [&](std::int32_t c) { return !hole(c); }),
                          state.holes.end());
        for (const std::int32_t c : freed_)
            if (hole(c)) state.holes.push_back(c);
        note_holes(held, state, state.used_end, used);
        if (used - state.holes.size() != plan->tokens) return false;

        const std::int32_t spare_before = spare_of(before);
        std::fill(cells_of + plan->kept * Ratio, cells_of + before * Ratio, 0);
        for (std::size_t block = plan->kept; block < before; ++block) write_position(row, block, {});
        const bool resized = window != window_;
        if (resized) resize(window, plan->kept);
        state.complete = plan->complete;
        const std::int32_t spare = spare_of(plan->complete);
        for (const std::int32_t c : freed_)
            if (static_cast<std::size_t>(c) < window_) block_of[c] = spare;
        write_blocks(held, row, plan->kept, plan->first_bucket);
        if (resized || spare != spare_before) {
            for (const std::int32_t c : state.holes) block_of[c] = spare;
            for (const kept_sequence& of : state.sequences) {
                const std::span<const cell_index> tokens = held.tokens(of.sequence);
                for (std::size_t rank = tokens.size() / Ratio * Ratio; rank < tokens.size(); ++rank)
                    block_of[tokens[rank].value] = spare;
            }
            std::fill(block_of + used, block_of + window_, spare);
        }
        remember(held, state);
        return true;
    }

private:
    static constexpr bool ranks = Grouping::cut_by == token_grouping::rank;
    static constexpr std::int32_t none = -1;
    static constexpr std::uint64_t all_places = ~std::uint64_t{0} >> (64 - Ratio);
    static constexpr std::size_t never = (std::numeric_limits<std::size_t>::max)();

    struct group {
        std::uint64_t places;
        std::int32_t next;
        set_index set;
    };
    struct kept_sequence {
        sequence_id sequence{};
        std::size_t tokens = 0;
        std::size_t first = 0;                   // ranks below it are what they were; set where a change is looked at
        std::size_t first_repeated = never;      // the first rank with the temporal position of the one before it
        std::array<std::int32_t, Ratio> tail{};  // cells of the tokens behind its last block, by place
    };
    struct row_state {
        std::size_t complete = 0;
        bool ranked = false, outside = false;  // by position
        bool spatial = false;
        // What an update starts from.
        bool kept = false;
        stream_id stream{};
        std::uint64_t version = 0;
        std::size_t used_end = 0;
        std::vector<std::int32_t> holes;  // empty cells before used_end
        std::vector<kept_sequence> sequences;
    };
    struct update_plan {
        std::size_t first_bucket = never;  // the first index / Ratio at which blocks change
        std::size_t kept = 0;              // blocks before it
        std::size_t moved = 0;             // blocks that only get other numbers
        std::size_t complete = 0, tokens = 0;
    };
    struct token_order {
        bool ranked;
        std::size_t first_repeated, last_temporal;
    };

    [[nodiscard]] static std::int32_t spare_of(std::size_t complete) noexcept { return static_cast<std::int32_t>(complete); }
    /// How a sequence's ranks and positions go together, if an update by position can follow them: they are the same numbers, or
    /// every token of an image has a place of its own. The ranks below `first` are known.
    [[nodiscard]] static std::optional<token_order> order_of(const cells& held, sequence_id s, bool spatial, std::size_t first,
                                                             std::size_t first_repeated) noexcept {
        const std::span<const cell_index> tokens = held.tokens(s);
        const auto at = [&](std::size_t rank) { return held.at(held.stream_of(s), tokens[rank]).position; };
        if (first_repeated >= first) first_repeated = never;
        bool same_place = false, image_begins_block = false;
        for (std::size_t rank = first; rank < tokens.size(); ++rank) {
            const rope_position here = at(rank);
            image_begins_block =
                image_begins_block || (rank % Ratio == 0 && here != rope_position{here.temporal, here.temporal, here.temporal});
            if (rank == 0 || here.temporal != at(rank - 1).temporal) continue;
            first_repeated = (std::min)(first_repeated, rank);
            same_place = same_place || here == at(rank - 1);
        }
        const auto last = static_cast<std::size_t>(at(tokens.size() - 1).temporal);
        const bool repeats = first_repeated != never;
        if (repeats ? !spatial || same_place : last + 1 != tokens.size() || (spatial && image_begins_block)) return std::nullopt;
        return token_order{repeats, first_repeated, last};
    }

    void write_position(std::size_t row, std::size_t block, const rope_position& at) noexcept {
        const std::size_t section = streams_ * blocks();
        std::int32_t* const to = blk_pos_.data() + row * blocks() + block;
        to[0] = to[3 * section] = at.temporal;
        to[section] = at.height;
        to[2 * section] = at.width;
    }
    /// Positions of no block.
    void clear_behind(std::size_t row, std::size_t complete) noexcept {
        for (std::size_t part = 0; part < 4; ++part) {
            std::int32_t* const section = blk_pos_.data() + (part * streams_ + row) * blocks();
            std::fill(section + complete, section + blocks(), 0);
        }
    }
    void note_changes(row_state& state, std::span<const sequence_change> changes) {
        for (kept_sequence& of : state.sequences) of.first = of.tokens;
        for (const sequence_change& change : changes) {
            const auto known = std::find_if(state.sequences.begin(), state.sequences.end(),
                                            [&](const kept_sequence& of) { return of.sequence == change.sequence; });
            if (known == state.sequences.end())
                state.sequences.push_back({change.sequence, 0, 0, never, {}});
            else
                known->first = (std::min)(known->first, change.first.value);
        }
    }
    [[nodiscard]] std::optional<update_plan> plan_update(const cells& held, row_state& state, std::size_t window) const noexcept {
        update_plan plan;
        std::size_t live = 0;
        const auto kept_of = [&](const kept_sequence& of) {
            return (std::min)({of.first / Ratio, of.tokens / Ratio, held.tokens(of.sequence).size() / Ratio});
        };
        for (kept_sequence& of : state.sequences) {
            const std::size_t tokens = held.tokens(of.sequence).size(), kept = kept_of(of);
            plan.tokens += tokens;
            plan.complete += tokens / Ratio;
            if (kept != tokens / Ratio || kept != of.tokens / Ratio) plan.first_bucket = (std::min)(plan.first_bucket, kept);
            if (tokens == 0) {
                of.first_repeated = never;
                continue;
            }
            ++live;
            if constexpr (!ranks) {
                const auto order = order_of(held, of.sequence, state.spatial, (std::min)(of.first, tokens), of.first_repeated);
                if (!order || order->ranked != state.ranked ||
                    (state.ranked && (live > 1 || order->last_temporal / Ratio >= blocks_in(window))))
                    return std::nullopt;
                of.first_repeated = order->first_repeated;
            }
        }
        for (const kept_sequence& of : state.sequences) {
            plan.kept += (std::min)(plan.first_bucket, of.tokens / Ratio);
            plan.moved += kept_of(of) - (std::min)(plan.first_bucket, kept_of(of));
        }
        return plan;
    }

    /// Tokens bucket * Ratio … bucket * Ratio + Ratio - 1 of a sequence whose ranks are its indices.
    void write_block(const cells& held, std::size_t row, std::size_t block, sequence_id s, std::size_t bucket) noexcept {
        const std::span<const cell_index> tokens = held.tokens(s).subspan(bucket * Ratio, Ratio);
        std::int32_t* const block_of = cell_blk_.data() + row * window_;
        std::int32_t* const cells_of = blk_cells_.data() + (row * blocks() + block) * Ratio;
        for (std::size_t place = 0; place < Ratio; ++place) {
            block_of[tokens[place].value] = static_cast<std::int32_t>(block);
            cells_of[place] = static_cast<std::int32_t>(tokens[place].value);
        }
        const rope_position& at = held.at(held.stream_of(s), tokens[0]).position;
        const bool whole = ranks ? rows_[row].spatial : rows_[row].ranked;
        write_position(row, block, whole ? at : rope_position{at.temporal, at.temporal, at.temporal});
    }
    /// All blocks of the row's sequences from a bucket on, the first of them being number `block`.
    void write_blocks(const cells& held, std::size_t row, std::size_t block, std::size_t bucket) {
        for (; block < rows_[row].complete; ++bucket) {
            ordered_.clear();
            for (const kept_sequence& of : rows_[row].sequences) {
                const std::span<const cell_index> tokens = held.tokens(of.sequence);
                if (tokens.size() / Ratio <= bucket) continue;
                const auto places = tokens.subspan(bucket * Ratio, Ratio);
                ordered_.push_back({*std::min_element(places.begin(), places.end()), of.sequence});
            }
            if (ordered_.size() > 1)
                std::sort(ordered_.begin(), ordered_.end(),
                          [](const auto& a, const auto& b) { return a.first_cell > b.first_cell; });
            for (const auto& next : ordered_) write_block(held, row, block++, next.sequence, bucket);
        }
    }
    void fill_by_position(const cells& held, std::size_t row, stream_id stream) {
        row_state& state = rows_[row];
        const std::size_t used = held.used_end(stream);
        std::int32_t* const block_of = cell_blk_.data() + row * window_;
        std::int32_t* const cells_of = blk_cells_.data() + row * blocks() * Ratio;

        // Cells with a set and an index in common, chained for each index. The heads of the chains lie where the cells of
        // the blocks will be, the group of each cell where its block will be.
        std::fill_n(cells_of, blocks(), none);
        groups_.clear();
        bool shared_place = false;
        for (std::size_t j = 0; j < used; ++j) {
            const cell& c = held.at(stream, cell_index(j));
            block_of[j] = none;
            if (c.set == set_index::empty) continue;
            const auto index = static_cast<std::size_t>(c.position.temporal);
            const std::size_t bucket = index / Ratio;
            if (bucket >= blocks()) {
                state.outside = true;
                continue;
            }
            std::int32_t g = cells_of[bucket];
            while (g != none && groups_[static_cast<std::size_t>(g)].set != c.set) g = groups_[static_cast<std::size_t>(g)].next;
            if (g == none) {
                g = static_cast<std::int32_t>(groups_.size());
                groups_.push_back({0, cells_of[bucket], c.set});
                cells_of[bucket] = g;
            }
            std::uint64_t& places = groups_[static_cast<std::size_t>(g)].places;
            const std::uint64_t place = std::uint64_t{1} << (index % Ratio);
            shared_place = shared_place || (places & place) != 0;
            places |= place;
            block_of[j] = g;
        }
        const sequence_set live = shared_place && state.spatial ? detail::live_sequences(held, stream) : sequence_set();
        if (live.count() == 1) {
            state.ranked = true;
            state.outside = false;
            live.for_each([&](sequence_id s) {
                const std::size_t of_ranks = held.tokens(s).size() / Ratio;
                clear_row(row, of_ranks);
                for (std::size_t block = 0; block < of_ranks; ++block) write_block(held, row, block, s, block);
            });
            return;
        }

        std::size_t complete = 0;
        for (std::size_t bucket = 0; bucket < blocks(); ++bucket) {
            for (std::int32_t g = cells_of[bucket]; g != none;) {
                group& of = groups_[static_cast<std::size_t>(g)];
                g = of.next;
                of.next = none;  // from here on the block's number
                if (of.places != all_places) continue;
                const auto first = static_cast<std::int32_t>(bucket * Ratio);
                write_position(row, complete, {first, first, first});
                of.next = static_cast<std::int32_t>(complete++);
            }
        }
        state.complete = complete;
        clear_behind(row, complete);
        std::fill_n(cells_of, blocks() * Ratio, 0);
        const std::int32_t spare = spare_of(complete);
        for (std::size_t j = 0; j < used; ++j) {
            const std::int32_t block = block_of[j] == none ? none : groups_[static_cast<std::size_t>(block_of[j])].next;
            block_of[j] = block == none ? spare : block;
            if (block == none) continue;
            const auto index = static_cast<std::size_t>(held.at(stream, cell_index(j)).position.temporal);
            cells_of[static_cast<std::size_t>(block) * Ratio + index % Ratio] = static_cast<std::int32_t>(j);
        }
        std::fill(block_of + used, block_of + window_, spare);
    }
    [[nodiscard]] status fill_by_rank(const cells& held, std::size_t row, stream_id stream, const sequence_set& asked) {
        const std::span block_of = std::span(cell_blk_).subspan(row * window_, window_);
        auto clash = by_rank_.find(held, detail::live_sequences(held, stream), block_of);
        if (clash) clash = by_rank_.find(held, asked, block_of);
        if (clash)
            return fail(
                errc::unsupported, "cell ", clash->at.value, " is in one block of sequence ",
                static_cast<std::int32_t>(clash->first), " and in another of sequence ", static_cast<std::int32_t>(clash->second),
                ", which one row of tensors cannot say; put the two in different batches, or let them part at a multiple of ",
                Ratio, " tokens");
        const auto found = by_rank_.found();
        clear_row(row, found.size());
        for (std::size_t block = 0; block < found.size(); ++block)
            write_block(held, row, block, found[block].sequence, found[block].index);
        return {};
    }
    /// A row of so many blocks that are yet to be written.
    void clear_row(std::size_t row, std::size_t complete) noexcept {
        rows_[row].complete = complete;
        std::fill_n(cell_blk_.data() + row * window_, window_, spare_of(complete));
        std::fill_n(blk_cells_.data() + row * blocks() * Ratio, blocks() * Ratio, 0);
        clear_behind(row, complete);
    }
    /// Another window for the only row, which has `kept` blocks: the sections of blk_pos move.
    void resize(std::size_t window, std::size_t kept) noexcept {
        const std::size_t before = blocks(), after = blocks_in(window);
        if (after > before) {
            for (std::size_t part = 4; part-- > 1;)
                std::copy_backward(blk_pos_.data() + part * before, blk_pos_.data() + part * before + kept,
                                   blk_pos_.data() + part * after + kept);
            std::fill(blk_cells_.begin() + offset(before * Ratio), blk_cells_.begin() + offset(after * Ratio), 0);
        } else {
            for (std::size_t part = 1; part < 4; ++part)
                std::copy_n(blk_pos_.data() + part * before, kept, blk_pos_.data() + part * after);
        }
        window_ = window;
        clear_behind(0, kept);
    }
    [[nodiscard]] static std::ptrdiff_t offset(std::size_t index) noexcept { return static_cast<std::ptrdiff_t>(index); }
    static void note_holes(const cells& held, row_state& state, std::size_t first, std::size_t last) {
        for (std::size_t j = first; j < last; ++j)
            if (held.empty(state.stream, cell_index(j))) state.holes.push_back(static_cast<std::int32_t>(j));
    }
    void remember(const cells& held, row_state& state) noexcept {
        state.version = held.version(state.stream);
        state.used_end = held.used_end(state.stream);
        for (kept_sequence& of : state.sequences) {
            const std::span<const cell_index> tokens = held.tokens(of.sequence);
            of.tokens = tokens.size();
            for (std::size_t rank = tokens.size() / Ratio * Ratio; rank < tokens.size(); ++rank)
                of.tail[rank % Ratio] = static_cast<std::int32_t>(tokens[rank].value);
        }
        state.sequences.erase(std::remove_if(state.sequences.begin(), state.sequences.end(),
                                             [](const kept_sequence& of) { return of.tokens == 0; }),
                              state.sequences.end());
    }

    struct first_cell_of {
        cell_index first_cell;
        sequence_id sequence;
    };

    std::size_t streams_ = 0, window_ = 0;
    std::vector<std::int32_t> cell_blk_, blk_cells_, blk_pos_;
    std::vector<group> groups_;
    detail::blocks_by_rank<Ratio> by_rank_;
    std::vector<row_state> rows_;
    std::vector<std::int32_t> freed_;
    std::vector<first_cell_of> ordered_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
