#pragma once
/// The key-value cache: keys and values of every token of every sequence.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/cache_scalar.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

namespace detail {

template <class Device, class Cache>
[[nodiscard]] status append_step(Device& dev, Cache& cache, const step& of, matrix_view<const float> keys,
                                 matrix_view<const float> values) {
    for (const segment& part : of.tokens.segments)
        if (part.sequence != sequence_id::padding) FRUGAL_TRY(cache.reserve(part.sequence, part.count));
    for (const segment& part : of.tokens.segments) {
        if (part.sequence == sequence_id::padding) continue;
        const std::size_t first = cache.length(part.sequence);
        dev.run_ranges(part.count, device::grain(2 * keys.cols()), [&](std::size_t begin, std::size_t end) {
            for (std::size_t r = begin; r < end; ++r)
                cache.write(part.sequence, first + r, keys.row(part.first + r), values.row(part.first + r));
        });
    }
    return {};
}
template <class Cache>
FRUGAL_FLAGGED void commit_step(Cache& cache, const step& of) noexcept {
    for (const segment& part : of.tokens.segments)
        if (part.sequence != sequence_id::padding) cache.commit(part.sequence, part.count);
}

}  // namespace detail

/// Keys (normed and rotated) and values of several sequences, as f32, f16, bf16 or q8_0. Memory is taken in chunks of tokens as
/// they arrive, up to `max_tokens` a sequence. Copies and snapshots share chunks until one side writes: both cost O(chunks).
///
/// Only the newest tokens can be taken back, any number of them. Removing a range from the middle, or shifting positions,
/// is not offered: the keys are stored rotated, and the ranks of what follows would change (see reuse/inputs/qsa_layout.hpp).
template <key_value_scalar Scalar = float>
class FRUGAL_FLAGGED basic_kv_cache {
public:
    using scalar = Scalar;
    using store_type = key_value_store<Scalar>;
    /// One sequence as it was.
    struct snapshot_type {
        store_type keys, values;
        /// Tokens that the sequence held.
        [[nodiscard]] std::size_t length() const noexcept { return keys.size(); }
    };

    /// Errors: invalid_argument (a size of 0, heads that a quantised format's blocks do not fill, or more tokens than 32 bits can
    /// number).
    [[nodiscard]] static result<basic_kv_cache> create(std::size_t kv_heads, std::size_t head_dim, std::size_t sequences,
                                                       std::size_t max_tokens) {
        if (head_dim % ops::stored_features<Scalar>::block != 0)
            return fail(errc::invalid_argument, "heads of ", head_dim, " features cannot be stored as ", scalar_name<Scalar>,
                        ", in blocks of ", ops::stored_features<Scalar>::block);
        if (kv_heads == 0 || head_dim == 0 || max_tokens > (std::numeric_limits<std::uint32_t>::max)())
            return fail(errc::invalid_argument, "key-value cache of ", kv_heads, " heads of ", head_dim, " features for ",
                        max_tokens, " tokens");
        return basic_kv_cache(kv_heads, head_dim, sequences, max_tokens);
    }

