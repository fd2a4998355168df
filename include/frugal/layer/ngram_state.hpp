#pragma once
/// What an n-gram embedding keeps of every sequence: the last tokens, and the inputs of its convolution.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/ngram/hash.hpp"
#include "frugal/tensor/buffer.hpp"
#include "frugal/tensor/bytes.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// Sizes of an n-gram embedding. The convolution's dilation is the n-gram size.
struct FRUGAL_FLAGGED ngram_dims {
    std::size_t hidden = 0, streams = 0;
    std::size_t row = 0;  ///< length of a table row; a token's embedding has hash.heads() * row values
    std::size_t conv_kernel = 0;
    float eps = 1e-6f;
    ops::ngram_hash hash;

    [[nodiscard]] std::size_t channels() const noexcept { return streams * hidden; }
    [[nodiscard]] std::size_t embedding() const noexcept { return hash.heads() * row; }
    /// Rows of history that the convolution looks back on.
    [[nodiscard]] std::size_t conv_history() const noexcept { return conv_kernel == 0 ? 0 : (conv_kernel - 1) * hash.ngram_size; }
};

/// One sequence as a value. It does not hold the way back: after a restore, only tokens that came later can be rolled back.
struct FRUGAL_FLAGGED ngram_snapshot {
    std::size_t length = 0;
    std::vector<std::int32_t> tokens;  ///< [context], oldest first
    std::vector<float> history;        ///< [conv history][channels], oldest first
};

/// Models attention::sequence_state. Tokens and rows lie in rings that are longer than needed by the number of tokens that can
/// be rolled back, so a rollback costs nothing and copies nothing.
class FRUGAL_FLAGGED ngram_state {
public:
    using snapshot_type = ngram_snapshot;

    ngram_state() = default;

    /// `checkpoints`: how many of the newest tokens of a sequence can be rolled back. Errors: invalid_argument, out_of_memory.
    [[nodiscard]] static result<ngram_state> create(const ngram_dims& dims, std::size_t sequences, std::size_t checkpoints) {
        constexpr std::size_t limit = std::size_t{1} << 31;
        if (dims.hash.ngram_size < 2 || dims.conv_kernel == 0 || dims.channels() == 0)
            return fail(errc::invalid_argument, "an n-gram state of ", dims.hash.ngram_size, "-grams, ", dims.channels(),
                        " channels and a kernel of ", dims.conv_kernel);
        if (checkpoints > limit || dims.conv_history() > limit || dims.channels() > limit || sequences > limit)
            return fail(errc::out_of_memory, "an n-gram state of ", sequences, " sequences with ", checkpoints, " checkpoints");
        ngram_state out;
        out.channels_ = dims.channels();
        out.context_ = dims.hash.context();
        out.history_ = dims.conv_history();
        out.checkpoints_ = checkpoints;
        out.eos_ = static_cast<std::int32_t>(dims.hash.eos);
        out.vocabulary_ = dims.hash.vocabulary;
        const std::size_t rows = sequences * out.row_slots();  // each factor is at most 2^32
        if (rows != 0 && out.channels_ > (std::size_t{1} << 60) / rows)
            return fail(errc::out_of_memory, "an n-gram state of ", sequences, " sequences with ", checkpoints, " checkpoints");
        FRUGAL_TRY_ASSIGN(out.rows_, buffer<float>::allocate(rows * out.channels_));
        FRUGAL_TRY_ASSIGN(out.tokens_, buffer<std::int32_t>::allocate(sequences * out.token_slots()));
        std::fill(out.tokens_.span().begin(), out.tokens_.span().end(), out.eos_);
        out.sequences_.resize(sequences);
        return out;
    }

    [[nodiscard]] std::size_t sequences() const noexcept { return sequences_.size(); }
    [[nodiscard]] std::size_t channels() const noexcept { return channels_; }
    /// Tokens a hash looks back on; rows the convolution looks back on.
    [[nodiscard]] std::size_t context() const noexcept { return context_; }
    [[nodiscard]] std::size_t conv_history() const noexcept { return history_; }
    [[nodiscard]] std::size_t length(attention::sequence_id s) const noexcept { return has(s) ? sequences_[index(s)].length : 0; }

    /// The state never grows. Errors: invalid_argument (no such sequence).
    [[nodiscard]] status reserve(attention::sequence_id s, std::size_t) { return check(s); }

    [[nodiscard]] result<ngram_snapshot> snapshot(attention::sequence_id s) const {
        FRUGAL_TRY(check(s));
        ngram_snapshot out{length(s), std::vector<std::int32_t>(context_), std::vector<float>(history_ * channels_)};
        read_tokens(s, out.tokens);
        read_history(s, {out.history.data(), history_, channels_});
        return out;
    }
    /// Errors: invalid_argument, shape_mismatch (a snapshot of other sizes).
    [[nodiscard]] status restore(attention::sequence_id s, const ngram_snapshot& from) {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY(check_fits(from));
        clear(s);
        sequence& q = sequences_[index(s)];
        q.length = from.length;
        for (std::size_t back = 1; back <= context_; ++back) token(s, q.length, back) = from.tokens[context_ - back];
        for (std::size_t back = 1; back <= history_; ++back)
            std::copy_n(from.history.data() + (history_ - back) * channels_, channels_, row(s, q.length, back));
        return {};
    }

