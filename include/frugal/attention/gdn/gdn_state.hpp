#pragma once
/// What Gated DeltaNet layers keep of every sequence: the recurrent state and the history of the convolution.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/gated_delta_rule/policies.hpp"
#include "frugal/tensor/buffer.hpp"
#include "frugal/tensor/bytes.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// Sizes of a Gated DeltaNet layer.
struct FRUGAL_FLAGGED gdn_dims {
    std::size_t hidden = 0;
    std::size_t key_heads = 0, value_heads = 0;  ///< value_heads is a multiple of key_heads
    std::size_t key_dim = 0, value_dim = 0;      ///< features of a head
    std::size_t conv_kernel = 0;                 ///< taps, the current token's included
    float eps = 1e-6f;                           ///< of the gated norm
    static constexpr float l2_eps = 1e-6f;       ///< of the l2 norms of q and k

    /// Width of all value heads.
    [[nodiscard]] constexpr std::size_t values() const noexcept { return value_heads * value_dim; }
    /// Channels of the convolution: all queries, all keys, all values.
    [[nodiscard]] constexpr std::size_t channels() const noexcept { return 2 * key_heads * key_dim + values(); }
    [[nodiscard]] constexpr ops::delta_rule_dims rule() const noexcept { return {key_heads, value_heads, key_dim, value_dim}; }
};

/// The sizes that a state depends on.
struct FRUGAL_FLAGGED gdn_state_shape {
    ops::delta_rule_dims rule;
    std::size_t channels = 0, history = 0;  ///< the conv history is [history][channels], oldest row first

    [[nodiscard]] constexpr std::size_t floats() const noexcept { return rule.state_size() + history * channels; }
    friend bool operator==(const gdn_state_shape&, const gdn_state_shape&) = default;
};

/// A sequence at one moment, as a value: copies share the memory, which nothing changes any more.
template <ops::state_layout_policy Layout>
class FRUGAL_FLAGGED gdn_snapshot {
public:
    using layout = Layout;

    gdn_snapshot() = default;
    gdn_snapshot(const gdn_state_shape& shape, std::size_t length, buffer<float> values)
        : shape_(shape), length_(length), values_(std::make_shared<const buffer<float>>(std::move(values))) {}

    [[nodiscard]] const gdn_state_shape& shape() const noexcept { return shape_; }
    /// Tokens that the sequence held.
    [[nodiscard]] std::size_t length() const noexcept { return length_; }
    /// The recurrent state in `Layout`, then the conv history.
    [[nodiscard]] std::span<const float> values() const noexcept { return values_ ? values_->span() : std::span<const float>(); }

    /// The same moment in another layout. Errors: out_of_memory.
    template <ops::state_layout_policy To>
    [[nodiscard]] result<gdn_snapshot<To>> converted() const {
        FRUGAL_TRY_ASSIGN(auto turned, buffer<float>::allocate(values().size()));
        const std::size_t size = (std::min)(shape_.rule.state_size(), values().size());
        FRUGAL_TRY(ops::convert_state<Layout, To>(shape_.rule, values().first(size), turned.span().first(size)));
        std::copy(values().begin() + static_cast<std::ptrdiff_t>(size), values().end(),
                  turned.span().begin() + static_cast<std::ptrdiff_t>(size));
        return gdn_snapshot<To>(shape_, length_, std::move(turned));
    }

private:
    gdn_state_shape shape_;
    std::size_t length_ = 0;
    std::shared_ptr<const buffer<float>> values_;
};

/// The states of one layer for several sequences, all in f32. Models attention::sequence_state.
///
/// A recurrent state cannot forget a token that is not its newest. So there is no operation that removes a range from the
/// middle of a sequence; dropping all of it is `clear`, dropping the newest n tokens is `rollback`, which needs checkpoints:
/// a state made with `checkpoints` = c keeps, for each of the last c tokens, what it was before that token (recurrent state and
/// conv history), c times the memory of a sequence.
///
/// Checkpoints belong to a sequence's past in this state: `copy` takes them along; `restore`, `load` and `clear` drop them, so
/// that only tokens which come later can be rolled back. A snapshot or a saved state does not hold them, and is the sequence
/// without whatever was rolled back before.
///
/// The order of value heads is the weights' own: a state made with a file of one order means nothing to the other.
template <ops::state_layout_policy Layout = ops::state_layout::key_major>
class FRUGAL_FLAGGED basic_gdn_state {
public:
    using layout = Layout;
    using snapshot_type = gdn_snapshot<Layout>;

