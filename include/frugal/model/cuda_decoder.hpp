#pragma once
/// Whole steps of a model on a GPU: activations stay there from the embedding to the logits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "frugal/attention/cache_scalar.hpp"
#include "frugal/attention/recurrent_cuda.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cuda/memory.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/device/cuda/room.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/convention.hpp"
#include "frugal/model/cuda_decoder_buffers.hpp"
#include "frugal/model/cuda_decoder_layers.hpp"
#include "frugal/model/cuda_policies.hpp"
#include "frugal/model/cuda_sequence_bytes.hpp"
#include "frugal/model/fingerprint.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/model/weights.hpp"
#include "frugal/ops/attention/step_cuda.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"
#include "frugal/ops/embedding/image_rows_cuda.hpp"
#include "frugal/ops/norm/norm_cuda.hpp"
#include "frugal/ops/rope/rope_cuda.hpp"
#include "frugal/ops/sampling/sampling.hpp"
#include "frugal/ops/sampling/sampling_cuda.hpp"
#include "frugal/policies.hpp"
#include "frugal/tensor/bytes.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// One sequence of a model of `Spec` on a GPU, from the weights that model::transformer takes. Weights, states and buffers are
/// taken when it is created, and nothing after (but what device::prefill::cublas takes for itself). A token goes up as 16 bytes
/// (ops::cuda::step_token), its logits or the chosen token come down; between them nothing waits and nothing comes back.
/// Move-only.
///
/// The step of a single token is a recorded graph. How many tokens come before it is read from device memory; only the grid of
/// attention is bounded by a number that the recording fixes. So the graph is recorded when this is created, and again each
/// time the sequence outgrows a bound that doubles (options.recorded_tokens).
///
/// The bits of a token's logits do not depend on how tokens are split into calls, where products do not round
/// (device::prefill::exact). Only the newest call can fail in the middle; afterwards nothing but clear() or load() helps.
///
/// rollback(), save() and load() are those of model::combined_state for the one sequence, and what comes after them has the bits
/// of a sequence that was never otherwise. Recorded steps stay as they are. There are no copies and drafts of a sequence, and
/// the bytes of a saved one are not those of the host's states.
template <specification Spec, class Convention = convention::gguf, class Policies = policies<device::cuda<>>>
class FRUGAL_FLAGGED cuda_decoder {
    static_assert(sizeof(cuda_policies<Policies>) > 0);

public:
    using spec = Spec;
    using device_type = typename Policies::device;
    using formats = typename Policies::formats;
    using norm_weight = typename Convention::norm_weight;

    /// Uploads all weights, and runs one token whose result is thrown away, so that every kernel has been loaded before it is
    /// recorded. Errors: those of validate(); shape_mismatch, unsupported_format, unsupported (see attention::cuda_gdn),
    /// out_of_memory, device_failed, device_lost. Nothing stays allocated then.
    [[nodiscard]] static result<cuda_decoder> create(device_type& dev, config sizes, const weights<Spec>& bound,
                                                     const cuda_decoder_options& options = {}) {
        FRUGAL_TRY(validate<Spec>(sizes));
        if (bound.layers.size() != sizes.layers.size())
            return fail(errc::shape_mismatch, "weights of ", bound.layers.size(), " layers for a model of ", sizes.layers.size());
        if (dev.lost()) return fail(errc::device_lost, "the CUDA device is lost; reopen() it");
        cuda_decoder out(dev, std::move(sizes), options);
        if (status made = out.make(dev, bound); !made) return dev.note(std::move(made)).error();
        return out;
    }

