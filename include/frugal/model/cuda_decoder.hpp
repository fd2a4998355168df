#pragma once
/// Whole steps of a model on a GPU: activations stay there from the embedding to the logits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/attention/full/full_cuda.hpp"
#include "frugal/attention/gdn/gdn_cuda.hpp"
#include "frugal/attention/qsa/qsa_cuda.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cuda/memory.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/device/cuda/room.hpp"
#include "frugal/layer/dense_ffn_cuda.hpp"
#include "frugal/layer/hyper_connection_cuda.hpp"
#include "frugal/layer/moe_cuda.hpp"
#include "frugal/layer/ngram_embedding_cuda.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/convention.hpp"
#include "frugal/model/cuda_policies.hpp"
#include "frugal/model/dims.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/model/weights.hpp"
#include "frugal/ops/attention/step_cuda.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"
#include "frugal/ops/embedding/image_rows_cuda.hpp"
#include "frugal/ops/norm/norm_cuda.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/ops/rope/rope_cuda.hpp"
#include "frugal/ops/sampling/sampling_cuda.hpp"
#include "frugal/policies.hpp"
#include "frugal/reuse/packed_products.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

struct cuda_decoder_options {
    std::size_t max_tokens = 0;     ///< of the sequence; 0: the model's context length
    std::size_t batch_tokens = 64;  ///< that go through the layers at once; 1024 at most
    std::size_t logit_rows = 1;     ///< most rows of logits of one call
    /// Tokens that the recorded step of a single token can see at first; doubled, by recording anew, as the sequence grows.
    std::size_t recorded_tokens = 4096;
    /// Told of each matrix of the file once its image is on the device: it is not read again.
    reuse::source_unneeded source_unneeded = nullptr;
};

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
/// (device::prefill::exact). Only the newest call can fail in the middle; afterwards nothing but clear() helps. Rolling back,
/// copying, saving and restoring a sequence are not offered: use model::transformer for them.
template <specification Spec, class Convention = convention::gguf, class Policies = policies<device::cuda<>>>
class cuda_decoder {
    static_assert(sizeof(cuda_policies<Policies>) > 0);

public:
    using spec = Spec;
    using device_type = typename Policies::device;
    using formats = typename Policies::formats;
    using norm_weight = typename Convention::norm_weight;

    /// Uploads all weights, and runs one token whose result is thrown away, so that every kernel has been loaded before it is
    /// recorded. Errors: those of validate(); shape_mismatch, unsupported_format, unsupported (see attention::cuda_gdn),
    /// out_of_memory, device_failed, device_lost. Nothing stays allocated then.
    [[nodiscard]] static result<cuda_decoder> create(device_type& dev, config sizes, const weights& bound,
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
        if (logits.rows() > std::min(tokens.size(), options_.logit_rows) ||
            (logits.rows() != 0 && logits.cols() != config_.vocabulary))
            return fail(errc::shape_mismatch, "logits [", logits.rows(), ", ", logits.cols(), "] of ", tokens.size(),
                        " tokens; [", std::min(tokens.size(), options_.logit_rows), ", ", config_.vocabulary, "] at most");
        return run(dev, tokens, positions, logits.rows(), outcome::logits, [&](std::size_t first, std::size_t count) {
            for (std::size_t r = 0; r < count; ++r)
                std::memcpy(logits.row(first + r), results_.template as<float>() + r * config_.vocabulary,
                            config_.vocabulary * sizeof(float));
        });
    }
    /// Appends tokens and returns the likeliest next one, as ops::greedy chooses it. Errors: as step(); not_finite (the logits
    /// hold a NaN or an infinity).
    [[nodiscard]] result<std::int32_t> step_greedy(device_type& dev, std::span<const std::int32_t> tokens,
                                                   std::span<const ops::rope_position> positions = {}) {
        FRUGAL_TRY(check(dev, tokens, positions));
        if (tokens.empty()) return fail(errc::invalid_argument, "there is no next token of no tokens");
        std::int32_t chosen = -1;
        FRUGAL_TRY(run(dev, tokens, positions, 1, outcome::token,
                       [&](std::size_t, std::size_t) { chosen = *results_.template as<std::int32_t>(); }));
        if (chosen < 0) return fail(errc::not_finite, "the logits of token ", length_ - 1, " are not finite");
        return chosen;
    }

