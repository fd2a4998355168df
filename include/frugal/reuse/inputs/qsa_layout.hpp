#pragma once
/// The inputs of QSA layers that depend on the cache layout alone: which block each token belongs to, what a query sees of
/// them, and where a block stands. They are the same in every layer of one ratio.
///
/// Blocks are cut by *rank*: block b of a sequence is its visible tokens b * ratio … b * ratio + ratio - 1, whatever their
/// rotary positions. Feed visible tokens only; left padding is simply not fed. This is the rule of the reference
/// implementation (transformers, models/qwen4_exp, Qwen4ExpTextQSAIndexer). What a query sees of the complete blocks is
/// one number, so nothing of size keys x queries exists.
///
/// An append costs its own tokens, a rollback those taken back. What the sets of a model cost under each shared-inputs policy
/// is decided in reuse/inputs/qsa_layouts.hpp.
///
/// Removing a range from the middle of a sequence is not offered: every later block would be cut anew. Only the newest
/// tokens can be taken back (rollback).
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/reuse/inputs/batch.hpp"
#include "frugal/reuse/inputs/token_history.hpp"
#include "frugal/reuse/inputs/token_index.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What one row of a batch sees.
struct FRUGAL_FLAGGED qsa_row {
    bool padding = true;     ///< the row belongs to no sequence; the rest means nothing
    token_rank rank;         ///< of the row's own token
    block_index open_block;  ///< blocks before this one are complete for the row
    token_rank tail_start;   ///< tokens tail_start … rank are always seen
};

/// The layout of every sequence for one ratio, and the rows of the latest batch. A state like the caches: append each batch
/// once, before the layers run; rollback, copy, clear … together with the caches.
class FRUGAL_FLAGGED qsa_layout {
public:
    /// One sequence as it was.
    struct snapshot_type {
        std::size_t ratio = 0, length = 0;
        std::vector<rope_position> first_positions;
    };

    /// Errors: invalid_argument (ratio 0).
    [[nodiscard]] static result<qsa_layout> create(std::size_t ratio, std::size_t sequences) {
        if (ratio == 0) return fail(errc::invalid_argument, "a QSA block needs at least one token");
        return qsa_layout(ratio, sequences);
    }