    [[nodiscard]] const config& sizes() const noexcept { return config_; }
    /// Tokens of the sequence.
    [[nodiscard]] std::size_t length() const noexcept { return length_; }
    /// Bytes on the device.
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    /// Appends tokens, and writes the logits of the last logits.rows() of them. logits: [rows, vocabulary], options.logit_rows at
    /// most. `positions`: one a token for the rotary embedding; empty: text. Errors: invalid_argument, shape_mismatch,
    /// context_overflow, with nothing changed; device_failed, device_lost.
    [[nodiscard]] status step(device_type& dev, std::span<const std::int32_t> tokens, matrix_view<float> logits,
                              std::span<const ops::rope_position> positions = {}) {
        FRUGAL_TRY(check(dev, tokens, positions));
        if (logits.rows() > (std::min)(tokens.size(), options_.logit_rows) ||
            (logits.rows() != 0 && logits.cols() != config_.vocabulary))
            return fail(errc::shape_mismatch, "logits [", logits.rows(), ", ", logits.cols(), "] of ", tokens.size(),
                        " tokens; [", (std::min)(tokens.size(), options_.logit_rows), ", ", config_.vocabulary, "] at most");
        return run(dev, tokens, positions, logits.rows(), outcome::logits, [&](std::size_t first, std::size_t count) {
            for (std::size_t r = 0; r < count; ++r)
                std::memcpy(logits.row(first + r), buffers_.results.template as<float>() + r * config_.vocabulary,
                            config_.vocabulary * sizeof(float));
        });
    }
    /// Appends tokens and returns the likeliest next one, as ops::greedy chooses it. Errors: as step(); not_finite (the logits
    /// hold a NaN or an infinity).
    [[nodiscard]] result<std::int32_t> step_greedy(device_type& dev, std::span<const std::int32_t> tokens,
                                                   std::span<const ops::rope_position> positions = {}) {
        return choose(dev, tokens, positions, outcome::token);
    }
    /// Appends tokens and returns the next one, as `by` draws it from the logits; only the token comes down. Errors: as
    /// step_greedy(), unsupported (a draw between all tokens, or more than ops::cuda::sample_most, or with a min-p: take the
    /// logits and draw from them); `by` has drawn nothing then.
    [[nodiscard]] result<std::int32_t> step_sample(device_type& dev, std::span<const std::int32_t> tokens, ops::sampler& by,
                                                   std::span<const ops::rope_position> positions = {}) {
        const ops::sampling_options& how = by.options();
        if (how.temperature == 0) return step_greedy(dev, tokens, positions);
        if (how.top_k == 0 || how.top_k > ops::cuda::sample_most)
            return fail(errc::unsupported, "a draw with a top-k of ", how.top_k, " on a GPU; from 1 to ", ops::cuda::sample_most,
                        ", or take the logits and draw from them");
        if (how.min_p != 0)
            return fail(errc::unsupported, "a draw with a min-p of ", how.min_p, " on a GPU; take the logits and draw from them");
        const std::uint64_t before = by.random().state();
        *buffers_.how_described.template as<ops::cuda::sampling_draw>() = {by.random().uniform(), how.temperature, how.top_p,
                                                                           static_cast<std::uint32_t>(how.top_k)};
        auto chosen = choose(dev, tokens, positions, outcome::drawn);
        if (!chosen) by.random().set_state(before);
        return chosen;
    }

    /// The sequence is empty again, whatever happened to it. Errors: device_failed, device_lost.
    [[nodiscard]] status clear(device_type& dev) {
        FRUGAL_TRY(check(dev));
        status done = zero_states();
        if (done) done = dev.queue().synchronize();
        FRUGAL_TRY(dev.note(std::move(done)));
        begin_at(0);
        return {};
    }

    /// Whether the newest n tokens can be undone. In recurrent layers (Gated DeltaNet, n-gram embeddings): options.checkpoints at
    /// most, of those that came after the last clear() or load(). In QSA's indexer: into a block that was complete, not further
    /// back from the greatest length that the sequence has had than batch_tokens or checkpoints, whichever is more; to the border
    /// of a block always. Full attention alone: any.
    [[nodiscard]] bool can_rollback(std::size_t n) const noexcept {
        if (broken_ || n > length_ || (layers_.is_recurrent() && n > undoable_)) return false;
        if constexpr (types::sparse) {
            const std::size_t left = length_ - n;
            return left % types::ratio == 0 || left / types::ratio * types::ratio >= raw_from_;
        }
        return true;
    }
    /// Undoes the newest n tokens. Queued: nothing waits, and nothing is allocated. Errors: cannot_rollback, with nothing
    /// changed; invalid_argument (after a step that failed), device_failed, device_lost.
    [[nodiscard]] status rollback(device_type& dev, std::size_t n) {
        FRUGAL_TRY(check_usable(dev));
        if (n > length_) return fail(errc::cannot_rollback, "the sequence holds ", length_, " tokens; cannot undo ", n);
        if (!can_rollback(n))
            return fail(errc::cannot_rollback, "the decoder keeps no checkpoint ", n, " tokens back from token ", length_,
                        "; create it with more checkpoints, or load() a saved sequence");
        if (n == 0) return {};
        const std::size_t left = length_ - n;
        status done = layers_.rollback(*buffers_.pass, left);
        if (done) done = store_length(left);
        if (!done) {
            broken_ = true;
            return dev.note(std::move(done));
        }
        length_ = left;
        undoable_ -= (std::min)(undoable_, n);
        return {};
    }