    /// The sequence is empty again, whatever happened to it. Errors: device_failed, device_lost.
    [[nodiscard]] status clear(device_type& dev) {
        FRUGAL_TRY(check(dev));
        status done = zero_states();
        if (done) done = dev.queue().synchronize();
        FRUGAL_TRY(dev.note(std::move(done)));
        length_ = 0;
        broken_ = false;
        return {};
    }

private:
    using pass_type = device::gpu::pass<device_type>;
    using image = typename device_type::image;
    using gdn_layer = attention::cuda_gdn<typename Convention::head_pairing, typename Spec::gdn_gate, device_type>;
    using key_value = typename Policies::precision::key_value;
    static constexpr bool sparse = Spec::attention == attention_kind::qsa;
    static constexpr bool is_plain = Spec::residual == residual_kind::plain;
    static constexpr bool is_dense = Spec::feed_forward == feed_forward_kind::dense;
    static constexpr std::size_t ratio = sparse ? Spec::qsa_ratio : 1;
    using attention_layer =
        std::conditional_t<sparse,
                           attention::cuda_qsa<ratio, norm_weight, key_value, typename Policies::precision::index, device_type>,
                           attention::cuda_full<norm_weight, key_value, device_type>>;
    using ffn_products = reuse::packed_products<layer::dense_ffn_products, device_type>;
    using connection = layer::cuda_hyper_connection<norm_weight, device_type>;
    using ngram_layer = layer::cuda_ngram<norm_weight, device_type>;
    enum class outcome : std::uint8_t { logits, token };

    struct decoder_layer {
        std::optional<gdn_layer> gdn;
        std::optional<attention_layer> attention;
        ffn_products dense;
        std::optional<layer::cuda_moe<device_type>> moe;
        const float *attention_norm = nullptr, *ffn_norm = nullptr;
        connection attention_connection, ffn_connection;

        [[nodiscard]] std::size_t image_bytes() const noexcept {
            return (gdn ? gdn->image_bytes() : attention->image_bytes()) + dense.bytes() + (moe ? moe->image_bytes() : 0) +
                   attention_connection.image_bytes() + ffn_connection.image_bytes();
        }
    };
    struct recorded_step {
        device::gpu::graph graph;
        std::size_t bound = 0;  ///< tokens that it can see; 0: not recorded
    };

    cuda_decoder(device_type& dev, config sizes, const cuda_decoder_options& options)
        : config_(std::move(sizes)), options_(options), generation_(dev.generation()), memory_(dev.context(), dev.queue()) {
        if (options_.max_tokens == 0) options_.max_tokens = config_.context_length;
        options_.batch_tokens =
            std::clamp<std::size_t>(options_.batch_tokens, 1, std::min<std::size_t>(options_.max_tokens, 1024));
        options_.logit_rows = std::max<std::size_t>(options_.logit_rows, 1);
        options_.recorded_tokens = std::max<std::size_t>(options_.recorded_tokens, 1);
        gdn_dims_ = make_gdn_dims(config_);
        attention_dims_ = make_attention_dims<typename attention_layer::dims>(config_);
        moe_dims_ = make_moe_dims(config_);
        hyper_dims_ = make_hyper_dims(config_);
        if constexpr (Spec::ngram_embedding)
            for (const ngram_module& m : config_.ngrams) ngram_dims_.push_back(make_ngram_dims(config_, m));
    }

    [[nodiscard]] status make(device_type& dev, const weights& bound) {
        constexpr auto positions = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
        if (options_.max_tokens > positions)
            return fail(errc::invalid_argument, "a sequence of ", options_.max_tokens, " tokens is beyond ", positions);
        FRUGAL_TRY(make_weights(dev, bound));
        FRUGAL_TRY(make_buffers(dev));
        bytes_ = memory_.bytes() + embedding_.bytes() + (head_ ? head_->bytes() : 0);
        bytes_ += output_connection_.image_bytes();
        for (const decoder_layer& each : layers_) bytes_ += each.image_bytes();
        for (const ngram_layer& each : ngrams_) bytes_ += each.image_bytes();
        // Every kernel runs once: a driver loads a kernel when it first starts, which a recording must not see.
        *tokens_.template as<ops::cuda::step_token>() = {};
        FRUGAL_TRY(queue_step(dev, 1, 1, outcome::token, bound_for(1)));
        FRUGAL_TRY(zero_states());
        FRUGAL_TRY(dev.queue().synchronize());
        for (const outcome wanted : {outcome::logits, outcome::token}) FRUGAL_TRY(record(dev, wanted, bound_for(1)));
        return {};
    }