    /// Whether a snapshot could be restored here. Errors: shape_mismatch.
    [[nodiscard]] status check_fits(const ngram_snapshot& from) const {
        if (from.tokens.size() == context_ && from.history.size() == history_ * channels_) return {};
        return fail(errc::shape_mismatch, "snapshot of ", from.tokens.size(), " tokens and ", from.history.size(),
                    " values where ", context_, " and ", history_ * channels_, " belong");
    }

    /// The newest `checkpoints` tokens that came after the last restore or load can go; so can all tokens, which is a clear.
    [[nodiscard]] bool can_rollback(attention::sequence_id s, std::size_t n) const noexcept {
        return has(s) && (n <= sequences_[index(s)].undoable || n == sequences_[index(s)].length);
    }
    [[nodiscard]] status rollback(attention::sequence_id s, std::size_t n) {
        FRUGAL_TRY(check(s));
        if (!can_rollback(s, n))
            return fail(errc::cannot_rollback, "n-gram state of ", length(s), " tokens: ", n, " cannot be rolled back, ",
                        sequences_[index(s)].undoable, " can");
        sequence& q = sequences_[index(s)];
        if (n > q.undoable) {
            clear(s);
            return {};
        }
        q.length -= n;
        q.undoable -= n;
        return {};
    }

    [[nodiscard]] status copy(attention::sequence_id from, attention::sequence_id to) {
        FRUGAL_TRY(check(from));
        FRUGAL_TRY(check(to));
        if (from == to) return {};
        const std::size_t row_count = row_slots() * channels_;
        std::copy_n(rows_.data() + index(from) * row_count, row_count, rows_.data() + index(to) * row_count);
        std::copy_n(tokens_.data() + index(from) * token_slots(), token_slots(), tokens_.data() + index(to) * token_slots());
        sequences_[index(to)] = sequences_[index(from)];
        return {};
    }

    void clear(attention::sequence_id s) noexcept {
        if (!has(s)) return;
        std::fill_n(rows_.data() + index(s) * row_slots() * channels_, row_slots() * channels_, 0.0f);
        std::fill_n(tokens_.data() + index(s) * token_slots(), token_slots(), eos_);
        sequences_[index(s)] = {};
    }

