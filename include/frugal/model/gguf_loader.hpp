#pragma once
/// Sizes and weights of a model from a GGUF file (architectures qwen35, qwen35moe, qwen4exp).
///
/// Keys and names follow llama.cpp's converter. Where llama.cpp and transformers differ, transformers is right:
/// - QSA takes whole blocks (budget / ratio of them) and the incomplete tail; llama.cpp cuts after budget + ratio - 1 tokens;
/// - activations stay f32 in products with BF16 weights; llama.cpp rounds them to BF16;
/// - text is normalised (NFC) before it is cut into tokens (io/tokenizer.hpp).
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/model/bind.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/tensor_source.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

struct load_options {
    /// QSA compress ratio to use in place of the file's. 0: dense attention, asked for.
    std::optional<std::size_t> qsa_ratio;
    bool check_tensors = false;  ///< see bind_options
};

/// GGUF tensors as a tensor_source.
class gguf_source {
public:
    explicit gguf_source(const io::gguf_file& file) noexcept : file_(file) {}

    [[nodiscard]] result<std::optional<source_tensor>> find(const std::string& name) const {
        const io::gguf_tensor* tensor = file_.find(name);
        if (tensor == nullptr) return std::optional<source_tensor>();
        FRUGAL_TRY_ASSIGN(const auto bytes, file_.bytes(*tensor));
        source_tensor out{tensor->name, tensor->type, {}, bytes};
        for (std::size_t i = tensor->n_dims; i-- > 0;) out.shape.push_back(tensor->dims[i]);
        return std::optional<source_tensor>(std::move(out));
    }

private:
    const io::gguf_file& file_;
};

namespace detail {

/// Ratios of a qwen4exp file, after the caller's wish. Today's converter writes 0 for every layer although the indexer is
/// there; run like that, attention would be dense without a word.
[[nodiscard]] inline status settle_qsa_ratios(config& c, bool indexer_present, std::optional<std::size_t> wish) {
    bool any = false;
    for (const std::size_t ratio : c.qsa_ratios) any = any || ratio != 0;
    if (wish) {
        for (std::size_t i = 0; i < c.layers.size(); ++i)
            c.qsa_ratios[i] = c.layers[i] == layer_kind::attention ? *wish : 0;
        return {};
    }
    if (!any && indexer_present)
        return fail(errc::unsupported,
                    "the file holds QSA indexer tensors but every compress ratio is 0, so its sparse attention would silently be "
                    "off (a known fault of converters); give the ratio (--qsa-ratio 4 for released models), or 0 to run dense "
                    "attention on purpose");
    return {};
}

}  // namespace detail

