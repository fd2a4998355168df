#pragma once
/// Sizes and weights of a model from a GGUF file (architectures qwen35, qwen35moe, qwen4exp).
///
/// Keys and names follow llama.cpp's converter. Where llama.cpp and transformers differ, transformers is right:
/// - QSA takes whole blocks (budget / ratio of them) and the incomplete tail; llama.cpp cuts after budget + ratio - 1 tokens;
/// - activations stay f32 in products with BF16 weights; llama.cpp rounds them to BF16;
/// - text is normalised (NFC) before it is cut into tokens (io/tokenizer.hpp).
#include <cmath>
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
#include "frugal/model/gguf_keys.hpp"
#include "frugal/model/gguf_source.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

struct FRUGAL_FLAGGED load_options {
    /// QSA compress ratio to use in place of the file's. 0: dense attention, asked for.
    std::optional<std::size_t> qsa_ratio;
    bool check_tensors = false;  ///< see bind_options
};

namespace detail {

/// Ratios of a qwen4exp file, after the caller's wish. Today's converter writes 0 for every layer although the indexer is
/// there; run like that, attention would be dense without a word.
[[nodiscard]] inline status settle_qsa_ratios(config& c, bool indexer_present, std::optional<std::size_t> wish) {
    bool any = false;
    for (const std::size_t ratio : c.qsa_ratios) any = any || ratio != 0;
    if (wish) {
        for (std::size_t i = 0; i < c.layers.size(); ++i) c.qsa_ratios[i] = c.layers[i] == layer_kind::attention ? *wish : 0;
        return {};
    }
    if (!any && indexer_present)
        return fail(errc::unsupported,
                    "the file holds QSA indexer tensors but every compress ratio is 0, so its sparse attention would silently be "
                    "off (a known fault of converters); give the ratio (--qsa-ratio 4 for released models), or 0 to run dense "
                    "attention on purpose");
    return {};
}

/// Which layers are recurrent.
[[nodiscard]] inline status read_layer_kinds(gguf_keys& keys, std::size_t blocks, config& c) {
    const auto key = [&](std::string_view name) { return keys.full(name); };
    if (keys.has("attention.recurrent_layers")) {
        FRUGAL_TRY_ASSIGN(const auto recurrent, keys.bool_list("attention.recurrent_layers"));
        if (recurrent.size() < blocks)
            return fail(errc::malformed_file, key("attention.recurrent_layers"), " has ", recurrent.size(), " entries for ",
                        blocks, " layers");
        for (std::size_t i = 0; i < blocks; ++i) c.layers.push_back(recurrent[i] ? layer_kind::gdn : layer_kind::attention);
    } else {
        FRUGAL_TRY_ASSIGN(const std::uint32_t interval, keys.u32_or("full_attention_interval", 4));
        if (interval == 0) return fail(errc::malformed_file, key("full_attention_interval"), " is 0");
        for (std::size_t i = 0; i < blocks; ++i)
            c.layers.push_back((i + 1) % interval == 0 ? layer_kind::attention : layer_kind::gdn);
    }
    return {};
}

/// Heads of the attention layers and their sizes.
[[nodiscard]] inline status read_heads(gguf_keys& keys, config& c) {
    const auto key = [&](std::string_view name) { return keys.full(name); };
    const auto size = [&](std::string_view name, std::size_t& out) { return keys.size(name, out); };
    const std::size_t blocks = c.layers.size();
    // Head counts are one number or one a layer; layers of one kind must agree.
    const auto heads = [&](std::string_view name, std::size_t& out) -> status {
        FRUGAL_TRY_ASSIGN(const auto list, keys.u64_list(name));
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
                      keys.u32_or("attention.value_length", static_cast<std::uint32_t>(c.head_dim)));
    if (value_length != c.head_dim)
        return fail(errc::unsupported, "key heads of ", c.head_dim, " and value heads of ", value_length, " differ in size");
    return {};
}

/// Rotary positions.
[[nodiscard]] inline status read_positions(gguf_keys& keys, config& c) {
    const auto key = [&](std::string_view name) { return keys.full(name); };
    const auto size = [&](std::string_view name, std::size_t& out) { return keys.size(name, out); };
    FRUGAL_TRY(size("rope.dimension_count", c.rotary_dim));
    FRUGAL_TRY_ASSIGN(c.rope_theta, keys.f32("rope.freq_base"));
    FRUGAL_TRY_ASSIGN(const auto sections, keys.i64_list("rope.dimension_sections"));
    if (sections.size() < 3)
        return fail(errc::malformed_file, key("rope.dimension_sections"), " has ", sections.size(), " entries");
    for (std::size_t i = 0; i < 3; ++i) {
        if (sections[i] < 0 || sections[i] > 0xFFFF)
            return fail(errc::malformed_file, key("rope.dimension_sections"), " holds ", sections[i]);
        c.rope_sections[i] = static_cast<int>(sections[i]);
    }
    if (sections.size() > 3 && sections[3] != 0)
        return fail(errc::unsupported, key("rope.dimension_sections"), " has a fourth section of ", sections[3],
                    "; three components of a position are built");
    for (const char* other : {"mrope_sections", "rope.mrope_section"}) {
        FRUGAL_TRY_ASSIGN(const auto again, keys.numbers(other));
        for (std::size_t i = 0; i < again.size(); ++i)
            if (i >= sections.size() ? again[i] != 0 : again[i] != static_cast<double>(sections[i]))
                return fail(errc::malformed_file, key(other), " differs from ", key("rope.dimension_sections"));
    }
    FRUGAL_TRY_ASSIGN(c.rope_scaling, detail::read_rope_scaling(keys, c.context_length));
    return {};
}

/// Sizes of the recurrent layers.
[[nodiscard]] inline status read_recurrence(gguf_keys& keys, config& c) {
    const auto key = [&](std::string_view name) { return keys.full(name); };
    const auto size = [&](std::string_view name, std::size_t& out) { return keys.size(name, out); };
    FRUGAL_TRY(size("ssm.conv_kernel", c.conv_kernel));
    FRUGAL_TRY(size("ssm.state_size", c.key_dim));
    FRUGAL_TRY(size("ssm.group_count", c.key_heads));
    FRUGAL_TRY(size("ssm.time_step_rank", c.value_heads));
    std::size_t inner = 0;
    FRUGAL_TRY(size("ssm.inner_size", inner));
    if (c.value_heads == 0 || inner % c.value_heads != 0)
        return fail(errc::malformed_file, key("ssm.inner_size"), " ", inner, " does not divide into ", c.value_heads, " heads");
    c.value_dim = inner / c.value_heads;
    return {};
}

/// Dense layers, or mixtures of experts.
[[nodiscard]] inline status read_feed_forward(gguf_keys& keys, bool dense, bool exp, config& c) {
    const auto size = [&](std::string_view name, std::size_t& out) { return keys.size(name, out); };
    if (dense) {
        FRUGAL_TRY(size("feed_forward_length", c.intermediate));
        for (const char* none : {"expert_count", "expert_used_count", "expert_shared_count", "expert_feed_forward_length",
                                 "expert_shared_feed_forward_length"})
            FRUGAL_TRY(keys.expect(none, {0}));
    } else {
        keys.skip("feed_forward_length");  // every layer is a mixture of experts
        FRUGAL_TRY(keys.expect("expert_shared_count", {0, 1}));
        FRUGAL_TRY(size("expert_count", c.experts));
        FRUGAL_TRY(size("expert_used_count", c.experts_used));
        FRUGAL_TRY(size("expert_feed_forward_length", c.expert_intermediate));
        FRUGAL_TRY(size("expert_shared_feed_forward_length", c.shared_intermediate));
    }
    for (const char* name : {"expert_weights_norm", "norm_top_k_prob"}) {
        // Qwen3.5 renormalises always; Qwen4-Exp has a setting for it.
        if (!exp) FRUGAL_TRY(keys.expect(name, {1}));
        FRUGAL_TRY_ASSIGN(const auto norm, keys.numbers(name));
        if (!norm.empty()) c.renormalise_experts = norm[0] != 0;
    }
    return {};
}

/// The n-gram module that Qwen4-Exp may have.
[[nodiscard]] inline status read_ngrams(gguf_keys& keys, config& c) {
    const auto size = [&](std::string_view name, std::size_t& out) { return keys.size(name, out); };
    FRUGAL_TRY_ASSIGN(const auto layers, keys.u64_list("ple.layers"));
    if (layers.size() != 1)
        return fail(errc::unsupported, "the file names ", layers.size(),
                    " n-gram (PLE) layers; GGUF has one table, for one layer");
    std::size_t ngram_size = 0, heads_per_ngram = 0;
    FRUGAL_TRY(size("ple.ngram_size", ngram_size));
    FRUGAL_TRY(size("ple.heads_per_ngram", heads_per_ngram));
    FRUGAL_TRY(size("ple.conv_kernel", c.ngram_conv_kernel));
    FRUGAL_TRY(size("embedding_length_per_layer_input", c.ngram_row));
    FRUGAL_TRY_ASSIGN(const std::int64_t eos, keys.i64("ple.eos_token_id"));
    FRUGAL_TRY_ASSIGN(auto multipliers, keys.u64_list("ple.layer_multipliers"));
    FRUGAL_TRY_ASSIGN(auto offsets, keys.u64_list("ple.head_offsets"));
    FRUGAL_TRY_ASSIGN(auto head_sizes, keys.u64_list("ple.head_vocab_sizes"));
    ngram_module m;
    m.layer = static_cast<std::size_t>(layers[0]);
    FRUGAL_TRY_ASSIGN(m.hash,
                      ops::ngram_hash::from_constants(ngram_size, heads_per_ngram, static_cast<std::int64_t>(c.vocabulary), eos,
                                                      std::move(multipliers), std::move(offsets), std::move(head_sizes)));
    c.ngrams.push_back(std::move(m));
    return {};
}

/// What Qwen4-Exp has besides: streams, indexer, n-grams.
[[nodiscard]] inline status read_qwen4exp(const io::gguf_file& file, gguf_keys& keys, const load_options& options, config& c) {
    const auto key = [&](std::string_view name) { return keys.full(name); };
    const auto size = [&](std::string_view name, std::size_t& out) { return keys.size(name, out); };
    const std::size_t blocks = c.layers.size();
    FRUGAL_TRY(size("hyper_connection.count", c.streams));
    FRUGAL_TRY(size("hyper_connection.low_rank", c.mix_rank));
    FRUGAL_TRY(size("attention.indexer.head_count", c.index_heads));
    FRUGAL_TRY(size("attention.indexer.key_length", c.index_dim));
    FRUGAL_TRY(size("attention.indexer.top_k", c.index_budget));
    c.qsa_ratios.assign(blocks, 0);
    if (keys.has("attention.compress_ratios")) {
        FRUGAL_TRY_ASSIGN(const auto ratios, keys.u64_list("attention.compress_ratios"));
        if (ratios.size() < blocks)
            return fail(errc::malformed_file, key("attention.compress_ratios"), " has ", ratios.size(), " entries for ", blocks,
                        " layers");
        for (std::size_t i = 0; i < blocks; ++i) c.qsa_ratios[i] = static_cast<std::size_t>(ratios[i]);
    }
    bool indexer = false;
    for (std::size_t i = 0; i < blocks; ++i)
        indexer = indexer || file.find(concat("blk.", i, ".indexer.q_proj.weight")) != nullptr;
    FRUGAL_TRY(detail::settle_qsa_ratios(c, indexer, options.qsa_ratio));
    if (keys.has("ple.layers")) FRUGAL_TRY(read_ngrams(keys, c));
    return {};
}

/// Keys that may say again, but not otherwise, what is computed.
[[nodiscard]] inline status expect_the_rest(gguf_keys& keys, const config& c) {
    const auto head_dim = static_cast<double>(c.head_dim);
    FRUGAL_TRY(keys.expect("attention.scale", {0, 1 / std::sqrt(head_dim)}));
    for (const char* same : {"attention.key_length_swa", "attention.value_length_swa"}) FRUGAL_TRY(keys.expect(same, {head_dim}));
    FRUGAL_TRY(keys.expect("rope.dimension_count_swa", {static_cast<double>(c.rotary_dim)}));
    FRUGAL_TRY(keys.expect("rope.freq_base_swa", {static_cast<double>(c.rope_theta)}));
    FRUGAL_TRY(keys.expect("attention.layer_norm_epsilon", {static_cast<double>(c.rms_epsilon)}));
    FRUGAL_TRY(keys.expect("embedding_length_out", {static_cast<double>(c.hidden)}));
    // Value heads that are not tiled over the key heads: another order, unless there are as many of both.
    if (c.value_heads != c.key_heads) FRUGAL_TRY(keys.expect("ssm.v_head_reordered", {1}));
    keys.skip("ssm.v_head_reordered");
    FRUGAL_TRY(keys.expect_text("hidden_activation", {"silu", "swish"}));
    FRUGAL_TRY(keys.expect_text("tensor_data_layout", {"reference"}));
    return {};
}

}  // namespace detail

