#pragma once
/// Everything a model remembers of its sequences: recurrent states, caches, n-gram contexts and QSA layouts, kept in step.
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/core/error.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// Several kinds of sequence states that move together: an operation succeeds on all of them or changes none.
/// Models attention::parsing_state. `Part...` are the kinds; each may occur any number of times (once a layer).
template <attention::parsing_state... Part>
class FRUGAL_FLAGGED combined_state {
    using parts_type = std::tuple<std::vector<Part>...>;

public:
    using sequence_id = attention::sequence_id;

    struct snapshot_type {
        std::size_t length = 0;
        std::uint64_t model = 0;
        std::tuple<std::vector<typename Part::snapshot_type>...> parts;
    };

    /// `parts` hold at least `sequences` sequences each, all empty. `model` tells models apart whose parts have equal shapes
    /// but mean different things, such as another order of heads: snapshots and bytes of one are refused by the other.
    combined_state(std::uint64_t model, std::size_t sequences, std::vector<Part>... parts)
        : parts_(std::move(parts)...), sequences_(sequences), model_(model) {}

    [[nodiscard]] std::size_t sequences() const noexcept { return sequences_.size(); }
    /// Tokens held by a sequence.
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept {
        return attention::is_one_of(s, sequences()) ? sequences_[index(s)].length : 0;
    }

    /// All states of one kind, in the order of their layers.
    template <class P>
    [[nodiscard]] std::vector<P>& parts() noexcept {
        return std::get<std::vector<P>>(parts_);
    }
    template <class P>
    [[nodiscard]] const std::vector<P>& parts() const noexcept {
        return std::get<std::vector<P>>(parts_);
    }

    [[nodiscard]] status reserve(sequence_id s, std::size_t n) {
        FRUGAL_TRY(check(s));
        return each([&](auto& part) { return part.reserve(s, n); });
    }

