#pragma once
// Writes GGUF files of models with the shapes of real ones and random weights.
//
// Weights are drawn once a format and row length and repeated: what a product costs does not depend on them. They are scaled so
// that what all layers add to the stream is about as large as the embedding, as in a model before its training: then rounding
// is not amplified from layer to layer, and one layer that is wrong still shows in the logits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/quant/block.hpp"
#include "frugal/quant/formats.hpp"
#include "shapes.hpp"

namespace bench {

namespace fg = frugal;

/// Random blocks with weights of about `deviation`, centred, for the formats below.
template <class F>
std::vector<std::byte> random_weights(std::size_t blocks, float deviation, std::mt19937& random) {
    std::vector<std::byte> out(blocks * F::block_bytes);
    std::normal_distribution<float> normal(0.0f, deviation);
    for (std::size_t b = 0; b < blocks; ++b) {
        std::byte* const block = out.data() + b * F::block_bytes;
        if constexpr (fg::quant::encodable_format<F>) {
            float values[F::block_size];
            for (float& value : values) value = normal(random);
            F::encode(values, block);
        } else if constexpr (std::is_same_v<F, fg::quant::q4_k>) {
            // d * scale * code - dmin * minimum with minimum = scale in 32 … 63 and dmin = 7.5 d: codes 0 … 15 are centred.
            for (std::size_t i = 16; i < F::block_bytes; ++i) block[i] = static_cast<std::byte>(random() & 0xFFu);
            const float d = deviation / (47.5f * 4.61f);
            fg::quant::detail::store_half(block, d);
            fg::quant::detail::store_half(block + 2, 7.5f * d);
            for (std::size_t j = 0; j < 4; ++j) {
                const auto low = static_cast<unsigned>(32 + random() % 32), high = static_cast<unsigned>(32 + random() % 32);
                block[4 + j] = block[8 + j] = static_cast<std::byte>(low | (high >> 4 << 6));
                block[12 + j] = static_cast<std::byte>((high & 15u) | (high & 15u) << 4);
            }
        } else {
            static_assert(std::is_same_v<F, fg::quant::q6_k>);
            // d * scale * (code - 32), codes 0 … 63.
            for (std::size_t i = 0; i < 192; ++i) block[i] = static_cast<std::byte>(random() & 0xFFu);
            for (std::size_t j = 192; j < 208; ++j) block[j] = static_cast<std::byte>(64 + random() % 64);
            fg::quant::detail::store_half(block + 208, deviation / (95.5f * 18.5f));
        }
    }
    return out;
}

/// Collects metadata and tensors, then writes the file.
class gguf_writer {
public:
    explicit gguf_writer(std::string_view architecture) : architecture_(architecture) {
        string("general.architecture", architecture);
        string("tokenizer.ggml.model", "none");
    }

    void u32(std::string_view name, std::size_t value) { key(name, 4, static_cast<std::uint32_t>(value)); }
    void f32(std::string_view name, float value) { key(name, 6, value); }
    template <class T>
    void list(std::string_view name, std::uint32_t type, const std::vector<T>& values) {
        head(name, 9);
        raw(type);
        raw(static_cast<std::uint64_t>(values.size()));
        for (const T& value : values) raw(value);
    }
    /// The same for a name without the architecture before it.
    void string(std::string_view name, std::string_view value) {
        ++entries_;
        text(name);
        raw(std::uint32_t{8});
        text(value);
    }

    /// Random weights of F, rows of sizes[0], the deviation 1 / sqrt(sizes[0]) times `gain`.
    template <class F>
    void weights(const std::string& name, std::vector<std::size_t> sizes, float gain = 1.0f) {
        auto& pool = pools_[{static_cast<int>(F::type), sizes[0], gain}];
        if (!pool) {
            // A prime number of blocks, so that rows differ from their neighbours.
            pool = std::make_shared<const std::vector<std::byte>>(
                random_weights<F>(4093, gain / std::sqrt(static_cast<float>(sizes[0])), random_));
        }
        std::size_t count = 1;
        for (const std::size_t size : sizes) count *= size;
        tensors_.push_back({name, std::move(sizes), static_cast<std::uint32_t>(F::type), count / F::block_size * F::block_bytes,
                            pool, random_() % 4093 * F::block_bytes});
    }
    /// f32 values mean + deviation * normal.
    void values(const std::string& name, std::vector<std::size_t> sizes, float mean, float deviation) {
        std::size_t count = 1;
        for (const std::size_t size : sizes) count *= size;
        std::normal_distribution<float> normal(mean, deviation);
        std::vector<std::byte> bytes(count * sizeof(float));
        for (std::size_t i = 0; i < count; ++i) {
            const float value = normal(random_);
            std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof value);
        }
        const std::size_t size = bytes.size();
        tensors_.push_back(
            {name, std::move(sizes), 0, size, std::make_shared<const std::vector<std::byte>>(std::move(bytes)), 0});
    }

