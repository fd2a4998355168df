#pragma once
/// QSA blocks over the cells of an engine's cache, kept up to date from what changed in the cells.
///
/// Blocks are cut by rank: block b of a sequence is its visible tokens b * ratio … b * ratio + ratio - 1, the first token that
/// is still there being rank 0. This is the rule of the reference implementation (transformers, models/qwen4_exp,
/// Qwen4ExpTextQSAIndexer): a hole re-cuts what is behind it, and a sequence that leaves another within a block has that
/// block for itself.
///
/// A sequence is a chain of stored blocks. Sequences whose tokens lie in the same cells share the full ones; an open block
/// is never shared. What a block's key is computed from has a number, its stamp, so that a key that was kept is known to
/// be still right, or to be computed anew.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/reuse/inputs/batch.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/inputs/change_log.hpp"
#include "frugal/reuse/inputs/qsa_layout.hpp"
#include "frugal/reuse/inputs/token_index.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// A stored block; where caches of block keys put its key. Given to another block once no sequence has this one.
using block_id = unit_index<struct stored_block_unit>;

/// What a refresh changed in one block of one sequence: all that a copy of the layout elsewhere has to be told. A block that
/// several sequences share is listed with its members for one of them and merely linked for the others.
struct FRUGAL_FLAGGED block_delta {
    sequence_id sequence = sequence_id::padding;
    block_index index;
    block_id block;
    std::size_t first_slot = 0, end_slot = 0;  ///< members first_slot … end_slot - 1 were written
    bool linked = false;                       ///< `block` is new at this place of the sequence
    std::size_t position_words = 0;            ///< of the first position: 0 as before, 1 a new one of text, 3 of an image

    /// Numbers to send: the members' cells, the block's id, its first position.
    [[nodiscard]] constexpr std::size_t words() const noexcept {
        return end_slot - first_slot + (linked ? 1 : 0) + position_words;
    }
};

/// The layout of all sequences for one ratio. `refresh` after the cells changed and before anything is asked.
///
/// Cost of a refresh: O(1) a token that was appended, O(tokens) of a rollback, O(blocks) of a copy within a stream that has just
/// been made, O(tokens behind) of any other change, once. If the cells no longer know what changed, a stream is built anew.
class FRUGAL_FLAGGED cell_blocks {
public:
    /// Errors: invalid_argument (ratio 0).
    [[nodiscard]] static result<cell_blocks> create(std::size_t ratio) {
        if (ratio == 0) return fail(errc::invalid_argument, "a QSA block needs at least one token");
        return cell_blocks(ratio);
    }

    /// Makes this the layout of `from`. Counts one of layout_hits (nothing had changed), layout_updates (the changes
    /// sufficed) and layout_builds (a stream was built from all its tokens).
    template <counter_policy Counters>
    void refresh(const cells& from, Counters& counters);
    /// The same without counting.
    void refresh(const cells& from) {
        counters_off off;
        refresh(from, off);
    }
    /// What the latest refresh changed. A copy that applies every refresh's list in order is a copy of the layout.
    [[nodiscard]] std::span<const block_delta> changed() const noexcept { return changed_; }

    [[nodiscard]] block_ratio ratio() const noexcept { return ratio_; }
    [[nodiscard]] std::size_t sequences() const noexcept { return chains_.size(); }
    /// Tokens of a sequence, as of the latest refresh; 0 if there is no such sequence.
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept {
        return is_one_of(s, chains_.size()) ? chain_of(s).tokens : 0;
    }
    [[nodiscard]] std::size_t complete_blocks(sequence_id s) const noexcept { return ratio_.complete_blocks(length(s)); }
    [[nodiscard]] std::size_t begun_blocks(sequence_id s) const noexcept { return ratio_.begun_blocks(length(s)); }
    /// Where a begun block of a sequence is stored. Precondition of this and all below: the arguments exist.
    [[nodiscard]] block_id block(sequence_id s, block_index index) const noexcept { return chain_of(s).blocks[index.value]; }
    /// The cell of a token.
    [[nodiscard]] cell_index cell(sequence_id s, token_rank rank) const noexcept {
        return members_[block(s, ratio_.block_of(rank)).value * ratio_.tokens() + ratio_.slot_of(rank)];
    }
    /// What the query of a token sees; its rank is cells::rank() of its cell.
    [[nodiscard]] qsa_row row(token_rank rank) const noexcept {
        return {false, rank, ratio_.open_block(rank), ratio_.tail_start(rank)};
    }

