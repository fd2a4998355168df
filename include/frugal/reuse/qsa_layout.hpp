#pragma once
/// The inputs of QSA layers that depend on the cache layout alone: which block each token belongs to, what a query sees of
/// them, and where a block stands. They are the same in every layer of one ratio.
///
/// Blocks are cut by *rank*: block b of a sequence is its visible tokens b * ratio … b * ratio + ratio - 1, whatever their
/// rotary positions. Feed visible tokens only; left padding is simply not fed. This is the rule of the reference
/// implementation (transformers, models/qwen4_exp, Qwen4ExpTextQSAIndexer). What a query sees of the complete blocks is
/// one number, so nothing of size keys x queries exists.
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
#include "frugal/reuse/batch.hpp"
#include "frugal/reuse/shared_inputs.hpp"
#include "frugal/reuse/token_index.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What one row of a batch sees.
struct qsa_row {
    bool padding = true;     ///< the row belongs to no sequence; the rest means nothing
    token_rank rank;         ///< of the row's own token
    block_index open_block;  ///< blocks before this one are complete for the row
    token_rank tail_start;   ///< tokens tail_start … rank are always seen
};

/// The layout of every sequence for one ratio, and the rows of the latest batch. A state like the caches: append each batch
/// once, before the layers run; rollback, copy, clear … together with the caches.
class qsa_layout {
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
    [[nodiscard]] std::span<const qsa_row> rows() const noexcept { return rows_; }
    /// Rotary position of a begun block's first token. Precondition: the block has begun.
    [[nodiscard]] const rope_position& first_position(sequence_id s, block_index block) const noexcept {
        return at(s).first_positions[block.value];
    }

    /// Adds the batch's tokens to their sequences and builds the rows. O(tokens of the batch). Counts one layout build
    /// unless the batch has no rows. Errors: invalid_argument (nothing changed).
    template <counter_policy Counters>
    [[nodiscard]] status append(const batch& tokens, Counters& counters) {
        FRUGAL_TRY(validate(tokens, sequences_.size()));
        if (tokens.rows() != 0) counters.add(counter::layout_builds, 1);
        rows_.assign(tokens.rows(), qsa_row{});
        for (const segment& part : tokens.segments) {
            if (part.sequence == sequence_id::padding) continue;
            sequence& to = at(part.sequence);
            for (std::size_t i = 0; i < part.count; ++i) {
                const token_rank rank(to.length++);
                if (ratio_.slot_of(rank) == 0) to.first_positions.push_back(tokens.positions[part.first + i]);
                rows_[part.first + i] = {false, rank, ratio_.open_block(rank), ratio_.tail_start(rank)};
            }
        }
        return {};
    }
    /// The same without counting.
    [[nodiscard]] status append(const batch& tokens) {
        counters_off none;
        return append(tokens, none);
    }

    // The operations of a sequence state; see reuse/batch.hpp. Errors besides theirs: invalid_argument (no such sequence).

    [[nodiscard]] status reserve(sequence_id s, std::size_t) { return check(s); }
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        FRUGAL_TRY(check(s));
        return snapshot_type{ratio_.tokens(), at(s).length, at(s).first_positions};
    }
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& from) {
        FRUGAL_TRY(check(s));
        if (from.ratio != ratio_.tokens() || from.first_positions.size() != ratio_.begun_blocks(from.length))
            return fail(errc::shape_mismatch, "snapshot of a QSA layout with blocks of ", from.ratio, " tokens, not ",
                        ratio_.tokens());
        at(s) = {from.length, from.first_positions};
        rows_.clear();
        return {};
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
        rows_.clear();
        return {};
    }
    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        FRUGAL_TRY(check(from));
        FRUGAL_TRY(check(to));
        if (from != to) at(to) = at(from);
        rows_.clear();
        return {};
    }
    void clear(sequence_id s) {
        if (valid(s)) at(s) = {};
        rows_.clear();
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
        std::uint32_t tag = 0;
        std::uint64_t ratio = 0, length = 0;
        FRUGAL_TRY(in.read(tag));
        FRUGAL_TRY(in.read(ratio));
        FRUGAL_TRY(in.read(length));
        if (tag != save_tag) return fail(errc::malformed_file, "the saved state is not a QSA layout");
        if (ratio != ratio_.tokens())
            return fail(errc::shape_mismatch, "saved QSA layout has blocks of ", ratio, " tokens, not ", ratio_.tokens());
        const std::uint64_t blocks = ratio_.begun_blocks(static_cast<std::size_t>(length));
        if (blocks > in.remaining() / sizeof(rope_position))
            return fail(errc::malformed_file, "saved QSA layout of ", length, " tokens ends early");
        sequence fresh{static_cast<std::size_t>(length), std::vector<rope_position>(static_cast<std::size_t>(blocks))};
        FRUGAL_TRY(in.read_span(std::span<rope_position>(fresh.first_positions)));
        at(s) = std::move(fresh);
        rows_.clear();
        return {};
    }