    /// Writes the sequence as bytes, for load() of a decoder of the same model and precisions, on whatever device and with
    /// whatever other options. Checkpoints are not among them. Waits. Errors, with nothing written: invalid_argument (after a
    /// step that failed), out_of_memory, device_failed, device_lost.
    [[nodiscard]] status save(device_type& dev, byte_writer& out) const {
        FRUGAL_TRY(check_usable(dev));
        const auto segments = segments_of(length_);
        std::vector<std::byte> bytes(total(segments));
        std::size_t at = 0;
        status done;
        for (const attention::cuda_segment& each : segments) {
            if (done && each.bytes != 0) done = dev.queue().download(bytes.data() + at, each.data, each.bytes);
            at += each.bytes;
        }
        // Also after a failure: what was queued before it still refers to `bytes`.
        if (status waited = dev.queue().synchronize(); done) done = std::move(waited);
        FRUGAL_TRY(dev.note(std::move(done)));
        out.write(cuda_sequence_header{model_, precisions(), length_});
        out.write_span(std::span<const std::byte>(bytes));
        return {};
    }
    /// The sequence becomes what was saved, whatever happened to it. Waits. Errors, with nothing changed: malformed_file,
    /// shape_mismatch (another model or other precisions), context_overflow; device_failed, device_lost.
    [[nodiscard]] status load(device_type& dev, byte_reader& in) {
        FRUGAL_TRY(check(dev));
        cuda_sequence_header header;
        FRUGAL_TRY(in.read(header));
        FRUGAL_TRY(header.check(model_, precisions(), options_.max_tokens));
        const auto length = static_cast<std::size_t>(header.length);
        const auto segments = segments_of(length);
        if (in.remaining() < total(segments))  // before memory is taken for it
            return fail(errc::malformed_file, "a saved sequence of ", length, " tokens in ", in.remaining(), " bytes; ",
                        total(segments), " are needed");
        std::vector<std::byte> bytes(total(segments));
        FRUGAL_TRY(in.read_span(std::span(bytes)));
        FRUGAL_TRY(check_saved_tokens(segments, bytes, config_.vocabulary));
        broken_ = true;  // until all of it is there
        std::size_t at = 0;
        status done;
        for (const attention::cuda_segment& each : segments) {
            if (done && each.bytes != 0) done = dev.queue().upload(each.data, bytes.data() + at, each.bytes);
            at += each.bytes;
        }
        if (done) done = store_length(length);
        // Also after a failure: what was queued before it still refers to `bytes`.
        if (status waited = dev.queue().synchronize(); done) done = std::move(waited);
        FRUGAL_TRY(dev.note(std::move(done)));
        begin_at(length);
        return {};
    }

private:
    using types = cuda_layer_types<Spec, Convention, Policies>;
    using layers_type = cuda_decoder_layers<types>;
    using buffers_type = cuda_decoder_buffers<types>;
    using pass_type = typename buffers_type::pass_type;
    enum class outcome : std::uint8_t { logits, token, drawn };

    struct recorded_step {
        device::gpu::graph graph;
        std::size_t bound = 0;  ///< tokens that it can see; 0: not recorded
    };

