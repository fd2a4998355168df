#pragma once
/// The forward pass of the whole model family: embedding, decoder layers, final norm or mixer, language model head.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/layer/experts.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/convention.hpp"
#include "frugal/model/fingerprint.hpp"
#include "frugal/model/parts.hpp"
#include "frugal/model/pass.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/model/state.hpp"
#include "frugal/model/token_batch.hpp"
#include "frugal/model/weight_store.hpp"
#include "frugal/model/weights.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/policies.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/weights/pass.hpp"
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

template <class... List>
struct FRUGAL_FLAGGED join_lists {
    using type = type_list<>;
};
template <class... A>
struct join_lists<type_list<A...>> {
    using type = unique<A...>;
};
template <class... A, class... B, class... Rest>
struct join_lists<type_list<A...>, type_list<B...>, Rest...> : join_lists<type_list<A..., B...>, Rest...> {};
/// All types of some lists, each once.
template <class... List>
using join = typename join_lists<List...>::type;

/// Who multiplies: on a device with images their store, else the CPU.
template <class Policies, class Lists>
struct FRUGAL_FLAGGED store_of {
    using type = direct_store<typename Policies::formats, typename Policies::activations>;
};
template <class Policies, class... List>
    requires(device::image_target<typename Policies::device>)
struct store_of<Policies, type_list<List...>> {
    using type = image_weight_store<typename Policies::device, typename Policies::formats, typename Policies::loading,
                                    typename Policies::activations, reuse::default_poisoning, List...>;
};

/// A kind whose layers share inputs of their own.
template <class Kind>
concept shares_inputs = requires {
    typename Kind::shared_inputs;
};

template <class Kind>
struct FRUGAL_FLAGGED shared_inputs_of {
    using type = type_list<>;
};
template <shares_inputs Kind>
struct shared_inputs_of<Kind> {
    using type = type_list<typename Kind::shared_inputs>;
};
template <class Modules>
struct FRUGAL_FLAGGED module_types {
    using states = type_list<typename Modules::state>;
    using lists = type_list<typename Modules::products>;
    using dims = typename Modules::dims;
};
template <>
struct FRUGAL_FLAGGED module_types<no_modules> {
    using states = type_list<>;
    using lists = type_list<>;
    using dims = no_modules;
};

/// What follows from the types of a model's kinds.
template <class Kinds, class Modules>
struct FRUGAL_FLAGGED kind_types;
template <class... Kind, class Modules>
struct kind_types<type_list<Kind...>, Modules> {
    using states = join<type_list<typename Kind::state...>, typename module_types<Modules>::states,
                        typename shared_inputs_of<Kind>::type...>;
    using lists = join<type_list<typename Kind::products...>>;
    template <class... D>
    static std::variant<D...> variant_of(type_list<D...>);
    using dims = decltype(variant_of(unique<typename Kind::dims...>{}));
};
template <class... T>
combined_state<T...> combine(type_list<T...>);
template <class... T>
std::tuple<std::vector<T>...> vectors(type_list<T...>);

}  // namespace detail

/// A model of `Spec` whose weights are stored by `Convention`, computed as `Policies` say. It knows no kind of layer: what is to
/// be done is said by the types that the spec lists.
template <specification Spec, class Convention = convention::gguf, class Policies = policies<>>
class FRUGAL_FLAGGED transformer {
    FRUGAL_REQUIRE_CONVENTION(Convention);
    static_assert(policy_bundle<Policies>,
                  "frugal: model::transformer takes its policies as one bundle; write transformer<spec, convention, "
                  "policies<quant::list<...>, device::cpu<...>>>, in any order, or leave them out");
    static_assert(device::cpu_target<typename Policies::device>,
                  "frugal: model::transformer runs on CPU targets so far; write policies<device::cpu<>>");

