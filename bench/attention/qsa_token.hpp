#pragma once
// A decode token of a model with the layers of Qwen3.8-Flash-Next.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/model/transformer.hpp"
#include "frugal/quant/formats/q4_k.hpp"
#include "frugal/quant/formats/q5_0.hpp"
#include "qsa_data.hpp"

namespace bench {

/// One group of layers, three Gated DeltaNet and one QSA, each with its mixture of experts and hyper-connections. The model is
/// twelve of them; one fits in memory, with 64 experts a layer instead of 512, of which a token uses 10 as it does there.
/// Embedding and head are cut to a few rows: they do not depend on the context. There is one state for each length of the past,
/// so that tokens behind different ones can be timed in turn.
template <class Isa>
class token_model {
    using formats = fg::quant::list<fg::quant::f32, fg::quant::q4_k, fg::quant::q5_0>;
    using device = fg::device::packed_cpu<Isa, fg::counters_off, formats, fg::device::q8_activations>;
    using spec = fg::model::qwen4exp<shape::ratio>;
    using model_type = fg::model::transformer<spec, fg::model::convention::hugging_face, fg::policies<device, formats>>;
    using state_type = typename model_type::state;
    using norm_weight = fg::model::convention::hugging_face::norm_weight;
    using precision = typename fg::policies<>::precision;
    using attention_variant =
        fg::attention::qsa<shape::ratio, norm_weight, typename precision::key_value, typename precision::index>;

public:
    static constexpr std::size_t groups = 12;
    static constexpr std::size_t most_tokens = 1024;  ///< behind a past

    token_model(const qsa_data& data)
        : data_(data),
          wide_(random_blocks<fg::quant::q4_k>(std::size_t{1} << 21, 11)),     // 300 MB: beyond the caches
          narrow_(random_blocks<fg::quant::q5_0>(std::size_t{1} << 22, 12)) {  // 92 MB
        const fg::model::config sizes = config();
        model_ = std::make_unique<model_type>(model_type::create(sizes, make(sizes)).value());
        pass_ = std::make_unique<typename model_type::pass_type>(model_->make_pass(device_).value());
        rope_ = fg::ops::rope_table::make(static_cast<double>(shape::theta), shape::rotary_dim, shape::sections);
    }

    /// A state with a past of `length` tokens: what the QSA layer has cached of them. The recurrent layers' states do not grow.
    [[nodiscard]] fg::status add_past(std::size_t length) {
        constexpr fg::attention::sequence_id sequence{0};
        auto& state = *states_.emplace_back(
            std::make_unique<state_type>(model_->make_state({.sequences = 1, .max_tokens = length + most_tokens}).value()));
        auto& cache = state.template parts<typename attention_variant::state>().front();
        FRUGAL_TRY(write_past<norm_weight>(device_, pass_->scratch(), rope_, data_, cache, length));
        const fg::attention::segment part{sequence, 0, length};
        const auto positions = text_positions(0, length);
        fg::counters_off none;
        FRUGAL_TRY(state.template parts<typename attention_variant::shared_inputs>().front().append({{&part, 1}, positions}, none));
        state.advance(sequence, length);
        return {};
    }
    /// The next token behind the past that was added as number `past`.
    [[nodiscard]] fg::status run(std::size_t past) {
        const fg::attention::segment part{fg::attention::sequence_id{0}, 0, 1};
        token_ = (token_ * 7 + 1) % 256;
        return model_->forward(*pass_, *states_[past], {{&token_, 1}, {&part, 1}}, {});
    }

private:
    static fg::model::config config() {
        fg::model::config c;
        c.architecture = std::string(fg::model::qwen4exp<shape::ratio>::name);
        c.vocabulary = 256;
        c.hidden = shape::hidden;
        c.context_length = std::size_t{1} << 20;
        c.layers = {fg::model::layer_kind::gdn, fg::model::layer_kind::gdn, fg::model::layer_kind::gdn,
                    fg::model::layer_kind::attention};
        c.heads = shape::heads;
        c.kv_heads = shape::kv_heads;
        c.head_dim = shape::head_dim;
        c.rotary_dim = shape::rotary_dim;
        c.rope_theta = shape::theta;
        c.rope_sections = shape::sections;
        c.key_heads = 16;
        c.value_heads = 48;
        c.key_dim = c.value_dim = 128;
        c.conv_kernel = 4;
        c.experts = 64;
        c.experts_used = 10;
        c.expert_intermediate = c.shared_intermediate = 640;
        c.streams = 4;
        c.mix_rank = 320;
        c.index_heads = shape::index_heads;
        c.index_dim = shape::index_dim;
        c.index_budget = shape::budget;
        c.qsa_ratios = {0, 0, 0, shape::ratio};
        return c;
    }

