#pragma once
/// The forward pass of the whole model family: embedding, decoder layers, final norm or mixer, language model head.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/full/full.hpp"
#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/attention/qsa/qsa.hpp"
#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/layer/hyper_connection.hpp"
#include "frugal/layer/moe.hpp"
#include "frugal/layer/ngram_embedding.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/convention.hpp"
#include "frugal/model/dims.hpp"
#include "frugal/model/fingerprint.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/model/state.hpp"
#include "frugal/model/token_batch.hpp"
#include "frugal/model/weight_store.hpp"
#include "frugal/model/weights.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/policies.hpp"
#include "frugal/reuse/inputs/qsa_layouts.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// Sees the residual stream after the embedding (layer = -1) and after each layer; the default sees nothing.
struct FRUGAL_FLAGGED no_observer {
    void operator()(std::ptrdiff_t, matrix_view<const float>) const noexcept {}
};

/// Is told of nothing.
struct FRUGAL_FLAGGED no_progress {
    void operator()(std::uint64_t, std::uint64_t) const noexcept {}
};

namespace detail {

template <class Policies, class AttentionProducts>
struct FRUGAL_FLAGGED store_of {
    using type = direct_store<typename Policies::formats, typename Policies::activations>;
};
template <class Policies, class AttentionProducts>
    requires(device::image_target<typename Policies::device>)
struct store_of<Policies, AttentionProducts> {
    using type = image_weight_store<typename Policies::device, typename Policies::formats, typename Policies::loading,
                                    typename Policies::activations, reuse::default_poisoning, attention::gdn_products,
                                    AttentionProducts, layer::dense_ffn_products, layer::ngram_products, head_products,
                                    layer::moe_products, layer::hyper_connection_products>;
};

}  // namespace detail

/// A model of `Spec` whose weights are stored by `Convention`, computed as `Policies` say.
template <specification Spec, class Convention = convention::gguf, class Policies = policies<>>
class FRUGAL_FLAGGED transformer {
    static_assert(policy_bundle<Policies>,
                  "frugal: model::transformer takes its policies as one bundle; write transformer<spec, convention, "
                  "policies<quant::list<...>, device::cpu<...>>>, in any order, or leave them out");
    static_assert(device::cpu_target<typename Policies::device>,
                  "frugal: model::transformer runs on CPU targets so far; write policies<device::cpu<>>");

public:
    using spec = Spec;
    using formats = typename Policies::formats;
    using device_type = typename Policies::device;
    using norm_weight = typename Convention::norm_weight;
    using gdn_variant = attention::gdn<typename Convention::head_pairing, typename Spec::gdn_gate>;
    static constexpr bool sparse = Spec::attention == attention_kind::qsa;
    using attention_variant =
        std::conditional_t<sparse,
                           attention::qsa<sparse ? Spec::qsa_ratio : 1, norm_weight, typename Policies::precision::key_value,
                                          typename Policies::precision::index>,
                           attention::full<norm_weight, typename Policies::precision::key_value>>;
    using layouts_type = reuse::qsa_layouts<typename Policies::inputs>;
    /// Who multiplies with the weights: on a device with images (device::image_target) their store, else the CPU.
    using store_type = typename detail::store_of<Policies, typename attention_variant::products>::type;
    static constexpr bool has_images = device::image_target<device_type>;
    using state =
        combined_state<typename gdn_variant::state, typename attention_variant::state, layer::ngram_state, layouts_type>;

    /// Takes over sizes and weights; the file behind the weights' views must outlive the model. Errors: as validate().
    [[nodiscard]] static result<transformer> create(config sizes, weights bound) {
        FRUGAL_TRY(validate<Spec>(sizes));
        if (bound.layers.size() != sizes.layers.size())
            return fail(errc::shape_mismatch, "weights of ", bound.layers.size(), " layers for a model of ", sizes.layers.size());
        return transformer(std::move(sizes), std::move(bound));
    }

    [[nodiscard]] const config& sizes() const noexcept { return config_; }