    using parts = parts_of<Spec, Convention, Policies>;
    using kinds = typename parts::kinds;
    using feed_forward = typename parts::feed_forward;
    using residual = typename parts::residual;
    using modules = typename parts::modules;
    using types = detail::kind_types<kinds, modules>;
    static constexpr bool has_modules = parts::has_modules;
    static constexpr bool has_experts = feed_forward::product_lists::template contains<layer::moe_products>;

public:
    using spec = Spec;
    using formats = typename Policies::formats;
    using device_type = typename Policies::device;
    using weights_type = weights<Spec>;
    /// Who multiplies with the weights: on a device with images (device::image_target) their store, else the CPU.
    using store_type = typename detail::store_of<
        Policies, detail::join<typename types::lists, typename feed_forward::product_lists, typename residual::product_lists,
                               typename detail::module_types<modules>::lists, type_list<head_products>>>::type;
    using pass_type = pass<device_type, store_type>;
    static constexpr bool has_images = device::image_target<device_type>;
    /// What is kept of the sequences; `parts<T>()` are the states of type T in the order of the layers.
    using state = decltype(detail::combine(typename types::states{}));

    /// Takes over sizes and weights; the file behind the weights' views must outlive the model. Errors: as validate().
    [[nodiscard]] static result<transformer> create(config sizes, weights_type bound) {
        FRUGAL_TRY(validate<Spec>(sizes));
        if (bound.layers.size() != sizes.layers.size())
            return fail(errc::shape_mismatch, "weights of ", bound.layers.size(), " layers for a model of ", sizes.layers.size());
        FRUGAL_TRY_ASSIGN(auto kinds_found, kinds_of_layers<Spec>(sizes));
        transformer out(std::move(sizes), std::move(bound), std::move(kinds_found));
        FRUGAL_TRY(out.make_dims());
        return out;
    }

    [[nodiscard]] const config& sizes() const noexcept { return config_; }

    /// An empty state. Errors: invalid_argument, out_of_memory.
    [[nodiscard]] result<state> make_state(state_options options) const {
        if (options.sequences == 0) return fail(errc::invalid_argument, "a state needs at least one sequence");
        const attention::state_sizes sizes{
            options.sequences, options.max_tokens == 0 ? config_.context_length : options.max_tokens, options.checkpoints};
        decltype(detail::vectors(typename types::states{})) made;
        std::array<std::size_t, kinds::size> counts{};
        for (std::size_t i = 0; i < kinds_.size(); ++i)
            FRUGAL_TRY(parts::with_kind(kinds_[i], [&]<class Kind>(type_tag<Kind>) -> status {
                FRUGAL_TRY_ASSIGN(auto one, Kind::make_state(dims_as<Kind>(i), sizes));
                std::get<std::vector<typename Kind::state>>(made).push_back(std::move(one));
                ++counts[kinds_[i]];
                return {};
            }));
        if constexpr (has_modules)
            for (const auto& d : module_dims_) {
                FRUGAL_TRY_ASSIGN(auto one, modules::make_state(d, sizes));
                std::get<std::vector<typename modules::state>>(made).push_back(std::move(one));
            }
        for (std::size_t kind = 0; kind < kinds::size; ++kind)
            FRUGAL_TRY(parts::with_kind(kind, [&]<class Kind>(type_tag<Kind>) -> status {
                if constexpr (detail::shares_inputs<Kind>) {
                    FRUGAL_TRY_ASSIGN(auto one, Kind::make_shared_inputs(counts[kind], sizes));
                    std::get<std::vector<typename Kind::shared_inputs>>(made).push_back(std::move(one));
                }
                return {};
            }));
        return std::apply(
            [&](auto&&... all) { return state(fingerprint<Spec, Convention>(config_), options.sequences, std::move(all)...); },
            std::move(made));
    }

    /// What forward() runs in: `dev` with scratch, and with no images yet on a device that keeps some (options are about these).
    /// The device must outlive it. Errors: invalid_argument.
    [[nodiscard]] result<pass_type> make_pass(device_type& dev, const weight_store_options& options = {}) const {
        if constexpr (has_images) {
            std::array<std::size_t, store_type::kinds> layers{};
            const auto count = [&]<class List>(type_tag<List>, std::size_t index, const auto&) -> status {
                std::size_t& seen = layers[store_type::template number_of<List>()];
                seen = (std::max)(seen, index + 1);
                return {};
            };
            FRUGAL_TRY(for_each_list(count));
            FRUGAL_TRY_ASSIGN(auto store,
                              store_type::create(layers, config_.layers.size(), has_experts ? config_.experts : 0, options));
            return pass_type(dev, std::move(store));
        } else {
            return pass_type(dev, store_type());
        }
    }