    /// A vector, which must have so many elements.
    [[nodiscard]] result<const float*> keep(std::span<const float> values, std::size_t size, const char* what) {
        if (values.size() != size)
            return fail(errc::shape_mismatch, what, " of ", values.size(), " values where ", size, " are needed");
        FRUGAL_TRY_ASSIGN(const float* const out, memory_.copy(values));
        return out;
    }

    [[nodiscard]] status make_weights(device_type& dev, const weights& bound) {
        const quant::weight_view tables[] = {bound.embedding, bound.head};
        FRUGAL_TRY_ASSIGN(embedding_, dev.pack(std::span(tables).first(1)));
        const bool tied = bound.head.data == bound.embedding.data;
        if (!tied) {
            FRUGAL_TRY_ASSIGN(auto head, dev.pack(std::span(tables).last(1)));
            head_.emplace(std::move(head));
        }
        if (options_.source_unneeded)
            for (const quant::weight_view& table : std::span(tables).first(tied ? 1 : 2))
                options_.source_unneeded({table.data, table.bytes()});
        if constexpr (is_plain) {
            FRUGAL_TRY_ASSIGN(output_norm_, keep(bound.output_norm, config_.hidden, "an output norm"));
        } else {
            FRUGAL_TRY_ASSIGN(output_connection_, connect(dev, bound.output_hyper_connection));
        }
        for (std::size_t i = 0; i < config_.layers.size(); ++i) {
            layers_.emplace_back();
            FRUGAL_TRY(make_layer(dev, bound.layers[i], i, layers_.back()));
        }
        if constexpr (Spec::ngram_embedding) {
            if (bound.ngrams.size() != ngram_dims_.size())
                return fail(errc::shape_mismatch, "weights of ", bound.ngrams.size(), " n-gram modules of ", ngram_dims_.size());
            for (std::size_t m = 0; m < ngram_dims_.size(); ++m) {
                FRUGAL_TRY_ASSIGN(auto one, ngram_layer::create(dev, memory_, ngram_dims_[m], bound.ngrams[m],
                                                                options_.batch_tokens, options_.source_unneeded));
                ngrams_.push_back(std::move(one));
            }
        }
        return {};
    }
    [[nodiscard]] result<connection> connect(device_type& dev, const layer::hyper_connection_weights& w) {
        return connection::create(dev, memory_, hyper_dims_, w, options_.source_unneeded);
    }
    [[nodiscard]] status make_layer(device_type& dev, const layer_weights& w, std::size_t index, decoder_layer& to) {
        const std::size_t rows = options_.batch_tokens;
        const reuse::source_unneeded& unneeded = options_.source_unneeded;
        if (config_.layers[index] == layer_kind::gdn) {
            FRUGAL_TRY_ASSIGN(auto one, gdn_layer::create(dev, memory_, gdn_dims_, w.gdn, unneeded));
            to.gdn.emplace(std::move(one));
        } else if constexpr (sparse) {
            FRUGAL_TRY_ASSIGN(auto one,
                              attention_layer::create(dev, memory_, attention_dims_, w.attention, config_.qsa_ratios[index] == 0,
                                                      rows, history_rows(), options_.max_tokens, unneeded));
            to.attention.emplace(std::move(one));
        } else {
            FRUGAL_TRY_ASSIGN(auto one, attention_layer::create(dev, memory_, attention_dims_, w.attention, rows,
                                                                options_.max_tokens, unneeded));
            to.attention.emplace(std::move(one));
        }
        if constexpr (is_dense) {
            FRUGAL_TRY_ASSIGN(to.dense, ffn_products::pack(dev, w.dense, unneeded));
        } else {
            FRUGAL_TRY_ASSIGN(auto one, layer::cuda_moe<device_type>::create(dev, moe_dims_, w.moe, config_.hidden, unneeded));
            to.moe.emplace(std::move(one));
        }
        if constexpr (is_plain) {
            FRUGAL_TRY_ASSIGN(to.attention_norm, keep(w.attention_norm, config_.hidden, "an attention norm"));
            FRUGAL_TRY_ASSIGN(to.ffn_norm, keep(w.ffn_norm, config_.hidden, "a feed-forward norm"));
        } else {
            FRUGAL_TRY_ASSIGN(to.attention_connection, connect(dev, w.attention_hyper_connection));
            FRUGAL_TRY_ASSIGN(to.ffn_connection, connect(dev, w.ffn_hyper_connection));
        }
        return {};
    }
    /// Positions that are kept: those of a step, and of the block that it finds open.
    [[nodiscard]] std::size_t history_rows() const noexcept { return options_.batch_tokens + ratio; }

