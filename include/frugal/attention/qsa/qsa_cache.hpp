#pragma once
/// What a QSA layer keeps of every sequence: keys and values, raw indexer keys, and the finished keys of complete blocks.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/kv_cache.hpp"
#include "frugal/attention/token_store.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/reuse/token_index.hpp"
#include "frugal/tensor/bytes.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// A key-value cache with the indexer's keys beside it. The indexer's precision is a type of its own and does not follow
/// the cache's: a selection by coarse keys drops tokens outright.
///
/// A block's key (pooled, normed, rotated) is computed once, by the token that completes it; rollback into a block forgets
/// the key and keeps the raw keys before the cut, so the block is completed anew. Ranges in the middle cannot be removed.
template <cache_scalar Scalar = float, cache_scalar IndexScalar = float>
class qsa_cache {
public:
    using scalar = Scalar;
    using index_scalar = IndexScalar;
    /// One sequence as it was.
    struct snapshot_type {
        std::size_t ratio = 0;
        typename basic_kv_cache<Scalar>::snapshot_type tokens;
        token_store<IndexScalar> raw_keys, block_keys;
    };

    /// `ratio`: tokens in a block. Errors: invalid_argument.
    [[nodiscard]] static result<qsa_cache> create(std::size_t kv_heads, std::size_t head_dim, std::size_t index_dim,
                                                  std::size_t ratio, std::size_t sequences, std::size_t max_tokens) {
        if (index_dim == 0 || ratio == 0)
            return fail(errc::invalid_argument, "QSA cache of indexer keys with ", index_dim, " features in blocks of ", ratio);
        FRUGAL_TRY_ASSIGN(auto tokens, basic_kv_cache<Scalar>::create(kv_heads, head_dim, sequences, max_tokens));
        return qsa_cache(std::move(tokens), index_dim, ratio);
    }

    [[nodiscard]] std::size_t kv_heads() const noexcept { return tokens_.kv_heads(); }
    [[nodiscard]] std::size_t head_dim() const noexcept { return tokens_.head_dim(); }
    [[nodiscard]] std::size_t index_dim() const noexcept { return index_dim_; }
    [[nodiscard]] std::size_t max_tokens() const noexcept { return tokens_.max_tokens(); }
    [[nodiscard]] reuse::block_ratio ratio() const noexcept { return ratio_; }
    /// Bytes held; chunks that several sequences share count for each.
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = tokens_.bytes();
        for (const index_keys& one : index_) sum += one.raw.bytes() + one.blocks.bytes();
        return sum;
    }
    /// Keys and values of the attention.
    [[nodiscard]] const basic_kv_cache<Scalar>& tokens() const noexcept { return tokens_; }
    /// Indexer keys as projected, a row a token: [index_dim].
    [[nodiscard]] const token_store<IndexScalar>& raw_keys(sequence_id s) const noexcept { return at(s).raw; }
    /// Finished keys of complete blocks, a row a block: [index_dim].
    [[nodiscard]] const token_store<IndexScalar>& block_keys(sequence_id s) const noexcept { return at(s).blocks; }

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
    }
    /// What the kernels read; valid until the sequence's next reserve.
    [[nodiscard]] ops::key_value_view<Scalar> view(sequence_id s) const noexcept { return tokens_.view(s); }
    [[nodiscard]] ops::block_key_view<IndexScalar> block_view(sequence_id s) const noexcept {
        return {at(s).blocks.chunks(), token_store<IndexScalar>::chunk_shift, index_dim_};
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
        if (from.ratio != ratio_.tokens() || from.raw_keys.width() != index_dim_)
            return fail(errc::shape_mismatch, "snapshot of indexer keys with ", from.raw_keys.width(), " features in blocks of ",
                        from.ratio, ", not ", index_dim_, " in blocks of ", ratio_.tokens());
        FRUGAL_TRY(tokens_.restore(s, from.tokens));
        at(s) = {from.raw_keys, from.block_keys};
        return {};
    }
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t tokens) const noexcept { return tokens_.can_rollback(s, tokens); }
    [[nodiscard]] status rollback(sequence_id s, std::size_t tokens) {
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
        out.write(static_cast<std::uint32_t>(sizeof(IndexScalar)));
        out.write(static_cast<std::uint64_t>(index_dim_));
        out.write(static_cast<std::uint64_t>(ratio_.tokens()));
        tokens_.save(s, out);
        from.raw.save(out);
        from.blocks.save(out);
    }
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        std::uint32_t tag = 0, scalar_bytes = 0;
        std::uint64_t index_dim = 0, ratio = 0;
        FRUGAL_TRY(in.read(tag));
        FRUGAL_TRY(in.read(scalar_bytes));
        FRUGAL_TRY(in.read(index_dim));
        FRUGAL_TRY(in.read(ratio));
        if (tag != save_tag) return fail(errc::malformed_file, "the saved state is not a QSA cache");
        if (scalar_bytes != sizeof(IndexScalar) || index_dim != index_dim_ || ratio != ratio_.tokens())
            return fail(errc::shape_mismatch, "saved indexer keys of ", index_dim, " scalars of ", scalar_bytes,
                        " bytes in blocks of ", ratio, ", not ", index_dim_, " of ", sizeof(IndexScalar), " in blocks of ",
                        ratio_.tokens());
        FRUGAL_TRY_ASSIGN(auto tokens, tokens_.parse(in));
        const std::size_t length = tokens.keys.size();
        FRUGAL_TRY_ASSIGN(auto raw, token_store<IndexScalar>::load(in, index_dim_, length));
        FRUGAL_TRY_ASSIGN(auto blocks, token_store<IndexScalar>::load(in, index_dim_, ratio_.complete_blocks(length)));
        FRUGAL_TRY(tokens_.restore(s, tokens));
        at(s) = {std::move(raw), std::move(blocks)};
        return {};
    }

private:
    struct index_keys {
        token_store<IndexScalar> raw, blocks;
    };
    static constexpr std::uint32_t save_tag = 0x43415351;  // "QSAC"

    qsa_cache(basic_kv_cache<Scalar> tokens, std::size_t index_dim, std::size_t ratio)
        : tokens_(std::move(tokens)), index_dim_(index_dim), ratio_(ratio), index_(tokens_.sequences(), fresh()) {}

    [[nodiscard]] index_keys fresh() const {
        return {token_store<IndexScalar>(index_dim_), token_store<IndexScalar>(index_dim_)};
    }
    [[nodiscard]] index_keys& at(sequence_id s) noexcept { return index_[static_cast<std::size_t>(s)]; }
    [[nodiscard]] const index_keys& at(sequence_id s) const noexcept { return index_[static_cast<std::size_t>(s)]; }

    basic_kv_cache<Scalar> tokens_;
    std::size_t index_dim_;
    reuse::block_ratio ratio_;
    std::vector<index_keys> index_;
};

static_assert(sequence_state<qsa_cache<>> && sequence_state<qsa_cache<half, float>> && sequence_state<qsa_cache<half, half>>,
              "frugal: the QSA cache must offer every operation of a sequence state");

}  // namespace attention

FRUGAL_NAMESPACE_END
