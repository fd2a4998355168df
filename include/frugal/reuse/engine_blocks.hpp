#pragma once
/// Which cells form which block, as tensors: cell_blk, blk_cells and blk_pos of llama.cpp's QSA inputs, value for value.
///
/// A token's index is its temporal position. Blocks are cut by index and by the exact set of sequences: the cells of one set
/// whose indices divided by the ratio are equal form a block, if all `Ratio` places in it are taken; if cells share a place, the last
/// of them has it. Blocks are numbered by index; of several at one index, the one whose first cell is the last comes first.
/// If places are shared, positions have heights and widths and the stream holds one sequence, then the index of a token is
/// its rank instead. This is a rule about positions. The rule of the reference implementation (reuse/qsa_layout.hpp) is about
/// ranks; the two agree on dense sequences: those that hold positions 0, 1, 2, … once each.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "frugal/reuse/batch.hpp"
#include "frugal/reuse/cells.hpp"
#include "frugal/reuse/token_index.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// The tensors of one ratio over the windows of some streams. Memory for all cells of all streams is taken once.
template <std::size_t Ratio>
class engine_blocks {
    static_assert(Ratio >= 1 && Ratio <= 64, "frugal: an engine's QSA blocks hold 1 to 64 tokens: write engine_inputs<4>");

public:
    engine_blocks(std::size_t streams, std::size_t size)
        : cell_blk_(streams * size),
          blk_cells_(streams * blocks_in(size) * Ratio),
          blk_pos_(streams * blocks_in(size) * 4),
          rows_(streams) {
        groups_.reserve(blocks_in(size));
        freed_.reserve(4 * Ratio);
    }

    /// Blocks that a window has room for.
    [[nodiscard]] static constexpr std::size_t blocks_in(std::size_t window) noexcept { return (window + Ratio - 1) / Ratio; }

