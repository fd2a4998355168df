#pragma once
/// What model::cuda_decoder is made of: the kinds of its layers, and these with their weights and states on a GPU.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/attention/full/full_cuda.hpp"
#include "frugal/attention/gdn/gdn_cuda.hpp"
#include "frugal/attention/qsa/qsa_cuda.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/device/cuda/room.hpp"
#include "frugal/layer/dense_ffn_cuda.hpp"
#include "frugal/layer/hyper_connection_cuda.hpp"
#include "frugal/layer/moe_cuda.hpp"
#include "frugal/layer/ngram_embedding_cuda.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/cuda_policies.hpp"
#include "frugal/model/parts.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/model/weights.hpp"
#include "frugal/policies.hpp"
#include "frugal/reuse/weights/packed_products.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

struct FRUGAL_FLAGGED cuda_decoder_options {
    std::size_t max_tokens = 0;     ///< of the sequence; 0: the model's context length
    std::size_t batch_tokens = 64;  ///< that go through the layers at once; 1024 at most
    std::size_t logit_rows = 1;     ///< most rows of logits of one call
    /// Newest tokens that rollback() can undo in recurrent layers. Each takes the memory of their states, and each token the time
    /// of a copy of them; the newest tokens of a call go through these layers one by one.
    std::size_t checkpoints = 0;
    /// Tokens that the recorded step of a single token can see at first; doubled, by recording anew, as the sequence grows.
    std::size_t recorded_tokens = 4096;
    /// Told of each matrix of the file once its image is on the device: it is not read again.
    reuse::source_unneeded source_unneeded = nullptr;
};

namespace detail {

/// The layer on a GPU that computes what a kind does.
template <class Kind, class Device>
struct FRUGAL_FLAGGED cuda_layer;
template <class Pairing, class Gate, class Scan, class Layout, class Device>
struct cuda_layer<attention::gdn<Pairing, Gate, Scan, Layout>, Device> {
    using type = attention::cuda_gdn<Pairing, Gate, Device>;
};
template <class NormWeight, class Scalar, class Device>
struct cuda_layer<attention::full<NormWeight, Scalar>, Device> {
    static constexpr std::size_t ratio = 0;
    using type = attention::cuda_full<NormWeight, Scalar, Device>;
};
template <std::size_t Ratio, class NormWeight, class Scalar, class Index, class Inputs, class Device>
struct cuda_layer<attention::qsa<Ratio, NormWeight, Scalar, Index, Inputs>, Device> {
    static constexpr std::size_t ratio = Ratio;
    using type = attention::cuda_qsa<Ratio, NormWeight, Scalar, Index, Device>;
};

/// The first kind that is recurrent, or is not.
template <bool Recurrent, class Kinds>
struct FRUGAL_FLAGGED kind_that;
template <bool Recurrent, class First, class... Rest>
struct kind_that<Recurrent, type_list<First, Rest...>>
    : std::conditional_t<First::is_recurrent == Recurrent, type_tag<First>, kind_that<Recurrent, type_list<Rest...>>> {};

}  // namespace detail

/// The kinds of a decoder's layers.
template <specification Spec, class Convention, class Policies>
struct FRUGAL_FLAGGED cuda_layer_types {
    using device_type = typename Policies::device;
    using norm_weight = typename Convention::norm_weight;
    static_assert(sizeof(cuda_spec<Spec, Convention, Policies>) > 0);
    using parts = parts_of<Spec, Convention, Policies>;
    using weights_type = weights<Spec>;
    using layer_weights_type = layer_weights<Spec>;
    using recurrent_kind = typename detail::kind_that<true, typename parts::kinds>::type;
    using attention_kind = typename detail::kind_that<false, typename parts::kinds>::type;
    static constexpr bool sparse = detail::cuda_layer<attention_kind, device_type>::ratio != 0;
    static constexpr bool is_dense = std::is_same_v<typename parts::feed_forward, layer::dense>;
    static constexpr bool is_plain = std::is_same_v<typename parts::residual, layer::plain_residual<norm_weight>>;
    static constexpr bool has_ngrams = parts::has_modules;
    static constexpr std::size_t ratio = sparse ? detail::cuda_layer<attention_kind, device_type>::ratio : 1;
    using gdn = typename detail::cuda_layer<recurrent_kind, device_type>::type;
    using attention_layer = typename detail::cuda_layer<attention_kind, device_type>::type;
    using ffn_products = reuse::packed_products<layer::dense_ffn_products, device_type>;
    using moe = layer::cuda_moe<device_type>;
    using connection = layer::cuda_hyper_connection<norm_weight, device_type>;
    using ngram = layer::cuda_ngram<norm_weight, device_type>;

    [[nodiscard]] static typename attention_kind::dims attention_dims(const config& c) {
        auto d = attention_kind::make_dims(c, 0);
        if constexpr (sparse) d.budget = c.index_budget;  // layers that attend to everything are made so one by one
        return d;
    }
    /// Raw keys and positions that are kept: those of a step or of tokens that can be taken back, and of the block that was open
    /// before.
    [[nodiscard]] static constexpr std::size_t history_rows(const cuda_decoder_options& options) noexcept {
        return (std::max)(options.batch_tokens, options.checkpoints) + ratio;
    }
};