private:
    struct sequence {
        std::size_t length = 0;
        std::vector<rope_position> first_positions;  // of every block begun
    };
    static constexpr std::uint32_t save_tag = 0x4C415351;  // "QSAL"

    qsa_layout(std::size_t ratio, std::size_t sequences) : ratio_(ratio), sequences_(sequences) {}

    [[nodiscard]] bool valid(sequence_id s) const noexcept { return is_one_of(s, sequences_.size()); }
    [[nodiscard]] status check(sequence_id s) const { return check_sequence(s, sequences_.size()); }
    [[nodiscard]] sequence& at(sequence_id s) noexcept { return sequences_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] const sequence& at(sequence_id s) const noexcept { return sequences_[static_cast<std::size_t>(s)]; }

    block_ratio ratio_;
    std::vector<sequence> sequences_;
    std::vector<qsa_row> rows_;
};

static_assert(sequence_state<qsa_layout>, "frugal: the QSA layout must offer every operation of a sequence state");

/// The layouts of all QSA layers of a model under a shared-inputs policy: `Policy::set_of` says which layers read one.
template <shared_input_policy Policy = default_shared_inputs>
class qsa_layouts {
public:
    using policy = Policy;
    using snapshot_type = std::vector<qsa_layout::snapshot_type>;

    /// `ratios`: the ratio of every QSA layer, in order. Errors: invalid_argument.
    [[nodiscard]] static result<qsa_layouts> create(std::span<const std::size_t> ratios, std::size_t sequences) {
        qsa_layouts out(sequences);
        for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
            const std::size_t set = Policy::set_of(ratios, layer);
            out.set_of_.push_back(set);
            if (set < out.sets_.size()) continue;
            FRUGAL_TRY_ASSIGN(auto layout, qsa_layout::create(ratios[layer], sequences));
            out.sets_.push_back(std::move(layout));
        }
        return out;
    }

    /// Input sets kept and built.
    [[nodiscard]] std::size_t sets() const noexcept { return sets_.size(); }
    /// What QSA layer `layer` (counted among the QSA layers) reads.
    [[nodiscard]] const qsa_layout& of_layer(std::size_t layer) const noexcept { return sets_[set_of_[layer]]; }

    /// Builds every set for the batch. Errors: invalid_argument (nothing changed).
    template <counter_policy Counters>
    [[nodiscard]] status append(const batch& tokens, Counters& counters) {
        FRUGAL_TRY(validate(tokens, sequences_));
        for (qsa_layout& set : sets_) FRUGAL_TRY(set.append(tokens, counters));
        return {};
    }

    // The operations of a sequence state. All sets hold the same tokens, so what one accepts all accept.

    [[nodiscard]] std::size_t sequences() const noexcept { return sequences_; }
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return sets_.empty() ? 0 : sets_.front().length(s); }
    [[nodiscard]] status reserve(sequence_id s, std::size_t tokens) {
        for (qsa_layout& set : sets_) FRUGAL_TRY(set.reserve(s, tokens));
        return {};
    }
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        snapshot_type out;
        for (const qsa_layout& set : sets_) {
            FRUGAL_TRY_ASSIGN(auto one, set.snapshot(s));
            out.push_back(std::move(one));
        }
        return out;
    }
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& from) {
        if (from.size() != sets_.size())
            return fail(errc::shape_mismatch, "snapshot of ", from.size(), " QSA layouts, not ", sets_.size());
        for (std::size_t i = 0; i < sets_.size(); ++i)
            if (from[i].ratio != sets_[i].ratio().tokens()) return fail(errc::shape_mismatch, "snapshot of other QSA ratios");
        for (std::size_t i = 0; i < sets_.size(); ++i) FRUGAL_TRY(sets_[i].restore(s, from[i]));
        return {};
    }
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t tokens) const noexcept {
        for (const qsa_layout& set : sets_)
            if (!set.can_rollback(s, tokens)) return false;
        return true;
    }
    [[nodiscard]] status rollback(sequence_id s, std::size_t tokens) {
        for (qsa_layout& set : sets_) FRUGAL_TRY(set.rollback(s, tokens));
        return {};
    }
    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        for (qsa_layout& set : sets_) FRUGAL_TRY(set.copy(from, to));
        return {};
    }
    void clear(sequence_id s) {
        for (qsa_layout& set : sets_) set.clear(s);
    }
    void save(sequence_id s, byte_writer& out) const {
        for (const qsa_layout& set : sets_) set.save(s, out);
    }
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        std::vector<qsa_layout> fresh = sets_;
        for (qsa_layout& set : fresh) FRUGAL_TRY(set.load(s, in));
        sets_ = std::move(fresh);
        return {};
    }

private:
    explicit qsa_layouts(std::size_t sequences) : sequences_(sequences) {}

    std::size_t sequences_;
    std::vector<std::size_t> set_of_;
    std::vector<qsa_layout> sets_;
};

static_assert(sequence_state<qsa_layouts<shared>> && sequence_state<qsa_layouts<per_layer>>,
              "frugal: QSA layouts must offer every operation of a sequence state");

}  // namespace reuse

FRUGAL_NAMESPACE_END
