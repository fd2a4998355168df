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
#include "frugal/model/dims.hpp"
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

/// The kinds of a decoder's layers.
template <specification Spec, class Convention, class Policies>
struct FRUGAL_FLAGGED cuda_layer_types {
    using device_type = typename Policies::device;
    using norm_weight = typename Convention::norm_weight;
    static constexpr bool sparse = Spec::attention == attention_kind::qsa;
    static constexpr bool is_plain = Spec::residual == residual_kind::plain;
    static constexpr bool is_dense = Spec::feed_forward == feed_forward_kind::dense;
    static constexpr bool has_ngrams = Spec::ngram_embedding;
    static constexpr std::size_t ratio = sparse ? Spec::qsa_ratio : 1;
    using gdn = attention::cuda_gdn<typename Convention::head_pairing, typename Spec::gdn_gate, device_type>;
    using key_value = typename Policies::precision::key_value;
    using attention_layer =
        std::conditional_t<sparse,
                           attention::cuda_qsa<ratio, norm_weight, key_value, typename Policies::precision::index, device_type>,
                           attention::cuda_full<norm_weight, key_value, device_type>>;
    using ffn_products = reuse::packed_products<layer::dense_ffn_products, device_type>;
    using moe = layer::cuda_moe<device_type>;
    using connection = layer::cuda_hyper_connection<norm_weight, device_type>;
    using ngram = layer::cuda_ngram<norm_weight, device_type>;

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
        : gdn(make_gdn_dims(c)),
          attention(make_attention_dims<typename Types::attention_layer::dims>(c)),
          moe(make_moe_dims(c)),
          connection(make_hyper_dims(c)) {
        if constexpr (Types::has_ngrams)
            for (const ngram_module& m : c.ngrams) ngrams.push_back(make_ngram_dims(c, m));
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
                                                            const dims_type& dims, const weights& bound,
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

    [[nodiscard]] status make(const maker& from, const weights& bound) {
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
            FRUGAL_TRY_ASSIGN(output_norm, from.keep(bound.output_norm, from.sizes.hidden, "an output norm"));
        } else {
            FRUGAL_TRY_ASSIGN(output_connection, from.connect(bound.output_hyper_connection));
        }
        for (std::size_t i = 0; i < from.sizes.layers.size(); ++i) {
            layers.emplace_back();
            FRUGAL_TRY(make_layer(from, bound.layers[i], i, layers.back()));
        }
        if constexpr (Types::has_ngrams) {
            const auto& each = from.dims.ngrams;
            if (bound.ngrams.size() != each.size())
                return fail(errc::shape_mismatch, "weights of ", bound.ngrams.size(), " n-gram modules of ", each.size());
            for (std::size_t m = 0; m < each.size(); ++m) {
                FRUGAL_TRY_ASSIGN(auto one, Types::ngram::create(from.dev, from.memory, each[m], bound.ngrams[m],
                                                                 from.options.checkpoints, unneeded));
                ngrams.push_back(std::move(one));
            }
        }
        return {};
    }

    [[nodiscard]] static status make_layer(const maker& from, const layer_weights& w, std::size_t index, decoder_layer& to) {
        const config& sizes = from.sizes;
        const std::size_t rows = from.options.batch_tokens, most = from.options.max_tokens;
        const reuse::source_unneeded& unneeded = from.options.source_unneeded;
        if (sizes.layers[index] == layer_kind::gdn) {
            FRUGAL_TRY_ASSIGN(
                auto one, Types::gdn::create(from.dev, from.memory, from.dims.gdn, w.gdn, from.options.checkpoints, unneeded));
            to.gdn.emplace(std::move(one));
        } else if constexpr (Types::sparse) {
            FRUGAL_TRY_ASSIGN(auto one, Types::attention_layer::create(from.dev, from.memory, from.dims.attention, w.attention,
                                                                       sizes.qsa_ratios[index] == 0, rows,
                                                                       Types::history_rows(from.options), most, unneeded));
            to.attention.emplace(std::move(one));
        } else {
            FRUGAL_TRY_ASSIGN(auto one, Types::attention_layer::create(from.dev, from.memory, from.dims.attention, w.attention,
                                                                       rows, most, unneeded));
            to.attention.emplace(std::move(one));
        }
        if constexpr (Types::is_dense) {
            FRUGAL_TRY_ASSIGN(to.dense, Types::ffn_products::pack(from.dev, w.dense, unneeded));
        } else {
            FRUGAL_TRY_ASSIGN(auto one, Types::moe::create(from.dev, from.dims.moe, w.moe, sizes.hidden, unneeded));
            to.moe.emplace(std::move(one));
        }
        if constexpr (Types::is_plain) {
            FRUGAL_TRY_ASSIGN(to.attention_norm, from.keep(w.attention_norm, sizes.hidden, "an attention norm"));
            FRUGAL_TRY_ASSIGN(to.ffn_norm, from.keep(w.ffn_norm, sizes.hidden, "a feed-forward norm"));
        } else {
            FRUGAL_TRY_ASSIGN(to.attention_connection, from.connect(w.attention_hyper_connection));
            FRUGAL_TRY_ASSIGN(to.ffn_connection, from.connect(w.ffn_hyper_connection));
        }
        return {};
    }
};

}  // namespace model

FRUGAL_NAMESPACE_END