    /// Packs the images of `in` that are absent, which the first passes would do otherwise: those that follow pack nothing but
    /// routed experts for which there was no room. Each matrix of the file is read once, and its pages may go when its image is
    /// there (weight_store_options::source_unneeded): packing takes the memory of the images and of one product's matrices.
    /// Nothing is packed for products that the host computes, or whose images do not outlive a step.
    /// `progress(done, total)`, in bytes of the file, is called after each product and expert, at last with done == total.
    /// Errors: as of forward's loading and packing; what was packed stays.
    template <class Progress = no_progress>
    [[nodiscard]] status pack(pass_type& in, Progress&& progress = {}) const {
        static_assert(
            has_images,
            "frugal: this device keeps no weight images, so there is nothing to pack; write policies<device::packed_cpu<>>");
        store_type& store = in.store();
        std::uint64_t total = 0, done = 0;
        const auto measure = [&]<class List>(type_tag<List>, std::size_t, const auto& w) -> status {
            total += store.template of<List>().source_bytes(w);
            if constexpr (std::is_same_v<List, layer::moe_products>) total += store.experts().source_bytes(w);
            return {};
        };
        FRUGAL_TRY(for_each_list(measure));
        const auto packed = [&](std::size_t bytes) { progress(done += bytes, total); };
        const auto pack_part = [&]<class List>(type_tag<List>, std::size_t index, const auto& w) -> status {
            return store.template of<List>().pack(in.device(), in.scratch(), index, w, packed);
        };
        FRUGAL_TRY(for_each_list(pack_part));
        // Last, so that on a small device no expert, which few tokens need, takes the room of what every token needs.
        if constexpr (has_experts)
            for (std::size_t i = 0; i < weights_.layers.size(); ++i)
                FRUGAL_TRY(store.experts().pack(in.device(), i, weights_.layers[i].feed_forward, packed));
        return {};
    }

    /// Appends the batch's tokens to their sequences and writes the wanted rows of logits.
    /// logits: [batch.logit_rows.size(), vocabulary]. The bits of a row depend only on its sequence's tokens, not on how they
    /// are split into calls, on other sequences of the batch, or on threads.
    /// Errors: invalid_argument (token or segment out of range), context_overflow and out_of_memory with nothing changed;
    /// an error from inside a layer (not_finite) leaves the batch's sequences unusable until cleared or restored.
    /// An error of the device stops the pass only where the store does not let the host take over.
    template <class Observer = no_observer>
    [[nodiscard]] status forward(pass_type& in, state& sequences, const token_batch& input, matrix_view<float> logits,
                                 Observer&& observe = {}) const {
        std::vector<attention::rope_position> text;
        FRUGAL_TRY_ASSIGN(const attention::batch rows, check(sequences, input, logits, text));
        if (rows.rows() == 0) return {};
        for (const attention::segment& s : input.segments)
            if (s.sequence != attention::sequence_id::padding) FRUGAL_TRY(sequences.reserve(s.sequence, s.count));
        workspace::scope scope(in.scratch());
        layer_pass pass(in.device(), in.scratch(), in.store());
        status done = run(pass, sequences, input, rows, logits, observe);
        for (const attention::segment& s : input.segments) {
            if (s.sequence == attention::sequence_id::padding) continue;
            if (done)
                sequences.advance(s.sequence, s.count);
            else
                sequences.mark_broken(s.sequence);
        }
        if (done) in.device().counters().add(counter::tokens, rows.rows());
        return done;
    }

private:
    using layer_pass = reuse::cpu_pass<device_type, store_type>;

    transformer(config sizes, weights_type bound, std::vector<std::size_t> kinds_found)
        : config_(std::move(sizes)),
          weights_(std::move(bound)),
          kinds_(std::move(kinds_found)),
          rope_(std::make_unique<ops::rope_table>(config_.make_rope_table())),
          feed_forward_dims_(feed_forward::make_dims(config_)),
          residual_dims_(residual::make_dims(config_)) {}