    /// Errors: io.
    [[nodiscard]] fg::status write(const std::string& path) {
        std::string all;
        std::swap(all, content_);
        content_ = "GGUF";
        raw(std::uint32_t{3});
        raw(static_cast<std::uint64_t>(tensors_.size()));
        raw(static_cast<std::uint64_t>(entries_));
        content_ += all;
        std::uint64_t offset = 0;
        for (const tensor& t : tensors_) {
            text(t.name);
            raw(static_cast<std::uint32_t>(t.sizes.size()));
            for (const std::size_t size : t.sizes) raw(static_cast<std::uint64_t>(size));
            raw(t.type);
            raw(offset);
            offset += aligned(t.bytes);
        }
        content_.resize(aligned(content_.size()));
        std::FILE* const out = std::fopen(path.c_str(), "wb");
        if (out == nullptr) return fg::fail(fg::errc::io, "cannot write ", path);
        bool good = std::fwrite(content_.data(), 1, content_.size(), out) == content_.size();
        for (const tensor& t : tensors_) {
            std::size_t from = t.start;
            for (std::size_t left = t.bytes; left != 0 && good;) {
                const std::size_t piece = std::min(left, t.pool->size() - from);
                good = std::fwrite(t.pool->data() + from, 1, piece, out) == piece;
                left -= piece;
                from = 0;
            }
            const char none[alignment] = {};
            good = good && std::fwrite(none, 1, aligned(t.bytes) - t.bytes, out) == aligned(t.bytes) - t.bytes;
        }
        if (std::fclose(out) != 0 || !good) return fg::fail(fg::errc::io, "cannot write ", offset, " bytes to ", path);
        return {};
    }

private:
    static constexpr std::size_t alignment = 32;
    struct tensor {
        std::string name;
        std::vector<std::size_t> sizes;
        std::uint32_t type;
        std::size_t bytes;
        std::shared_ptr<const std::vector<std::byte>> pool;
        std::size_t start;
    };
    static std::size_t aligned(std::size_t n) { return (n + alignment - 1) / alignment * alignment; }
    template <class T>
    void raw(T value) {
        content_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void text(std::string_view value) {
        raw(static_cast<std::uint64_t>(value.size()));
        content_ += value;
    }
    void head(std::string_view name, std::uint32_t type) {
        ++entries_;
        text(fg::concat(architecture_, ".", name));
        raw(type);
    }
    template <class T>
    void key(std::string_view name, std::uint32_t type, T value) {
        head(name, type);
        raw(value);
    }

    std::string architecture_, content_;
    std::size_t entries_ = 0;
    std::vector<tensor> tensors_;
    std::map<std::tuple<int, std::size_t, float>, std::shared_ptr<const std::vector<std::byte>>> pools_;
    std::mt19937 random_{1};
};

/// Writes a model of this shape with the types of a Q4_K_M file. Errors: io.
inline fg::status write_model(const model_shape& m, const std::string& path) {
    using namespace fg::quant;
    gguf_writer out(m.architecture);
    constexpr std::size_t state = 128, rotary = 64, kernel = 4, full_every = 4;
    const bool experts = m.experts != 0;
    const std::size_t value_dim = m.value_heads * state, channels = 2 * m.key_heads * state + value_dim;
    out.u32("block_count", m.layers);
    out.u32("context_length", 262144);
    out.u32("embedding_length", m.hidden);
    out.u32("vocab_size", m.vocabulary);
    out.u32("attention.head_count", m.heads);
    out.u32("attention.head_count_kv", m.kv_heads);
    out.u32("attention.key_length", m.head_dim);
    out.u32("attention.value_length", m.head_dim);
    out.f32("attention.layer_norm_rms_epsilon", 1e-6f);
    out.u32("rope.dimension_count", rotary);
    out.f32("rope.freq_base", 1e7f);
    out.list<std::int32_t>("rope.dimension_sections", 5, {11, 11, 10, 0});
    out.u32("full_attention_interval", full_every);
    out.u32("ssm.conv_kernel", kernel);
    out.u32("ssm.state_size", state);
    out.u32("ssm.group_count", m.key_heads);
    out.u32("ssm.time_step_rank", m.value_heads);
    out.u32("ssm.inner_size", value_dim);
    std::vector<std::uint32_t> ratios(m.layers);
    std::vector<std::uint64_t> offsets, sizes;
    constexpr std::size_t ngram_row = 160, ngram_heads = 16;
    if (!experts) {
        out.u32("feed_forward_length", m.intermediate);
    } else {
        for (std::size_t i = full_every - 1; i < m.layers; i += full_every) ratios[i] = static_cast<std::uint32_t>(m.ratio);
        out.u32("expert_count", m.experts);
        out.u32("expert_used_count", m.experts_used);
        out.u32("expert_feed_forward_length", m.expert_intermediate);
        out.u32("expert_shared_feed_forward_length", m.expert_intermediate);
        out.u32("hyper_connection.count", m.streams);
        out.u32("hyper_connection.low_rank", m.mix_rank);
        out.u32("attention.indexer.head_count", m.index_heads);
        out.u32("attention.indexer.key_length", m.index_dim);
        out.u32("attention.indexer.top_k", m.index_budget);
        out.list("attention.compress_ratios", 4, ratios);
        // The n-gram table is cut to 20,000 rows a head: a token reads one row of each.
        constexpr std::uint64_t primes[ngram_heads] = {20011, 20021, 20023, 20029, 20047, 20051, 20063, 20071,
                                                       20089, 20101, 20107, 20113, 20117, 20123, 20129, 20143};
        std::uint64_t rows = 0;
        for (const std::uint64_t prime : primes) {
            offsets.push_back(rows);
            sizes.push_back(prime);
            rows += prime;
        }
        out.list<std::uint32_t>("ple.layers", 4, {1});
        out.u32("ple.ngram_size", 3);
        out.u32("ple.heads_per_ngram", ngram_heads / 2);
        out.u32("ple.conv_kernel", kernel);
        out.u32("ple.eos_token_id", m.vocabulary - 1);
        out.u32("embedding_length_per_layer_input", ngram_row);
        out.list<std::uint64_t>("ple.layer_multipliers", 10, {23703573157769u, 20109073645365u, 8052911324071u});
        out.list("ple.head_offsets", 10, offsets);
        out.list("ple.head_vocab_sizes", 10, sizes);
    }

    const std::size_t width = m.streams * m.hidden;
    const float unit = std::sqrt(static_cast<float>(m.hidden)), share = 1 / std::sqrt(2 * static_cast<float>(m.layers));
    const auto mixer = [&](const std::string& prefix, bool inject) {
        out.values(prefix + "_norm.weight", {width}, 1.0f, 0.05f);
        out.weights<q4_k>(prefix + "_down.weight", {width, m.mix_rank});
        out.weights<q5_0>(prefix + "_up.weight", {m.mix_rank, width});
        if (inject) out.weights<q4_k>(prefix + "_inject.weight", {width, m.streams});
    };
    if (experts) {
        out.weights<q4_k>("token_embd.weight", {m.hidden, m.vocabulary}, unit);
        out.weights<q6_k>("output.weight", {m.hidden, m.vocabulary});
        mixer("output_hc", false);
        out.weights<q8_0>("per_layer_token_embd.weight", {ngram_row, offsets.back() + sizes.back()});
    } else {
        out.weights<q6_k>("token_embd.weight", {m.hidden, m.vocabulary}, unit);
        out.values("output_norm.weight", {m.hidden}, 1.0f, 0.05f);
    }
    for (std::size_t i = 0; i < m.layers; ++i) {
        const std::string block = fg::concat("blk.", i, ".");
        // Half of some tensors have more bits, as in real files.
        const auto more = [&](const std::string& name, const std::vector<std::size_t>& size, float gain = 1.0f) {
            if (i % 2 == 0)
                out.weights<q6_k>(block + name, size, gain);
            else
                out.weights<q4_k>(block + name, size, gain);
        };
        if (experts) {
            mixer(block + "hc_attn", true);
            mixer(block + "hc_ffn", true);
        } else {
            out.values(block + "attn_norm.weight", {m.hidden}, 1.0f, 0.05f);
            out.values(block + "post_attention_norm.weight", {m.hidden}, 1.0f, 0.05f);
        }
        if ((i + 1) % full_every != 0) {
            more("attn_qkv.weight", {m.hidden, channels});
            out.weights<q4_k>(block + "attn_gate.weight", {m.hidden, value_dim});
            out.weights<q4_k>(block + "ssm_beta.weight", {m.hidden, m.value_heads});
            out.weights<q4_k>(block + "ssm_alpha.weight", {m.hidden, m.value_heads});
            out.values(block + "ssm_conv1d.weight", {kernel, channels}, 0.0f, 0.5f);
            out.values(block + "ssm_dt.bias", {m.value_heads}, 0.0f, 0.5f);
            out.values(block + "ssm_a", {m.value_heads}, -1.0f, 0.1f);
            out.values(block + "ssm_norm.weight", {state}, 1.0f, 0.05f);
            out.weights<q4_k>(block + "ssm_out.weight", {value_dim, m.hidden}, share);
        } else {
            out.weights<q4_k>(block + "attn_q.weight", {m.hidden, 2 * m.heads * m.head_dim});
            out.weights<q4_k>(block + "attn_k.weight", {m.hidden, m.kv_heads * m.head_dim});
            more("attn_v.weight", {m.hidden, m.kv_heads * m.head_dim});
            out.weights<q4_k>(block + "attn_output.weight", {m.heads * m.head_dim, m.hidden}, share);
            out.values(block + "attn_q_norm.weight", {m.head_dim}, 1.0f, 0.05f);
            out.values(block + "attn_k_norm.weight", {m.head_dim}, 1.0f, 0.05f);
            if (experts) {
                out.weights<bf16>(block + "indexer.q_proj.weight", {m.hidden, m.index_heads * m.index_dim});
                out.weights<bf16>(block + "indexer.k_proj.weight", {m.hidden, m.index_dim});
                out.values(block + "indexer.q_norm.weight", {m.index_dim}, 1.0f, 0.05f);
                out.values(block + "indexer.k_norm.weight", {m.index_dim}, 1.0f, 0.05f);
            }
        }
        if (!experts) {
            out.weights<q4_k>(block + "ffn_gate.weight", {m.hidden, m.intermediate});
            out.weights<q4_k>(block + "ffn_up.weight", {m.hidden, m.intermediate});
            more("ffn_down.weight", {m.intermediate, m.hidden}, share);
            continue;
        }
        if (i == 1) {
            out.weights<q4_k>(block + "ple_key.weight", {ngram_heads * ngram_row, width});
            out.weights<q4_k>(block + "ple_value.weight", {ngram_heads * ngram_row, m.hidden});
            for (const char* norm : {"ple_norm_key.weight", "ple_norm_query.weight", "ple_norm_conv.weight"})
                out.values(block + norm, {width}, 1.0f, 0.05f);
            out.weights<f16>(block + "ple_conv1d.weight", {kernel, width});
        }
        // The experts' own rows of 640 hold no K-quant.
        out.values(block + "ffn_gate_inp.weight", {m.hidden, m.experts}, 0.0f, 1.0f / std::sqrt(static_cast<float>(m.hidden)));
        out.weights<q4_k>(block + "ffn_gate_exps.weight", {m.hidden, m.expert_intermediate, m.experts});
        out.weights<q4_k>(block + "ffn_up_exps.weight", {m.hidden, m.expert_intermediate, m.experts});
        out.weights<q5_0>(block + "ffn_down_exps.weight", {m.expert_intermediate, m.hidden, m.experts}, share);
        out.values(block + "ffn_gate_inp_shexp.weight", {m.hidden}, 0.0f, 1.0f / std::sqrt(static_cast<float>(m.hidden)));
        out.weights<q4_k>(block + "ffn_gate_shexp.weight", {m.hidden, m.expert_intermediate});
        out.weights<q4_k>(block + "ffn_up_shexp.weight", {m.hidden, m.expert_intermediate});
        out.weights<q5_0>(block + "ffn_down_shexp.weight", {m.expert_intermediate, m.hidden}, share);
    }
    return out.write(path);
}

}  // namespace bench