    [[nodiscard]] std::size_t streams() const noexcept { return streams_; }
    [[nodiscard]] std::size_t window() const noexcept { return window_; }
    [[nodiscard]] std::size_t blocks() const noexcept { return blocks_in(window_); }
    /// [window, streams]: the block of each cell; of one that is in none, the first block that is none (the last, if all are).
    [[nodiscard]] std::span<const std::int32_t> cell_blk() const noexcept {
        return std::span(cell_blk_).first(streams_ * window_);
    }
    /// [Ratio * blocks, streams]: the cells of each block in the order of their indices; 0 behind the last block.
    [[nodiscard]] std::span<const std::int32_t> blk_cells() const noexcept {
        return std::span(blk_cells_).first(streams_ * blocks() * Ratio);
    }
    /// [blocks, streams, 4]: temporal, height, width and once more temporal position of each block's first token; the first
    /// index four times, unless indices are ranks; 0 behind the last block.
    [[nodiscard]] std::span<const std::int32_t> blk_pos() const noexcept {
        return std::span(blk_pos_).first(streams_ * blocks() * 4);
    }
    /// Blocks of a row.
    [[nodiscard]] std::size_t complete(std::size_t row) const noexcept { return rows_[row].complete; }
    /// Whether the indices of a row are ranks.
    [[nodiscard]] bool ranked(std::size_t row) const noexcept { return rows_[row].ranked; }
    /// Whether a token of a row stands past the window, so that no block can hold it.
    [[nodiscard]] bool outside(std::size_t row) const noexcept { return rows_[row].outside; }
    /// First index of a block.
    [[nodiscard]] std::int64_t first_index(std::size_t row, std::size_t block) const noexcept {
        return rows_[row].ranked ? static_cast<std::int64_t>(block * Ratio) : blk_pos_[row * blocks() + block];
    }
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = (cell_blk_.capacity() + blk_cells_.capacity() + blk_pos_.capacity()) * sizeof(std::int32_t) +
                          groups_.capacity() * sizeof(group) + rows_.capacity() * sizeof(row_state) +
                          freed_.capacity() * sizeof(std::int32_t);
        for (const row_state& row : rows_) sum += row.holes.capacity() * sizeof(std::int32_t);
        return sum;
    }

    /// Makes room for other rows; what they hold is lost.
    void reshape(std::size_t streams, std::size_t window) noexcept {
        streams_ = streams;
        window_ = window;
        for (row_state& row : rows_) row.kept = false;
    }

    /// Fills a row from all cells of its stream.
    void fill(const cells& held, std::size_t row, stream_id stream, std::size_t position_components) {
        row_state& state = rows_[row];
        const std::size_t used = held.used_end(stream);
        std::int32_t* const block_of = cell_blk_.data() + row * window_;
        std::int32_t* const cells_of = blk_cells_.data() + row * blocks() * Ratio;
        state.kept = state.ranked = state.outside = false;

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
        const auto alone = shared_place && position_components >= 3 ? only_sequence(held, stream) : std::nullopt;
        if (alone) {
            fill_ranked(held, row, *alone);
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

    /// Remembers what `update` needs, after a fill. O(tokens).
    void keep(const cells& held, std::size_t row, stream_id stream, std::size_t position_components) {
        row_state& state = rows_[row];
        const auto alone = only_sequence(held, stream);
        if (!alone) return;
        const auto order = order_of(held, *alone, position_components, 0, never);
        if (!order) return;
        state.kept = true;
        state.stream = stream;
        state.sequence = *alone;
        state.first_repeated = order->first_repeated;
        state.holes.clear();
        note_holes(held, state, 0, held.used_end(stream));
        remember(held, state);
    }

    /// Brings a row up to date if its stream holds one sequence as before and that is dense, or its indices are ranks. False,
    /// with nothing changed, if that cannot be done; then fill it. O(tokens changed + empty cells of the window). Another window
    /// is possible if there is one row only.
    [[nodiscard]] bool update(const cells& held, std::size_t row, stream_id stream, std::size_t position_components,
                              std::size_t window) {
        row_state& state = rows_[row];
        if (!state.kept || state.stream != stream || (window != window_ && streams_ != 1)) return false;
        const auto changes = held.sequence_changes_since(stream, state.version);
        if (!changes || only_sequence(held, stream) != std::optional(state.sequence)) return false;
        const std::span<const cell_index> tokens = held.tokens(state.sequence);
        std::size_t first = std::min(tokens.size(), state.tokens);  // ranks below it are what they were
        for (const sequence_change& change : *changes)
            if (change.sequence == state.sequence) first = std::min(first, change.first.value);
        const auto order = order_of(held, state.sequence, position_components, first, state.first_repeated);
        if (!order || order->ranked != state.ranked || (order->ranked && order->last_temporal / Ratio >= blocks_in(window)))
            return false;
        state.first_repeated = order->first_repeated;

        const std::size_t complete = tokens.size() / Ratio, before = state.complete,
                          kept = std::min({first / Ratio, complete, before});
        const std::int32_t spare_before = spare_of(before);
        std::int32_t* const cells_of = blk_cells_.data() + row * blocks() * Ratio;
        std::int32_t* const block_of = cell_blk_.data() + row * window_;  // at 0 if the window changes
        freed_.clear();
        for (std::size_t i = kept * Ratio; i < before * Ratio; ++i) {
            freed_.push_back(cells_of[i]);
            cells_of[i] = 0;
        }
        for (std::size_t block = kept; block < before; ++block) write_position(row, block, {});
        for (std::size_t i = before * Ratio; i < state.tokens; ++i) freed_.push_back(state.tail[i % Ratio]);

        const bool resized = window != window_;
        if (resized) resize(window, kept);
        state.complete = complete;
        const std::int32_t spare = spare_of(complete);
        for (const std::int32_t c : freed_)
            if (static_cast<std::size_t>(c) < window_) block_of[c] = spare;
        write_blocks(held, row, state.sequence, kept, complete);

        const std::size_t used = held.used_end(stream);
        const auto hole = [&](std::int32_t c) {
            return static_cast<std::size_t>(c) < used && held.empty(stream, cell_index(static_cast<std::size_t>(c)));
        };
        state.holes.erase(std::remove_if(state.holes.begin(), state.holes.end(), [&](std::int32_t c) { return !hole(c); }),
                          state.holes.end());
        for (const std::int32_t c : freed_)
            if (hole(c)) state.holes.push_back(c);
        note_holes(held, state, state.used_end, used);
        if (resized || spare != spare_before) {
            for (const std::int32_t c : state.holes) block_of[c] = spare;
            for (std::size_t rank = complete * Ratio; rank < tokens.size(); ++rank) block_of[tokens[rank].value] = spare;
            std::fill(block_of + used, block_of + window_, spare);
        }
        remember(held, state);
        return true;
    }

private:
    static constexpr std::int32_t none = -1;
    static constexpr std::uint64_t all_places = ~std::uint64_t{0} >> (64 - Ratio);
    static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

    struct group {
        std::uint64_t places;
        std::int32_t next;
        set_index set;
    };
    struct row_state {
        std::size_t complete = 0;
        bool ranked = false, outside = false;
        // What an update starts from.
        bool kept = false;
        stream_id stream{};
        sequence_id sequence{};
        std::uint64_t version = 0;
        std::size_t tokens = 0, used_end = 0;
        std::size_t first_repeated = never;      // the first rank with the temporal position of the one before it
        std::vector<std::int32_t> holes;         // empty cells before used_end
        std::array<std::int32_t, Ratio> tail{};  // cells of the tokens behind the last block, by place
    };
    struct token_order {
        bool ranked;
        std::size_t first_repeated, last_temporal;
    };

    [[nodiscard]] std::int32_t spare_of(std::size_t complete) const noexcept {
        return static_cast<std::int32_t>(std::min(complete, blocks() - 1));
    }
    /// The one sequence that has tokens in a stream.
    [[nodiscard]] static std::optional<sequence_id> only_sequence(const cells& held, stream_id stream) noexcept {
        std::optional<sequence_id> found;
        for (std::size_t i = 0; i < held.sequences(); ++i) {
            const auto s = static_cast<sequence_id>(i);
            if (held.stream_of(s) != stream || held.tokens(s).empty()) continue;
            if (found) return std::nullopt;
            found = s;
        }
        return found;
    }
    /// How a sequence's ranks and indices go together, if they are the same numbers. The ranks below `first` are known.
    [[nodiscard]] static std::optional<token_order> order_of(const cells& held, sequence_id s, std::size_t position_components,
                                                             std::size_t first, std::size_t first_repeated) noexcept {
        const std::span<const cell_index> tokens = held.tokens(s);
        const auto temporal = [&](std::size_t rank) { return held.at(held.stream_of(s), tokens[rank]).position.temporal; };
        if (first_repeated >= first) {
            first_repeated = never;
            for (std::size_t rank = std::max<std::size_t>(first, 1); rank < tokens.size() && first_repeated == never; ++rank)
                if (temporal(rank) == temporal(rank - 1)) first_repeated = rank;
        }
        const auto last = static_cast<std::size_t>(temporal(tokens.size() - 1));
        const bool repeats = first_repeated != never;
        if (repeats ? position_components < 3 : last + 1 != tokens.size()) return std::nullopt;
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
    /// Blocks whose places are ranks.
    void write_blocks(const cells& held, std::size_t row, sequence_id s, std::size_t first, std::size_t last) noexcept {
        const std::span<const cell_index> tokens = held.tokens(s);
        std::int32_t* const block_of = cell_blk_.data() + row * window_;
        std::int32_t* const cells_of = blk_cells_.data() + row * blocks() * Ratio;
        for (std::size_t block = first; block < last; ++block) {
            for (std::size_t rank = block * Ratio; rank < (block + 1) * Ratio; ++rank) {
                block_of[tokens[rank].value] = static_cast<std::int32_t>(block);
                cells_of[rank] = static_cast<std::int32_t>(tokens[rank].value);
            }
            const auto index = static_cast<std::int32_t>(block * Ratio);
            write_position(row, block,
                           rows_[row].ranked ? held.at(held.stream_of(s), tokens[block * Ratio]).position
                                             : rope_position{index, index, index});
        }
    }
    void fill_ranked(const cells& held, std::size_t row, sequence_id s) noexcept {
        row_state& state = rows_[row];
        state.ranked = true;
        state.outside = false;
        state.complete = held.tokens(s).size() / Ratio;
        std::fill_n(cell_blk_.data() + row * window_, window_, spare_of(state.complete));
        std::fill_n(blk_cells_.data() + row * blocks() * Ratio, blocks() * Ratio, 0);
        clear_behind(row, state.complete);
        write_blocks(held, row, s, 0, state.complete);
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
        const std::span<const cell_index> tokens = held.tokens(state.sequence);
        state.version = held.version(state.stream);
        state.tokens = tokens.size();
        state.used_end = held.used_end(state.stream);
        for (std::size_t rank = state.complete * Ratio; rank < tokens.size(); ++rank)
            state.tail[rank % Ratio] = static_cast<std::int32_t>(tokens[rank].value);
    }

    std::size_t streams_ = 0, window_ = 0;
    std::vector<std::int32_t> cell_blk_, blk_cells_, blk_pos_;
    std::vector<group> groups_;
    std::vector<row_state> rows_;
    std::vector<std::int32_t> freed_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
