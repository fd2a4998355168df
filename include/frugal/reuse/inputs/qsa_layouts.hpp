#pragma once
/// The QSA layouts of a whole model under a shared-inputs policy. The same tables and rows under each; what they cost is the
/// difference:
///
/// | policy | sets | a batch of T tokens after n | counted as |
/// |---|---|---|---|
/// | `per_layer` | one a layer | O(layers * (n + T)) | `layout_builds`, one a layer |
/// | `shared` | one a distinct ratio | O(ratios * (n + T)) | `layout_builds`, one a ratio |
/// | `memoised` | one a distinct ratio | the same, O(T) where the same batch comes again | the same, or `layout_hits` |
/// | `incremental` | one a distinct ratio | O(ratios * T) | `layout_updates`, one a ratio |
///
/// The first three keep the positions of all tokens, the last those of the blocks' first tokens.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/reuse/inputs/batch.hpp"
#include "frugal/reuse/inputs/qsa_layout.hpp"
#include "frugal/reuse/inputs/shared_inputs.hpp"
#include "frugal/reuse/inputs/token_history.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

namespace detail {

/// Sets that are edited with their sequences: `upkeep::increment`.
class FRUGAL_FLAGGED edited_layouts {
public:
    struct snapshot_type {
        std::size_t length = 0;
        std::vector<qsa_layout::snapshot_type> sets;
    };

    edited_layouts(std::vector<qsa_layout> sets, std::size_t sequences) : sets_(std::move(sets)), sequences_(sequences) {}

    template <counter_policy Counters>
    [[nodiscard]] status append(const batch& tokens, Counters& counters) {
        FRUGAL_TRY(validate(tokens, sequences_));
        for (qsa_layout& set : sets_) FRUGAL_TRY(set.append(tokens, counters));
        return {};
    }

    // All sets hold the same tokens, so what one accepts all accept.

    [[nodiscard]] std::size_t sequences() const noexcept { return sequences_; }
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return sets_.empty() ? 0 : sets_.front().length(s); }
    [[nodiscard]] status reserve(sequence_id s, std::size_t tokens) {
        for (qsa_layout& set : sets_) FRUGAL_TRY(set.reserve(s, tokens));
        return {};
    }
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        snapshot_type out;
        out.length = length(s);
        for (const qsa_layout& set : sets_) {
            FRUGAL_TRY_ASSIGN(auto one, set.snapshot(s));
            out.sets.push_back(std::move(one));
        }
        return out;
    }
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& from) {
        FRUGAL_TRY(check_fits(from));
        for (std::size_t i = 0; i < sets_.size(); ++i) FRUGAL_TRY(sets_[i].restore(s, from.sets[i]));
        return {};
    }
    /// Whether a snapshot could be restored here. Errors: shape_mismatch.
    [[nodiscard]] status check_fits(const snapshot_type& from) const {
        if (from.sets.size() != sets_.size())
            return fail(errc::shape_mismatch, "snapshot of ", from.sets.size(), " QSA layouts, not ", sets_.size());
        for (std::size_t i = 0; i < sets_.size(); ++i) FRUGAL_TRY(sets_[i].check_fits(from.sets[i]));
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
        FRUGAL_TRY(check_sequence(s, sequences_));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(in));
        return restore(s, saved);
    }
    /// Reads a saved sequence without touching the layouts. Errors: as load(), malformed_file (sets that disagree).
    [[nodiscard]] result<snapshot_type> parse(byte_reader& in) const {
        snapshot_type out;
        for (const qsa_layout& set : sets_) {
            FRUGAL_TRY_ASSIGN(auto one, set.parse(in));
            if (!out.sets.empty() && one.length != out.length)
                return fail(errc::malformed_file, "saved QSA layouts of ", out.length, " and ", one.length, " tokens");
            out.length = one.length;
            out.sets.push_back(std::move(one));
        }
        return out;
    }

protected:
    std::vector<qsa_layout> sets_;

private:
    std::size_t sequences_;
};

