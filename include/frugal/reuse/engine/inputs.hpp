#pragma once
/// The QSA inputs of an engine that keeps tokens in cells and wants tensors: those of one ratio for one batch.
///
/// The tensors have the layout of llama.cpp's k_idxs, cell_blk, blk_cells, blk_pos and bias. What they say that a query sees is
/// what it sees by rank; group_by_position has llama.cpp's values and refuses the batches for which these say something else. The
/// ways to share inputs differ in the work: `shared` and `per_layer` fill everything anew for each batch, `memoised` leaves
/// everything where all that it is made from is equal, `incremental` changes the blocks where the cells changed. Engine-wide
/// masks other than causality (sliding windows, ALiBi) are the engine's to add: two masks at one ratio read the same inputs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/reuse/engine/bias.hpp"
#include "frugal/reuse/engine/blocks.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/engine/ubatch.hpp"
#include "frugal/reuse/inputs/change_log.hpp"
#include "frugal/reuse/inputs/shared_inputs.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Memory of the engine that inputs are copied to. Lengths are those of the tensors.
struct FRUGAL_FLAGGED engine_memory {
    std::uint64_t id = 0;     ///< which memory
    std::uint64_t epoch = 0;  ///< take another when it has been moved, or something else may have been written to it
    std::span<std::int64_t> k_idxs;
    std::span<std::int32_t> cell_blk, blk_cells, blk_pos;
    std::span<float> bias;  ///< empty without one
};

/// The inputs of one ratio. Everything that shapes them and is known when compiling is part of the type, so that no two kinds
/// can be taken for each other. Copies are independent: a pipeline has one for each batch in flight.
template <std::size_t Ratio, class Shared = default_shared_inputs, causality Sees = causality::causal, class Bias = bias_none,
          class Grouping = group_by_rank>
class FRUGAL_FLAGGED engine_inputs {
    static_assert(shared_input_policy<Shared>,
                  "frugal: engine_inputs<Ratio, Shared, ...> takes a way to share inputs: write reuse::incremental, "
                  "reuse::memoised, reuse::shared or reuse::per_layer");
    static_assert(engine_bias_policy<Bias>,
                  "frugal: engine_inputs<Ratio, Shared, Sees, Bias> takes a bias: write reuse::bias_none, "
                  "reuse::bias_block<> or reuse::bias_cell<>");
    static_assert(engine_grouping_policy<Grouping>,
                  "frugal: engine_inputs<Ratio, Shared, Sees, Bias, Grouping> groups tokens into blocks: write "
                  "reuse::group_by_rank or reuse::group_by_position");

public:
    static constexpr std::size_t ratio = Ratio;
    using policy = Shared;
    using grouping = Grouping;
    static constexpr bool has_bias = Bias::form != bias_form::none;
    /// Some rows of the bias: values: [count, bias_width()] of tokens first … first + count - 1.
    struct bias_rows {
        std::size_t first = 0, count = 0;
        std::span<const float> values;
    };

    /// For caches shaped like this one and batches of up to `tokens` tokens. Memory is taken here; larger batches take more
    /// when they come. Errors: invalid_argument (no tokens).
    [[nodiscard]] static result<engine_inputs> create(const cells& like, std::size_t tokens) {
        if (tokens == 0) return fail(errc::invalid_argument, "inputs for batches of no tokens");
        return engine_inputs(like, tokens);
    }

    /// Makes the inputs those of a batch whose tokens have been placed. Counts one layout build, update or hit. Errors:
    /// invalid_argument (a batch that breaks its rules or another shape of cache; nothing changed); unsupported (blocks that the
    /// tensors cannot say, see the grouping; by position with a bias_block also a token past the window, which such a bias
    /// cannot hide; nothing is held until the next fill).
    template <counter_policy Counters>
    [[nodiscard]] status fill(const cells& held, const ubatch& tokens, Counters& counters) {
        FRUGAL_TRY(check_batch(held, tokens));
        if (held.size() != size_ || held.streams() != cache_streams_)
            return fail(errc::invalid_argument, "inputs made for ", cache_streams_, " streams of ", size_, " cells, not ",
                        held.streams(), " of ", held.size());
        if constexpr (Shared::kept_by == upkeep::memo)
            if (filled_ && made_from(held, tokens)) {
                counters.add(counter::layout_hits, 1);
                if (slice_first_ != 0) write_slice(held, 0);
                return {};
            }
        filled_ = false;
        slice_first_ = slice_rows_ = 0;
        note(held, tokens);
        FRUGAL_TRY_ASSIGN(const bool updated, make_blocks(held, tokens));
        if constexpr (Bias::form == bias_form::block)
            for (std::size_t row = 0; row < tokens.streams; ++row)
                if (blocks_.outside(row))
                    return fail(errc::unsupported, "a token stands past the window of ", tokens.window,
                                " cells, where a bias for blocks by position cannot hide it; write reuse::group_by_rank");
        if constexpr (has_bias) {
            most_rows_ = std::clamp(Bias::most_bytes / (width() * sizeof(float)), std::size_t{1}, tokens.size());
            if (bias_.size() < most_rows_ * width()) bias_.resize(most_rows_ * width());
            write_slice(held, 0);
        }
        counters.add(updated ? counter::layout_updates : counter::layout_builds, 1);
        content_ = next_content_version();
        filled_ = true;
        return {};
    }

