#pragma once
/// A sequence state for variants of your own whose memory of a sequence is one value.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/core/error.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// What a variant may remember of a sequence: default-made it is an empty sequence, copies are independent, `length` counts its
/// tokens; `save(out)` writes it but for the length, and `parse(in) -> status` reads that and refuses what save never wrote.
template <class T>
concept sequence_value = std::default_initializable<T> && std::copyable<T> &&
    requires(T value, const T constant, byte_writer& out, byte_reader& in) {
    { value.length } -> std::same_as<std::size_t&>;
    { constant.save(out) } -> std::same_as<void>;
    { value.parse(in) } -> std::same_as<status>;
};

/// One value a sequence, with the complete set of operations. Tokens cannot be taken back: restore a snapshot. Models
/// attention::parsing_state.
template <sequence_value T>
class FRUGAL_FLAGGED value_state {
public:
    using snapshot_type = T;

    explicit value_state(std::size_t sequences) : values_(sequences) {}

    /// Precondition: the sequence exists.
    [[nodiscard]] T& at(sequence_id s) noexcept { return values_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] const T& at(sequence_id s) const noexcept { return values_[static_cast<std::size_t>(s)]; }

    // The operations of a sequence state; see attention/batch.hpp. Errors besides theirs: invalid_argument (no such sequence).

    [[nodiscard]] std::size_t sequences() const noexcept { return values_.size(); }
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return is_one_of(s, sequences()) ? at(s).length : 0; }
    [[nodiscard]] status reserve(sequence_id s, std::size_t /*tokens*/) { return check_sequence(s, sequences()); }
    [[nodiscard]] result<T> snapshot(sequence_id s) const {
        FRUGAL_TRY(check_sequence(s, sequences()));
        return at(s);
    }
    [[nodiscard]] status check_fits(const T&) const { return {}; }
    [[nodiscard]] status restore(sequence_id s, const T& from) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        at(s) = from;
        return {};
    }
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t n) const noexcept { return is_one_of(s, sequences()) && n == 0; }
    [[nodiscard]] status rollback(sequence_id s, std::size_t n) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        if (n == 0) return {};
        return fail(errc::cannot_rollback, "cannot take back ", n, " tokens of a state that forgets; restore a snapshot");
    }
    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        FRUGAL_TRY(check_sequence(from, sequences()));
        FRUGAL_TRY(check_sequence(to, sequences()));
        at(to) = at(from);
        return {};
    }
    void clear(sequence_id s) {
        if (is_one_of(s, sequences())) at(s) = T();
    }
    void save(sequence_id s, byte_writer& out) const {
        const T none{};
        const T& from = is_one_of(s, sequences()) ? at(s) : none;
        out.write(static_cast<std::uint64_t>(from.length));
        from.save(out);
    }
    [[nodiscard]] result<T> parse(byte_reader& in) const {
        T out{};
        FRUGAL_TRY_ASSIGN(out.length, read_length(in));
        FRUGAL_TRY(out.parse(in));
        return out;
    }
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        FRUGAL_TRY_ASSIGN(const T saved, parse(in));
        return restore(s, saved);
    }

private:
    std::vector<T> values_;
};

}  // namespace attention

FRUGAL_NAMESPACE_END