/// The sizes of a decoder's layers. Types: cuda_layer_types<...>.
template <class Types>
struct FRUGAL_FLAGGED cuda_layer_dims {
    attention::gdn_dims gdn{};
    typename Types::attention_layer::dims attention{};
    layer::moe_dims moe{};
    layer::hyper_connection_dims connection{};
    std::vector<layer::ngram_dims> ngrams;

    explicit cuda_layer_dims(const config& c)
        : gdn(Types::recurrent_kind::make_dims(c, 0)),
          attention(Types::attention_dims(c)) {
        if constexpr (!Types::is_dense) moe = Types::parts::feed_forward::make_dims(c);
        if constexpr (!Types::is_plain) connection = Types::parts::residual::make_dims(c);
        if constexpr (Types::has_ngrams)
            for (std::size_t m = 0; m < c.ngrams.size(); ++m) ngrams.push_back(Types::parts::modules::make_dims(c, m));
    }
};

/// All that a decoder uploads, and the states of its sequence. Types: cuda_layer_types<...>.
template <class Types>
struct FRUGAL_FLAGGED cuda_decoder_layers {
    using device_type = typename Types::device_type;
    using image = typename device_type::image;
    using dims_type = cuda_layer_dims<Types>;

    struct decoder_layer {
        std::optional<typename Types::gdn> gdn;
        std::optional<typename Types::attention_layer> attention;
        typename Types::ffn_products dense;
        std::optional<typename Types::moe> moe;
        std::span<const float> attention_norm, ffn_norm;  ///< on the device
        typename Types::connection attention_connection, ffn_connection;

        [[nodiscard]] std::size_t image_bytes() const noexcept {
            return (gdn ? gdn->image_bytes() : attention->image_bytes()) + dense.bytes() + (moe ? moe->image_bytes() : 0) +
                   attention_connection.image_bytes() + ffn_connection.image_bytes();
        }
    };

    image embedding;
    std::optional<image> head;           ///< where it is not the embedding
    std::span<const float> output_norm;  ///< on the device
    typename Types::connection output_connection;
    std::vector<decoder_layer> layers;
    std::vector<typename Types::ngram> ngrams;

    /// Packs and uploads the weights, and takes states of an empty sequence. Errors: shape_mismatch, unsupported_format,
    /// unsupported, out_of_memory, device_failed, device_lost.
    [[nodiscard]] static result<cuda_decoder_layers> create(device_type& dev, device::gpu::room& memory, const config& sizes,
                                                            const dims_type& dims, const typename Types::weights_type& bound,
                                                            const cuda_decoder_options& options) {
        cuda_decoder_layers out;
        FRUGAL_TRY(out.make(maker{dev, memory, sizes, dims, options}, bound));
        return out;
    }

    [[nodiscard]] std::size_t image_bytes() const noexcept {
        std::size_t sum = embedding.bytes() + (head ? head->bytes() : 0) + output_connection.image_bytes();
        for (const decoder_layer& each : layers) sum += each.image_bytes();
        for (const auto& each : ngrams) sum += each.image_bytes();
        return sum;
    }

    /// Whether a layer remembers more than caches, and cannot forget tokens without a checkpoint.
    [[nodiscard]] bool is_recurrent() const noexcept {
        return !ngrams.empty() ||
               std::any_of(layers.begin(), layers.end(), [](const auto& each) { return each.gdn.has_value(); });
    }
    /// Queues that the sequence is empty. Keys and values stay: nothing looks beyond the length.
    [[nodiscard]] status clear(device::gpu::pass<device_type>& pass) const {
        return each_recurrent([&](const auto& one) { return one.clear(pass); });
    }
    /// Queues that the sequence is as before token number `length`. Precondition: recurrent layers have a checkpoint of that.
    [[nodiscard]] status rollback(device::gpu::pass<device_type>& pass, std::size_t length) const {
        return each_recurrent([&](const auto& one) { return one.rollback(pass, length); });
    }
    /// What a saved sequence of so many tokens holds of all layers.
    void list_segments(const dims_type& dims, std::size_t length, const ops::cuda::step_rows& step,
                       std::vector<attention::cuda_segment>& to) const {
        for (const decoder_layer& each : layers) {
            if (each.gdn) each.gdn->list_segments(to);
            if (each.attention) each.attention->list_segments(dims.attention, length, step, to);
        }
        for (const auto& each : ngrams) each.list_segments(to);
    }

private:
    template <class F>
    [[nodiscard]] status each_recurrent(F&& f) const {
        for (const decoder_layer& each : layers)
            if (each.gdn) FRUGAL_TRY(f(*each.gdn));
        for (const auto& each : ngrams) FRUGAL_TRY(f(each));
        return {};
    }

