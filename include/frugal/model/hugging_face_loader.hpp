#pragma once
/// Sizes and weights of a model from a Hugging Face checkpoint: config.json and safetensors (needs nlohmann/json).
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "frugal/core/error.hpp"
#include "frugal/io/json.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/io/safetensors.hpp"
#include "frugal/model/bind.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/hugging_face_settings.hpp"
#include "frugal/model/tensor_source.hpp"
#include "frugal/ops/ngram/hash.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// The prefix before "layers.0.…": text-only checkpoints say "model.", multimodal ones "model.language_model.".
template <class Store>
[[nodiscard]] tensor_names<convention::hugging_face> hugging_face_names(const Store& store) {
    tensor_names<convention::hugging_face> names;
    if (store.find("model.language_model.embed_tokens.weight") != nullptr) names.prefix = "model.language_model.";
    return names;
}

namespace detail {

[[nodiscard]] inline const io::safetensor& as_tensor(const io::safetensor& tensor) noexcept { return tensor; }
[[nodiscard]] inline const io::safetensor& as_tensor(const io::safetensor* tensor) noexcept { return *tensor; }

/// Whether a tensor that no role of the model reads would be missing from its numbers: whatever lies in a layer of the trunk, and
/// a bias of the modules around it. The rest may be anything: vision towers, prediction heads, layers behind the trunk.
[[nodiscard]] FRUGAL_FLAGGED inline bool hugging_face_tensor_matters(std::string_view name, std::string_view prefix,
                                                                     std::size_t layers) {
    // Derived here from the configuration; a table of an older layout.
    constexpr std::string_view derived[] = {".ple_embedding.layer_multipliers", ".ple_embedding.ngram_heads_offsets",
                                            ".ple_embedding.ngram_heads_vocab_sizes", ".ple_embedding.token_lookup",
                                            ".rotary_emb.inv_freq"};
    for (const std::string_view end : derived)
        if (name.ends_with(end)) return false;
    if (name == "lm_head.bias") return true;
    if (!name.starts_with(prefix)) return false;
    name.remove_prefix(prefix.size());
    if (name == "norm.bias" || name == "embed_tokens.bias") return true;
    constexpr std::string_view begin = "layers.";
    if (!name.starts_with(begin)) return false;
    std::size_t layer = 0;
    const auto [after, error] = std::from_chars(name.data() + begin.size(), name.data() + name.size(), layer);
    return error == std::errc() && after != name.data() + name.size() && *after == '.' && layer < layers;
}

}  // namespace detail

/// Tensors of a safetensors_file or safetensors_directory as a tensor_source.
template <class Store>
class FRUGAL_FLAGGED hugging_face_source {
public:
    explicit hugging_face_source(const Store& store) noexcept : store_(store) {}

    [[nodiscard]] result<std::optional<source_tensor>> find(const std::string& name) const {
        const io::safetensor* tensor = store_.find(name);
        if (tensor == nullptr) return std::optional<source_tensor>();
        FRUGAL_TRY_ASSIGN(const quant::type_id type, io::quant_type_of(*tensor));
        return std::optional<source_tensor>(source_tensor{tensor->name, type, tensor->shape, tensor->bytes});
    }

    /// See binder::bind. Errors: unsupported, with the tensor's name.
    [[nodiscard]] status check_unbound(const std::vector<std::string>& bound, const config& sizes) const {
        const std::unordered_set<std::string_view> read(bound.begin(), bound.end());
        const std::string prefix = hugging_face_names(store_).prefix;
        for (const auto& item : store_.tensors()) {
            const std::string& name = detail::as_tensor(item).name;
            if (!read.contains(name) && detail::hugging_face_tensor_matters(name, prefix, sizes.layers.size()))
                return fail(errc::unsupported, "tensor ", io::printable(name), " has no place in a model of architecture ",
                            sizes.architecture, "; without it the model would compute something else");
        }
        return {};
    }

private:
    const Store& store_;
};