    basic_gdn_state() = default;

    /// All sequences empty. `checkpoints`: how many of a sequence's newest tokens can be rolled back.
    /// Errors: invalid_argument (a size of 0, value heads not a multiple of key heads), out_of_memory.
    [[nodiscard]] static result<basic_gdn_state> create(const gdn_dims& dims, std::size_t sequences, std::size_t checkpoints) {
        if (dims.key_heads == 0 || dims.value_heads == 0 || dims.key_dim == 0 || dims.value_dim == 0 || dims.conv_kernel == 0 ||
            dims.value_heads % dims.key_heads != 0)
            return fail(errc::invalid_argument, "a Gated DeltaNet state of ", dims.key_heads, " key heads of ", dims.key_dim,
                        ", ", dims.value_heads, " value heads of ", dims.value_dim, " and a kernel of ", dims.conv_kernel);
        basic_gdn_state out;
        // Sizes come from files: every product and sum sticks at the largest number, which no allocation grants.
        const std::size_t keys = product(dims.key_heads, dims.key_dim), values = product(dims.value_heads, dims.value_dim);
        const std::size_t channels = sum(sum(keys, keys), values);
        const std::size_t entry = sum(product(values, dims.key_dim), product(dims.conv_kernel - 1, channels));
        const std::size_t padded = sum(entry, 15) / 16 * 16;
        const std::size_t total = product(product(padded, sum(checkpoints, 1)), sequences);
        if (total > most / sizeof(float) / 2)
            return fail(errc::out_of_memory, "Gated DeltaNet states of ", sequences, " sequences with ", checkpoints,
                        " checkpoints are beyond the address space");
        out.shape_ = {dims.rule(), channels, dims.conv_kernel - 1};
        out.checkpoints_ = checkpoints;
        out.entry_ = padded;
        FRUGAL_TRY_ASSIGN(out.memory_, buffer<float>::allocate(total));
        out.sequences_.resize(sequences);
        return out;
    }

    [[nodiscard]] const gdn_state_shape& shape() const noexcept { return shape_; }
    [[nodiscard]] std::size_t sequences() const noexcept { return sequences_.size(); }
    [[nodiscard]] std::size_t checkpoints() const noexcept { return checkpoints_; }
    /// Bytes held, the same from creation on.
    [[nodiscard]] std::size_t bytes() const noexcept { return memory_.size() * sizeof(float); }
    /// Tokens of a sequence; 0 for one that does not exist.
    [[nodiscard]] std::size_t length(sequence_id s) const noexcept { return exists(s) ? info(s).length : 0; }

    /// There is always room: a recurrent state does not grow. Errors: invalid_argument.
    [[nodiscard]] status reserve(sequence_id s, std::size_t /*tokens*/) { return check_sequence(s, sequences()); }