    /// An empty state. Errors: invalid_argument, out_of_memory.
    [[nodiscard]] result<state> make_state(state_options options) const {
        if (options.sequences == 0) return fail(errc::invalid_argument, "a state needs at least one sequence");
        const std::size_t most = options.max_tokens == 0 ? config_.context_length : options.max_tokens;
        std::vector<typename gdn_variant::state> recurrent;
        std::vector<typename attention_variant::state> caches;
        std::vector<layer::ngram_state> ngrams;
        std::vector<layouts_type> layouts;
        for (const layer_kind kind : config_.layers) {
            if (kind == layer_kind::gdn) {
                FRUGAL_TRY_ASSIGN(auto one, gdn_variant::state::create(gdn_dims_, options.sequences, options.checkpoints));
                recurrent.push_back(std::move(one));
                continue;
            }
            FRUGAL_TRY_ASSIGN(auto one, attention_variant::create_state(attention_dims_, options.sequences, most));
            caches.push_back(std::move(one));
        }
        if constexpr (Spec::ngram_embedding)
            for (std::size_t i = 0; i < config_.ngrams.size(); ++i) {
                FRUGAL_TRY_ASSIGN(auto one, layer::ngram_state::create(ngram_dims_[i], options.sequences, options.checkpoints));
                ngrams.push_back(std::move(one));
            }
        if constexpr (sparse) {
            const std::vector<std::size_t> ratios(caches.size(), Spec::qsa_ratio);
            FRUGAL_TRY_ASSIGN(auto one, layouts_type::create(ratios, options.sequences));
            layouts.push_back(std::move(one));
        }
        return state(fingerprint<Spec, Convention>(config_), options.sequences, std::move(recurrent), std::move(caches),
                     std::move(ngrams), std::move(layouts));
    }

    /// A store without images yet. Errors: invalid_argument.
    [[nodiscard]] result<store_type> make_store(const weight_store_options& options = {}) const {
        if constexpr (has_images) {
            std::array<std::size_t, store_type::kinds> layers{};
            const auto count = [&]<class List>(type_tag<List>, std::size_t index, const auto&) -> status {
                std::size_t& seen = layers[store_type::template number_of<List>()];
                seen = (std::max)(seen, index + 1);
                return {};
            };
            FRUGAL_TRY(for_each_part(count));
            return store_type::create(layers, config_.layers.size(), is_dense ? 0 : config_.experts, options);
        } else {
            return store_type();
        }
    }

    /// Packs the images of `store` that are absent, which the first passes would do otherwise: those that follow pack nothing but
    /// routed experts for which there was no room. Each matrix of the file is read once, and its pages may go when its image is
    /// there (weight_store_options::source_unneeded): packing takes the memory of the images and of one product's matrices.
    /// Nothing is packed for products that the host computes, or whose images do not outlive a step.
    /// `progress(done, total)`, in bytes of the file, is called after each product and expert, at last with done == total.
    /// Errors: as of forward's loading and packing; what was packed stays.
    template <class Progress = no_progress>
    [[nodiscard]] status pack(device_type& dev, workspace& scratch, store_type& store, Progress&& progress = {}) const
        requires(has_images) {
        std::uint64_t total = 0, done = 0;
        const auto measure = [&]<class List>(type_tag<List>, std::size_t, const auto& w) -> status {
            total += store.template of<List>().source_bytes(w);
            if constexpr (std::is_same_v<List, layer::moe_products>) total += store.experts().source_bytes(w);
            return {};
        };
        FRUGAL_TRY(for_each_part(measure));
        const auto packed = [&](std::size_t bytes) { progress(done += bytes, total); };
        const auto pack_part = [&]<class List>(type_tag<List>, std::size_t index, const auto& w) -> status {
            return store.template of<List>().pack(dev, scratch, index, w, packed);
        };
        FRUGAL_TRY(for_each_part(pack_part));
        // Last, so that on a small device no expert, which few tokens need, takes the room of what every token needs.
        if constexpr (!is_dense)
            for (std::size_t i = 0; i < weights_.layers.size(); ++i)
                FRUGAL_TRY(store.experts().pack(dev, i, weights_.layers[i].moe, packed));
        return {};
    }