    // The tensors of the latest batch; without one, or after an error that says so, they hold nothing of use.

    /// [tokens]: the cell of each token among all of the cache: stream * cells of a stream + cell.
    [[nodiscard]] std::span<const std::int64_t> k_idxs() const noexcept { return k_idxs_; }
    /// [window, streams], I32. See reuse/engine/blocks.hpp for this and the next two.
    [[nodiscard]] std::span<const std::int32_t> cell_blk() const noexcept { return blocks_.cell_blk(); }
    /// [Ratio * blocks, streams], I32.
    [[nodiscard]] std::span<const std::int32_t> blk_cells() const noexcept { return blocks_.blk_cells(); }
    /// [blocks * streams, 4], I32.
    [[nodiscard]] std::span<const std::int32_t> blk_pos() const noexcept { return blocks_.blk_pos(); }
    /// What each token sees by rank, in place of a bias.
    [[nodiscard]] std::span<const query_view> views() const noexcept {
        static_assert(!has_bias, "frugal: these engine_inputs have a bias; views() belongs to reuse::bias_none");
        return views_;
    }
    /// Values of a row of the bias.
    [[nodiscard]] std::size_t bias_width() const noexcept {
        expect_bias();
        return width();
    }
    /// Pieces that the bias comes in, so that none is larger than the policy allows.
    [[nodiscard]] std::size_t bias_slices() const noexcept {
        expect_bias();
        return most_rows_ == 0 ? 0 : (sequences_.size() + most_rows_ - 1) / most_rows_;
    }
    /// The piece that was made last: after a fill the first.
    [[nodiscard]] bias_rows bias() const noexcept {
        expect_bias();
        return {slice_first_, slice_rows_, std::span(bias_).first(slice_rows_ * bias_width())};
    }
    /// A piece, made now if it is not there. Valid until another is made. Errors: invalid_argument (no such piece, or the cells
    /// have changed since the fill).
    [[nodiscard]] result<bias_rows> bias(const cells& held, std::size_t slice) {
        expect_bias();
        if (!filled_ || slice >= bias_slices())
            return fail(errc::invalid_argument, "no piece ", slice, " of a bias in ", filled_ ? bias_slices() : 0, " pieces");
        if (!same_cells(held))
            return fail(errc::invalid_argument, "the cells have changed since the inputs were filled; fill them again");
        if (slice * most_rows_ != slice_first_) write_slice(held, slice * most_rows_);
        return bias();
    }

    /// Number of what the tensors hold: the same only where nothing was written.
    [[nodiscard]] std::uint64_t content() const noexcept { return content_; }
    /// Copies the tensors to memory of the engine, or leaves it as it is if this content was written there last, in this epoch.
    /// Says whether it wrote. Errors: invalid_argument (nothing filled), shape_mismatch, unsupported (a bias in several pieces).
    [[nodiscard]] result<bool> write_to(const engine_memory& to) {
        if (!filled_) return fail(errc::invalid_argument, "nothing has been filled yet");
        std::span<const float> bias_values;
        if constexpr (has_bias) {
            if (bias_slices() != 1) return fail(errc::unsupported, "a bias in ", bias_slices(), " pieces; copy them one by one");
            bias_values = bias().values;
        }
        if (to.k_idxs.size() != k_idxs().size() || to.cell_blk.size() != cell_blk().size() ||
            to.blk_cells.size() != blk_cells().size() || to.blk_pos.size() != blk_pos().size() ||
            to.bias.size() != bias_values.size())
            return fail(errc::shape_mismatch, "memory of the engine and inputs have different lengths");
        const destination now{to.id, to.epoch, content_, to.k_idxs.data(), to.cell_blk.data()};
        if (now == written_) return false;
        std::copy(k_idxs().begin(), k_idxs().end(), to.k_idxs.begin());
        std::copy(cell_blk().begin(), cell_blk().end(), to.cell_blk.begin());
        std::copy(blk_cells().begin(), blk_cells().end(), to.blk_cells.begin());
        std::copy(blk_pos().begin(), blk_pos().end(), to.blk_pos.begin());
        std::copy(bias_values.begin(), bias_values.end(), to.bias.begin());
        written_ = now;
        return true;
    }

    /// Memory that the inputs take, with all that is needed to make them.
    [[nodiscard]] std::size_t bytes() const noexcept {
        return blocks_.bytes() + k_idxs_.capacity() * sizeof(std::int64_t) + views_.capacity() * sizeof(query_view) +
               bias_.capacity() * sizeof(float) + sequences_.capacity() * sizeof(sequence_id) +
               versions_.capacity() * sizeof(std::uint64_t);
    }

private:
    using blocks_type = engine_blocks<Ratio, Grouping>;
    struct destination {
        std::uint64_t id = 0, epoch = 0, content = 0;
        const void *k_idxs = nullptr, *cell_blk = nullptr;
        friend bool operator==(const destination&, const destination&) = default;
    };