/// Sets that are filled from a history of tokens when a batch comes: `upkeep::rebuild` and `upkeep::memo`.
template <bool Remembers>
class FRUGAL_FLAGGED filled_layouts {
public:
    struct snapshot_type {
        std::vector<std::size_t> ratios;
        token_history::snapshot_type tokens;
        /// Tokens that the sequence held.
        [[nodiscard]] std::size_t length() const noexcept { return tokens.length(); }
    };

    filled_layouts(std::vector<qsa_layout> sets, std::size_t sequences) : sets_(std::move(sets)), history_(sequences) {}

    template <counter_policy Counters>
    [[nodiscard]] status append(const batch& tokens, Counters& counters) {
        FRUGAL_TRY(validate(tokens, sequences()));
        bool hit = false;
        if constexpr (Remembers) {
            hit = tokens.rows() != 0 && filled_from_.equals(history_, tokens);
            if (!hit && tokens.rows() != 0) filled_from_.take(history_, tokens);
        }
        FRUGAL_TRY(history_.append(tokens));
        for (qsa_layout& set : sets_) {
            if (tokens.rows() == 0) {
                set.expire();
            } else if (hit) {
                set.renew();
            } else {
                set.refill(history_, tokens);
            }
        }
        if (tokens.rows() != 0) counters.add(hit ? counter::layout_hits : counter::layout_builds, sets_.size());
        return {};
    }

    [[nodiscard]] std::size_t sequences() const noexcept { return history_.sequences(); }
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return history_.length(s); }
    [[nodiscard]] status reserve(sequence_id s, std::size_t tokens) { return history_.reserve(s, tokens); }
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        FRUGAL_TRY_ASSIGN(auto tokens, history_.snapshot(s));
        return snapshot_type{ratios(), std::move(tokens)};
    }
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& from) {
        FRUGAL_TRY(check_fits(from));
        return edited(history_.restore(s, from.tokens));
    }
    /// Whether a snapshot could be restored here. Errors: shape_mismatch.
    [[nodiscard]] status check_fits(const snapshot_type& from) const {
        if (from.ratios == ratios()) return {};
        return fail(errc::shape_mismatch, "snapshot of other QSA ratios");
    }
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t tokens) const noexcept { return history_.can_rollback(s, tokens); }
    [[nodiscard]] status rollback(sequence_id s, std::size_t tokens) { return edited(history_.rollback(s, tokens)); }
    [[nodiscard]] status copy(sequence_id from, sequence_id to) { return edited(history_.copy(from, to)); }
    void clear(sequence_id s) {
        history_.clear(s);
        for (qsa_layout& set : sets_) set.expire();
    }
    void save(sequence_id s, byte_writer& out) const {
        for (const std::size_t ratio : ratios()) out.write(static_cast<std::uint64_t>(ratio));
        history_.save(s, out);
    }
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(in));
        return restore(s, saved);
    }
    /// Reads a saved sequence without touching the layouts. Errors: as load().
    [[nodiscard]] result<snapshot_type> parse(byte_reader& in) const {
        for (const qsa_layout& set : sets_) {
            std::uint64_t ratio = 0;
            FRUGAL_TRY(in.read(ratio));
            if (ratio != set.ratio().tokens())
                return fail(errc::shape_mismatch, "the saved QSA layouts have other ratios or were kept by another policy");
        }
        FRUGAL_TRY_ASSIGN(auto tokens, history_.parse(in));
        return snapshot_type{ratios(), std::move(tokens)};
    }

protected:
    std::vector<qsa_layout> sets_;