    struct maker {
        device_type& dev;
        device::gpu::room& memory;
        const config& sizes;
        const dims_type& dims;
        const cuda_decoder_options& options;

        /// A vector, which must have so many elements.
        [[nodiscard]] result<std::span<const float>> keep(std::span<const float> values, std::size_t size,
                                                          const char* what) const {
            if (values.size() != size)
                return fail(errc::shape_mismatch, what, " of ", values.size(), " values where ", size, " are needed");
            return memory.keep(values);
        }
        [[nodiscard]] result<typename Types::connection> connect(const layer::hyper_connection_weights& w) const {
            return Types::connection::create(dev, memory, dims.connection, w, options.source_unneeded);
        }
    };

    [[nodiscard]] status make(const maker& from, const typename Types::weights_type& bound) {
        const quant::weight_view tables[] = {bound.embedding, bound.head};
        FRUGAL_TRY_ASSIGN(embedding, from.dev.pack(std::span(tables).first(1)));
        const bool tied = bound.head.data == bound.embedding.data;
        if (!tied) {
            FRUGAL_TRY_ASSIGN(auto own, from.dev.pack(std::span(tables).last(1)));
            head.emplace(std::move(own));
        }
        const reuse::source_unneeded& unneeded = from.options.source_unneeded;
        if (unneeded)
            for (const quant::weight_view& table : std::span(tables).first(tied ? 1 : 2)) unneeded({table.data, table.bytes()});
        if constexpr (Types::is_plain) {
            FRUGAL_TRY_ASSIGN(output_norm, from.keep(bound.output.norm, from.sizes.hidden, "an output norm"));
        } else {
            FRUGAL_TRY_ASSIGN(output_connection, from.connect(bound.output));
        }
        for (std::size_t i = 0; i < from.sizes.layers.size(); ++i) {
            layers.emplace_back();
            FRUGAL_TRY(make_layer(from, bound.layers[i], i, layers.back()));
        }
        if constexpr (Types::has_ngrams) {
            const auto& each = from.dims.ngrams;
            if (bound.modules.size() != each.size())
                return fail(errc::shape_mismatch, "weights of ", bound.modules.size(), " n-gram modules of ", each.size());
            for (std::size_t m = 0; m < each.size(); ++m) {
                FRUGAL_TRY_ASSIGN(auto one, Types::ngram::create(from.dev, from.memory, each[m], bound.modules[m],
                                                                 from.options.checkpoints, unneeded));
                ngrams.push_back(std::move(one));
            }
        }
        return {};
    }

    [[nodiscard]] static status make_layer(const maker& from, const typename Types::layer_weights_type& w, std::size_t index,
                                           decoder_layer& to) {
        const config& sizes = from.sizes;
        const std::size_t rows = from.options.batch_tokens, most = from.options.max_tokens;
        const reuse::source_unneeded& unneeded = from.options.source_unneeded;
        if (sizes.layers[index] == layer_kind::gdn) {
            FRUGAL_TRY_ASSIGN(
                auto one, Types::gdn::create(from.dev, from.memory, from.dims.gdn, w.template mixer_as<attention::gdn_weights>(),
                                             from.options.checkpoints, unneeded));
            to.gdn.emplace(std::move(one));
        } else if constexpr (Types::sparse) {
            FRUGAL_TRY_ASSIGN(
                auto one, Types::attention_layer::create(from.dev, from.memory, from.dims.attention,
                                                         w.template mixer_as<typename Types::attention_kind::weights>(),
                                                         sizes.qsa_ratios[index] == 0, rows, Types::history_rows(from.options),
                                                         most, unneeded));
            to.attention.emplace(std::move(one));
        } else {
            FRUGAL_TRY_ASSIGN(auto one,
                              Types::attention_layer::create(from.dev, from.memory, from.dims.attention,
                                                             w.template mixer_as<typename Types::attention_kind::weights>(), rows,
                                                             most, unneeded));
            to.attention.emplace(std::move(one));
        }
        if constexpr (Types::is_dense) {
            FRUGAL_TRY_ASSIGN(to.dense, Types::ffn_products::pack(from.dev, w.feed_forward, unneeded));
        } else {
            FRUGAL_TRY_ASSIGN(auto one, Types::moe::create(from.dev, from.dims.moe, w.feed_forward, sizes.hidden, unneeded));
            to.moe.emplace(std::move(one));
        }
        if constexpr (Types::is_plain) {
            FRUGAL_TRY_ASSIGN(to.attention_norm, from.keep(w.around_mixer.norm, sizes.hidden, "an attention norm"));
            FRUGAL_TRY_ASSIGN(to.ffn_norm, from.keep(w.around_feed_forward.norm, sizes.hidden, "a feed-forward norm"));
        } else {
            FRUGAL_TRY_ASSIGN(to.attention_connection, from.connect(w.around_mixer));
            FRUGAL_TRY_ASSIGN(to.ffn_connection, from.connect(w.around_feed_forward));
        }
        return {};
    }
};

}  // namespace model

FRUGAL_NAMESPACE_END