namespace detail {

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

/// Reads the sizes from the text of config.json; `store` is asked for shapes, stored hash constants, the head, and, if it is a
/// directory, for the stop tokens of generation_config.json. A head that is neither there nor tied is an error; where
/// "tie_word_embeddings" is true and a head is there too, the head counts, as in transformers.
/// Errors: malformed_file, not_found, unsupported (also a setting that is not known, see hugging_face_settings.hpp), with the
/// key's name.
template <class Store>
[[nodiscard]] result<config> read_config(std::string_view config_json, const Store& store, const load_options& options = {}) {
    const std::string file = "config.json";
    FRUGAL_TRY_ASSIGN(const nlohmann::json root, io::parse_json(config_json, file));
    if (!root.is_object()) return fail(errc::malformed_file, file, ": not an object");
    const detail::json_config outer(root, file);
    const bool nested = outer.has("text_config");
    if (nested && !root["text_config"].is_object()) return outer.wrong("text_config", "an object");
    const nlohmann::json& text = nested ? root["text_config"] : root;
    const detail::json_config in(text, file);

    config c;
    const detail::json_config& named = in.has("model_type") ? in : outer;
    if (!named.has("model_type") || !named.at("model_type").is_string()) return named.wrong("model_type", "a string");
    const std::string type = named.at("model_type").get<std::string>();
    unsigned architecture = 0;
    if (type == "qwen3_5_text" || type == "qwen3_5") {
        c.architecture = std::string(qwen35::name);
        architecture = detail::setting_of_qwen35;
    } else if (type == "qwen3_5_moe_text" || type == "qwen3_5_moe") {
        c.architecture = std::string(qwen35moe::name);
        architecture = detail::setting_of_qwen35moe;
    } else if (type == "qwen4_exp_text" || type == "qwen4_exp") {
        c.architecture = std::string(qwen4exp<>::name);
        architecture = detail::setting_of_qwen4exp;
    } else {
        return fail(errc::unsupported, file, ": model type \"", type, "\" is not one of qwen3_5, qwen3_5_moe, qwen4_exp");
    }
    FRUGAL_TRY(detail::check_settings(in, nested ? "text_config." : "", architecture));
    if (nested) FRUGAL_TRY(detail::check_settings(outer, "", architecture, &text));
    const bool sparse = architecture == detail::setting_of_qwen4exp;
    if (sparse && !in.has("output_gate_type"))
        return fail(errc::unsupported, file, ": \"output_gate_type\" is missing, which means silu; only \"sigmoid\" is computed");

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

    if (in.has("layer_types")) {  // goes before full_attention_interval, as in transformers
        if (!in.at("layer_types").is_array() || in.at("layer_types").size() != layers)
            return in.wrong("layer_types", "a list with one entry a layer");
        for (const auto& entry : in.at("layer_types")) {
            const std::string kind = entry.is_string() ? entry.get<std::string>() : std::string();
            if (kind == "linear_attention")
                c.layers.push_back(layer_kind::gdn);
            else if (kind == "full_attention" || (sparse && (kind == "indexed_attention" || kind == "qwen_sparse_attention" ||
                                                             kind == "deepseek_sparse_attention")))
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

    FRUGAL_TRY(detail::read_rope(in, c));

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
    // Qwen4-Exp starts n-gram contexts with the text model's own; generation ends at all of them.
    FRUGAL_TRY(in.token_ids("eos_token_id", c.eos));
    const std::int64_t context_start = c.eos.empty() ? -1 : c.eos.front();
    FRUGAL_TRY(outer.token_ids("eos_token_id", c.eos));
    if constexpr (requires { store.read_text("generation_config.json"); }) {
        const std::string generation = "generation_config.json";
        const auto words = store.read_text(generation);
        if (!words && words.error().code != errc::not_found) return words.error();
        if (words) {
            FRUGAL_TRY_ASSIGN(const nlohmann::json settings, io::parse_json(*words, generation));
            if (!settings.is_object()) return fail(errc::malformed_file, generation, ": not an object");
            FRUGAL_TRY(detail::json_config(settings, generation).token_ids("eos_token_id", c.eos));
        }
    }
    bool tied = false;
    for (const auto* level : {&outer, &in}) {
        bool here = false;
        FRUGAL_TRY(level->flag_if("tie_word_embeddings", here));
        tied = tied || here;
    }
    if (!tied && store.find("lm_head.weight") == nullptr)
        return fail(errc::not_found, "tensor lm_head.weight is missing from the file, and ", file,
                    " does not say that the embedding takes its place (\"tie_word_embeddings\": true)");
    if (!sparse) return c;

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
    if (ratio != 0 && c.index_budget % ratio != 0)
        return fail(errc::malformed_file, file, ": \"indexer_budget\" ", c.index_budget, " is not whole blocks of ", ratio);
    FRUGAL_TRY(detail::settle_qsa_ratios(c, true, options.qsa_ratio));

    if (!in.has("ple_layer_ids")) return c;
    std::vector<std::size_t> ids;  // counted from 1
    FRUGAL_TRY(in.sizes("ple_layer_ids", ids));
    if (ids.empty()) return c;
    std::sort(ids.begin(), ids.end());  // modules are numbered by layer, as in transformers
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
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
    if (context_start < 0) return fail(errc::not_found, file, ": \"eos_token_id\" is missing, which n-gram contexts start with");
    const auto names = hugging_face_names(store);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == 0 || ids[i] > layers) return in.wrong("ple_layer_ids", "a list of layers counted from 1");
        ops::ngram_hash_parameters parameters;
        parameters.ngram_size = ngram_size;
        parameters.heads_per_ngram = heads_per_ngram;
        parameters.vocabulary = static_cast<std::int64_t>(c.vocabulary);
        parameters.eos = context_start;  // of a list, transformers takes the first
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

/// Binds a checkpoint's tensors. The store must outlive the weights. Errors: those of bind, and unsupported for a tensor of the
/// trunk that no part of the model reads, such as a bias.
template <specification Spec, class Formats, class Store>
[[nodiscard]] result<weights<Spec>> read_weights(const Store& store, const config& sizes, const load_options& options = {}) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    return bind<Spec, convention::hugging_face, Formats>(hugging_face_source<Store>(store), sizes, hugging_face_names(store),
                                                         bind_options{options.check_tensors});
}

}  // namespace model

FRUGAL_NAMESPACE_END