    [[nodiscard]] fg::model::weights<spec> make(const fg::model::config& c) {
        fg::model::weights<spec> out;
        const auto vector = [&](std::size_t n, float value) { return out.keep(std::vector<float>(n, value)); };
        const auto hyper = [&](bool last) {
            fg::layer::hyper_connection_weights w;
            w.norm = vector(c.streams * c.hidden, 0.1f);
            w.down = matrix(c.mix_rank, c.streams * c.hidden);
            w.up = matrix(c.streams * c.hidden, c.mix_rank);
            if (!last) w.inject = matrix(c.streams, c.streams * c.hidden);
            return w;
        };
        out.embedding = matrix(c.vocabulary, c.hidden);
        out.head = matrix(c.vocabulary, c.hidden);
        out.output = hyper(true);
        const std::size_t values = c.value_heads * c.value_dim, channels = 2 * c.key_heads * c.key_dim + values;
        for (const fg::model::layer_kind kind : c.layers) {
            fg::model::layer_weights<spec>& w = out.layers.emplace_back();
            w.around_mixer = hyper(false);
            w.around_feed_forward = hyper(false);
            w.feed_forward.router = matrix(c.experts, c.hidden);
            const auto experts = [&](std::size_t rows, std::size_t cols) {
                return fg::layer::expert_stack::whole(matrix(c.experts * rows, cols), c.experts).value();
            };
            w.feed_forward.gate = experts(c.expert_intermediate, c.hidden);
            w.feed_forward.up = experts(c.expert_intermediate, c.hidden);
            w.feed_forward.down = experts(c.hidden, c.expert_intermediate);
            w.feed_forward.shared_gate = matrix(1, c.hidden);
            w.feed_forward.shared_gate_proj = matrix(c.shared_intermediate, c.hidden);
            w.feed_forward.shared_up = matrix(c.shared_intermediate, c.hidden);
            w.feed_forward.shared_down = matrix(c.hidden, c.shared_intermediate);
            if (kind == fg::model::layer_kind::gdn) {
                auto& gdn = w.mixer.template emplace<fg::attention::gdn_weights>();
                gdn.qkv = matrix(channels, c.hidden);
                gdn.z = matrix(values, c.hidden);
                gdn.alpha = matrix(c.value_heads, c.hidden);
                gdn.beta = matrix(c.value_heads, c.hidden);
                gdn.out = matrix(c.hidden, values);
                gdn.conv = out.keep(normal(channels * c.conv_kernel, 13, 0.3f));
                gdn.a_neg_exp = vector(c.value_heads, -0.5f);
                gdn.dt_bias = vector(c.value_heads, 0.1f);
                gdn.norm = vector(c.value_dim, 1.0f);
            } else {
                auto& attention = w.mixer.template emplace<fg::attention::qsa_weights>();
                attention.q = matrix(2 * c.heads * c.head_dim, c.hidden);
                attention.k = matrix(c.kv_heads * c.head_dim, c.hidden);
                attention.v = matrix(c.kv_heads * c.head_dim, c.hidden);
                attention.o = matrix(c.hidden, c.heads * c.head_dim);
                attention.q_norm = attention.k_norm = vector(c.head_dim, 0.1f);
                attention.indexer_q = matrix(c.index_heads * c.index_dim, c.hidden);
                attention.indexer_k = matrix(c.index_dim, c.hidden);
                attention.indexer_q_norm = attention.indexer_k_norm = vector(c.index_dim, 0.1f);
            }
        }
        return out;
    }

    /// The next part of a pool of random blocks; q5_0 where rows do not fill q4_k's blocks, as converters do.
    [[nodiscard]] fg::quant::weight_view matrix(std::size_t rows, std::size_t cols) {
        return cols % fg::quant::q4_k::block_size == 0 ? matrix<fg::quant::q4_k>(wide_, next_wide_, rows, cols)
                                                       : matrix<fg::quant::q5_0>(narrow_, next_narrow_, rows, cols);
    }
    template <class Format>
    [[nodiscard]] static fg::quant::weight_view matrix(const aligned_bytes& pool, std::size_t& next, std::size_t rows,
                                                       std::size_t cols) {
        const std::size_t bytes = rows * cols / Format::block_size * Format::block_bytes;
        if (next + bytes > pool.size()) next = 0;
        const std::byte* const data = pool.data() + next;
        next += bytes;
        return {Format::type, data, rows, cols, cols / Format::block_size * Format::block_bytes};
    }

    const qsa_data& data_;
    aligned_bytes wide_, narrow_;
    std::size_t next_wide_ = 0, next_narrow_ = 0;
    std::unique_ptr<model_type> model_;
    std::unique_ptr<typename model_type::pass_type> pass_;
    std::vector<std::unique_ptr<state_type>> states_;
    fg::ops::rope_table rope_;
    std::int32_t token_ = 1;
    device device_{executor()};
};

}  // namespace bench