/// Reads the sizes. Every key of the architecture is read, known to change no number, or refused (gguf_keys.hpp).
/// Errors: not_found, malformed_file, unsupported (another architecture, arithmetic that is not built, a key that is not known),
/// with the key's name.
[[nodiscard]] inline result<config> read_config(const io::gguf_file& file, const load_options& options = {}) {
    config c;
    if (!file.is_whole())
        return fail(errc::invalid_argument, file.name(),
                    " is one of several files of a model; open it by its path, or join them");
    FRUGAL_TRY_ASSIGN(const std::string_view architecture, file.string("general.architecture"));
    c.architecture = std::string(architecture);
    const bool dense = architecture == qwen35::name, moe = architecture == qwen35moe::name,
               exp = architecture == qwen4exp<>::name;
    if (!dense && !moe && !exp)
        return fail(errc::unsupported, "architecture \"", architecture, "\" is not one of qwen35, qwen35moe, qwen4exp");
    FRUGAL_TRY_ASSIGN(const std::uint32_t blocks_version, file.u32_or("general.quantization_version", 2));
    if (blocks_version != 2)
        return fail(errc::unsupported, file.name(), ": general.quantization_version is ", blocks_version,
                    "; blocks of version 2 can be read");
    detail::gguf_keys keys(file, architecture);
    const auto key = [&](std::string_view name) { return keys.full(name); };
    const auto size = [&](std::string_view name, std::size_t& out) { return keys.size(name, out); };

    std::size_t blocks = 0;
    FRUGAL_TRY(size("block_count", blocks));
    FRUGAL_TRY_ASSIGN(const std::uint32_t predict, keys.u32_or("nextn_predict_layers", 0));
    if (predict > blocks)
        return fail(errc::malformed_file, key("nextn_predict_layers"), " ", predict, " exceeds ", blocks, " blocks");
    blocks -= predict;  // prediction layers follow the trunk and are not run
    FRUGAL_TRY(detail::check_gguf_blocks(file, key(predict == 0 ? "block_count" : "nextn_predict_layers"), blocks));
    if (blocks > file.tensors().size())
        return fail(errc::malformed_file, key("block_count"), " is ", blocks, " in a file of ", file.tensors().size(),
                    " tensors");
    FRUGAL_TRY(size("embedding_length", c.hidden));
    FRUGAL_TRY(size("context_length", c.context_length));
    FRUGAL_TRY_ASSIGN(c.rms_epsilon, keys.f32("attention.layer_norm_rms_epsilon"));
    const io::gguf_tensor* embedding = file.find("token_embd.weight");
    if (embedding == nullptr) return fail(errc::not_found, "tensor token_embd.weight is missing from the file");
    c.vocabulary = static_cast<std::size_t>(embedding->dims[1]);

    FRUGAL_TRY(detail::read_layer_kinds(keys, blocks, c));
    FRUGAL_TRY(detail::read_heads(keys, c));
    FRUGAL_TRY(detail::read_positions(keys, c));
    FRUGAL_TRY(detail::read_recurrence(keys, c));
    FRUGAL_TRY(detail::read_feed_forward(keys, dense, exp, c));
    if (exp) FRUGAL_TRY(detail::read_qwen4exp(file, keys, options, c));
    FRUGAL_TRY(detail::expect_the_rest(keys, c));
    // Prediction layers that were grafted on bring keys of their own here.
    FRUGAL_TRY(keys.finish(predict > 0 ? "ple." : ""));

    if (file.has("tokenizer.ggml.eos_token_id")) {
        FRUGAL_TRY_ASSIGN(const std::int32_t eos, file.i32("tokenizer.ggml.eos_token_id"));
        c.eos.push_back(eos);
    }
    return c;
}

/// Binds a GGUF file's tensors. The file must outlive the weights.
template <specification Spec, class Formats>
[[nodiscard]] result<weights<Spec>> read_weights(const io::gguf_file& file, const config& sizes,
                                                 const load_options& options = {}) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    return bind<Spec, convention::gguf, Formats>(gguf_source(file), sizes, tensor_names<convention::gguf>{},
                                                 bind_options{options.check_tensors});
}

}  // namespace model

FRUGAL_NAMESPACE_END
