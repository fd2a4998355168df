#pragma once
/// Sizes and weights of a model from a Hugging Face checkpoint: config.json and safetensors (needs nlohmann/json).
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "frugal/core/error.hpp"
#include "frugal/io/json.hpp"
#include "frugal/io/safetensors.hpp"
#include "frugal/model/bind.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/tensor_source.hpp"
#include "frugal/ops/ngram/hash.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// Tensors of a safetensors_file or safetensors_directory as a tensor_source.
template <class Store>
class hugging_face_source {
public:
    explicit hugging_face_source(const Store& store) noexcept : store_(store) {}

    [[nodiscard]] result<std::optional<source_tensor>> find(const std::string& name) const {
        const io::safetensor* tensor = store_.find(name);
        if (tensor == nullptr) return std::optional<source_tensor>();
        FRUGAL_TRY_ASSIGN(const quant::type_id type, io::quant_type_of(*tensor));
        return std::optional<source_tensor>(source_tensor{tensor->name, type, tensor->shape, tensor->bytes});
    }

private:
    const Store& store_;
};

/// The prefix before "layers.0.…": text-only checkpoints say "model.", multimodal ones "model.language_model.".
template <class Store>
[[nodiscard]] tensor_names<convention::hugging_face> hugging_face_names(const Store& store) {
    tensor_names<convention::hugging_face> names;
    if (store.find("model.language_model.embed_tokens.weight") != nullptr) names.prefix = "model.language_model.";
    return names;
}

namespace detail {

/// Typed access to config.json: every wrong type and missing key is an error with the key's name.
class json_config {
public:
    json_config(const nlohmann::json& object, const std::string& file) : object_(object), file_(file) {}

    [[nodiscard]] bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
    [[nodiscard]] const nlohmann::json& at(const char* key) const { return object_[key]; }
    [[nodiscard]] error wrong(const char* key, const char* wanted) const {
        return fail(errc::malformed_file, file_, ": \"", key, "\" is not ", wanted);
    }

    [[nodiscard]] status size(const char* key, std::size_t& out) const {
        if (!has(key)) return fail(errc::not_found, file_, ": \"", key, "\" is missing");
        if (!object_[key].is_number_unsigned()) return wrong(key, "a whole number from 0 up");
        out = object_[key].get<std::size_t>();
        if (out > 0xFFFFFFFFu) return wrong(key, "below 2^32");
        return {};
    }
    [[nodiscard]] status size_or(const char* key, std::size_t fallback, std::size_t& out) const {
        out = fallback;
        return has(key) ? size(key, out) : status();
    }
    [[nodiscard]] status number(const char* key, float& out) const {
        if (!has(key)) return fail(errc::not_found, file_, ": \"", key, "\" is missing");
        if (!object_[key].is_number()) return wrong(key, "a number");
        out = object_[key].get<float>();
        return {};
    }
    [[nodiscard]] status sizes(const char* key, std::vector<std::size_t>& out) const {
        if (!has(key) || !object_[key].is_array()) return wrong(key, "a list");
        for (const auto& item : object_[key]) {
            if (!item.is_number_unsigned() || item.get<std::uint64_t>() > 0xFFFFFFFFu) return wrong(key, "a list of sizes");
            out.push_back(item.get<std::size_t>());
        }
        return {};
    }

private:
    const nlohmann::json& object_;
    std::string file_;
};

/// The i64 constants of an n-gram module must be the derived ones, where the checkpoint stores them.
template <class Store>
[[nodiscard]] status check_stored(const Store& store, const std::string& name, const std::vector<std::uint64_t>& derived) {
    const io::safetensor* tensor = store.find(name);
    if (tensor == nullptr) return {};
    if (tensor->dtype != "I64" || tensor->bytes.size() % sizeof(std::int64_t) != 0)
        return fail(errc::malformed_file, "tensor ", name, " is ", tensor->dtype, ", not I64");
    std::vector<std::uint64_t> found(tensor->bytes.size() / sizeof(std::int64_t));
    if (!found.empty()) std::memcpy(found.data(), tensor->bytes.data(), tensor->bytes.size());
    if (found != derived)
        return fail(errc::malformed_file, "tensor ", name, " differs from the constants that the configuration's seed gives");
    return {};
}

}  // namespace detail