    cuda_decoder(device_type& dev, config sizes, const cuda_decoder_options& options)
        : config_(std::move(sizes)),
          options_(options),
          generation_(dev.generation()),
          model_(fingerprint<Spec, Convention>(config_)),
          dims_(config_),
          memory_(dev.context(), dev.queue()) {
        if (options_.max_tokens == 0) options_.max_tokens = config_.context_length;
        options_.batch_tokens =
            std::clamp<std::size_t>(options_.batch_tokens, 1, std::min<std::size_t>(options_.max_tokens, 1024));
        options_.logit_rows = std::max<std::size_t>(options_.logit_rows, 1);
        options_.recorded_tokens = std::max<std::size_t>(options_.recorded_tokens, 1);
        options_.checkpoints = (std::min)(options_.checkpoints, options_.max_tokens);
    }

    [[nodiscard]] status make(device_type& dev, const weights<Spec>& bound) {
        constexpr auto positions = static_cast<std::size_t>((std::numeric_limits<std::int32_t>::max)());
        if (options_.max_tokens > positions)
            return fail(errc::invalid_argument, "a sequence of ", options_.max_tokens, " tokens is beyond ", positions);
        FRUGAL_TRY_ASSIGN(layers_, layers_type::create(dev, memory_, config_, dims_, bound, options_));
        FRUGAL_TRY_ASSIGN(buffers_, buffers_type::create(dev, memory_, config_, options_));
        // Attention and experts take other scratch for few rows than for many.
        for (const std::size_t rows : {std::size_t{1}, (std::min)(std::size_t{16}, options_.batch_tokens), options_.batch_tokens})
            FRUGAL_TRY(
                queue_step(rows, (std::min)(rows, options_.logit_rows), outcome::logits, options_.max_tokens, newest(rows)));
        FRUGAL_TRY(buffers_.pass->settle(memory_));
        bytes_ = memory_.bytes() + layers_.image_bytes();
        // Every kernel runs once: a driver loads a kernel when it first starts, which a recording must not see.
        *buffers_.described.template as<ops::cuda::step_token>() = {};
        *buffers_.how_described.template as<ops::cuda::sampling_draw>() = {};
        FRUGAL_TRY(queue_step(1, 1, outcome::token, bound_for(1), newest(1)));
        FRUGAL_TRY(queue_choice(outcome::drawn, buffers_.logits.rows_range(0, 1)));
        FRUGAL_TRY(zero_states());
        FRUGAL_TRY(dev.queue().synchronize());
        for (const outcome wanted : {outcome::logits, outcome::token, outcome::drawn})
            FRUGAL_TRY(record(dev, wanted, bound_for(1)));
        return {};
    }

    [[nodiscard]] status check(const device_type& dev) const {
        if (dev.lost() || dev.generation() != generation_)
            return fail(errc::device_lost, "weights and states of generation ", generation_, " on a CUDA device ",
                        dev.lost() ? "that is lost" : "of another one", ": create the decoder anew");
        return {};
    }
    [[nodiscard]] status check_usable(const device_type& dev) const {
        FRUGAL_TRY(check(dev));
        if (broken_) return fail(errc::invalid_argument, "a step of this sequence has failed; clear() it, or load() another");
        return {};
    }
    [[nodiscard]] status check(const device_type& dev, std::span<const std::int32_t> tokens,
                               std::span<const ops::rope_position> positions) const {
        FRUGAL_TRY(check_usable(dev));
        if (!positions.empty() && positions.size() != tokens.size())
            return fail(errc::invalid_argument, positions.size(), " positions for ", tokens.size(), " tokens");
        if (tokens.size() > options_.max_tokens - length_)
            return fail(errc::context_overflow, tokens.size(), " more tokens after ", length_, " are beyond the ",
                        options_.max_tokens, " that a sequence may hold");
        for (const std::int32_t token : tokens)
            if (token < 0 || static_cast<std::size_t>(token) >= config_.vocabulary)
                return fail(errc::invalid_argument, "token ", token, " is not in the vocabulary of ", config_.vocabulary);
        return {};
    }

    /// Appends tokens and returns what is chosen after them.
    [[nodiscard]] result<std::int32_t> choose(device_type& dev, std::span<const std::int32_t> tokens,
                                              std::span<const ops::rope_position> positions, outcome what) {
        FRUGAL_TRY(check(dev, tokens, positions));
        if (tokens.empty()) return fail(errc::invalid_argument, "there is no next token of no tokens");
        std::int32_t chosen = -1;
        FRUGAL_TRY(run(dev, tokens, positions, 1, what,
                       [&](std::size_t, std::size_t) { chosen = *buffers_.results.template as<std::int32_t>(); }));
        if (chosen < 0) return fail(errc::not_finite, "the logits of token ", length_ - 1, " are not finite");
        return chosen;
    }