    /// Errors: invalid_argument, out_of_memory.
    [[nodiscard]] result<snapshot_type> snapshot(sequence_id s) const {
        FRUGAL_TRY(check_sequence(s, sequences()));
        FRUGAL_TRY_ASSIGN(auto values, buffer<float>::allocate(shape_.floats()));
        std::memcpy(values.data(), entry(s), values.size() * sizeof(float));
        return snapshot_type(shape_, info(s).length, std::move(values));
    }
    /// Errors: invalid_argument, shape_mismatch (a snapshot of other sizes); nothing changed.
    [[nodiscard]] status restore(sequence_id s, const snapshot_type& snapshot) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        FRUGAL_TRY(check_fits(snapshot));
        std::memcpy(entry(s), snapshot.values().data(), snapshot.values().size_bytes());
        info(s) = {snapshot.length(), 0};
        return {};
    }

    /// Whether a snapshot could be restored here. Errors: shape_mismatch.
    [[nodiscard]] status check_fits(const snapshot_type& snapshot) const {
        if (snapshot.shape() == shape_ && snapshot.values().size() == shape_.floats()) return {};
        return fail(errc::shape_mismatch, "snapshot of ", describe(snapshot.shape()), " for a state of ", describe(shape_));
    }

    /// Whether the newest n tokens can be undone; n = 0 always can.
    [[nodiscard]] bool can_rollback(sequence_id s, std::size_t n) const noexcept { return exists(s) && n <= info(s).undoable; }
    /// Errors: invalid_argument, cannot_rollback; nothing changed.
    [[nodiscard]] status rollback(sequence_id s, std::size_t n) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        sequence_info& one = info(s);
        if (n > one.undoable)
            return fail(errc::cannot_rollback, "cannot undo ", n, " tokens of a recurrent state of ", one.length,
                        ": the way back is ", one.undoable, " tokens (", checkpoints_, " checkpoints)");
        if (n == 0) return {};
        std::memcpy(entry(s), checkpoint(s, one.length - n), shape_.floats() * sizeof(float));
        one.length -= n;
        one.undoable -= n;
        return {};
    }

    /// `to` becomes equal to `from`, checkpoints included. Errors: invalid_argument.
    [[nodiscard]] status copy(sequence_id from, sequence_id to) {
        FRUGAL_TRY(check_sequence(from, sequences()));
        FRUGAL_TRY(check_sequence(to, sequences()));
        if (from == to) return {};
        std::memcpy(entry(to), entry(from), shape_.floats() * sizeof(float));
        const sequence_info one = info(from);
        for (std::size_t n = 1; n <= one.undoable; ++n)
            std::memcpy(checkpoint(to, one.length - n), checkpoint(from, one.length - n), shape_.floats() * sizeof(float));
        info(to) = one;
        return {};
    }
    /// Empty again, whatever it held: zeros are stored, so that a NaN does not survive. Nothing happens if `s` does not exist.
    void clear(sequence_id s) noexcept {
        if (!exists(s)) return;
        std::memset(entry(s), 0, shape_.floats() * sizeof(float));
        info(s) = {};
    }

    /// Header (layout, scalar, sizes, length), recurrent state, conv history. Nothing is written if `s` does not exist.
    void save(sequence_id s, byte_writer& out) const {
        if (!exists(s)) return;
        out.write(magic);
        out.write(Layout::code);
        out.write(scalar_f32);
        for (const std::size_t value : numbers(shape_)) out.write(static_cast<std::uint64_t>(value));
        out.write(static_cast<std::uint64_t>(info(s).length));
        out.write_span(std::span<const float>(entry(s), shape_.floats()));
    }
    /// Errors: invalid_argument, malformed_file, shape_mismatch (other layout, scalar or sizes), out_of_memory; nothing changed.
    [[nodiscard]] status load(sequence_id s, byte_reader& in) {
        FRUGAL_TRY(check_sequence(s, sequences()));
        FRUGAL_TRY_ASSIGN(const auto saved, parse(in));
        return restore(s, saved);
    }
    /// Reads a saved sequence without touching the state. Errors: as load().
    [[nodiscard]] result<snapshot_type> parse(byte_reader& in) const {
        std::uint64_t found = 0;
        std::uint32_t layout_code = 0, scalar = 0;
        FRUGAL_TRY(in.read(found));
        if (found != magic) return fail(errc::malformed_file, "these bytes are not a saved Gated DeltaNet state");
        FRUGAL_TRY(in.read(layout_code));
        FRUGAL_TRY(in.read(scalar));
        if (layout_code != Layout::code)
            return fail(errc::shape_mismatch, "saved state has layout ", name_of_layout(layout_code), ", this one is ",
                        Layout::name, "; load it into its own layout and convert the snapshot");
        if (scalar != scalar_f32)
            return fail(errc::shape_mismatch, "saved state has scalars of kind ", scalar, ", this one is f32");
        std::uint64_t saved[sizes] = {};
        for (std::uint64_t& value : saved) FRUGAL_TRY(in.read(value));
        const auto own = numbers(shape_);
        for (std::size_t i = 0; i < sizes; ++i)
            if (saved[i] != own[i])
                return fail(errc::shape_mismatch, "saved state of ", saved[0], " key heads of ", saved[2], ", ", saved[1],
                            " value heads of ", saved[3], ", ", saved[4], " channels, ", saved[5],
                            " rows of history for a state of ", describe(shape_));
        FRUGAL_TRY_ASSIGN(const std::size_t length, read_length(in));
        FRUGAL_TRY_ASSIGN(auto values, buffer<float>::allocate(shape_.floats()));
        FRUGAL_TRY(in.read_span(values.span()));
        return snapshot_type(shape_, length, std::move(values));
    }

    /// The recurrent state of a sequence that exists, in `Layout`: [value heads][key dim][value dim] or its transpose.
    [[nodiscard]] std::span<float> recurrent(sequence_id s) noexcept { return {entry(s), shape_.rule.state_size()}; }
    [[nodiscard]] std::span<const float> recurrent(sequence_id s) const noexcept { return {entry(s), shape_.rule.state_size()}; }
    /// The newest conv_kernel - 1 inputs of its convolution, oldest first: [history, channels].
    [[nodiscard]] matrix_view<float> conv_history(sequence_id s) noexcept {
        return {entry(s) + shape_.rule.state_size(), shape_.history, shape_.channels};
    }
    [[nodiscard]] matrix_view<const float> conv_history(sequence_id s) const noexcept {
        return {entry(s) + shape_.rule.state_size(), shape_.history, shape_.channels};
    }

    /// For a forward pass of the tokens whose conv inputs are `x`: tokens for which a checkpoint is kept, the newest ones.
    [[nodiscard]] std::size_t kept(std::size_t tokens) const noexcept { return (std::min)(tokens, checkpoints_); }
    /// Before the convolution: keeps the conv history as it is before each of the newest kept(x.rows()) tokens.
    void keep_conv_history(sequence_id s, matrix_view<const float> x) noexcept {
        for (std::size_t t = x.rows() - kept(x.rows()); t < x.rows(); ++t) {
            float* to = checkpoint(s, info(s).length + t) + shape_.rule.state_size();
            for (std::size_t row = 0; row < shape_.history; ++row) {
                const std::size_t at = t + row;  // in [history, x]
                const float* from = at < shape_.history ? conv_history(s).row(at) : x.row(at - shape_.history);
                std::memcpy(to + row * shape_.channels, from, shape_.channels * sizeof(float));
            }
        }
    }
    /// Before token number length(s) + t: keeps the recurrent state.
    void keep_recurrent(sequence_id s, std::size_t t) noexcept {
        std::memcpy(checkpoint(s, info(s).length + t), entry(s), shape_.rule.state_size() * sizeof(float));
    }
    /// After all tokens.
    void advance(sequence_id s, std::size_t tokens) noexcept {
        sequence_info& one = info(s);
        one.length += tokens;
        one.undoable = kept(sum(one.undoable, tokens));
    }

    // What a layer does with its sequences, in the order of a pass; each calls back with parts of the rows.

    /// Runs the convolution of each sequence over its rows of x: `f(rows of x, history, rows of y) -> status`. Rows of padding
    /// become 0 in y.
    template <class Pass, class Step, class F>
    [[nodiscard]] status convolve(Pass&, const Step& step, matrix_view<float> x, matrix_view<float> y, F&& f) {
        for (const segment& s : step.tokens.segments) {
            if (s.sequence == sequence_id::padding) continue;
            const auto in = x.rows_range(s.first, s.count);
            keep_conv_history(s.sequence, in);
            FRUGAL_TRY(f(in, conv_history(s.sequence), y.rows_range(s.first, s.count)));
        }
        return clear_padding(step, y);
    }
    /// Runs the recurrence of each sequence over its rows: `f(first, count, state) -> status`, tokens that can be taken back one
    /// by one. After this the sequences have advanced. Rows of padding become 0 in y, which f writes.
    template <class Pass, class Step, class F>
    [[nodiscard]] status recur(Pass&, const Step& step, matrix_view<float> y, F&& f) {
        for (const segment& s : step.tokens.segments) {
            if (s.sequence == sequence_id::padding || s.count == 0) continue;
            const std::size_t others = s.count - kept(s.count);
            FRUGAL_TRY(f(s.first, others, recurrent(s.sequence)));
            for (std::size_t t = others; t < s.count; ++t) {
                keep_recurrent(s.sequence, t);
                FRUGAL_TRY(f(s.first + t, 1, recurrent(s.sequence)));
            }
            advance(s.sequence, s.count);
        }
        return clear_padding(step, y);
    }

