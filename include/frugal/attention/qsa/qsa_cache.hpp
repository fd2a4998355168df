#pragma once
/// What a QSA layer keeps of every sequence: keys and values, raw indexer keys, and the finished keys of complete blocks.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/cache_scalar.hpp"
#include "frugal/attention/kv_cache.hpp"
#include "frugal/attention/qsa/index_store.hpp"
#include "frugal/attention/token_store.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/reuse/inputs/token_index.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// A key-value cache with the indexer's keys beside it. The indexer's precision is a type of its own and does not follow
/// the cache's: a selection by coarse keys drops tokens outright. Its measured recall: tests/ops/index_keys_test.cpp.
///
/// A block's key (pooled, normed, rotated) is computed once, by the token that completes it; rollback into a block forgets
/// the key and keeps the raw keys before the cut, so the block is completed anew. Ranges in the middle cannot be removed.
///
/// Raw keys serve nothing but the open block and such a rollback. With a `raw_history` only the newest so many tokens, and the
/// blocks they lie in, keep theirs; the memory of the others is freed as the sequence grows. Then a rollback to no more than
/// `raw_history` tokens before the greatest length that the sequence has had is possible as before, and one to the border of
/// a block always; one further back into a block is refused.
template <key_value_scalar Scalar = float, index_key_scalar IndexScalar = ops::default_index_key>
class FRUGAL_FLAGGED qsa_cache {
public:
    using scalar = Scalar;
    using index_scalar = IndexScalar;
    using raw_key_store = token_store<raw_index_scalar<IndexScalar>>;
    using key_store = block_key_store<IndexScalar>;
    /// One sequence as it was.
    struct snapshot_type {
        std::size_t ratio = 0;
        typename basic_kv_cache<Scalar>::snapshot_type tokens;
        raw_key_store raw_keys;
        key_store block_keys;
        /// Tokens that the sequence held.
        [[nodiscard]] std::size_t length() const noexcept { return tokens.length(); }
    };
    /// A `raw_history` that keeps every raw key.
    static constexpr std::size_t unlimited = (std::numeric_limits<std::size_t>::max)();

    /// `ratio`: tokens in a block. Errors: invalid_argument.
    [[nodiscard]] static result<qsa_cache> create(std::size_t kv_heads, std::size_t head_dim, std::size_t index_dim,
                                                  std::size_t ratio, std::size_t sequences, std::size_t max_tokens,
                                                  std::size_t raw_history = unlimited) {
        if (index_dim == 0 || ratio == 0)
            return fail(errc::invalid_argument, "QSA cache of indexer keys with ", index_dim, " features in blocks of ", ratio);
        FRUGAL_TRY_ASSIGN(auto tokens, basic_kv_cache<Scalar>::create(kv_heads, head_dim, sequences, max_tokens));
        return qsa_cache(std::move(tokens), index_dim, ratio, raw_history);
    }