/// Reads the sizes from the text of config.json; `store` is asked for shapes and stored hash constants.
/// Errors: malformed_file, not_found, unsupported, with the key's name.
template <class Store>
[[nodiscard]] result<config> read_config(std::string_view config_json, const Store& store, const load_options& options = {}) {
    const std::string file = "config.json";
    FRUGAL_TRY_ASSIGN(const nlohmann::json root, io::parse_json(config_json, file));
    if (!root.is_object()) return fail(errc::malformed_file, file, ": not an object");
    const bool nested = root.contains("text_config") && root["text_config"].is_object();
    const nlohmann::json& text = nested ? root["text_config"] : root;
    const detail::json_config in(text, file);

    config c;
    if (!in.has("model_type") || !in.at("model_type").is_string()) return in.wrong("model_type", "a string");
    const std::string type = in.at("model_type").get<std::string>();
    if (type == "qwen3_5_text" || type == "qwen3_5")
        c.architecture = std::string(qwen35::name);
    else if (type == "qwen3_5_moe_text" || type == "qwen3_5_moe")
        c.architecture = std::string(qwen35moe::name);
    else if (type == "qwen4_exp_text" || type == "qwen4_exp")
        c.architecture = std::string(qwen4exp<>::name);
    else
        return fail(errc::unsupported, file, ": model type \"", type, "\" is not one of qwen3_5, qwen3_5_moe, qwen4_exp");

    std::size_t layers = 0, interval = 0;
    FRUGAL_TRY(in.size("vocab_size", c.vocabulary));
    FRUGAL_TRY(in.size("hidden_size", c.hidden));
    FRUGAL_TRY(in.size("num_hidden_layers", layers));
    if (layers > 0xFFFF) return fail(errc::malformed_file, file, ": ", layers, " layers");
    FRUGAL_TRY(in.size("max_position_embeddings", c.context_length));
    FRUGAL_TRY(in.number("rms_norm_eps", c.rms_epsilon));
    FRUGAL_TRY(in.size("num_attention_heads", c.heads));
    FRUGAL_TRY(in.size("num_key_value_heads", c.kv_heads));
    FRUGAL_TRY(in.size("head_dim", c.head_dim));
    FRUGAL_TRY(in.size("linear_num_key_heads", c.key_heads));
    FRUGAL_TRY(in.size("linear_num_value_heads", c.value_heads));
    FRUGAL_TRY(in.size("linear_key_head_dim", c.key_dim));
    FRUGAL_TRY(in.size("linear_value_head_dim", c.value_dim));
    FRUGAL_TRY(in.size("linear_conv_kernel_dim", c.conv_kernel));

    if (in.has("layer_types")) {
        if (!in.at("layer_types").is_array() || in.at("layer_types").size() != layers)
            return in.wrong("layer_types", "a list with one entry a layer");
        for (const auto& entry : in.at("layer_types")) {
            const std::string kind = entry.is_string() ? entry.get<std::string>() : std::string();
            if (kind == "linear_attention")
                c.layers.push_back(layer_kind::gdn);
            else if (kind == "full_attention" || kind == "indexed_attention" || kind == "qwen_sparse_attention")
                c.layers.push_back(layer_kind::attention);
            else
                return fail(errc::unsupported, file, ": layer type \"", kind, "\"");
        }
    } else {
        FRUGAL_TRY(in.size_or("full_attention_interval", 4, interval));
        if (interval == 0) return in.wrong("full_attention_interval", "above 0");
        for (std::size_t i = 0; i < layers; ++i)
            c.layers.push_back((i + 1) % interval == 0 ? layer_kind::attention : layer_kind::gdn);
    }

    // Rotary parameters lie in an object of their own in current checkpoints, beside the sizes in older ones.
    const bool own = in.has("rope_parameters") && in.at("rope_parameters").is_object();
    const detail::json_config rope(own ? in.at("rope_parameters") : text, file);
    FRUGAL_TRY(rope.number("rope_theta", c.rope_theta));
    float factor = 1;
    FRUGAL_TRY(rope.number("partial_rotary_factor", factor));
    if (!(factor > 0 && factor <= 1)) return rope.wrong("partial_rotary_factor", "above 0 and at most 1");
    c.rotary_dim = static_cast<std::size_t>(static_cast<float>(c.head_dim) * factor);
    std::vector<std::size_t> sections;
    if (rope.has("mrope_section")) FRUGAL_TRY(rope.sizes("mrope_section", sections));
    sections.resize(3, 0);
    for (std::size_t i = 0; i < 3; ++i) c.rope_sections[i] = static_cast<int>(sections[i] & 0xFFFF);

    if (c.architecture == qwen35::name) {
        FRUGAL_TRY(in.size("intermediate_size", c.intermediate));
    } else {
        FRUGAL_TRY(in.size("num_experts", c.experts));
        FRUGAL_TRY(in.size("num_experts_per_tok", c.experts_used));
        FRUGAL_TRY(in.size("moe_intermediate_size", c.expert_intermediate));
        FRUGAL_TRY(in.size("shared_expert_intermediate_size", c.shared_intermediate));
        if (in.has("norm_topk_prob")) {
            if (!in.at("norm_topk_prob").is_boolean()) return in.wrong("norm_topk_prob", "true or false");
            // Qwen3.5 renormalises always; only Qwen4-Exp reads the key.
            if (c.architecture == qwen4exp<>::name) c.renormalise_experts = in.at("norm_topk_prob").get<bool>();
        }
    }
    if (in.has("eos_token_id")) {
        const auto& eos = in.at("eos_token_id");
        const nlohmann::json list = eos.is_array() ? eos : nlohmann::json::array({eos});
        for (const auto& id : list) {
            if (!id.is_number_unsigned() || id.get<std::uint64_t>() > 0x7FFFFFFF) return in.wrong("eos_token_id", "a token id");
            c.eos.push_back(id.get<std::int32_t>());
        }
    }
    if (c.architecture != qwen4exp<>::name) return c;

    std::size_t ratio = 0;
    FRUGAL_TRY(in.size("hc_count", c.streams));
    FRUGAL_TRY(in.size("hc_lowrank", c.mix_rank));
    FRUGAL_TRY(in.size("indexer_n_heads", c.index_heads));
    FRUGAL_TRY(in.size("indexer_head_dim", c.index_dim));
    FRUGAL_TRY(in.size("indexer_budget", c.index_budget));
    FRUGAL_TRY(in.size("indexer_compress_ratio", ratio));
    c.qsa_ratios.assign(layers, 0);
    for (std::size_t i = 0; i < layers; ++i)
        if (c.layers[i] == layer_kind::attention) c.qsa_ratios[i] = ratio;
    FRUGAL_TRY(detail::settle_qsa_ratios(c, true, options.qsa_ratio));

    if (!in.has("ple_layer_ids")) return c;
    std::vector<std::size_t> ids;  // counted from 1
    FRUGAL_TRY(in.sizes("ple_layer_ids", ids));
    if (ids.empty()) return c;
    std::size_t ngram_size = 0, heads_per_ngram = 0, embedded = 0, base = 0, seed = 0;
    FRUGAL_TRY(in.size("ngram_size", ngram_size));
    FRUGAL_TRY(in.size("heads_per_ngram", heads_per_ngram));
    FRUGAL_TRY(in.size("ple_embed_dim", embedded));
    FRUGAL_TRY(in.size("ngram_vocab_size_base", base));
    FRUGAL_TRY(in.size_or("seed", 1234, seed));
    FRUGAL_TRY(in.size_or("ple_conv_kernel_size", 4, c.ngram_conv_kernel));
    if (ngram_size < 2) return in.wrong("ngram_size", "from 2 up");
    const std::size_t heads = (ngram_size - 1) * heads_per_ngram;
    if (heads == 0 || embedded % heads != 0)
        return fail(errc::malformed_file, file, ": \"ple_embed_dim\" ", embedded, " is not ", heads, " rows");
    c.ngram_row = embedded / heads;
    if (c.eos.empty()) return fail(errc::not_found, file, ": \"eos_token_id\" is missing, which n-gram contexts start with");
    const auto names = hugging_face_names(store);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == 0 || ids[i] > layers) return in.wrong("ple_layer_ids", "a list of layers counted from 1");
        ops::ngram_hash_parameters parameters;
        parameters.ngram_size = ngram_size;
        parameters.heads_per_ngram = heads_per_ngram;
        parameters.vocabulary = static_cast<std::int64_t>(c.vocabulary);
        parameters.eos = c.eos.front();  // of a list, transformers takes the first
        parameters.base = base;
        parameters.seed = seed;
        parameters.module = i;
        ngram_module m;
        m.layer = ids[i] - 1;
        FRUGAL_TRY_ASSIGN(m.hash, ops::ngram_hash::derive(parameters));
        const std::string at = concat(names.prefix, "layers.", m.layer, ".ple.ple_embedding.");
        FRUGAL_TRY(detail::check_stored(store, at + "layer_multipliers", m.hash.multipliers));
        FRUGAL_TRY(detail::check_stored(store, at + "ngram_heads_offsets", m.hash.head_offsets));
        FRUGAL_TRY(detail::check_stored(store, at + "ngram_heads_vocab_sizes", m.hash.head_sizes));
        c.ngrams.push_back(std::move(m));
    }
    return c;
}

/// Binds a checkpoint's tensors. The store must outlive the weights.
template <specification Spec, quant::format_list Formats, class Store>
[[nodiscard]] result<weights> read_weights(const Store& store, const config& sizes, const load_options& options = {}) {
    return bind<Spec, convention::hugging_face, Formats>(hugging_face_source<Store>(store), sizes, hugging_face_names(store),
                                                         bind_options{options.check_tensors});
}

}  // namespace model

FRUGAL_NAMESPACE_END