    /// Appends tokens, some at a time. `take(first, count)` is called when rows first … of the wanted ones are among the results.
    template <class Take>
    [[nodiscard]] status run(device_type& dev, std::span<const std::int32_t> tokens,
                             std::span<const ops::rope_position> positions, std::size_t wanted, outcome what, const Take& take) {
        const std::size_t first_wanted = tokens.size() - wanted;
        for (std::size_t begin = 0, count = 0; begin < tokens.size(); begin += count) {
            count = (std::min)(options_.batch_tokens, tokens.size() - begin);
            auto* const to = buffers_.described.template as<ops::cuda::step_token>();
            for (std::size_t t = 0; t < count; ++t) {
                const auto at = static_cast<std::int32_t>(length_ + t);
                to[t] = {tokens[begin + t], positions.empty() ? ops::rope_position{at, at, at} : positions[begin + t]};
            }
            const std::size_t skipped = (std::min)(first_wanted - (std::min)(first_wanted, begin), count), rows = count - skipped;
            const std::size_t later = tokens.size() - begin - count;
            status done = count == 1 && rows == 1 ? replay(dev, what)
                                                  : queue_step(count, rows, what, length_ + count, newest(count, later));
            if (done) done = dev.queue().synchronize();
            if (done) done = check_routing(count);
            if (!done) {
                broken_ = true;
                return dev.note(std::move(done));
            }
            length_ += count;
            undoable_ = (std::min)(options_.checkpoints, undoable_ + count);
            raw_from_ = (std::max)(raw_from_, length_ - (std::min)(length_, types::history_rows(options_)));
            if (rows != 0) take(begin + skipped - first_wanted, rows);
        }
        dev.counters().add(counter::tokens, tokens.size());
        return {};
    }

    /// What the routers of a step of `count` tokens have said of their logits. Errors: not_finite.
    [[nodiscard]] status check_routing(std::size_t count) const {
        if constexpr (types::is_dense) return {};
        const auto first = static_cast<std::size_t>(*buffers_.first_bad.template as<int>());
        if (first >= count) return {};
        return fail(errc::not_finite, "the router logits of token ", length_ + first, " are not finite");
    }

    /// The tokens that a recorded step is made for, so that it can see `tokens`.
    [[nodiscard]] std::size_t bound_for(std::size_t tokens) const noexcept {
        std::size_t bound = options_.recorded_tokens;
        while (bound < tokens) bound *= 2;
        return (std::min)(bound, options_.max_tokens);
    }
    [[nodiscard]] status record(device_type& dev, outcome what, std::size_t bound) {
        recorded_step& step = recorded_[static_cast<std::size_t>(what)];
        FRUGAL_TRY_ASSIGN(step.graph, device::gpu::graph::record(dev.context(), dev.queue(),
                                                                 [&] { return queue_step(1, 1, what, bound, newest(1)); }));
        step.bound = bound;
        return {};
    }
    [[nodiscard]] status replay(device_type& dev, outcome what) {
        recorded_step& step = recorded_[static_cast<std::size_t>(what)];
        if (step.bound < length_ + 1) FRUGAL_TRY(record(dev, what, bound_for(length_ + 1)));
        return step.graph.start(dev.queue());
    }

    /// Which of a step's `count` tokens are kept for rollback(), if so many more tokens follow in the same call.
    [[nodiscard]] attention::cuda_checkpoints newest(std::size_t count, std::size_t later = 0) const noexcept {
        return {buffers_.step.visible, (std::min)(count, options_.checkpoints - (std::min)(options_.checkpoints, later))};
    }