    /// Appends the batch's tokens to their sequences and writes the wanted rows of logits.
    /// logits: [batch.logit_rows.size(), vocabulary]. The bits of a row depend only on its sequence's tokens, not on how they
    /// are split into calls, on other sequences of the batch, or on threads.
    /// Errors: invalid_argument (token or segment out of range), context_overflow and out_of_memory with nothing changed;
    /// an error from inside a layer (not_finite) leaves the batch's sequences unusable until cleared or restored.
    /// An error of the device stops the pass only where the store does not let the host take over.
    template <class Observer = no_observer>
    [[nodiscard]] status forward(device_type& dev, workspace& scratch, store_type& store, state& sequences,
                                 const token_batch& input, matrix_view<float> logits, Observer&& observe = {}) const {
        std::vector<attention::rope_position> text;
        FRUGAL_TRY_ASSIGN(const attention::batch rows, check(sequences, input, logits, text));
        if (rows.rows() == 0) return {};
        for (const attention::segment& s : input.segments)
            if (s.sequence != attention::sequence_id::padding) FRUGAL_TRY(sequences.reserve(s.sequence, s.count));
        workspace::scope scope(scratch);
        status done = run(dev, scratch, store, sequences, input, rows, logits, observe);
        for (const attention::segment& s : input.segments) {
            if (s.sequence == attention::sequence_id::padding) continue;
            if (done)
                sequences.advance(s.sequence, s.count);
            else
                sequences.mark_broken(s.sequence);
        }
        if (done) dev.counters().add(counter::tokens, rows.rows());
        return done;
    }
    /// The same on a device without images.
    template <class Observer = no_observer>
    [[nodiscard]] status forward(device_type& dev, workspace& scratch, state& sequences, const token_batch& input,
                                 matrix_view<float> logits, Observer&& observe = {}) const {
        static_assert(!has_images,
                      "frugal: this device keeps weight images; make a store with make_store() and pass it to forward");
        store_type store;
        return forward(dev, scratch, store, sequences, input, logits, std::forward<Observer>(observe));
    }

private:
    transformer(config sizes, weights bound) : config_(std::move(sizes)), weights_(std::move(bound)) {
        rope_ = std::make_unique<ops::rope_table>(make_rope_table(config_));
        gdn_dims_ = make_gdn_dims(config_);
        attention_dims_ = make_attention_dims<typename attention_variant::dims>(config_);
        attention_dims_.rope = rope_.get();
        hyper_dims_ = make_hyper_dims(config_);
        if constexpr (Spec::ngram_embedding)
            for (const ngram_module& m : config_.ngrams) ngram_dims_.push_back(make_ngram_dims(config_, m));
    }

    /// All checks that can fail before anything changes; the positions are made here for text.
    [[nodiscard]] result<attention::batch> check(const state& sequences, const token_batch& input, matrix_view<float> logits,
                                                 std::vector<attention::rope_position>& text) const {
        if (!input.positions.empty() && input.positions.size() != input.tokens.size())
            return fail(errc::invalid_argument, input.positions.size(), " positions for ", input.tokens.size(), " tokens");
        if (logits.rows() != input.logit_rows.size() || (logits.rows() != 0 && logits.cols() != config_.vocabulary))
            return fail(errc::shape_mismatch, "logits are [", logits.rows(), ", ", logits.cols(), "]; [", input.logit_rows.size(),
                        ", ", config_.vocabulary, "] are needed");
        for (const std::size_t row : input.logit_rows)
            if (row >= input.tokens.size())
                return fail(errc::invalid_argument, "logits of row ", row, " asked of a batch of ", input.tokens.size());
        for (const std::int32_t token : input.tokens)
            if (token < 0 || static_cast<std::size_t>(token) >= config_.vocabulary)
                return fail(errc::invalid_argument, "token ", token, " is not in the vocabulary of ", config_.vocabulary);
        if (input.positions.empty()) text.resize(input.tokens.size());
        const attention::batch rows{input.segments,
                                    input.positions.empty() ? std::span<const attention::rope_position>(text) : input.positions};
        FRUGAL_TRY(attention::validate(rows, sequences.sequences()));
        for (const attention::segment& s : input.segments) {
            if (s.sequence == attention::sequence_id::padding) continue;
            FRUGAL_TRY(sequences.check(s.sequence));
            if (!input.positions.empty()) continue;
            const std::size_t start = sequences.length(s.sequence);
            if (start + s.count > static_cast<std::size_t>((std::numeric_limits<std::int32_t>::max)()))
                return fail(errc::context_overflow, "positions beyond 2^31 - 1");
            for (std::size_t i = 0; i < s.count; ++i) {
                const auto position = static_cast<std::int32_t>(start + i);
                text[s.first + i] = {position, position, position};
            }
        }
        return rows;
    }