    [[nodiscard]] status make_buffers(device_type& dev) {
        const std::size_t rows = options_.batch_tokens, logit_rows = options_.logit_rows;
        FRUGAL_TRY_ASSIGN(step_tokens_, memory_.array<ops::cuda::step_token>(rows));
        FRUGAL_TRY_ASSIGN(step_.tokens, memory_.array<std::int64_t>(rows));
        FRUGAL_TRY_ASSIGN(step_.positions, memory_.array<ops::rope_position>(rows));
        FRUGAL_TRY_ASSIGN(step_.visible, memory_.array<std::uint32_t>(rows));
        FRUGAL_TRY_ASSIGN(device_length_, memory_.array<std::uint32_t>(1));
        FRUGAL_TRY_ASSIGN(stream_, memory_.matrix(rows, config_.streams * config_.hidden));
        FRUGAL_TRY_ASSIGN(mixed_, memory_.input_matrix(rows, config_.hidden));
        FRUGAL_TRY_ASSIGN(branch_, memory_.matrix(rows, config_.hidden));
        FRUGAL_TRY_ASSIGN(logits_, memory_.matrix(logit_rows, config_.vocabulary));
        FRUGAL_TRY_ASSIGN(chosen_, memory_.array<std::int32_t>(1));
        std::size_t widest = config_.hidden;
        const auto any = [&](layer_kind kind) {
            return std::find(config_.layers.begin(), config_.layers.end(), kind) != config_.layers.end();
        };
        if (any(layer_kind::gdn)) {
            FRUGAL_TRY_ASSIGN(gdn_buffers_, attention::cuda_gdn_buffers::create(memory_, gdn_dims_, rows));
            widest = std::max(widest, gdn_dims_.values());
        }
        if (any(layer_kind::attention)) {
            if constexpr (sparse) {
                FRUGAL_TRY_ASSIGN(attention_buffers_,
                                  attention_layer::buffers::create(memory_, attention_dims_, ratio, rows, options_.max_tokens));
                step_.ratio = static_cast<std::uint32_t>(ratio);
                step_.history_rows = static_cast<std::uint32_t>(history_rows());
                FRUGAL_TRY_ASSIGN(step_.complete, memory_.array<std::uint32_t>(rows));
                FRUGAL_TRY_ASSIGN(step_.block_positions, memory_.array<ops::rope_position>(rows));
                FRUGAL_TRY_ASSIGN(step_.history, memory_.array<ops::rope_position>(history_rows()));
                FRUGAL_TRY_ASSIGN(block_angles_, memory_.array<float>(rows * config_.rotary_dim));
            } else {
                FRUGAL_TRY_ASSIGN(attention_buffers_,
                                  attention_layer::buffers::create(memory_, attention_dims_, rows, options_.max_tokens));
            }
            widest = std::max(widest, config_.heads * config_.head_dim);
            const auto table = ops::rope_table::make(config_.rope_theta, config_.rotary_dim, config_.rope_sections);
            std::vector<std::uint8_t> components(table.inv_freq.size());
            for (std::size_t j = 0; j < components.size(); ++j) components[j] = static_cast<std::uint8_t>(table.component(j));
            FRUGAL_TRY_ASSIGN(rope_.inv_freq, memory_.copy(std::span<const float>(table.inv_freq)));
            FRUGAL_TRY_ASSIGN(rope_.components, memory_.copy(std::span<const std::uint8_t>(components)));
            rope_.pairs = static_cast<int>(components.size());
            FRUGAL_TRY_ASSIGN(angles_, memory_.array<float>(rows * config_.rotary_dim));
        }
        std::size_t inputs = rows;
        if constexpr (is_dense) {
            FRUGAL_TRY_ASSIGN(ffn_buffers_, layer::cuda_ffn_buffers::create(memory_, rows, config_.intermediate));
            widest = std::max(widest, config_.intermediate);
        } else {
            FRUGAL_TRY_ASSIGN(moe_buffers_,
                              layer::cuda_moe_buffers::create(memory_, moe_dims_, config_.hidden, config_.expert_intermediate,
                                                              config_.shared_intermediate, rows));
            inputs *= config_.experts_used;
            widest = std::max({widest, config_.expert_intermediate, config_.shared_intermediate});
        }
        if constexpr (!is_plain) {
            FRUGAL_TRY_ASSIGN(hyper_buffers_, layer::cuda_hyper_buffers::create(memory_, hyper_dims_, rows));
            widest = std::max({widest, config_.streams * config_.hidden, config_.mix_rank});
        }
        for (const layer::ngram_dims& each : ngram_dims_) widest = std::max(widest, each.embedding());
        FRUGAL_TRY_ASSIGN(auto made, pass_type::create(dev.context(), dev.queue(), memory_, inputs, widest));
        pass_.emplace(std::move(made));
        FRUGAL_TRY_ASSIGN(tokens_, device::gpu::pinned_memory::allocate(dev.context(), rows * sizeof(ops::cuda::step_token)));
        FRUGAL_TRY_ASSIGN(results_,
                          device::gpu::pinned_memory::allocate(dev.context(), logit_rows * config_.vocabulary * sizeof(float)));
        FRUGAL_TRY_ASSIGN(first_bad_, device::gpu::pinned_memory::allocate(dev.context(), sizeof(int)));
        return {};
    }