    /// The sequence as it is. Refused (unsupported) while drafted tokens wait for a verdict: a snapshot of unverified
    /// tokens would later be restored as if they had been accepted.
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY(no_draft(s, "snapshot"));
        return take(s);
    }

    /// Errors leave the sequence as it was. Errors: shape_mismatch, context_overflow.
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& snapshot) {
        FRUGAL_TRY(check_range(s));
        FRUGAL_TRY(check_fits(snapshot));
        return put_checked(s, snapshot);
    }
    /// Whether a snapshot could be restored here. Errors: shape_mismatch, context_overflow.
    [[nodiscard]] status check_fits(const snapshot_type& snapshot) const {
        if (snapshot.model != model_) return fail(errc::shape_mismatch, "the snapshot belongs to another model");
        return check_kinds(snapshot, std::index_sequence_for<Part...>{});
    }

    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t n) const {
        if (!check(s) || n > length(s)) return false;
        return std::apply([&](const auto&... kind) { return (all_can_rollback(kind, s, n) && ...); }, parts_);
    }

    /// Undoes the last n tokens in every layer, or returns cannot_rollback with nothing changed.
    [[nodiscard]] status rollback(sequence_id s, std::size_t n) {
        FRUGAL_TRY(check(s));
        if (n > length(s))
            return fail(errc::cannot_rollback, "sequence ", static_cast<int>(s), " holds ", length(s), " tokens; cannot undo ",
                        n);
        if (!can_rollback(s, n))
            return fail(errc::cannot_rollback, "sequence ", static_cast<int>(s), " keeps no checkpoint ", n,
                        " tokens back; create the state with more checkpoints, or restore a snapshot");
        FRUGAL_TRY(each([&](auto& part) { return part.rollback(s, n); }));
        auto& sequence = sequences_[index(s)];
        sequence.length -= n;
        if (sequence.draft_start != no_draft_mark && sequence.length < sequence.draft_start)
            sequence.draft_start = sequence.length;
        return {};
    }

    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        FRUGAL_TRY(check(from));
        FRUGAL_TRY(check_range(to));
        FRUGAL_TRY(no_draft(from, "copy"));
        if (from == to) return {};
        if (status done = each([&](auto& part) { return part.copy(from, to); }); !done) {
            sequences_[index(to)].broken = true;  // no state of this library fails here
            return done;
        }
        sequences_[index(to)] = {length(from), no_draft_mark, false};
        return {};
    }

    /// As never used, whatever it held before.
    void clear(sequence_id s) {
        if (!check_range(s)) return;
        std::apply([&](auto&... kind) { (clear_all(kind, s), ...); }, parts_);
        sequences_[index(s)] = {};
    }

    /// A sequence that is no longer usable is saved as bytes that no load accepts.
    void save(sequence_id s, byte_writer& out) const {
        out.write(magic);
        out.write(model_);
        out.write(check(s) ? static_cast<std::uint64_t>(length(s)) : ~std::uint64_t{0});
        std::apply([&](const auto&... kind) { (save_all(kind, s, out), ...); }, parts_);
    }
    /// Errors leave the sequence as it was.
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check_range(s));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(in));
        return put_checked(s, saved);
    }
    /// Reads a saved sequence without touching the state. Errors: malformed_file (also layers that disagree), shape_mismatch,
    /// context_overflow, out_of_memory.
    [[nodiscard]] result<snapshot_type> parse(byte_reader& in) const {
        snapshot_type out;
        std::uint64_t found = 0;
        FRUGAL_TRY(in.read(found));
        if (found != magic) return fail(errc::malformed_file, "these bytes are not a saved sequence state");
        FRUGAL_TRY(in.read(out.model));
        if (out.model != model_)
            return fail(errc::shape_mismatch,
                        "the saved state belongs to another model: architecture, head order or sizes differ");
        FRUGAL_TRY_ASSIGN(out.length, attention::read_length(in));
        FRUGAL_TRY(parse_kinds(in, out, std::index_sequence_for<Part...>{}));
        return out;
    }

    /// From now on, tokens of this sequence are drafts: `accept` keeps some of them and undoes the rest.
    [[nodiscard]] status begin_draft(sequence_id s) {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY(no_draft(s, "begin another draft"));
        sequences_[index(s)].draft_start = length(s);
        return {};
    }
    /// Keeps the first n drafted tokens, rolls the others back and ends the draft. Errors: invalid_argument, cannot_rollback.
    [[nodiscard]] status accept(sequence_id s, std::size_t n) {
        FRUGAL_TRY(check(s));
        const auto& sequence = sequences_[index(s)];
        if (sequence.draft_start == no_draft_mark)
            return fail(errc::invalid_argument, "sequence ", static_cast<int>(s), " has no draft to accept");
        const std::size_t drafted = sequence.length - sequence.draft_start;
        if (n > drafted) return fail(errc::invalid_argument, "cannot accept ", n, " of ", drafted, " drafted tokens");
        if (drafted != n) FRUGAL_TRY(rollback(s, drafted - n));
        sequences_[index(s)].draft_start = no_draft_mark;
        return {};
    }

    /// The forward pass calls this when all layers have taken n tokens.
    void advance(sequence_id s, std::size_t n) noexcept { sequences_[index(s)].length += n; }
    /// The forward pass calls this when it failed midway: the layers are out of step, and only clear, restore, load or a
    /// copy from another sequence makes the sequence usable again.
    void mark_broken(sequence_id s) noexcept { sequences_[index(s)].broken = true; }
    /// Whether a sequence may be used. Errors: invalid_argument.
    [[nodiscard]] status check(sequence_id s) const {
        FRUGAL_TRY(check_range(s));
        if (sequences_[index(s)].broken)
            return fail(errc::invalid_argument, "sequence ", static_cast<int>(s),
                        " was left halfway by a failed forward pass; clear or restore it first");
        return {};
    }