/// Reads the sizes. Errors: not_found, malformed_file, unsupported (another architecture), with the key's name.
[[nodiscard]] inline result<config> read_config(const io::gguf_file& file, const load_options& options = {}) {
    config c;
    FRUGAL_TRY_ASSIGN(const std::string_view architecture, file.string("general.architecture"));
    c.architecture = std::string(architecture);
    const bool dense = architecture == qwen35::name, moe = architecture == qwen35moe::name,
               exp = architecture == qwen4exp<>::name;
    if (!dense && !moe && !exp)
        return fail(errc::unsupported, "architecture \"", architecture, "\" is not one of qwen35, qwen35moe, qwen4exp");
    const auto key = [&](std::string_view name) { return concat(architecture, ".", name); };
    const auto size = [&](std::string_view name, std::size_t& out) -> status {
        FRUGAL_TRY_ASSIGN(const std::uint32_t value, file.u32(key(name)));
        out = value;
        return {};
    };

    std::size_t blocks = 0;
    FRUGAL_TRY(size("block_count", blocks));
    FRUGAL_TRY_ASSIGN(const std::uint32_t predict, file.u32_or(key("nextn_predict_layers"), 0));
    if (predict > blocks)
        return fail(errc::malformed_file, key("nextn_predict_layers"), " ", predict, " exceeds ", blocks, " blocks");
    blocks -= predict;  // prediction layers follow the trunk and are not run
    if (blocks > file.tensors().size()) return fail(errc::malformed_file, key("block_count"), " is ", blocks, " in a file of ",
                                                    file.tensors().size(), " tensors");
    FRUGAL_TRY(size("embedding_length", c.hidden));
    FRUGAL_TRY(size("context_length", c.context_length));
    FRUGAL_TRY_ASSIGN(c.rms_epsilon, file.f32(key("attention.layer_norm_rms_epsilon")));
    const io::gguf_tensor* embedding = file.find("token_embd.weight");
    if (embedding == nullptr) return fail(errc::not_found, "tensor token_embd.weight is missing from the file");
    c.vocabulary = static_cast<std::size_t>(embedding->dims[1]);

    if (file.has(key("attention.recurrent_layers"))) {
        FRUGAL_TRY_ASSIGN(const auto recurrent, file.bool_list(key("attention.recurrent_layers")));
        if (recurrent.size() < blocks)
            return fail(errc::malformed_file, key("attention.recurrent_layers"), " has ", recurrent.size(), " entries for ",
                        blocks, " layers");
        for (std::size_t i = 0; i < blocks; ++i) c.layers.push_back(recurrent[i] ? layer_kind::gdn : layer_kind::attention);
    } else {
        FRUGAL_TRY_ASSIGN(const std::uint32_t interval, file.u32_or(key("full_attention_interval"), 4));
        if (interval == 0) return fail(errc::malformed_file, key("full_attention_interval"), " is 0");
        for (std::size_t i = 0; i < blocks; ++i)
            c.layers.push_back((i + 1) % interval == 0 ? layer_kind::attention : layer_kind::gdn);
    }

    // Head counts are one number or one a layer; layers of one kind must agree.
    const auto heads = [&](std::string_view name, std::size_t& out) -> status {
        FRUGAL_TRY_ASSIGN(const auto list, file.u64_list(key(name)));
        for (std::size_t i = 0; i < blocks && !list.empty(); ++i) {
            if (list.size() > 1 && list.size() < blocks)
                return fail(errc::malformed_file, key(name), " has ", list.size(), " entries for ", blocks, " layers");
            if (c.layers[i] != layer_kind::attention) continue;
            const auto value = static_cast<std::size_t>(list.size() == 1 ? list[0] : list[i]);
            if (out != 0 && out != value)
                return fail(errc::unsupported, key(name), " differs between layers: ", out, " and ", value);
            out = value;
        }
        return {};
    };
    FRUGAL_TRY(heads("attention.head_count", c.heads));
    FRUGAL_TRY(heads("attention.head_count_kv", c.kv_heads));
    FRUGAL_TRY(size("attention.key_length", c.head_dim));
    FRUGAL_TRY_ASSIGN(const std::uint32_t value_length,
                      file.u32_or(key("attention.value_length"), static_cast<std::uint32_t>(c.head_dim)));
    if (value_length != c.head_dim)
        return fail(errc::unsupported, "key heads of ", c.head_dim, " and value heads of ", value_length, " differ in size");
    FRUGAL_TRY(size("rope.dimension_count", c.rotary_dim));
    FRUGAL_TRY_ASSIGN(c.rope_theta, file.f32(key("rope.freq_base")));
    FRUGAL_TRY_ASSIGN(const auto sections, file.i64_list(key("rope.dimension_sections")));
    if (sections.size() < 3)
        return fail(errc::malformed_file, key("rope.dimension_sections"), " has ", sections.size(), " entries");
    for (std::size_t i = 0; i < 3; ++i) {
        if (sections[i] < 0 || sections[i] > 0xFFFF)
            return fail(errc::malformed_file, key("rope.dimension_sections"), " holds ", sections[i]);
        c.rope_sections[i] = static_cast<int>(sections[i]);
    }

    FRUGAL_TRY(size("ssm.conv_kernel", c.conv_kernel));
    FRUGAL_TRY(size("ssm.state_size", c.key_dim));
    FRUGAL_TRY(size("ssm.group_count", c.key_heads));
    FRUGAL_TRY(size("ssm.time_step_rank", c.value_heads));
    std::size_t inner = 0;
    FRUGAL_TRY(size("ssm.inner_size", inner));
    if (c.value_heads == 0 || inner % c.value_heads != 0)
        return fail(errc::malformed_file, key("ssm.inner_size"), " ", inner, " does not divide into ", c.value_heads, " heads");
    c.value_dim = inner / c.value_heads;

    if (dense) FRUGAL_TRY(size("feed_forward_length", c.intermediate));
    if (moe || exp) {
        FRUGAL_TRY(size("expert_count", c.experts));
        FRUGAL_TRY(size("expert_used_count", c.experts_used));
        FRUGAL_TRY(size("expert_feed_forward_length", c.expert_intermediate));
        FRUGAL_TRY(size("expert_shared_feed_forward_length", c.shared_intermediate));
    }
    if (exp) {
        FRUGAL_TRY(size("hyper_connection.count", c.streams));
        FRUGAL_TRY(size("hyper_connection.low_rank", c.mix_rank));
        FRUGAL_TRY(size("attention.indexer.head_count", c.index_heads));
        FRUGAL_TRY(size("attention.indexer.key_length", c.index_dim));
        FRUGAL_TRY(size("attention.indexer.top_k", c.index_budget));
        c.qsa_ratios.assign(blocks, 0);
        if (file.has(key("attention.compress_ratios"))) {
            FRUGAL_TRY_ASSIGN(const auto ratios, file.u64_list(key("attention.compress_ratios")));
            if (ratios.size() < blocks)
                return fail(errc::malformed_file, key("attention.compress_ratios"), " has ", ratios.size(), " entries for ",
                            blocks, " layers");
            for (std::size_t i = 0; i < blocks; ++i) c.qsa_ratios[i] = static_cast<std::size_t>(ratios[i]);
        }
        bool indexer = false;
        for (std::size_t i = 0; i < blocks; ++i)
            indexer = indexer || file.find(concat("blk.", i, ".indexer.q_proj.weight")) != nullptr;
        FRUGAL_TRY(detail::settle_qsa_ratios(c, indexer, options.qsa_ratio));
        if (file.has(key("ple.layers"))) {
            FRUGAL_TRY_ASSIGN(const auto layers, file.u64_list(key("ple.layers")));
            if (layers.size() != 1)
                return fail(errc::unsupported, "the file names ", layers.size(),
                            " n-gram (PLE) layers; GGUF has one table, for one layer");
            std::size_t ngram_size = 0, heads_per_ngram = 0;
            FRUGAL_TRY(size("ple.ngram_size", ngram_size));
            FRUGAL_TRY(size("ple.heads_per_ngram", heads_per_ngram));
            FRUGAL_TRY(size("ple.conv_kernel", c.ngram_conv_kernel));
            FRUGAL_TRY(size("embedding_length_per_layer_input", c.ngram_row));
            FRUGAL_TRY_ASSIGN(const std::int64_t eos, file.i64(key("ple.eos_token_id")));
            FRUGAL_TRY_ASSIGN(auto multipliers, file.u64_list(key("ple.layer_multipliers")));
            FRUGAL_TRY_ASSIGN(auto offsets, file.u64_list(key("ple.head_offsets")));
            FRUGAL_TRY_ASSIGN(auto head_sizes, file.u64_list(key("ple.head_vocab_sizes")));
            ngram_module m;
            m.layer = static_cast<std::size_t>(layers[0]);
            FRUGAL_TRY_ASSIGN(
                m.hash, ops::ngram_hash::from_constants(ngram_size, heads_per_ngram, static_cast<std::int64_t>(c.vocabulary), eos,
                                                        std::move(multipliers), std::move(offsets), std::move(head_sizes)));
            c.ngrams.push_back(std::move(m));
        }
    }
    if (file.has("tokenizer.ggml.eos_token_id")) {
        FRUGAL_TRY_ASSIGN(const std::int32_t eos, file.i32("tokenizer.ggml.eos_token_id"));
        c.eos.push_back(eos);
    }
    return c;
}

/// Binds a GGUF file's tensors. The file must outlive the weights.
template <specification Spec, quant::format_list Formats>
[[nodiscard]] result<weights> read_weights(const io::gguf_file& file, const config& sizes, const load_options& options = {}) {
    return bind<Spec, convention::gguf, Formats>(gguf_source(file), sizes, tensor_names<convention::gguf>{},
                                                 bind_options{options.check_tensors});
}

}  // namespace model

FRUGAL_NAMESPACE_END
