#pragma once
/// The rotary positions of all tokens of every sequence: what a layout that is filled in full is filled from.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/reuse/inputs/batch.hpp"
#include "frugal/reuse/inputs/change_log.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Names what a sequence holds; numbers come from next_content_version().
enum class history_version : std::uint64_t { empty = 0 };

/// All tokens of every sequence. A sequence state; see reuse/inputs/batch.hpp.
class FRUGAL_FLAGGED token_history {
public:
    /// One sequence as it was.
    struct snapshot_type {
        std::vector<rope_position> positions;
        history_version version = history_version::empty;
        /// Tokens that the sequence held.
        [[nodiscard]] std::size_t length() const noexcept { return positions.size(); }
    };

    explicit token_history(std::size_t sequences) : sequences_(sequences) {}

    [[nodiscard]] std::size_t sequences() const noexcept { return sequences_.size(); }
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return positions(s).size(); }
    [[nodiscard]] std::span<const rope_position> positions(sequence_id s) const noexcept {
        return valid(s) ? std::span<const rope_position>(at(s).positions) : std::span<const rope_position>{};
    }
    /// Equal numbers, equal positions. Taking back exactly what was appended last gives the number from before it.
    [[nodiscard]] history_version version(sequence_id s) const noexcept {
        return valid(s) ? at(s).version : history_version::empty;
    }

    /// Adds the batch's tokens to their sequences. Errors: invalid_argument (nothing changed).
    [[nodiscard]] status append(const batch& tokens) {
        FRUGAL_TRY(validate(tokens, sequences_.size()));
        for (const segment& part : tokens.segments) {
            if (part.sequence == sequence_id::padding || part.count == 0) continue;
            sequence& to = at(part.sequence);
            const auto added = tokens.positions.subspan(part.first, part.count);
            to.positions.insert(to.positions.end(), added.begin(), added.end());
            to.before = std::exchange(to.version, history_version{next_content_version()});
            to.appended = part.count;
        }
        return {};
    }

    [[nodiscard]] status reserve(sequence_id s, std::size_t) { return check(s); }
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        FRUGAL_TRY(check(s));
        return snapshot_type{at(s).positions, at(s).version};
    }
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& from) {
        FRUGAL_TRY(check(s));
        at(s) = {from.positions, from.version};
        return {};
    }
    /// Any snapshot can be restored.
    [[nodiscard]] status check_fits(const snapshot_type&) const { return {}; }
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t tokens) const noexcept { return valid(s) && tokens <= length(s); }
    [[nodiscard]] status rollback(sequence_id s, std::size_t tokens) {
        FRUGAL_TRY(check(s));
        if (!can_rollback(s, tokens))
            return fail(errc::cannot_rollback, "cannot take back ", tokens, " of ", length(s), " tokens");
        if (tokens == 0) return {};
        sequence& from = at(s);
        from.positions.resize(from.positions.size() - tokens);
        from.version = tokens == from.appended ? from.before : history_version{next_content_version()};
        from.appended = 0;
        return {};
    }
    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        FRUGAL_TRY(check(from));
        FRUGAL_TRY(check(to));
        if (from != to) at(to) = at(from);
        return {};
    }
    void clear(sequence_id s) {
        if (valid(s)) at(s) = {};
    }
    void save(sequence_id s, byte_writer& out) const {
        out.write(save_tag);
        out.write_span(positions(s));
    }
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(in));
        return restore(s, saved);
    }
    /// Reads a saved sequence, which gets a version of its own. Errors: malformed_file.
    [[nodiscard]] result<snapshot_type> parse(byte_reader& in) const {
        std::uint32_t tag = 0;
        FRUGAL_TRY(in.read(tag));
        if (tag != save_tag) return fail(errc::malformed_file, "the saved state is not a history of tokens");
        byte_reader ahead = in;  // the length stands before the positions
        std::uint64_t length = 0;
        FRUGAL_TRY(ahead.read(length));
        if (length > ahead.remaining() / sizeof(rope_position))
            return fail(errc::malformed_file, "saved history of ", length, " tokens ends early");
        std::vector<rope_position> positions(static_cast<std::size_t>(length));
        FRUGAL_TRY(in.read_span(std::span<rope_position>(positions)));
        return snapshot_type{std::move(positions), history_version{next_content_version()}};
    }

private:
    struct sequence {
        std::vector<rope_position> positions;
        history_version version = history_version::empty;
        history_version before = history_version::empty;  // of the latest edit, if that was an append
        std::size_t appended = 0;                         // tokens of that append; 0: it was another edit
    };
    static constexpr std::uint32_t save_tag = 0x4854544C;  // "LTTH"

    [[nodiscard]] bool valid(sequence_id s) const noexcept { return is_one_of(s, sequences_.size()); }
    [[nodiscard]] status check(sequence_id s) const { return check_sequence(s, sequences_.size()); }
    [[nodiscard]] sequence& at(sequence_id s) noexcept { return sequences_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] const sequence& at(sequence_id s) const noexcept { return sequences_[static_cast<std::size_t>(s)]; }

    std::vector<sequence> sequences_;
};

static_assert(parsing_state<token_history>, "frugal: the history of tokens must offer every operation of a sequence state");

}  // namespace reuse

FRUGAL_NAMESPACE_END
