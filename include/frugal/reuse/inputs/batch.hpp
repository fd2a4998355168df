#pragma once
/// A batch of tokens from several sequences, and the operations that every sequence state must offer.
/// It lies below attention/ because the shared inputs of a batch (reuse/inputs/qsa_layout.hpp) are sequence states too.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/ops/rope/position.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

using ops::rope_position;

/// Which of a state's sequences. `padding` marks a segment that is neither read nor written; its outputs are 0.
enum class sequence_id : std::int32_t { padding = -1 };

/// Consecutive rows of a batch that continue one sequence, in order. `count` may be 0.
struct FRUGAL_FLAGGED segment {
    sequence_id sequence = sequence_id::padding;
    std::size_t first = 0, count = 0;
};

/// Rows of a forward pass: segments in row order that cover rows 0 … positions.size() - 1 without gap or overlap,
/// at most one segment a sequence.
struct FRUGAL_FLAGGED batch {
    std::span<const segment> segments;
    std::span<const rope_position> positions;

    [[nodiscard]] std::size_t rows() const noexcept { return positions.size(); }
};

/// Whether `s` is one of sequences 0 … count - 1.
[[nodiscard]] FRUGAL_FLAGGED inline bool is_one_of(sequence_id s, std::size_t count) noexcept {
    return static_cast<std::int64_t>(s) >= 0 && static_cast<std::size_t>(s) < count;
}

/// The same as an error. Errors: invalid_argument.
[[nodiscard]] inline status check_sequence(sequence_id s, std::size_t count) {
    if (is_one_of(s, count)) return {};
    return fail(errc::invalid_argument, "sequence ", static_cast<std::int64_t>(s), " is not one of ", count);
}

/// Checks a batch's own rules against a state of `sequences` sequences. Errors: invalid_argument.
[[nodiscard]] inline status validate(const batch& b, std::size_t sequences) {
    std::size_t next = 0;
    std::vector<bool> seen(sequences, false);
    for (const segment& s : b.segments) {
        if (s.first != next) return fail(errc::invalid_argument, "segments leave a gap or overlap at row ", next);
        next += s.count;
        if (next > b.rows()) return fail(errc::invalid_argument, "segments cover ", next, " rows of a batch of ", b.rows());
        if (s.sequence == sequence_id::padding) continue;
        FRUGAL_TRY(check_sequence(s.sequence, sequences));
        const auto index = static_cast<std::size_t>(s.sequence);
        if (seen[index]) return fail(errc::invalid_argument, "sequence ", index, " has two segments in one batch");
        seen[index] = true;
    }
    if (next != b.rows()) return fail(errc::invalid_argument, "segments cover ", next, " rows of a batch of ", b.rows());
    return {};
}

/// More tokens than any sequence holds or any cache has ever taken. Saved counters beyond it are refused, so that none wraps.
inline constexpr std::uint64_t most_counted = std::uint64_t{1} << 48;

/// Reads how many tokens a saved sequence has. Errors: malformed_file (also more than most_counted).
[[nodiscard]] inline result<std::size_t> read_length(byte_reader& in) {
    std::uint64_t tokens = 0;
    FRUGAL_TRY(in.read(tokens));
    if (tokens > most_counted) return fail(errc::malformed_file, "saved sequence of ", tokens, " tokens");
    return static_cast<std::size_t>(tokens);
}

/// Tokens of the sequence that a snapshot holds.
template <class Snapshot>
    requires requires(const Snapshot& from) { std::size_t{from.length}; } || requires(const Snapshot& from) {
        from.length();
    }
[[nodiscard]] std::size_t tokens_of(const Snapshot& from) noexcept {
    if constexpr (requires { from.length(); })
        return from.length();
    else
        return from.length;
}

/// The complete set of operations of a sequence state (recurrent state, key-value cache, …). All are per sequence:
/// - `reserve(s, n)`: makes room for n more tokens, or fails with nothing changed (context_overflow, out_of_memory);
///   after it a forward pass of n tokens cannot fail for want of room;
/// - `snapshot` / `restore`: a value that holds the sequence as it is now;
/// - `can_rollback(s, n)` / `rollback(s, n)`: undo the last n tokens, or fail with cannot_rollback and change nothing;
/// - `copy(from, to)`: `to` becomes equal to `from`; `clear(s)`: as never used, whatever it held;
/// - `save` / `load`: to and from bytes; a load that fails changes nothing (malformed_file, shape_mismatch). Whatever the bytes
///   say, a loaded sequence is one that appends and rollbacks could have made: nothing later can tell it from such a one.
template <class S>
concept sequence_state = requires(S& state, const S& constant, sequence_id s, std::size_t n,
                                  const typename S::snapshot_type& snapshot, byte_writer& writer, byte_reader& reader) {
    { constant.sequences() } -> std::convertible_to<std::size_t>;
    { constant.length(s) } -> std::convertible_to<std::size_t>;
    { state.reserve(s, n) } -> std::same_as<status>;
    { constant.snapshot(s) } -> std::same_as<result<typename S::snapshot_type>>;
    { state.restore(s, snapshot) } -> std::same_as<status>;
    { constant.can_rollback(s, n) } -> std::convertible_to<bool>;
    { state.rollback(s, n) } -> std::same_as<status>;
    { state.copy(s, s) } -> std::same_as<status>;
    { state.clear(s) } -> std::same_as<void>;
    { constant.save(s, writer) } -> std::same_as<void>;
    { state.load(s, reader) } -> std::same_as<status>;
};

/// A state whose load is `restore(s, parse(bytes))`: `parse` reads and checks saved bytes with nothing changed. `check_fits`
/// tells whether a snapshot can be restored here, and snapshots tell their tokens as a member `length`. Several such states load
/// and are restored together or not at all (model::combined_state).
template <class S>
concept parsing_state = sequence_state<S> &&
    requires(const S& constant, const typename S::snapshot_type& snapshot, byte_reader& reader) {
    { constant.parse(reader) } -> std::same_as<result<typename S::snapshot_type>>;
    { constant.check_fits(snapshot) } -> std::same_as<status>;
    { tokens_of(snapshot) } -> std::same_as<std::size_t>;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