    [[nodiscard]] std::size_t kv_heads() const noexcept { return tokens_.kv_heads(); }
    [[nodiscard]] std::size_t head_dim() const noexcept { return tokens_.head_dim(); }
    [[nodiscard]] std::size_t index_dim() const noexcept { return index_dim_; }
    [[nodiscard]] std::size_t max_tokens() const noexcept { return tokens_.max_tokens(); }
    [[nodiscard]] std::size_t raw_history() const noexcept { return raw_history_; }
    [[nodiscard]] reuse::block_ratio ratio() const noexcept { return ratio_; }
    /// Bytes held; chunks that several sequences share count for each.
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = tokens_.bytes();
        for (const index_keys& one : index_) sum += one.raw.bytes() + one.blocks.bytes();
        return sum;
    }
    /// Keys and values of the attention.
    [[nodiscard]] const basic_kv_cache<Scalar>& tokens() const noexcept { return tokens_; }
    /// Indexer keys as projected, a row a token: [index_dim]. Rows before first() are gone.
    [[nodiscard]] const raw_key_store& raw_keys(sequence_id s) const noexcept { return at(s).raw; }
    /// Finished keys of complete blocks, a row a block: [index_dim].
    [[nodiscard]] const key_store& block_keys(sequence_id s) const noexcept { return at(s).blocks; }

    // For forward passes: reserve, write rows beyond length(), attend, commit. A pass that fails before commit changes nothing.

    void write(sequence_id s, std::size_t token, const float* key, const float* value) noexcept {
        tokens_.write(s, token, key, value);
    }
    void write_raw_key(sequence_id s, reuse::token_rank token, const float* key) noexcept { at(s).raw.write(token.value, key); }
    void write_block_key(sequence_id s, reuse::block_index block, const float* key) noexcept {
        at(s).blocks.write(block.value, key);
    }
    void commit(sequence_id s, std::size_t tokens) noexcept {
        const std::size_t length = tokens_.length(s);
        tokens_.commit(s, tokens);
        at(s).raw.commit(tokens);
        at(s).blocks.commit(ratio_.complete_blocks(length + tokens) - ratio_.complete_blocks(length));
        limit_history(s);
    }
    /// Makes room for the step in every sequence, then writes its keys and values there, not yet committed. keys, values: [rows,
    /// kv_heads * head_dim]. Errors: as reserve.
    template <device::cpu_target Device>
    [[nodiscard]] status append(Device& dev, const step& of, matrix_view<const float> keys, matrix_view<const float> values) {
        return detail::append_step(dev, *this, of, keys, values);
    }
    /// Makes the step's tokens part of their sequences.
    void commit(const step& of) noexcept { detail::commit_step(*this, of); }

    /// What the kernels read; valid until the sequence's next reserve.
    [[nodiscard]] ops::key_value_view<Scalar> view(sequence_id s) const noexcept { return tokens_.view(s); }
    [[nodiscard]] ops::block_key_view<IndexScalar> block_view(sequence_id s) const noexcept {
        return view_block_keys(at(s).blocks);
    }

    // The operations of a sequence state; see attention/batch.hpp. Errors besides theirs: invalid_argument (no such sequence).

    [[nodiscard]] std::size_t sequences() const noexcept { return tokens_.sequences(); }
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return tokens_.length(s); }
    [[nodiscard]] status reserve(sequence_id s, std::size_t tokens) {
        FRUGAL_TRY(tokens_.reserve(s, tokens));
        FRUGAL_TRY(at(s).raw.reserve(tokens));
        return at(s).blocks.reserve(ratio_.complete_blocks(length(s) + tokens) - ratio_.complete_blocks(length(s)));
    }
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        FRUGAL_TRY_ASSIGN(auto tokens, tokens_.snapshot(s));
        return snapshot_type{ratio_.tokens(), std::move(tokens), at(s).raw, at(s).blocks};
    }
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& from) {
        FRUGAL_TRY(check_fits(from));
        FRUGAL_TRY(tokens_.restore(s, from.tokens));
        at(s) = {from.raw_keys, from.block_keys};
        limit_history(s);  // the snapshot may be that of a cache that keeps more
        return {};
    }
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t tokens) const noexcept {
        if (!tokens_.can_rollback(s, tokens)) return false;
        const std::size_t left = length(s) - tokens;
        return block_start(left) == left || block_start(left) >= at(s).raw.first();
    }
    [[nodiscard]] status rollback(sequence_id s, std::size_t tokens) {
        if (tokens_.can_rollback(s, tokens) && !can_rollback(s, tokens))
            return fail(errc::cannot_rollback, "taking back ", tokens, " of ", length(s), " tokens re-opens the block of token ",
                        block_start(length(s) - tokens), ", but raw indexer keys are kept from token ", at(s).raw.first(),
                        " on; create the cache with a raw_history of the longest rollback");
        FRUGAL_TRY(tokens_.rollback(s, tokens));
        at(s).raw.truncate(length(s));
        at(s).blocks.truncate(ratio_.complete_blocks(length(s)));
        return {};
    }
    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        FRUGAL_TRY(tokens_.copy(from, to));
        at(to) = at(from);
        return {};
    }
    void clear(sequence_id s) {
        tokens_.clear(s);
        if (is_one_of(s, sequences())) at(s) = fresh();
    }
    void save(sequence_id s, byte_writer& out) const {
        const index_keys none = fresh();
        const index_keys& from = is_one_of(s, sequences()) ? at(s) : none;
        out.write(save_tag);
        out.write(scalar_code<IndexScalar>());
        out.write(static_cast<std::uint64_t>(index_dim_));
        out.write(static_cast<std::uint64_t>(ratio_.tokens()));
        out.write(static_cast<std::uint64_t>(from.raw.first()));
        tokens_.save(s, out);
        from.raw.save(out);
        from.blocks.save(out);
    }
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(in));
        return restore(s, saved);
    }
    /// Reads a saved sequence without touching the cache. The caches may differ in `raw_history`: what the one that saved had
    /// dropped stays dropped, what this one does not keep goes when the sequence is restored. Errors: malformed_file,
    /// shape_mismatch (another precision or other sizes), context_overflow, out_of_memory.
    [[nodiscard]] result<snapshot_type> parse(byte_reader& in) const {
        std::uint32_t tag = 0, precision = 0;
        std::uint64_t index_dim = 0, ratio = 0;
        FRUGAL_TRY(in.read(tag));
        FRUGAL_TRY(in.read(precision));
        FRUGAL_TRY(in.read(index_dim));
        FRUGAL_TRY(in.read(ratio));
        if (tag != save_tag) return fail(errc::malformed_file, "the saved state is not a QSA cache");
        if (precision != scalar_code<IndexScalar>() || index_dim != index_dim_ || ratio != ratio_.tokens())
            return fail(errc::shape_mismatch, "saved indexer keys of ", index_dim, " features in blocks of ", ratio,
                        precision == scalar_code<IndexScalar>() ? "" : ", in another precision", ", where ", index_dim_,
                        " in blocks of ", ratio_.tokens(), " belong, in ", scalar_name<IndexScalar>);
        FRUGAL_TRY_ASSIGN(const std::size_t raw_first, read_length(in));
        FRUGAL_TRY_ASSIGN(auto tokens, tokens_.parse(in));
        const std::size_t length = tokens.length();
        if (!may_begin(raw_first, length))
            return fail(errc::malformed_file, "saved raw indexer keys begin at token ", raw_first, " of ", length,
                        ", not with a block that is needed");
        FRUGAL_TRY_ASSIGN(auto raw, raw_key_store::load(in, index_dim_, length, raw_first));
        FRUGAL_TRY_ASSIGN(auto blocks, key_store::load(in, index_dim_, ratio_.complete_blocks(length)));
        return snapshot_type{ratio_.tokens(), std::move(tokens), std::move(raw), std::move(blocks)};
    }
    /// Whether a snapshot could be restored here. Errors: shape_mismatch, context_overflow.
    [[nodiscard]] status check_fits(const snapshot_type& from) const {
        FRUGAL_TRY(tokens_.check_fits(from.tokens));
        if (from.ratio != ratio_.tokens() || from.raw_keys.width() != index_dim_ || from.block_keys.width() != index_dim_)
            return fail(errc::shape_mismatch, "snapshot of indexer keys with ", from.raw_keys.width(), " features in blocks of ",
                        from.ratio, ", not ", index_dim_, " in blocks of ", ratio_.tokens());
        const std::size_t length = from.length();
        if (from.raw_keys.size() != length || from.block_keys.size() != ratio_.complete_blocks(length) ||
            !may_begin(from.raw_keys.first(), length))
            return fail(errc::shape_mismatch, "snapshot of ", length, " tokens with raw indexer keys ", from.raw_keys.first(),
                        " to ", from.raw_keys.size(), " and ", from.block_keys.size(), " keys of blocks");
        return {};
    }