private:
    static constexpr std::uint64_t magic = 0x31'65'74'61'74'73'64'67;  // "gdstate1"
    static constexpr std::uint32_t scalar_f32 = 0;                     // the number of f32 among GGUF types
    static constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)();
    static constexpr std::size_t sizes = 6;

    struct sequence_info {
        std::size_t length = 0;
        std::size_t undoable = 0;  ///< newest tokens for which the ring holds what was before them
    };
    struct number_list {
        std::size_t values[sizes];
        [[nodiscard]] std::size_t operator[](std::size_t i) const noexcept { return values[i]; }
        [[nodiscard]] const std::size_t* begin() const noexcept { return values; }
        [[nodiscard]] const std::size_t* end() const noexcept { return values + sizes; }
    };

    [[nodiscard]] static std::size_t product(std::size_t a, std::size_t b) noexcept {
        return b != 0 && a > most / b ? most : a * b;
    }
    [[nodiscard]] static std::size_t sum(std::size_t a, std::size_t b) noexcept { return a > most - b ? most : a + b; }
    [[nodiscard]] static number_list numbers(const gdn_state_shape& shape) noexcept {
        return {{shape.rule.key_heads, shape.rule.value_heads, shape.rule.key_dim, shape.rule.value_dim, shape.channels,
                 shape.history}};
    }
    [[nodiscard]] static std::string describe(const gdn_state_shape& shape) {
        return concat(shape.rule.key_heads, " key heads of ", shape.rule.key_dim, ", ", shape.rule.value_heads,
                      " value heads of ", shape.rule.value_dim, ", ", shape.channels, " channels, ", shape.history,
                      " rows of history");
    }
    [[nodiscard]] static std::string_view name_of_layout(std::uint32_t code) noexcept {
        if (code == ops::state_layout::key_major::code) return ops::state_layout::key_major::name;
        if (code == ops::state_layout::value_major::code) return ops::state_layout::value_major::name;
        return "unknown";
    }

    [[nodiscard]] static std::size_t index(sequence_id s) noexcept { return static_cast<std::size_t>(s); }
    [[nodiscard]] bool exists(sequence_id s) const noexcept { return is_one_of(s, sequences_.size()); }
    [[nodiscard]] sequence_info& info(sequence_id s) noexcept { return sequences_[index(s)]; }
    [[nodiscard]] const sequence_info& info(sequence_id s) const noexcept { return sequences_[index(s)]; }
    [[nodiscard]] float* entry(sequence_id s) noexcept { return memory_.data() + index(s) * (checkpoints_ + 1) * entry_; }
    [[nodiscard]] const float* entry(sequence_id s) const noexcept {
        return memory_.data() + index(s) * (checkpoints_ + 1) * entry_;
    }
    /// Where the state before token number `position` is kept.
    [[nodiscard]] float* checkpoint(sequence_id s, std::size_t position) noexcept {
        return entry(s) + (1 + position % checkpoints_) * entry_;
    }

    gdn_state_shape shape_;
    std::size_t checkpoints_ = 0;
    std::size_t entry_ = 0;  ///< floats from one entry to the next; a sequence's own comes first, then its ring
    buffer<float> memory_;
    std::vector<sequence_info> sequences_;
};

using gdn_state = basic_gdn_state<>;

static_assert(parsing_state<gdn_state> && parsing_state<basic_gdn_state<ops::state_layout::value_major>>);

}  // namespace attention

FRUGAL_NAMESPACE_END