    template <class Observer>
    [[nodiscard]] status run(device_type& dev, workspace& scratch, store_type& store, state& sequences, const token_batch& input,
                             const attention::batch& rows, matrix_view<float> logits, Observer& observe) const {
        const std::size_t n = rows.rows(), hidden = config_.hidden, width = config_.streams * hidden;
        FRUGAL_TRY_ASSIGN(const auto stream, scratch.matrix(n, width));
        FRUGAL_TRY_ASSIGN(const auto mixed, scratch.matrix(n, hidden));
        FRUGAL_TRY_ASSIGN(const auto branch, scratch.matrix(n, hidden));
        const std::vector<std::int64_t> ids(input.tokens.begin(), input.tokens.end());
        if constexpr (is_plain) {
            FRUGAL_TRY(ops::embedding_rows<formats>(dev, weights_.embedding, ids, stream));
        } else {
            FRUGAL_TRY(ops::embedding_rows<formats>(dev, weights_.embedding, ids, mixed));
            FRUGAL_TRY(layer::hyper_connection<norm_weight>::expand(dev, mixed, stream));
        }
        observe(std::ptrdiff_t{-1}, matrix_view<const float>(stream));

        auto& recurrent = sequences.template parts<typename gdn_variant::state>();
        auto& caches = sequences.template parts<typename attention_variant::state>();
        auto& ngrams = sequences.template parts<layer::ngram_state>();
        auto& layouts = sequences.template parts<layouts_type>();
        if constexpr (sparse) FRUGAL_TRY(layouts.front().append(rows, dev.counters()));

        std::size_t next_recurrent = 0, next_cache = 0;
        for (std::size_t i = 0; i < config_.layers.size(); ++i) {
            const layer_weights& w = weights_.layers[i];
            if constexpr (Spec::ngram_embedding)
                for (std::size_t m = 0; m < config_.ngrams.size(); ++m) {
                    if (config_.ngrams[m].layer != i) continue;
                    workspace::scope inner(scratch);
                    FRUGAL_TRY_ASSIGN(const auto added, scratch.matrix(n, width));
                    FRUGAL_TRY_ASSIGN(auto products,
                                      store.template begin<layer::ngram_products>(dev, scratch, m, weights_.ngrams[m]));
                    FRUGAL_TRY(layer::ngram_embedding<norm_weight>::template forward<formats>(
                        dev, scratch, products, ngram_dims_[m], weights_.ngrams[m], ngrams[m], rows, ids, stream, added));
                    FRUGAL_TRY(ops::add(dev, added, stream));
                }
            const auto attend = [&]() -> status {
                if (config_.layers[i] == layer_kind::gdn) {
                    FRUGAL_TRY_ASSIGN(auto products,
                                      store.template begin<typename gdn_variant::products>(dev, scratch, i, w.gdn));
                    return gdn_variant::template forward<formats>(dev, scratch, products, gdn_dims_, w.gdn,
                                                                  recurrent[next_recurrent++], rows, mixed, branch);
                }
                const std::size_t c = next_cache++;
                FRUGAL_TRY_ASSIGN(auto products,
                                  store.template begin<typename attention_variant::products>(dev, scratch, i, w.attention));
                if constexpr (sparse) {
                    auto dims = attention_dims_;
                    if (config_.qsa_ratios[i] == 0) dims.budget = dense_budget;
                    return attention_variant::template forward<formats>(dev, scratch, products, dims, w.attention, caches[c],
                                                                        rows, layouts.front().of_layer(c), mixed, branch);
                } else {
                    return attention_variant::template forward<formats>(dev, scratch, products, attention_dims_, w.attention,
                                                                        caches[c], rows, mixed, branch);
                }
            };
            const auto feed_forward = [&]() -> status {
                const layer::dense_ffn_weights dense = feed_forward_of(w);
                FRUGAL_TRY_ASSIGN(auto products, store.template begin<layer::dense_ffn_products>(dev, scratch, i, dense));
                if constexpr (is_dense) {
                    return layer::dense_ffn(dev, scratch, products, dense, mixed, branch);
                } else {
                    FRUGAL_TRY_ASSIGN(auto routing, store.template begin<layer::moe_products>(dev, scratch, i, w.moe));
                    auto experts = store.begin_experts(dev, scratch, i, w.moe);
                    return layer::moe<formats>(dev, scratch, routing, experts, products, make_moe_dims(config_), w.moe, mixed,
                                               branch);
                }
            };
            FRUGAL_TRY(
                block(dev, scratch, store, 2 * i, w.attention_norm, w.attention_hyper_connection, stream, mixed, branch, attend));
            FRUGAL_TRY(
                block(dev, scratch, store, 2 * i + 1, w.ffn_norm, w.ffn_hyper_connection, stream, mixed, branch, feed_forward));
            observe(static_cast<std::ptrdiff_t>(i), matrix_view<const float>(stream));
        }
        return head(dev, scratch, store, input.logit_rows, stream, logits);
    }