    [[nodiscard]] std::size_t kv_heads() const noexcept { return kv_heads_; }
    [[nodiscard]] std::size_t head_dim() const noexcept { return head_dim_; }
    [[nodiscard]] std::size_t max_tokens() const noexcept { return max_tokens_; }
    /// Bytes held for keys and values; chunks that several sequences share count for each.
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = 0;
        for (const snapshot_type& one : sequences_) sum += one.keys.bytes() + one.values.bytes();
        return sum;
    }
    /// Keys or values of one sequence, a row a token: [kv_heads * head_dim].
    [[nodiscard]] const store_type& keys(sequence_id s) const noexcept { return at(s).keys; }
    [[nodiscard]] const store_type& values(sequence_id s) const noexcept { return at(s).values; }

    // For forward passes: reserve, write rows beyond length(), attend, commit. A pass that fails before commit changes nothing.

    /// Fills the row of a reserved token.
    void write(sequence_id s, std::size_t token, const float* key, const float* value) noexcept {
        at(s).keys.write(token, key);
        at(s).values.write(token, value);
    }
    /// Makes written tokens part of the sequence.
    void commit(sequence_id s, std::size_t tokens) noexcept {
        at(s).keys.commit(tokens);
        at(s).values.commit(tokens);
    }
    /// What the attention kernel reads; valid until the sequence's next reserve.
    [[nodiscard]] ops::key_value_view<Scalar> view(sequence_id s) const noexcept {
        return {at(s).keys.chunks(), at(s).values.chunks(), store_type::chunk_shift,
                ops::stored_features<Scalar>::elements(at(s).keys.width())};
    }

    /// Makes room for the step in every sequence, then writes its keys and values there, not yet committed. keys, values: [rows,
    /// kv_heads * head_dim]. Errors: as reserve.
    template <device::cpu_target Device>
    [[nodiscard]] status append(Device& dev, const step& of, matrix_view<const float> keys, matrix_view<const float> values) {
        return detail::append_step(dev, *this, of, keys, values);
    }
    /// Makes the step's tokens part of their sequences.
    void commit(const step& of) noexcept { detail::commit_step(*this, of); }

    // The operations of a sequence state; see attention/batch.hpp. Errors besides theirs: invalid_argument (no such sequence).

    [[nodiscard]] std::size_t sequences() const noexcept { return sequences_.size(); }
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return valid(s) ? at(s).keys.size() : 0; }
    [[nodiscard]] status reserve(sequence_id s, std::size_t tokens) {
        FRUGAL_TRY(check(s));
        if (tokens > max_tokens_ - length(s))
            return fail(errc::context_overflow, tokens, " more tokens after ", length(s), " are beyond the ", max_tokens_,
                        " that a sequence may hold");
        FRUGAL_TRY(at(s).keys.reserve(tokens));
        return at(s).values.reserve(tokens);
    }
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        FRUGAL_TRY(check(s));
        return at(s);
    }
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& from) {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY(check_fits(from));
        at(s) = from;
        return {};
    }
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t tokens) const noexcept { return valid(s) && tokens <= length(s); }
    [[nodiscard]] status rollback(sequence_id s, std::size_t tokens) {
        FRUGAL_TRY(check(s));
        if (!can_rollback(s, tokens))
            return fail(errc::cannot_rollback, "cannot take back ", tokens, " of ", length(s), " tokens");
        const std::size_t left = length(s) - tokens;
        at(s).keys.truncate(left);
        at(s).values.truncate(left);
        return {};
    }
    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        FRUGAL_TRY(check(from));
        FRUGAL_TRY(check(to));
        at(to) = at(from);
        return {};
    }
    /// Gives the sequence's memory back as well.
    void clear(sequence_id s) {
        if (valid(s)) at(s) = fresh();
    }
    void save(sequence_id s, byte_writer& out) const {
        const snapshot_type none = fresh();
        const snapshot_type& from = valid(s) ? at(s) : none;
        out.write(save_tag);
        out.write(scalar_code<Scalar>());
        out.write(static_cast<std::uint64_t>(kv_heads_));
        out.write(static_cast<std::uint64_t>(head_dim_));
        out.write(static_cast<std::uint64_t>(from.keys.size()));
        from.keys.save(out);
        from.values.save(out);
    }
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(in));
        return restore(s, saved);
    }
    /// Reads a saved sequence without touching the cache. Errors: malformed_file, shape_mismatch (another scalar type or
    /// other sizes), context_overflow, out_of_memory.
    [[nodiscard]] result<snapshot_type> parse(byte_reader& in) const {
        std::uint32_t tag = 0, code = 0;
        std::uint64_t kv_heads = 0, head_dim = 0;
        FRUGAL_TRY(in.read(tag));
        FRUGAL_TRY(in.read(code));
        FRUGAL_TRY(in.read(kv_heads));
        FRUGAL_TRY(in.read(head_dim));
        if (tag != save_tag) return fail(errc::malformed_file, "the saved state is not a key-value cache");
        if (code != scalar_code<Scalar>() || kv_heads != kv_heads_ || head_dim != head_dim_)
            return fail(errc::shape_mismatch, "saved key-value cache of ", kv_heads, " heads of ", head_dim, " features",
                        code == scalar_code<Scalar>() ? "" : " of another type", ", not ", kv_heads_, " of ", head_dim_, " as ",
                        scalar_name<Scalar>);
        FRUGAL_TRY_ASSIGN(const std::size_t tokens, read_length(in));
        if (tokens > max_tokens_)
            return fail(errc::context_overflow, "saved sequence of ", tokens, " tokens is beyond the ", max_tokens_,
                        " that a sequence may hold");
        FRUGAL_TRY_ASSIGN(auto keys, store_type::load(in, kv_heads_ * head_dim_, tokens));
        FRUGAL_TRY_ASSIGN(auto values, store_type::load(in, kv_heads_ * head_dim_, tokens));
        return snapshot_type{std::move(keys), std::move(values)};
    }
    /// Whether a snapshot could be restored here. Errors: shape_mismatch, context_overflow.
    [[nodiscard]] status check_fits(const snapshot_type& from) const {
        if (from.keys.width() != kv_heads_ * head_dim_ || from.values.width() != from.keys.width())
            return fail(errc::shape_mismatch, "snapshot of a key-value cache with ", from.keys.width(), " scalars a token, not ",
                        kv_heads_ * head_dim_);
        if (from.values.size() != from.keys.size())
            return fail(errc::shape_mismatch, "snapshot of ", from.keys.size(), " keys and ", from.values.size(), " values");
        if (from.keys.size() > max_tokens_)
            return fail(errc::context_overflow, "snapshot of ", from.keys.size(), " tokens is beyond the ", max_tokens_,
                        " that a sequence may hold");
        return {};
    }

private:
    static constexpr std::uint32_t save_tag = 0x4843564B;  // "KVCH"

    basic_kv_cache(std::size_t kv_heads, std::size_t head_dim, std::size_t sequences, std::size_t max_tokens)
        : kv_heads_(kv_heads), head_dim_(head_dim), max_tokens_(max_tokens), sequences_(sequences, fresh()) {}

    [[nodiscard]] snapshot_type fresh() const { return {store_type(kv_heads_ * head_dim_), store_type(kv_heads_ * head_dim_)}; }
    [[nodiscard]] bool valid(sequence_id s) const noexcept { return is_one_of(s, sequences_.size()); }
    [[nodiscard]] status check(sequence_id s) const { return check_sequence(s, sequences_.size()); }
    [[nodiscard]] snapshot_type& at(sequence_id s) noexcept { return sequences_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] const snapshot_type& at(sequence_id s) const noexcept { return sequences_[static_cast<std::size_t>(s)]; }

    std::size_t kv_heads_, head_dim_, max_tokens_;
    std::vector<snapshot_type> sequences_;
};

using kv_cache = basic_kv_cache<float>;

static_assert(parsing_state<basic_kv_cache<float>> && parsing_state<basic_kv_cache<half>> &&
                  parsing_state<basic_kv_cache<bfloat16>> && parsing_state<basic_kv_cache<quant::q8_0>>,
              "frugal: the key-value cache must offer every operation of a sequence state");

}  // namespace attention

FRUGAL_NAMESPACE_END