    /// Cells of a stored block's tokens by rank: ratio of them, fewer if the block is open.
    [[nodiscard]] std::span<const cell_index> members(block_id id) const noexcept {
        return std::span(members_).subspan(id.value * ratio_.tokens(), at(id).count);
    }
    /// The stream that the members are cells of.
    [[nodiscard]] stream_id stream(block_id id) const noexcept { return at(id).stream; }
    /// Position of the first member.
    [[nodiscard]] const rope_position& first_position(block_id id) const noexcept { return at(id).first_position; }
    /// Number of the block's content, from next_content_version(): the tokens in it and its first position. What was computed
    /// from the block at this stamp is right for as long as the stamp stays.
    [[nodiscard]] std::uint64_t stamp(block_id id) const noexcept { return at(id).stamp; }
    /// Places in chains that refer to the block.
    [[nodiscard]] std::size_t references(block_id id) const noexcept { return at(id).references; }
    /// Blocks stored; each counts once however many sequences share it.
    [[nodiscard]] std::size_t stored_blocks() const noexcept { return blocks_.size() - free_.size(); }
    /// Ids given so far are below this.
    [[nodiscard]] std::size_t id_limit() const noexcept { return blocks_.size(); }

private:
    static constexpr std::size_t none = (std::numeric_limits<std::size_t>::max)();

    struct stored_block {
        std::size_t references = 0, count = 0;
        stream_id stream{};
        rope_position first_position;
        std::uint64_t stamp = 0;
        std::size_t next = none;  // full block with the same first cell
        bool listed = false;      // among the full blocks that others may share
    };
    struct chain {
        std::vector<block_id> blocks;
        std::size_t tokens = 0;
    };
    struct stream_state {
        std::uint64_t version = 0;           // of the cells this is the layout of; 0: none
        std::vector<std::size_t> full_from;  // of each cell: a full block that begins there
    };
    /// Ranks 0 … count - 1 of `to` are ranks first … first + count - 1 of `from`.
    struct shared_ranks {
        sequence_id to, from;
        std::size_t first, count;
    };

    explicit cell_blocks(std::size_t ratio) : ratio_(ratio) {}

    [[nodiscard]] const stored_block& at(block_id id) const noexcept { return blocks_[id.value]; }
    [[nodiscard]] stored_block& at(block_id id) noexcept { return blocks_[id.value]; }
    [[nodiscard]] const chain& chain_of(sequence_id s) const noexcept { return chains_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] chain& chain_of(sequence_id s) noexcept { return chains_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] std::size_t& first_changed(sequence_id s) noexcept { return first_changed_[static_cast<std::size_t>(s)]; }

    [[nodiscard]] block_id allocate(stream_id stream);
    void release(block_id id);
    void list(block_id id);
    void unlist(block_id id);
    /// A full block of these tokens, or `none`.
    [[nodiscard]] std::size_t find_full(const cells& from, stream_id stream, std::span<const cell_index> tokens) const noexcept;
    [[nodiscard]] bool holds(block_id id, std::size_t slot, cell_index index, std::uint64_t order) const noexcept {
        const std::size_t place = id.value * ratio_.tokens() + slot;
        return members_[place] == index && orders_[place] == order;
    }
    /// Puts a block at a place of a sequence. Returns whether it was not there.
    bool link(sequence_id s, std::size_t index, block_id id);
    /// Makes `tokens` the members of a block that one sequence alone has.
    void fill(const cells& from, sequence_id s, std::size_t index, block_id id, std::span<const cell_index> tokens, bool linked);
    /// Cuts a sequence anew from a rank on. `shared`: ranks that are known to be another, finished sequence's.
    void cut(const cells& from, sequence_id s, std::size_t first, const shared_ranks* shared);
    void follow(const cells& from, std::span<const sequence_change> changes);
    void build(const cells& from, stream_id stream);

    block_ratio ratio_;
    std::vector<chain> chains_;
    std::vector<stream_state> streams_;
    std::vector<stored_block> blocks_;
    std::vector<cell_index> members_;    // [blocks][ratio]
    std::vector<std::uint64_t> orders_;  // of the members: a cell that was given to another token holds another order
    std::vector<block_id> free_;
    std::vector<block_delta> changed_;
    // of the refresh in progress
    std::vector<block_id> retired_;           // unlinked; what is still the same block elsewhere finds it here
    std::vector<std::size_t> first_changed_;  // of each sequence
    std::vector<sequence_id> touched_;
    std::vector<shared_ranks> shared_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

#include "frugal/reuse/engine/cell_blocks-inl.hpp"