    /// Queues a step of `rows` tokens, which see `bound` at most: from what is described to the results.
    [[nodiscard]] status queue_step(std::size_t rows, std::size_t wanted, outcome what, std::size_t bound,
                                    const attention::cuda_checkpoints& kept) {
        pass_type& pass = *buffers_.pass;
        FRUGAL_TRY(
            pass.upload(buffers_.tokens, buffers_.described.template as<std::byte>(), rows * sizeof(ops::cuda::step_token)));
        FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
            return ops::cuda::begin_step(buffers_.tokens, rows, buffers_.step, buffers_.length, stream);
        }));
        const auto rotary = 2 * static_cast<std::size_t>(buffers_.rope.pairs);
        attention::cuda_attention_inputs shared{buffers_.step, {buffers_.angles, rows, rotary}, {}, bound};
        FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
            return ops::cuda::rope_angles(buffers_.rope, buffers_.step.positions, rows, buffers_.angles, stream);
        }));
        if constexpr (types::sparse) {
            shared.block_angles = {buffers_.block_angles, rows, rotary};
            FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
                return ops::cuda::rope_angles(buffers_.rope, buffers_.step.block_positions, rows, buffers_.block_angles, stream);
            }));
        }
        const auto x = buffers_.stream.rows_range(0, rows), mixed = buffers_.mixed.rows_range(0, rows),
                   branch = buffers_.branch.rows_range(0, rows);
        if constexpr (types::is_plain) {
            FRUGAL_TRY(ops::cuda::look_up(pass, layers_.embedding, buffers_.step.tokens, x));
        } else {
            FRUGAL_TRY(ops::cuda::look_up(pass, layers_.embedding, buffers_.step.tokens, mixed));
            FRUGAL_TRY(ops::expand_streams(pass, mixed, x));
        }
        if constexpr (!types::is_dense) FRUGAL_TRY(pass.fill(buffers_.bad_row, 0x7F, sizeof(int)));
        for (std::size_t i = 0; i < layers_.layers.size(); ++i) {
            auto& each = layers_.layers[i];
            if constexpr (types::has_ngrams)
                for (std::size_t m = 0; m < layers_.ngrams.size(); ++m)
                    if (config_.ngrams[m].layer == i)
                        FRUGAL_TRY(layers_.ngrams[m].forward(pass, dims_.ngrams[m], buffers_.step.tokens, kept, x));
            FRUGAL_TRY(block(each.attention_norm, each.attention_connection, x, mixed, branch, [&]() -> status {
                if (each.gdn) return each.gdn->forward(pass, dims_.gdn, kept, mixed, branch);
                return each.attention->forward(pass, dims_.attention, shared, mixed, branch);
            }));
            FRUGAL_TRY(block(each.ffn_norm, each.ffn_connection, x, mixed, branch, [&]() -> status {
                if constexpr (types::is_dense) {
                    FRUGAL_TRY_ASSIGN(const auto input, pass.input(mixed));
                    return layer::dense_ffn(pass, each.dense, input, branch);
                } else {
                    return each.moe->forward(pass, dims_.moe, buffers_.bad_row, mixed, branch);
                }
            }));
        }
        if constexpr (!types::is_dense)
            FRUGAL_TRY(pass.download(buffers_.first_bad.template as<std::byte>(), buffers_.bad_row, sizeof(int)));
        if (wanted == 0) return {};
        const auto last = mixed.rows_range(0, wanted), logits = buffers_.logits.rows_range(0, wanted);
        const auto ends = x.rows_range(rows - wanted, wanted);
        if constexpr (types::is_plain)
            FRUGAL_TRY(norm(ends, layers_.output_norm, last));
        else
            FRUGAL_TRY(layers_.output_connection.mix(pass, dims_.connection, ends, last, {}));
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(last));
        FRUGAL_TRY(pass.multiply(layers_.head ? *layers_.head : layers_.embedding, input, {logits}));
        if (what == outcome::logits)
            return pass.download(buffers_.results.template as<std::byte>(), logits.data(),
                                 wanted * config_.vocabulary * sizeof(float));
        return queue_choice(what, logits.rows_range(wanted - 1, 1));
    }
    /// Queues the choice of a token from a row of logits: to the results.
    [[nodiscard]] status queue_choice(outcome what, matrix_view<const float> logits) {
        pass_type& pass = *buffers_.pass;
        if (what == outcome::token) {
            FRUGAL_TRY(pass.start([&](cudaStream_t stream) { return ops::cuda::greedy(logits, buffers_.chosen, stream); }));
        } else {
            FRUGAL_TRY(pass.upload(buffers_.how, buffers_.how_described.template as<std::byte>(), sizeof(*buffers_.how)));
            FRUGAL_TRY(pass.start(
                [&](cudaStream_t stream) { return ops::cuda::sample(logits, buffers_.how, buffers_.chosen, stream); }));
        }
        return pass.download(buffers_.results.template as<std::byte>(), buffers_.chosen, sizeof(*buffers_.chosen));
    }

    /// A block between the residual stream's way out and back in.
    template <class Body>
    [[nodiscard]] status block([[maybe_unused]] std::span<const float> weights,
                               [[maybe_unused]] const typename types::connection& around, matrix_view<float> x,
                               matrix_view<float> mixed, matrix_view<float> branch, Body&& body) {
        if constexpr (types::is_plain) {
            FRUGAL_TRY(norm(x, weights, mixed));
            FRUGAL_TRY(body());
            return ops::add(*buffers_.pass, branch, x);
        } else {
            pass_type& pass = *buffers_.pass;
            typename pass_type::scope scope(pass);
            FRUGAL_TRY_ASSIGN(const auto injection, pass.matrix(x.rows(), dims_.connection.streams));
            FRUGAL_TRY(around.mix(pass, dims_.connection, x, mixed, injection));
            FRUGAL_TRY(body());
            return around.inject(pass, injection, branch, x);
        }
    }
    [[nodiscard]] status norm(matrix_view<const float> x, std::span<const float> w, matrix_view<float> y) {
        return ops::rms_norm<norm_weight>(*buffers_.pass, w, x, config_.rms_epsilon, y);
    }
    /// Queues that the sequence is empty.
    [[nodiscard]] status zero_states() {
        FRUGAL_TRY(layers_.clear(*buffers_.pass));
        return store_length(0);
    }
    [[nodiscard]] status store_length(std::size_t length) const {
        return buffers_.pass->start([&](cudaStream_t stream) {
            return ops::cuda::store_number(buffers_.length, static_cast<std::uint32_t>(length), stream);
        });
    }
    /// The sequence has been made anew: there is no way back from here.
    void begin_at(std::size_t length) noexcept {
        length_ = length;
        undoable_ = 0;
        raw_from_ = length / types::ratio * types::ratio;
        broken_ = false;
    }
    /// All bytes of a sequence of so many tokens.
    [[nodiscard]] std::vector<attention::cuda_segment> segments_of(std::size_t length) const {
        std::vector<attention::cuda_segment> out;
        layers_.list_segments(dims_, length, buffers_.step, out);
        if constexpr (types::sparse)
            for (std::size_t token = length / types::ratio * types::ratio; token < length; ++token)
                if (buffers_.step.history != nullptr)
                    out.push_back(attention::make_segment(buffers_.step.history + token % buffers_.step.history_rows, 1));
        return out;
    }
    [[nodiscard]] static std::size_t total(std::span<const attention::cuda_segment> segments) noexcept {
        std::size_t sum = 0;
        for (const attention::cuda_segment& each : segments) sum += each.bytes;
        return sum;
    }
    /// In which types a sequence is kept.
    [[nodiscard]] static constexpr std::uint64_t precisions() noexcept {
        return static_cast<std::uint64_t>(attention::scalar_code<typename Policies::precision::key_value>()) << 32 |
               attention::scalar_code<typename Policies::precision::index>();
    }

    config config_;
    cuda_decoder_options options_;
    std::uint64_t generation_;
    std::uint64_t model_;  ///< its fingerprint
    std::size_t length_ = 0, bytes_ = 0;
    std::size_t undoable_ = 0;  ///< newest tokens before which recurrent states are kept
    std::size_t raw_from_ = 0;  ///< first token whose raw indexer key and position are kept
    bool broken_ = false;
    cuda_layer_dims<types> dims_;
    device::gpu::room memory_;
    layers_type layers_;
    buffers_type buffers_;
    recorded_step recorded_[3];  ///< one an outcome
};

}  // namespace model

FRUGAL_NAMESPACE_END