    engine_inputs(const cells& like, std::size_t tokens)
        : size_(like.size()), cache_streams_(like.streams()), blocks_(like.streams(), like.size()) {
        k_idxs_.reserve(tokens);
        views_.reserve(tokens);
        sequences_.reserve(tokens);
        versions_.reserve(like.streams());
        if constexpr (has_bias) {
            const std::size_t row = Bias::form == bias_form::cell ? size_ : blocks_type::blocks_in(size_);
            bias_.resize(row * std::clamp(Bias::most_bytes / (row * sizeof(float)), std::size_t{1}, tokens));
        }
    }

    static constexpr void expect_bias() noexcept {
        static_assert(has_bias,
                      "frugal: these engine_inputs have no bias; write reuse::bias_block<> or reuse::bias_cell<> for one");
    }
    [[nodiscard]] std::size_t width() const noexcept { return reuse::bias_width<Bias::form>(blocks_); }
    [[nodiscard]] bool same_cells(const cells& held) const noexcept {
        const std::size_t each = sequences_.size() / streams_;
        for (std::size_t row = 0; row < streams_; ++row)
            if (held.version(held.stream_of(sequences_[row * each])) != versions_[row]) return false;
        return true;
    }
    /// Whether everything that the tensors are made from is what it was: all of it, in full. The versions stand for the cells of
    /// each stream, positions included, and for the cache that they are of; which streams, the sequences say.
    [[nodiscard]] bool made_from(const cells& held, const ubatch& tokens) const noexcept {
        if (tokens.streams != streams_ || tokens.window != blocks_.window() || tokens.spatial() != spatial_ ||
            tokens.size() != sequences_.size() || !std::equal(sequences_.begin(), sequences_.end(), tokens.sequences.begin()) ||
            !same_cells(held))
            return false;
        for (std::size_t i = 0; i < tokens.size(); ++i)
            if (k_idxs_[i] != cell_number(held, tokens, i)) return false;
        return true;
    }
    [[nodiscard]] std::int64_t cell_number(const cells& held, const ubatch& tokens, std::size_t i) const noexcept {
        return static_cast<std::int64_t>(static_cast<std::size_t>(held.stream_of(tokens.sequences[i])) * size_ +
                                         tokens.cells[i].value);
    }
    /// Takes over the batch, and what depends on its tokens one by one.
    void note(const cells& held, const ubatch& tokens) {
        sequences_.assign(tokens.sequences.begin(), tokens.sequences.end());
        spatial_ = tokens.spatial();
        k_idxs_.resize(tokens.size());
        views_.resize(tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            k_idxs_[i] = cell_number(held, tokens, i);
            views_[i] = view_of<Ratio, Sees>(held, tokens.sequences[i], tokens.cells[i]);
        }
        streams_ = tokens.streams;
        versions_.resize(tokens.streams);
        for (std::size_t row = 0; row < tokens.streams; ++row) versions_[row] = held.version(stream_of_row(held, tokens, row));
    }
    /// Makes the blocks those of the batch. Says whether changes were enough for all of them. Errors: see fill.
    [[nodiscard]] result<bool> make_blocks(const cells& held, const ubatch& tokens) {
        constexpr bool keeps = Shared::kept_by == upkeep::increment;
        bool updated = keeps;
        const bool reshaped = tokens.streams != blocks_.streams() || (tokens.window != blocks_.window() && tokens.streams != 1);
        if (!keeps || reshaped) blocks_.reshape(tokens.streams, tokens.window);
        for (std::size_t row = 0; row < tokens.streams; ++row) {
            const stream_id stream = stream_of_row(held, tokens, row);
            if constexpr (keeps)
                if (blocks_.update(held, row, stream, tokens.spatial(), tokens.window)) continue;
            updated = false;
            if (tokens.streams == 1) blocks_.reshape(1, tokens.window);
            FRUGAL_TRY(blocks_.fill(held, row, tokens));
            if constexpr (keeps) blocks_.keep(held, row, stream);
        }
        return updated;
    }
    void write_slice(const cells& held, std::size_t first) noexcept {
        slice_first_ = first;
        slice_rows_ = (std::min)(most_rows_, sequences_.size() - first);
        write_bias<Bias::form>(held, blocks_, sequences_, views_, first, std::span(bias_).first(slice_rows_ * width()));
    }

    std::size_t size_, cache_streams_;
    blocks_type blocks_;
    std::vector<std::int64_t> k_idxs_;
    std::vector<query_view> views_;
    std::vector<float> bias_;
    std::size_t most_rows_ = 0, slice_first_ = 0, slice_rows_ = 0;
    // What the tensors were made from.
    bool filled_ = false;
    std::size_t streams_ = 0;
    bool spatial_ = false;
    std::vector<sequence_id> sequences_;
    std::vector<std::uint64_t> versions_;
    std::uint64_t content_ = 0;
    destination written_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