    [[nodiscard]] block_ratio ratio() const noexcept { return ratio_; }
    [[nodiscard]] std::size_t sequences() const noexcept { return sequences_.size(); }
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return valid(s) ? at(s).length : 0; }
    /// Rows of the batch appended last; empty after any other change.
    [[nodiscard]] std::span<const qsa_row> rows() const noexcept {
        return current_ ? std::span<const qsa_row>(rows_) : std::span<const qsa_row>{};
    }
    /// Rotary position of a begun block's first token. Precondition: the block has begun.
    [[nodiscard]] const rope_position& first_position(sequence_id s, block_index block) const noexcept {
        return at(s).first_positions[block.value];
    }

    /// Adds the batch's tokens to their sequences and makes the rows. O(tokens of the batch). Counts one layout update unless
    /// the batch has no rows. Errors: invalid_argument (nothing changed).
    template <counter_policy Counters>
    [[nodiscard]] status append(const batch& tokens, Counters& counters) {
        FRUGAL_TRY(validate(tokens, sequences_.size()));
        if (tokens.rows() != 0) counters.add(counter::layout_updates, 1);
        rows_.assign(tokens.rows(), qsa_row{});
        current_ = true;
        for (const segment& part : tokens.segments) {
            if (part.sequence == sequence_id::padding) continue;
            sequence& to = at(part.sequence);
            for (std::size_t i = 0; i < part.count; ++i) {
                const token_rank rank(to.length++);
                if (ratio_.slot_of(rank) == 0) to.first_positions.push_back(tokens.positions[part.first + i]);
                rows_[part.first + i] = row_of(rank);
            }
        }
        return {};
    }
    /// The same without counting.
    [[nodiscard]] status append(const batch& tokens) {
        counters_off none;
        return append(tokens, none);
    }

    /// What `append` keeps up to date, made anew from all tokens of every sequence, those of `tokens` being the newest. O(all
    /// tokens). Precondition: `all` has the same sequences and holds the valid batch `tokens` already.
    void refill(const token_history& all, const batch& tokens) {
        for (std::size_t s = 0; s < sequences_.size(); ++s) {
            const std::span<const rope_position> positions = all.positions(static_cast<sequence_id>(s));
            sequence& to = sequences_[s];
            to.length = positions.size();
            to.first_positions.clear();
            for (std::size_t t = 0; t < positions.size(); ++t)
                if (ratio_.slot_of(token_rank(t)) == 0) to.first_positions.push_back(positions[t]);
        }
        rows_.assign(tokens.rows(), qsa_row{});
        for (const segment& part : tokens.segments) {
            if (part.sequence == sequence_id::padding) continue;
            const std::size_t before = at(part.sequence).length - part.count;
            for (std::size_t i = 0; i < part.count; ++i) rows_[part.first + i] = row_of(token_rank(before + i));
        }
        current_ = true;
    }
    /// Hides the rows after a change that this object was not told of; the next batch refills it.
    void expire() noexcept { current_ = false; }
    /// The rows of the latest refill count again: nothing that they or the table are made from differs from what it was then.
    void renew() noexcept { current_ = true; }

    // The operations of a sequence state; see reuse/inputs/batch.hpp. Errors besides theirs: invalid_argument (no such sequence).

    [[nodiscard]] status reserve(sequence_id s, std::size_t) { return check(s); }
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        FRUGAL_TRY(check(s));
        return snapshot_type{ratio_.tokens(), at(s).length, at(s).first_positions};
    }
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& from) {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY(check_fits(from));
        at(s) = {from.length, from.first_positions};
        current_ = false;
        return {};
    }
    /// Whether a snapshot could be restored here. Errors: shape_mismatch.
    [[nodiscard]] status check_fits(const snapshot_type& from) const {
        if (from.ratio == ratio_.tokens() && from.first_positions.size() == ratio_.begun_blocks(from.length)) return {};
        return fail(errc::shape_mismatch, "snapshot of a QSA layout with blocks of ", from.ratio, " tokens, not ",
                    ratio_.tokens());
    }
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t tokens) const noexcept {
        return valid(s) && tokens <= at(s).length;
    }
    /// Takes back the newest tokens; a block that loses one of them is open again. O(tokens).
    [[nodiscard]] status rollback(sequence_id s, std::size_t tokens) {
        FRUGAL_TRY(check(s));
        if (!can_rollback(s, tokens))
            return fail(errc::cannot_rollback, "cannot take back ", tokens, " of ", at(s).length, " tokens");
        at(s).length -= tokens;
        at(s).first_positions.resize(ratio_.begun_blocks(at(s).length));
        current_ = false;
        return {};
    }
    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        FRUGAL_TRY(check(from));
        FRUGAL_TRY(check(to));
        if (from != to) at(to) = at(from);
        current_ = false;
        return {};
    }
    void clear(sequence_id s) {
        if (valid(s)) at(s) = {};
        current_ = false;
    }
    void save(sequence_id s, byte_writer& out) const {
        const sequence none;
        const sequence& from = valid(s) ? at(s) : none;
        out.write(save_tag);
        out.write(static_cast<std::uint64_t>(ratio_.tokens()));
        out.write(static_cast<std::uint64_t>(from.length));
        out.write_span(std::span<const rope_position>(from.first_positions));
    }
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(in));
        return restore(s, saved);
    }
    /// Reads a saved sequence without touching the layout. Errors: malformed_file, shape_mismatch (another ratio).
    [[nodiscard]] result<snapshot_type> parse(byte_reader& in) const {
        std::uint32_t tag = 0;
        std::uint64_t ratio = 0;
        FRUGAL_TRY(in.read(tag));
        FRUGAL_TRY(in.read(ratio));
        if (tag != save_tag) return fail(errc::malformed_file, "the saved state is not a QSA layout");
        if (ratio != ratio_.tokens())
            return fail(errc::shape_mismatch, "saved QSA layout has blocks of ", ratio, " tokens, not ", ratio_.tokens());
        FRUGAL_TRY_ASSIGN(const std::size_t length, read_length(in));
        const std::size_t blocks = ratio_.begun_blocks(length);
        if (blocks > in.remaining() / sizeof(rope_position))
            return fail(errc::malformed_file, "saved QSA layout of ", length, " tokens ends early");
        snapshot_type out{ratio_.tokens(), length, std::vector<rope_position>(blocks)};
        FRUGAL_TRY(in.read_span(std::span<rope_position>(out.first_positions)));
        return out;
    }

private:
    struct sequence {
        std::size_t length = 0;
        std::vector<rope_position> first_positions;  // of every block begun
    };
    static constexpr std::uint32_t save_tag = 0x4C415351;  // "QSAL"

    qsa_layout(std::size_t ratio, std::size_t sequences) : ratio_(ratio), sequences_(sequences) {}

    [[nodiscard]] qsa_row row_of(token_rank rank) const noexcept {
        return {false, rank, ratio_.open_block(rank), ratio_.tail_start(rank)};
    }
    [[nodiscard]] bool valid(sequence_id s) const noexcept { return is_one_of(s, sequences_.size()); }
    [[nodiscard]] status check(sequence_id s) const { return check_sequence(s, sequences_.size()); }
    [[nodiscard]] sequence& at(sequence_id s) noexcept { return sequences_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] const sequence& at(sequence_id s) const noexcept { return sequences_[static_cast<std::size_t>(s)]; }

    block_ratio ratio_;
    std::vector<sequence> sequences_;
    std::vector<qsa_row> rows_;
    bool current_ = false;  // rows_ are those of the latest change
};

static_assert(parsing_state<qsa_layout>, "frugal: the QSA layout must offer every operation of a sequence state");

}  // namespace reuse

FRUGAL_NAMESPACE_END