private:
    struct index_keys {
        raw_key_store raw;
        key_store blocks;
    };
    static constexpr std::uint32_t save_tag = 0x43415351;  // "QSAC"

    qsa_cache(basic_kv_cache<Scalar> tokens, std::size_t index_dim, std::size_t ratio, std::size_t raw_history)
        : tokens_(std::move(tokens)),
          index_dim_(index_dim),
          raw_history_(raw_history),
          ratio_(ratio),
          index_(tokens_.sequences(), fresh()) {}

    [[nodiscard]] index_keys fresh() const { return {raw_key_store(index_dim_), key_store(index_dim_)}; }
    /// The first token of the block that the token after `length` tokens belongs to.
    [[nodiscard]] std::size_t block_start(std::size_t length) const noexcept {
        return ratio_.complete_blocks(length) * ratio_.tokens();
    }
    /// Whether raw keys of `length` tokens can be kept from token `first` on: whole blocks, the open one among them.
    [[nodiscard]] bool may_begin(std::size_t first, std::size_t length) const noexcept {
        return first <= block_start(length) && first % ratio_.tokens() == 0;
    }
    /// Drops raw keys before those of the `raw_history_` newest tokens and their blocks.
    void limit_history(sequence_id s) noexcept {
        const std::size_t tokens = length(s);
        if (tokens > raw_history_) at(s).raw.drop_before(block_start(tokens - raw_history_));
    }
    [[nodiscard]] index_keys& at(sequence_id s) noexcept { return index_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] const index_keys& at(sequence_id s) const noexcept { return index_[static_cast<std::size_t>(s)]; }

    basic_kv_cache<Scalar> tokens_;
    std::size_t index_dim_, raw_history_;
    reuse::block_ratio ratio_;
    std::vector<index_keys> index_;
};

static_assert(parsing_state<qsa_cache<>> && parsing_state<qsa_cache<half, float>> && parsing_state<qsa_cache<half, half>> &&
                  parsing_state<qsa_cache<float, bfloat16>> && parsing_state<qsa_cache<float, std::int8_t>>,
              "frugal: the QSA cache must offer every operation of a sequence state");

}  // namespace attention

FRUGAL_NAMESPACE_END