private:
    /// Everything that a fill reads, compared in full.
    struct fill_key {
        bool filled = false;
        std::vector<history_version> sequences;  // before the batch
        std::vector<segment> segments;
        std::vector<rope_position> positions;

        [[nodiscard]] bool equals(const token_history& now, const batch& tokens) const noexcept {
            if (!filled) return false;
            for (std::size_t s = 0; s < sequences.size(); ++s)
                if (now.version(static_cast<sequence_id>(s)) != sequences[s]) return false;
            const auto same_segment = [](const segment& a, const segment& b) {
                return a.sequence == b.sequence && a.first == b.first && a.count == b.count;
            };
            return std::equal(segments.begin(), segments.end(), tokens.segments.begin(), tokens.segments.end(), same_segment) &&
                   std::equal(positions.begin(), positions.end(), tokens.positions.begin(), tokens.positions.end());
        }
        void take(const token_history& now, const batch& tokens) {
            filled = true;
            sequences.resize(now.sequences());
            for (std::size_t s = 0; s < sequences.size(); ++s) sequences[s] = now.version(static_cast<sequence_id>(s));
            segments.assign(tokens.segments.begin(), tokens.segments.end());
            positions.assign(tokens.positions.begin(), tokens.positions.end());
        }
    };

    [[nodiscard]] std::vector<std::size_t> ratios() const {
        std::vector<std::size_t> out;
        for (const qsa_layout& set : sets_) out.push_back(set.ratio().tokens());
        return out;
    }
    [[nodiscard]] status edited(status done) {
        if (done)
            for (qsa_layout& set : sets_) set.expire();
        return done;
    }

    struct nothing {};
    token_history history_;
    [[no_unique_address]] std::conditional_t<Remembers, fill_key, nothing> filled_from_;
};

template <upkeep How>
using layouts_kept_by = std::conditional_t<How == upkeep::increment, edited_layouts, filled_layouts<How == upkeep::memo>>;

}  // namespace detail

/// The layouts of all QSA layers of a model under a shared-inputs policy: `Policy::set_of` says which layers read one. A
/// sequence state: append each batch once, before the layers run. What the layers read is that of the batch appended last;
/// between another edit and the next batch there are no rows. Snapshots and saved bytes belong to one way of upkeep.
template <shared_input_policy Policy = default_shared_inputs>
class FRUGAL_FLAGGED qsa_layouts : private detail::layouts_kept_by<Policy::kept_by> {
    using kept = detail::layouts_kept_by<Policy::kept_by>;

public:
    using policy = Policy;
    using typename kept::snapshot_type;

    /// `ratios`: the ratio of every QSA layer, in order. Errors: invalid_argument.
    [[nodiscard]] static result<qsa_layouts> create(std::span<const std::size_t> ratios, std::size_t sequences) {
        std::vector<std::size_t> set_of;
        std::vector<qsa_layout> sets;
        for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
            const std::size_t set = Policy::set_of(ratios, layer);
            set_of.push_back(set);
            if (set < sets.size()) continue;
            FRUGAL_TRY_ASSIGN(auto layout, qsa_layout::create(ratios[layer], sequences));
            sets.push_back(std::move(layout));
        }
        return qsa_layouts(std::move(sets), std::move(set_of), sequences);
    }

    /// Input sets kept.
    [[nodiscard]] std::size_t sets() const noexcept { return this->sets_.size(); }
    /// What QSA layer `layer` (counted among the QSA layers) reads.
    [[nodiscard]] const qsa_layout& of_layer(std::size_t layer) const noexcept { return this->sets_[set_of_[layer]]; }

    /// append(tokens, counters): makes every set that of the batch. Errors: invalid_argument (nothing changed).
    using kept::append;
    using kept::can_rollback, kept::check_fits, kept::clear, kept::copy, kept::length, kept::load, kept::parse, kept::reserve,
        kept::restore, kept::rollback, kept::save, kept::sequences, kept::snapshot;

private:
    qsa_layouts(std::vector<qsa_layout> sets, std::vector<std::size_t> set_of, std::size_t count)
        : kept(std::move(sets), count), set_of_(std::move(set_of)) {}

    std::vector<std::size_t> set_of_;
};

static_assert(parsing_state<qsa_layouts<incremental>> && parsing_state<qsa_layouts<memoised>> &&
                  parsing_state<qsa_layouts<shared>> && parsing_state<qsa_layouts<per_layer>>,
              "frugal: QSA layouts must offer every operation of a sequence state");

}  // namespace reuse

FRUGAL_NAMESPACE_END