    [[nodiscard]] status make_dims() {
        for (std::size_t i = 0; i < kinds_.size(); ++i)
            FRUGAL_TRY(parts::with_kind(kinds_[i], [&]<class Kind>(type_tag<Kind>) -> status {
                typename Kind::dims d = Kind::make_dims(config_, i);
                if constexpr (requires { d.rope; }) d.rope = rope_.get();
                dims_.emplace_back(std::move(d));
                if (std::get_if<typename Kind::weights>(&weights_.layers[i].mixer) != nullptr) return {};
                return fail(errc::shape_mismatch, "layer ", i, " has the weights of another kind than ", Kind::name);
            }));
        if constexpr (has_modules)
            for (std::size_t m = 0; m < modules::count(config_); ++m) module_dims_.push_back(modules::make_dims(config_, m));
        return {};
    }
    template <class Kind>
    [[nodiscard]] const typename Kind::dims& dims_as(std::size_t i) const noexcept {
        return *std::get_if<typename Kind::dims>(&dims_[i]);
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
    [[nodiscard]] status run(layer_pass& pass, state& sequences, const token_batch& input, const attention::batch& rows,
                             matrix_view<float> logits, Observer& observe) const {
        const std::size_t n = rows.rows();
        FRUGAL_TRY_ASSIGN(const auto stream, pass.matrix(n, residual::width(residual_dims_)));
        FRUGAL_TRY_ASSIGN(const auto mixed, pass.input_matrix(n, config_.hidden));
        FRUGAL_TRY_ASSIGN(const auto branch, pass.matrix(n, config_.hidden));
        FRUGAL_TRY_ASSIGN(const auto angles, pass.matrix(n, rope_->rotary_dim));
        if (rope_->rotary_dim != 0) FRUGAL_TRY(ops::rope_angles(pass, *rope_, rows.positions, angles));
        const attention::step of{rows, angles, input.tokens};
        FRUGAL_TRY(residual::begin(pass, stream, mixed,
                                   [&](matrix_view<float> to) { return pass.look_up(weights_.embedding, input.tokens, to); }));
        observe(std::ptrdiff_t{-1}, matrix_view<const float>(stream));
        FRUGAL_TRY(share(pass, sequences, rows));

        std::array<std::size_t, types::states::size> next{};  // of the states of each type
        std::array<std::size_t, kinds::size> seen{};          // layers of each kind
        for (std::size_t i = 0; i < kinds_.size(); ++i) {
            const layer_weights<Spec>& w = weights_.layers[i];
            FRUGAL_TRY(add_modules(pass, i, sequences, of, stream));
            FRUGAL_TRY(residual::around(pass, 2 * i, residual_dims_, w.around_mixer, stream, mixed, branch, [&]() -> status {
                return parts::with_kind(kinds_[i], [&]<class Kind>(type_tag<Kind>) -> status {
                    using kept_type = typename Kind::state;
                    auto& kept = sequences.template parts<kept_type>()[next[types::states::template index_of<kept_type>()]++];
                    const auto& d = dims_as<Kind>(i);
                    const auto& own = w.template mixer_as<typename Kind::weights>();
                    if constexpr (detail::shares_inputs<Kind>) {
                        using shared = typename Kind::shared_inputs;
                        const auto& mine = sequences.template parts<shared>().front().of_layer(seen[kinds_[i]]++);
                        const attention::shared_step<std::remove_cvref_t<decltype(mine)>> with{of, mine};
                        return Kind::forward(pass, i, d, own, kept, with, mixed, branch);
                    } else {
                        return Kind::forward(pass, i, d, own, kept, of, mixed, branch);
                    }
                });
            }));
            FRUGAL_TRY(residual::around(pass, 2 * i + 1, residual_dims_, w.around_feed_forward, stream, mixed, branch, [&] {
                return feed_forward::forward(pass, i, feed_forward_dims_, w.feed_forward, mixed, branch);
            }));
            observe(static_cast<std::ptrdiff_t>(i), matrix_view<const float>(stream));
        }
        return head(pass, input.logit_rows, stream, logits);
    }

    /// Makes what layers share that of the batch.
    [[nodiscard]] status share(layer_pass& pass, state& sequences, const attention::batch& rows) const {
        for (std::size_t kind = 0; kind < kinds::size; ++kind)
            FRUGAL_TRY(parts::with_kind(kind, [&]<class Kind>(type_tag<Kind>) -> status {
                if constexpr (detail::shares_inputs<Kind>)
                    return sequences.template parts<typename Kind::shared_inputs>().front().append(rows, pass.counters());
                return {};
            }));
        return {};
    }
    /// What the modules of layer i add to the stream before it.
    [[nodiscard]] status add_modules([[maybe_unused]] layer_pass& pass, [[maybe_unused]] std::size_t i,
                                     [[maybe_unused]] state& sequences, [[maybe_unused]] const attention::step& of,
                                     [[maybe_unused]] matrix_view<float> stream) const {
        if constexpr (has_modules)
            for (std::size_t m = 0; m < module_dims_.size(); ++m) {
                if (modules::layer_of(config_, m) != i) continue;
                typename layer_pass::scope scope(pass);
                FRUGAL_TRY_ASSIGN(const auto added, pass.matrix(stream.rows(), stream.cols()));
                FRUGAL_TRY(modules::forward(pass, m, module_dims_[m], weights_.modules[m],
                                            sequences.template parts<typename modules::state>()[m], of, stream, added));
                FRUGAL_TRY(ops::add(pass, added, stream));
            }
        return {};
    }

    /// Calls `f(type_tag<List>{}, index, weights) -> status` for every part of the model for which a pass begins a step of the
    /// store, in the order of a pass: List's products with the weights of layer `index` of their kind.
    template <class F>
    [[nodiscard]] status for_each_list(F&& f) const {
        for (std::size_t i = 0; i < kinds_.size(); ++i) {
            const layer_weights<Spec>& w = weights_.layers[i];
            if constexpr (has_modules)
                for (std::size_t m = 0; m < module_dims_.size(); ++m)
                    if (modules::layer_of(config_, m) == i)
                        FRUGAL_TRY(f(type_tag<typename modules::products>{}, m, weights_.modules[m]));
            FRUGAL_TRY(residual::for_each_list(2 * i, w.around_mixer, f));
            FRUGAL_TRY(parts::with_kind(kinds_[i], [&]<class Kind>(type_tag<Kind>) {
                return f(type_tag<typename Kind::products>{}, i, w.template mixer_as<typename Kind::weights>());
            }));
            FRUGAL_TRY(residual::for_each_list(2 * i + 1, w.around_feed_forward, f));
            FRUGAL_TRY(feed_forward::for_each_list(i, w.feed_forward, f));
        }
        FRUGAL_TRY(residual::for_each_list(2 * kinds_.size(), weights_.output, f));
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

    [[nodiscard]] status head(layer_pass& pass, std::span<const std::size_t> wanted, matrix_view<float> stream,
                              matrix_view<float> logits) const {
        if (wanted.empty()) return {};
        FRUGAL_TRY_ASSIGN(const auto picked, pass.matrix(wanted.size(), stream.cols()));
        FRUGAL_TRY_ASSIGN(const auto final, pass.input_matrix(wanted.size(), config_.hidden));
        for (std::size_t i = 0; i < wanted.size(); ++i) std::copy_n(stream.row(wanted[i]), stream.cols(), picked.row(i));
        FRUGAL_TRY(residual::finish(pass, 2 * kinds_.size(), residual_dims_, weights_.output, picked, final));
        FRUGAL_TRY_ASSIGN(const reuse::product_input input,
                          reuse::share_input<typename Policies::activations>(pass.device(), pass.scratch(), final));
        return for_each_head_part([&](std::size_t chunk, std::size_t first, const head_weights& part) -> status {
            FRUGAL_TRY_ASSIGN(auto products, pass.template begin<head_products>(chunk, part));
            return products.template multiply<head_product>(input, {logits.cols_range(first, part.head.rows)});
        });
    }

    config config_;
    weights_type weights_;
    std::vector<std::size_t> kinds_;         ///< of the layers
    std::unique_ptr<ops::rope_table> rope_;  // dims point to it; its address survives moves of the model
    std::vector<typename types::dims> dims_;
    typename feed_forward::dims feed_forward_dims_;
    typename residual::dims residual_dims_;
    std::vector<typename detail::module_types<modules>::dims> module_dims_;
};

}  // namespace model

FRUGAL_NAMESPACE_END