    [[nodiscard]] status check(const device_type& dev) const {
        if (dev.lost() || dev.generation() != generation_)
            return fail(errc::device_lost, "weights and states of generation ", generation_, " on a CUDA device ",
                        dev.lost() ? "that is lost" : "of another one", ": create the decoder anew");
        return {};
    }
    [[nodiscard]] status check(const device_type& dev, std::span<const std::int32_t> tokens,
                               std::span<const ops::rope_position> positions) const {
        FRUGAL_TRY(check(dev));
        if (broken_) return fail(errc::invalid_argument, "a step of this sequence has failed; clear() it");
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

    /// Appends tokens, some at a time. `take(first, count)` is called when rows first … of the wanted ones are in results_.
    template <class Take>
    [[nodiscard]] status run(device_type& dev, std::span<const std::int32_t> tokens,
                             std::span<const ops::rope_position> positions, std::size_t wanted, outcome what, const Take& take) {
        const std::size_t first_wanted = tokens.size() - wanted;
        for (std::size_t begin = 0, count = 0; begin < tokens.size(); begin += count) {
            count = std::min(options_.batch_tokens, tokens.size() - begin);
            auto* const to = tokens_.template as<ops::cuda::step_token>();
            for (std::size_t t = 0; t < count; ++t) {
                const auto at = static_cast<std::int32_t>(length_ + t);
                to[t] = {tokens[begin + t], positions.empty() ? ops::rope_position{at, at, at} : positions[begin + t]};
            }
            const std::size_t skipped = std::min(first_wanted - std::min(first_wanted, begin), count), rows = count - skipped;
            status done = count == 1 && rows == 1 ? replay(dev, what) : queue_step(dev, count, rows, what, length_ + count);
            if (done) done = dev.queue().synchronize();
            if (done) done = check_routing(count);
            if (!done) {
                broken_ = true;
                return dev.note(std::move(done));
            }
            length_ += count;
            if (rows != 0) take(begin + skipped - first_wanted, rows);
        }
        dev.counters().add(counter::tokens, tokens.size());
        return {};
    }

    /// What the routers of a step of `count` tokens have said of their logits. Errors: not_finite.
    [[nodiscard]] status check_routing(std::size_t count) const {
        if constexpr (is_dense) return {};
        const auto first = static_cast<std::size_t>(*first_bad_.template as<int>());
        if (first >= count) return {};
        return fail(errc::not_finite, "the router logits of token ", length_ + first, " are not finite");
    }

    /// The tokens that a recorded step is made for, so that it can see `tokens`.
    [[nodiscard]] std::size_t bound_for(std::size_t tokens) const noexcept {
        std::size_t bound = options_.recorded_tokens;
        while (bound < tokens) bound *= 2;
        return std::min(bound, options_.max_tokens);
    }
    [[nodiscard]] status record(device_type& dev, outcome what, std::size_t bound) {
        recorded_step& step = recorded_[static_cast<std::size_t>(what)];
        FRUGAL_TRY_ASSIGN(step.graph, device::gpu::graph::record(dev.context(), dev.queue(),
                                                                 [&] { return queue_step(dev, 1, 1, what, bound); }));
        step.bound = bound;
        return {};
    }
    [[nodiscard]] status replay(device_type& dev, outcome what) {
        recorded_step& step = recorded_[static_cast<std::size_t>(what)];
        if (step.bound < length_ + 1) FRUGAL_TRY(record(dev, what, bound_for(length_ + 1)));
        return step.graph.start(dev.queue());
    }

    /// Queues a step of `rows` tokens, which see `bound` at most: from the description in tokens_ to results_.
    [[nodiscard]] status queue_step(device_type& dev, std::size_t rows, std::size_t wanted, outcome what, std::size_t bound) {
        const pass_type& pass = *pass_;
        const cudaStream_t stream = pass.stream();
        FRUGAL_TRY(dev.queue().upload(step_tokens_, tokens_.template as<std::byte>(), rows * sizeof(ops::cuda::step_token)));
        FRUGAL_TRY(pass.start(ops::cuda::begin_step(step_tokens_, rows, step_, device_length_, stream)));
        FRUGAL_TRY(pass.start(ops::cuda::rope_angles(rope_, step_.positions, rows, angles_, stream)));
        if constexpr (sparse)
            FRUGAL_TRY(pass.start(ops::cuda::rope_angles(rope_, step_.block_positions, rows, block_angles_, stream)));
        const attention::cuda_attention_inputs shared{step_, angles_, block_angles_, rope_.pairs, bound};
        const auto x = stream_.rows_range(0, rows), mixed = mixed_.rows_range(0, rows), branch = branch_.rows_range(0, rows);
        if constexpr (is_plain) {
            FRUGAL_TRY(ops::cuda::look_up(pass, embedding_, step_.tokens, x));
        } else {
            FRUGAL_TRY(ops::cuda::look_up(pass, embedding_, step_.tokens, mixed));
            FRUGAL_TRY(pass.start(ops::cuda::expand_streams(mixed, x, stream)));
        }
        if constexpr (!is_dense) FRUGAL_TRY(pass.fill(moe_buffers_.first_bad, 0x7F, sizeof(int)));
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            decoder_layer& each = layers_[i];
            if constexpr (Spec::ngram_embedding)
                for (std::size_t m = 0; m < ngrams_.size(); ++m)
                    if (config_.ngrams[m].layer == i) FRUGAL_TRY(ngrams_[m].forward(pass, ngram_dims_[m], step_.tokens, x));
            FRUGAL_TRY(block(each.attention_norm, each.attention_connection, x, mixed, branch, [&]() -> status {
                if (each.gdn) return each.gdn->forward(pass, gdn_dims_, gdn_buffers_, mixed, branch);
                return each.attention->forward(pass, attention_dims_, attention_buffers_, shared, mixed, branch);
            }));
            FRUGAL_TRY(block(each.ffn_norm, each.ffn_connection, x, mixed, branch, [&]() -> status {
                if constexpr (is_dense) {
                    FRUGAL_TRY_ASSIGN(const auto input, pass.input(mixed));
                    return layer::dense_ffn(pass, each.dense, ffn_buffers_, input, branch);
                } else {
                    return each.moe->forward(pass, moe_dims_, moe_buffers_, mixed, branch);
                }
            }));
        }
        if constexpr (!is_dense)
            FRUGAL_TRY(dev.queue().download(first_bad_.template as<std::byte>(), moe_buffers_.first_bad, sizeof(int)));
        if (wanted == 0) return {};
        const auto last = mixed.rows_range(0, wanted), logits = logits_.rows_range(0, wanted);
        const auto ends = x.rows_range(rows - wanted, wanted);
        if constexpr (is_plain)
            FRUGAL_TRY(norm(ends, output_norm_, last));
        else
            FRUGAL_TRY(output_connection_.mix(pass, hyper_dims_, hyper_buffers_, ends, last));
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(last));
        FRUGAL_TRY(pass.multiply(head_ ? *head_ : embedding_, input, {logits}));
        if (what == outcome::logits)
            return dev.queue().download(results_.template as<std::byte>(), logits.data(),
                                        wanted * config_.vocabulary * sizeof(float));
        FRUGAL_TRY(pass.start(ops::cuda::greedy(logits.rows_range(wanted - 1, 1), chosen_, stream)));
        return dev.queue().download(results_.template as<std::byte>(), chosen_, sizeof(*chosen_));
    }

    /// A block between the residual stream's way out and back in.
    template <class Body>
    [[nodiscard]] status block([[maybe_unused]] const float* weights, [[maybe_unused]] const connection& around,
                               matrix_view<float> x, matrix_view<float> mixed, matrix_view<float> branch, Body&& body) const {
        if constexpr (is_plain) {
            FRUGAL_TRY(norm(x, weights, mixed));
            FRUGAL_TRY(body());
            return pass_->start(ops::cuda::add(branch, x, pass_->stream()));
        } else {
            FRUGAL_TRY(around.mix(*pass_, hyper_dims_, hyper_buffers_, x, mixed));
            FRUGAL_TRY(body());
            return around.inject(*pass_, hyper_buffers_, branch, x);
        }
    }
    [[nodiscard]] status norm(matrix_view<const float> x, const float* w, matrix_view<float> y) const {
        return pass_->start(
            ops::cuda::grouped_rms_norm<norm_weight>(x, w, config_.hidden, config_.rms_epsilon, y, pass_->stream()));
    }
    /// Queues that the sequence is empty. Keys and values stay: nothing looks beyond the length.
    [[nodiscard]] status zero_states() {
        for (decoder_layer& each : layers_)
            if (each.gdn) FRUGAL_TRY(each.gdn->clear(*pass_, gdn_dims_));
        for (std::size_t m = 0; m < ngrams_.size(); ++m) FRUGAL_TRY(ngrams_[m].clear(*pass_, ngram_dims_[m]));
        return pass_->zero(device_length_, sizeof(*device_length_));
    }

    config config_;
    cuda_decoder_options options_;
    std::uint64_t generation_;
    std::size_t length_ = 0, bytes_ = 0;
    bool broken_ = false;
    attention::gdn_dims gdn_dims_{};
    typename attention_layer::dims attention_dims_{};
    layer::moe_dims moe_dims_{};
    layer::hyper_connection_dims hyper_dims_{};
    std::vector<layer::ngram_dims> ngram_dims_;

    device::gpu::room memory_;
    std::optional<pass_type> pass_;
    image embedding_;
    std::optional<image> head_;  ///< where it is not the embedding
    const float* output_norm_ = nullptr;
    connection output_connection_;
    std::vector<decoder_layer> layers_;
    std::vector<ngram_layer> ngrams_;

    device::gpu::pinned_memory tokens_, results_, first_bad_;  ///< of a step: what goes up, what comes down
    ops::cuda::step_token* step_tokens_ = nullptr;
    ops::cuda::step_rows step_;
    std::uint32_t* device_length_ = nullptr;
    ops::cuda::rope_frequencies rope_;
    float *angles_ = nullptr, *block_angles_ = nullptr;
    matrix_view<float> stream_, mixed_, branch_, logits_;
    std::int32_t* chosen_ = nullptr;
    attention::cuda_gdn_buffers gdn_buffers_;
    typename attention_layer::buffers attention_buffers_;
    layer::cuda_ffn_buffers ffn_buffers_;
    layer::cuda_moe_buffers moe_buffers_;
    layer::cuda_hyper_buffers hyper_buffers_;
    recorded_step recorded_[2];
};

}  // namespace model

FRUGAL_NAMESPACE_END