    /// Calls `f(type_tag<List>{}, index, weights) -> status` for every part of the model for which a pass begins a step of the
    /// store, in the order of a pass: List's products with the weights of layer `index` of their kind.
    template <class F>
    [[nodiscard]] status for_each_part(F&& f) const {
        [[maybe_unused]] constexpr type_tag<layer::hyper_connection_products> connection;
        for (std::size_t i = 0; i < config_.layers.size(); ++i) {
            const layer_weights& w = weights_.layers[i];
            if constexpr (Spec::ngram_embedding)
                for (std::size_t m = 0; m < config_.ngrams.size(); ++m)
                    if (config_.ngrams[m].layer == i) FRUGAL_TRY(f(type_tag<layer::ngram_products>{}, m, weights_.ngrams[m]));
            if constexpr (!is_plain) FRUGAL_TRY(f(connection, 2 * i, w.attention_hyper_connection));
            if (config_.layers[i] == layer_kind::gdn)
                FRUGAL_TRY(f(type_tag<typename gdn_variant::products>{}, i, w.gdn));
            else
                FRUGAL_TRY(f(type_tag<typename attention_variant::products>{}, i, w.attention));
            if constexpr (!is_plain) FRUGAL_TRY(f(connection, 2 * i + 1, w.ffn_hyper_connection));
            FRUGAL_TRY(f(type_tag<layer::dense_ffn_products>{}, i, feed_forward_of(w)));
            if constexpr (!is_dense) FRUGAL_TRY(f(type_tag<layer::moe_products>{}, i, w.moe));
        }
        if constexpr (!is_plain) FRUGAL_TRY(f(connection, 2 * config_.layers.size(), weights_.output_hyper_connection));
        return for_each_head_part(
            [&](std::size_t chunk, std::size_t, const head_weights& part) { return f(type_tag<head_products>{}, chunk, part); });
    }
    /// Calls `f(chunk, first, weights) -> status` for the parts of the head that have images of their own; `first`: row.
    template <class F>
    [[nodiscard]] status for_each_head_part(F&& f) const {
        for (std::size_t first = 0, chunk = 0; first < weights_.head.rows; ++chunk) {
            const std::size_t count = (std::min)(store_type::head_rows, weights_.head.rows - first);
            FRUGAL_TRY(f(chunk, first, head_weights{weights_.head.rows_range(first, count)}));
            first += count;
        }
        return {};
    }
    /// The dense block, or the expert that every token goes through.
    [[nodiscard]] static layer::dense_ffn_weights feed_forward_of(const layer_weights& w) noexcept {
        return is_dense ? w.dense : w.moe.shared_expert();
    }