private:
    static constexpr std::uint64_t magic = 0x31'65'74'61'74'73'67'66;  // "fgstate1"
    static constexpr std::size_t no_draft_mark = static_cast<std::size_t>(-1);

    struct sequence_info {
        std::size_t length = 0;
        std::size_t draft_start = no_draft_mark;
        bool broken = false;
    };

    [[nodiscard]] static std::size_t index(sequence_id s) noexcept { return static_cast<std::size_t>(s); }

    [[nodiscard]] status check_range(sequence_id s) const {
        if (static_cast<std::int64_t>(s) < 0 || index(s) >= sequences_.size())
            return fail(errc::invalid_argument, "sequence ", static_cast<int>(s), " is not one of ", sequences_.size());
        return {};
    }
    [[nodiscard]] status no_draft(sequence_id s, const char* what) const {
        if (sequences_[index(s)].draft_start != no_draft_mark)
            return fail(errc::unsupported, "cannot ", what, ": sequence ", static_cast<int>(s),
                        " holds drafted tokens; accept them first");
        return {};
    }

    template <class F>
    [[nodiscard]] status each(F&& f) {
        status out;
        const auto kind = [&](auto& list) {
            for (auto& part : list) {
                if (!out) return;
                out = f(part);
            }
        };
        std::apply([&](auto&... list) { (kind(list), ...); }, parts_);
        return out;
    }

    template <class P>
    [[nodiscard]] static bool all_can_rollback(const std::vector<P>& kind, sequence_id s, std::size_t n) {
        for (const P& part : kind)
            if (!part.can_rollback(s, n)) return false;
        return true;
    }
    template <class P>
    static void clear_all(std::vector<P>& kind, sequence_id s) {
        for (P& part : kind) part.clear(s);
    }
    template <class P>
    static void save_all(const std::vector<P>& kind, sequence_id s, byte_writer& out) {
        out.write(static_cast<std::uint64_t>(kind.size()));
        for (const P& part : kind) part.save(s, out);
    }

    template <std::size_t... Index>
    [[nodiscard]] status parse_kinds(byte_reader& in, snapshot_type& out, std::index_sequence<Index...>) const {
        status done;
        const auto kind = [&](const auto& list, auto& snapshots) {
            std::uint64_t count = 0;
            if (done) done = in.read(count);
            if (done && count != list.size())
                done =
                    fail(errc::shape_mismatch, "saved state has ", count, " layers of a kind where the model has ", list.size());
            for (const auto& part : list) {
                if (!done) return;
                auto one = part.parse(in);
                if (!one)
                    done = std::move(one).error();
                else if (const std::size_t tokens = attention::tokens_of(*one); tokens != out.length)
                    done =
                        fail(errc::malformed_file, "saved state disagrees with itself: ", tokens, " and ", out.length, " tokens");
                else
                    snapshots.push_back(*std::move(one));
            }
        };
        (kind(std::get<Index>(parts_), std::get<Index>(out.parts)), ...);
        return done;
    }

    [[nodiscard]] result<snapshot_type> take(sequence_id s) const {
        snapshot_type out;
        out.length = length(s);
        out.model = model_;
        FRUGAL_TRY(take_kinds(s, out, std::index_sequence_for<Part...>{}));
        return out;
    }
    template <std::size_t... Index>
    [[nodiscard]] status take_kinds(sequence_id s, snapshot_type& out, std::index_sequence<Index...>) const {
        status done;
        const auto kind = [&](const auto& list, auto& snapshots) {
            for (const auto& part : list) {
                if (!done) return;
                auto one = part.snapshot(s);
                if (one)
                    snapshots.push_back(*std::move(one));
                else
                    done = std::move(one).error();
            }
        };
        (kind(std::get<Index>(parts_), std::get<Index>(out.parts)), ...);
        return done;
    }
    template <std::size_t... Index>
    [[nodiscard]] status check_kinds(const snapshot_type& snapshot, std::index_sequence<Index...>) const {
        status done;
        const auto kind = [&](const auto& list, const auto& snapshots) {
            if (done && list.size() != snapshots.size())
                done = fail(errc::shape_mismatch, "the snapshot has ", snapshots.size(), " layers of a kind where the model has ",
                            list.size());
            for (std::size_t i = 0; done && i < list.size(); ++i) {
                done = list[i].check_fits(snapshots[i]);
                if (const std::size_t tokens = attention::tokens_of(snapshots[i]); done && tokens != snapshot.length)
                    done = fail(errc::shape_mismatch, "the snapshot disagrees with itself: ", tokens, " and ", snapshot.length,
                                " tokens");
            }
        };
        (kind(std::get<Index>(parts_), std::get<Index>(snapshot.parts)), ...);
        return done;
    }
    /// Puts in what has been checked.
    [[nodiscard]] status put_checked(sequence_id s, const snapshot_type& snapshot) {
        if (status done = put(s, snapshot, std::index_sequence_for<Part...>{}); !done) {
            sequences_[index(s)].broken = true;
            return done;
        }
        sequences_[index(s)] = {snapshot.length, no_draft_mark, false};
        return {};
    }
    template <std::size_t... Index>
    [[nodiscard]] status put(sequence_id s, const snapshot_type& snapshot, std::index_sequence<Index...>) {
        status done;
        const auto kind = [&](auto& list, const auto& snapshots) {
            for (std::size_t i = 0; i < list.size() && done; ++i) done = list[i].restore(s, snapshots[i]);
        };
        (kind(std::get<Index>(parts_), std::get<Index>(snapshot.parts)), ...);
        return done;
    }

    parts_type parts_;
    std::vector<sequence_info> sequences_;
    std::uint64_t model_ = 0;
};

}  // namespace model

FRUGAL_NAMESPACE_END