    void save(attention::sequence_id s, byte_writer& writer) const {
        if (!has(s)) return;
        ngram_snapshot now{length(s), std::vector<std::int32_t>(context_), std::vector<float>(history_ * channels_)};
        read_tokens(s, now.tokens);
        read_history(s, {now.history.data(), history_, channels_});
        writer.write(static_cast<std::uint64_t>(now.length));
        writer.write_span(std::span<const std::int64_t>(std::vector<std::int64_t>(now.tokens.begin(), now.tokens.end())));
        writer.write_span(std::span<const float>(now.history));
    }
    [[nodiscard]] status load(attention::sequence_id s, byte_reader& reader) {
        FRUGAL_TRY(check(s));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(reader));
        return restore(s, saved);
    }
    /// Reads a saved sequence without touching the state. Errors: malformed_file (also a token outside the vocabulary, or
    /// anything where no token has been), shape_mismatch (other sizes).
    [[nodiscard]] result<ngram_snapshot> parse(byte_reader& reader) const {
        ngram_snapshot from{0, std::vector<std::int32_t>(context_), std::vector<float>(history_ * channels_)};
        FRUGAL_TRY_ASSIGN(from.length, attention::read_length(reader));
        std::vector<std::int64_t> saved(context_);
        FRUGAL_TRY(reader.read_span(std::span<std::int64_t>(saved)));
        FRUGAL_TRY(reader.read_span(std::span<float>(from.history)));
        for (std::size_t i = 0; i < context_; ++i) {
            if (saved[i] < 0 || saved[i] >= vocabulary_)
                return fail(errc::malformed_file, "saved token ", saved[i], " is not in the vocabulary of ", vocabulary_);
            from.tokens[i] = static_cast<std::int32_t>(saved[i]);
        }
        const std::size_t before = context_ - (std::min)(context_, from.length);  // places before the first token
        const std::size_t rows_before = history_ - (std::min)(history_, from.length);
        if (std::any_of(from.tokens.begin(), from.tokens.begin() + static_cast<std::ptrdiff_t>(before),
                        [&](std::int32_t t) { return t != eos_; }) ||
            std::any_of(from.history.begin(), from.history.begin() + static_cast<std::ptrdiff_t>(rows_before * channels_),
                        [](float value) { return value != 0; }))
            return fail(errc::malformed_file, "saved n-gram state of ", from.length, " tokens holds more of them");
        return from;
    }

    // For the layer's forward pass; preconditions: the sequence exists, sizes fit.

    /// The context() newest tokens, oldest first; EOS where there are none.
    void read_tokens(attention::sequence_id s, std::span<std::int32_t> out) const noexcept {
        for (std::size_t back = 1; back <= context_; ++back) out[context_ - back] = token(s, length(s), back);
    }
    /// The conv_history() newest rows, oldest first; zeros where there are none. out: [conv_history(), channels()].
    void read_history(attention::sequence_id s, matrix_view<float> out) const noexcept {
        for (std::size_t back = 1; back <= history_; ++back)
            std::copy_n(row(s, length(s), back), channels_, out.row(history_ - back));
    }
    /// Adds tokens with their rows of convolution input.
    void append(attention::sequence_id s, std::span<const std::int32_t> tokens, matrix_view<const float> rows) noexcept {
        sequence& q = sequences_[index(s)];
        for (std::size_t t = 0; t < tokens.size(); ++t) {
            ++q.length;
            token(s, q.length, 1) = tokens[t];
            if (row_slots() != 0) std::copy_n(rows.row(t), channels_, row(s, q.length, 1));
        }
        q.undoable = (std::min)(checkpoints_, q.undoable + tokens.size());
    }

    /// Runs the convolution of each sequence over its rows: `f(first, count, history) -> status`; then the sequences take the
    /// step's tokens and `rows`, what was convolved. history: scratch [conv history, channels]. Rows of padding become 0 in y,
    /// which f writes. The states change only when nothing can fail any more.
    template <class Pass, class F>
    [[nodiscard]] status convolve(Pass& pass, const attention::step& of, matrix_view<const float> rows, matrix_view<float> y,
                                  F&& f) {
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto history, pass.matrix(history_, channels_));
        for (const attention::segment& s : of.tokens.segments) {
            if (s.sequence == attention::sequence_id::padding) continue;
            read_history(s.sequence, history);
            FRUGAL_TRY(f(s.first, s.count, history));
        }
        for (const attention::segment& s : of.tokens.segments)
            if (s.sequence != attention::sequence_id::padding)
                append(s.sequence, of.ids.subspan(s.first, s.count), rows.rows_range(s.first, s.count));
        return attention::clear_padding(of, y);
    }

private:
    struct sequence {
        std::size_t length = 0, undoable = 0;
    };

    [[nodiscard]] static std::size_t index(attention::sequence_id s) noexcept { return static_cast<std::size_t>(s); }
    [[nodiscard]] bool has(attention::sequence_id s) const noexcept {
        return static_cast<std::int32_t>(s) >= 0 && index(s) < sequences_.size();
    }
    [[nodiscard]] status check(attention::sequence_id s) const {
        if (has(s)) return {};
        return fail(errc::invalid_argument, "sequence ", static_cast<std::int32_t>(s), " is not one of ", sequences());
    }
    [[nodiscard]] std::size_t row_slots() const noexcept { return history_ == 0 ? 0 : history_ + checkpoints_; }
    [[nodiscard]] std::size_t token_slots() const noexcept { return context_ + checkpoints_; }

    // The entry of the token at position length - back; positions before the start hold zeros and EOS.
    [[nodiscard]] static std::size_t slot(std::size_t length, std::size_t back, std::size_t count) noexcept {
        return (length + count - back) % count;
    }
    [[nodiscard]] const std::int32_t& token(attention::sequence_id s, std::size_t length, std::size_t back) const noexcept {
        return tokens_[index(s) * token_slots() + slot(length, back, token_slots())];
    }
    [[nodiscard]] std::int32_t& token(attention::sequence_id s, std::size_t length, std::size_t back) noexcept {
        return tokens_[index(s) * token_slots() + slot(length, back, token_slots())];
    }
    [[nodiscard]] const float* row(attention::sequence_id s, std::size_t length, std::size_t back) const noexcept {
        return rows_.data() + (index(s) * row_slots() + slot(length, back, row_slots())) * channels_;
    }
    [[nodiscard]] float* row(attention::sequence_id s, std::size_t length, std::size_t back) noexcept {
        return rows_.data() + (index(s) * row_slots() + slot(length, back, row_slots())) * channels_;
    }

    std::size_t channels_ = 0, context_ = 0, history_ = 0, checkpoints_ = 0;
    std::int32_t eos_ = 0;
    std::int64_t vocabulary_ = 0;
    buffer<float> rows_;
    buffer<std::int32_t> tokens_;
    std::vector<sequence> sequences_;
};

static_assert(attention::parsing_state<ngram_state>);

}  // namespace layer

FRUGAL_NAMESPACE_END