    /// Block `index` of two a layer, between the residual stream's way out and back in.
    template <class Block>
    [[nodiscard]] status block(device_type& dev, workspace& scratch, [[maybe_unused]] store_type& store,
                               [[maybe_unused]] std::size_t index, std::span<const float> norm,
                               const layer::hyper_connection_weights& around, matrix_view<float> stream, matrix_view<float> mixed,
                               matrix_view<float> branch, Block&& body) const {
        workspace::scope scope(scratch);
        if constexpr (is_plain) {
            FRUGAL_TRY(ops::rms_norm<norm_weight>(dev, stream, norm, config_.rms_epsilon, mixed));
            FRUGAL_TRY(body());
            return ops::add(dev, branch, stream);
        } else {
            FRUGAL_TRY_ASSIGN(const auto injection, scratch.matrix(stream.rows(), config_.streams));
            {
                FRUGAL_TRY_ASSIGN(auto products,
                                  store.template begin<layer::hyper_connection_products>(dev, scratch, index, around));
                FRUGAL_TRY(layer::hyper_connection<norm_weight>::mix(dev, scratch, products, hyper_dims_, around, stream, mixed,
                                                                     injection));
            }
            FRUGAL_TRY(body());
            return layer::hyper_connection<norm_weight>::inject(dev, injection, branch, stream);
        }
    }

    [[nodiscard]] status head(device_type& dev, workspace& scratch, store_type& store, std::span<const std::size_t> wanted,
                              matrix_view<float> stream, matrix_view<float> logits) const {
        if (wanted.empty()) return {};
        FRUGAL_TRY_ASSIGN(const auto picked, scratch.matrix(wanted.size(), stream.cols()));
        FRUGAL_TRY_ASSIGN(const auto final, scratch.matrix(wanted.size(), config_.hidden));
        for (std::size_t i = 0; i < wanted.size(); ++i)
            for (std::size_t j = 0; j < stream.cols(); ++j) picked(i, j) = stream(wanted[i], j);
        if constexpr (is_plain) {
            FRUGAL_TRY(ops::rms_norm<norm_weight>(dev, picked, weights_.output_norm, config_.rms_epsilon, final));
        } else {
            const layer::hyper_connection_weights& mixer = weights_.output_hyper_connection;
            FRUGAL_TRY_ASSIGN(auto products, store.template begin<layer::hyper_connection_products>(
                                                 dev, scratch, 2 * config_.layers.size(), mixer));
            FRUGAL_TRY(
                layer::hyper_connection<norm_weight>::final_mix(dev, scratch, products, hyper_dims_, mixer, picked, final));
        }
        FRUGAL_TRY_ASSIGN(const reuse::product_input input,
                          reuse::share_input<typename Policies::activations>(dev, scratch, final));
        return for_each_head_part([&](std::size_t chunk, std::size_t first, const head_weights& part) -> status {
            FRUGAL_TRY_ASSIGN(auto products, store.template begin<head_products>(dev, scratch, chunk, part));
            return products.template multiply<head_product>(input, {logits.cols_range(first, part.head.rows)});
        });
    }

    static constexpr bool is_plain = Spec::residual == residual_kind::plain;
    static constexpr bool is_dense = Spec::feed_forward == feed_forward_kind::dense;
    static constexpr std::size_t dense_budget = (std::numeric_limits<std::size_t>::max)() / 2;

    config config_;
    weights weights_;
    std::unique_ptr<ops::rope_table> rope_;  // attention_dims_ points to it; its address survives moves of the model
    attention::gdn_dims gdn_dims_{};
    typename attention_variant::dims attention_dims_{};
    layer::hyper_connection_dims hyper_dims_{};
    std::vector<layer::ngram_dims> ngram_dims_;
};

}  // namespace model

FRUGAL_NAMESPACE_END
