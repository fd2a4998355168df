#pragma once
/// What config.json may say: every setting of these architectures that transformers knows, and what becomes of it.
///
/// A setting is read, has no effect on logits, or must have the value that is computed here. One that is not in the table and
/// says anything (not null, false, 0 or empty) is an error with its name: it might change the model's numbers.
/// Source: transformers 5.23, configuration_utils.py and models/{qwen3_5,qwen3_5_moe,qwen4_exp}; published files.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "frugal/core/error.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/ops/rope/scaling.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

namespace detail {

/// Typed access to config.json: every wrong type and missing key is an error with the key's name.
class FRUGAL_FLAGGED json_config {
public:
    json_config(const nlohmann::json& object, std::string file) : object_(object), file_(std::move(file)) {}

    [[nodiscard]] bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
    [[nodiscard]] const nlohmann::json& at(const char* key) const { return object_[key]; }
    [[nodiscard]] const nlohmann::json& object() const noexcept { return object_; }
    [[nodiscard]] const std::string& file() const noexcept { return file_; }
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
        std::optional<double> value;
        FRUGAL_TRY(number_if(key, value));
        if (!value) return fail(errc::not_found, file_, ": \"", key, "\" is missing");
        out = static_cast<float>(*value);
        return {};
    }
    /// Leaves `out` as it is where there is no such key.
    [[nodiscard]] status number_if(const char* key, std::optional<double>& out) const {
        if (!has(key)) return {};
        if (!object_[key].is_number()) return wrong(key, "a number");
        out = object_[key].get<double>();
        return {};
    }
    [[nodiscard]] status flag_if(const char* key, bool& out) const {
        if (!has(key)) return {};
        if (!object_[key].is_boolean()) return wrong(key, "true or false");
        out = object_[key].get<bool>();
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
    /// Adds the token ids of a key that holds one or a list of them, each once; nothing where there is no such key.
    [[nodiscard]] status token_ids(const char* key, std::vector<std::int32_t>& out) const {
        if (!has(key)) return {};
        const auto& value = object_[key];
        const nlohmann::json list = value.is_array() ? value : nlohmann::json::array({value});
        for (const auto& id : list) {
            if (!id.is_number_unsigned() || id.get<std::uint64_t>() > 0x7FFFFFFF) return wrong(key, "a token id");
            if (std::find(out.begin(), out.end(), id.get<std::int32_t>()) == out.end()) out.push_back(id.get<std::int32_t>());
        }
        return {};
    }

private:
    const nlohmann::json& object_;
    std::string file_;
};

/// Bits of the architectures that a setting belongs to.
inline constexpr unsigned setting_of_qwen35 = 1, setting_of_qwen35moe = 2, setting_of_qwen4exp = 4, setting_of_experts = 6,
                          setting_of_all = 7;

struct FRUGAL_FLAGGED known_setting {
    enum class rule : std::uint8_t { read, no_effect, must_be };
    std::string_view key;
    rule what;
    unsigned architectures = setting_of_all;  ///< elsewhere the key counts as unknown
    std::string_view values = {};             ///< must_be: those that are computed, as JSON, a bar between
};

[[nodiscard]] constexpr auto known_settings() {
    using enum known_setting::rule;
    using entry = known_setting;
    constexpr unsigned dense = setting_of_qwen35, moe = setting_of_experts, exp = setting_of_qwen4exp;
    return std::array{
        // Sizes and parameters.
        entry{"model_type", read},
        entry{"vocab_size", read},
        entry{"hidden_size", read},
        entry{"num_hidden_layers", read},
        entry{"max_position_embeddings", read},
        entry{"rms_norm_eps", read},
        entry{"num_attention_heads", read},
        entry{"num_key_value_heads", read},
        entry{"head_dim", read},
        entry{"linear_num_key_heads", read},
        entry{"linear_num_value_heads", read},
        entry{"linear_key_head_dim", read},
        entry{"linear_value_head_dim", read},
        entry{"linear_conv_kernel_dim", read},
        entry{"layer_types", read},
        entry{"full_attention_interval", read},
        entry{"tie_word_embeddings", read},
        entry{"eos_token_id", read},
        entry{"intermediate_size", read, dense},
        entry{"num_experts", read, moe},
        entry{"num_experts_per_tok", read, moe},
        entry{"moe_intermediate_size", read, moe},
        entry{"shared_expert_intermediate_size", read, moe},
        entry{"norm_topk_prob", read, moe},
        entry{"hc_count", read, exp},
        entry{"hc_lowrank", read, exp},
        entry{"indexer_n_heads", read, exp},
        entry{"indexer_head_dim", read, exp},
        entry{"indexer_budget", read, exp},
        entry{"indexer_compress_ratio", read, exp},
        entry{"ple_layer_ids", read, exp},
        entry{"ple_embed_dim", read, exp},
        entry{"ple_conv_kernel_size", read, exp},
        entry{"ngram_size", read, exp},
        entry{"heads_per_ngram", read, exp},
        entry{"ngram_vocab_size_base", read, exp},
        entry{"seed", read, exp},
        entry{"rope_parameters", read},
        entry{"rope_scaling", read},
        entry{"rope_theta", read},
        entry{"partial_rotary_factor", read},
        entry{"mrope_section", read},
        entry{"original_max_position_embeddings", read},

        // What is computed in one way only.
        entry{"hidden_act", must_be, setting_of_all, R"("silu"|"swish")"},
        entry{"attention_bias", must_be, setting_of_all, "false"},
        entry{"output_gate_type", must_be, setting_of_qwen35 | setting_of_qwen35moe, R"("silu"|"swish")"},
        entry{"output_gate_type", must_be, exp, R"("sigmoid")"},
        entry{"attn_output_gate", must_be, setting_of_all, "true"},
        entry{"use_qk_norm", must_be, setting_of_all, "true"},
        entry{"qk_norm", must_be, setting_of_all, "true"},
        entry{"mrope_interleaved", must_be, setting_of_all, "true"},
        entry{"rope_type", must_be, setting_of_all, R"("default")"},
        entry{"indexer_kv_heads", must_be, exp, "1"},
        entry{"decoder_sparse_step", must_be, moe, "1"},
        entry{"mlp_only_layers", must_be, moe, "[]"},
        entry{"use_sliding_window", must_be, setting_of_all, "false"},
        entry{"is_encoder_decoder", must_be, setting_of_all, "false"},
        entry{"is_causal", must_be, setting_of_all, "true"},

        // Storage, training, other modalities, other programs. Where the n-gram table was cut and padded is seen in its tensors.
        entry{"architectures", no_effect},
        entry{"transformers_version", no_effect},
        entry{"auto_map", no_effect},
        entry{"dtype", no_effect},
        entry{"torch_dtype", no_effect},
        entry{"mamba_ssm_dtype", no_effect},
        entry{"name_or_path", no_effect},
        entry{"initializer_range", no_effect},
        entry{"attention_dropout", no_effect},
        entry{"hidden_dropout", no_effect},
        entry{"output_router_logits", no_effect},
        entry{"router_aux_loss_coef", no_effect},
        entry{"use_cache", no_effect},
        entry{"return_dict", no_effect},
        entry{"output_attentions", no_effect},
        entry{"output_hidden_states", no_effect},
        entry{"chunk_size_feed_forward", no_effect},
        entry{"id2label", no_effect},
        entry{"label2id", no_effect},
        entry{"num_labels", no_effect},
        entry{"problem_type", no_effect},
        entry{"tokenizer_class", no_effect},
        entry{"bos_token_id", no_effect},
        entry{"pad_token_id", no_effect},
        entry{"attn_implementation", no_effect},
        entry{"experts_implementation", no_effect},
        entry{"max_window_layers", no_effect},
        entry{"language_model_only", no_effect},
        entry{"num_nextn_predict_layers", no_effect},
        entry{"intermediate_size", no_effect, moe},
        entry{"number_of_conv_states", no_effect, exp},
        entry{"make_ngram_vocab_size_divisible_by", no_effect, exp},
        entry{"split_ngram_parts", no_effect, exp},

        // How to generate: of generate(), not of the model.
        entry{"max_length", no_effect},
        entry{"min_length", no_effect},
        entry{"max_new_tokens", no_effect},
        entry{"do_sample", no_effect},
        entry{"early_stopping", no_effect},
        entry{"num_beams", no_effect},
        entry{"temperature", no_effect},
        entry{"top_k", no_effect},
        entry{"top_p", no_effect},
        entry{"min_p", no_effect},
        entry{"typical_p", no_effect},
        entry{"repetition_penalty", no_effect},
        entry{"length_penalty", no_effect},
        entry{"diversity_penalty", no_effect},
        entry{"num_beam_groups", no_effect},
        entry{"num_return_sequences", no_effect},
    };
}

/// Families of keys without an effect on text: prediction heads, other modalities, private notes of programs.
inline constexpr std::array<std::string_view, 7> setting_prefixes_without_effect = {"mtp",    "vision_", "image_",  "video_",
                                                                                    "audio_", "_",       "unsloth_"};

[[nodiscard]] inline const known_setting* find_setting(std::string_view key, unsigned architecture) {
    static constexpr auto table = known_settings();
    for (const known_setting& entry : table)
        if (entry.key == key && (entry.architectures & architecture) != 0) return &entry;
    return nullptr;
}

[[nodiscard]] FRUGAL_FLAGGED inline bool says_nothing(const nlohmann::json& value) {
    if (value.is_number()) return value.get<double>() == 0;
    if (value.is_boolean()) return !value.get<bool>();
    if (const auto* text = value.get_ptr<const std::string*>()) return text->empty();
    return value.empty();  // null too
}

[[nodiscard]] inline error unknown_setting(const std::string& file, const std::string& key, const nlohmann::json& value) {
    return fail(errc::unsupported, file, ": \"", key, "\" is ", io::printable(value.dump()),
                ", a setting that is not known here and may change the model's numbers");
}

/// Checks every key of `in` against the table; `where` stands before keys in messages. With `text`, `in` is the level above
/// text_config, where a text model's setting has no effect and must therefore be the same as in `text`.
[[nodiscard]] inline status check_settings(const json_config& in, const std::string& where, unsigned architecture,
                                           const nlohmann::json* text = nullptr) {
    const nlohmann::json nothing;
    for (auto item = in.object().begin(); item != in.object().end(); ++item) {
        const std::string& key = item.key();
        const nlohmann::json& value = *item;
        if (key == "quantization_config" || key == "quantization" || key == "compression_config") {
            if (says_nothing(value)) continue;
            return fail(errc::unsupported, in.file(), ": \"", where, key,
                        "\" says that the weights are quantised, which is not read here: take the checkpoint in BF16, or GGUF");
        }
        if (text != nullptr && key == "text_config") continue;
        if (std::any_of(setting_prefixes_without_effect.begin(), setting_prefixes_without_effect.end(),
                        [&](std::string_view prefix) { return key.starts_with(prefix); }))
            continue;
        if (key == "sliding_window") {
            if (says_nothing(value) || (in.has("use_sliding_window") && in.at("use_sliding_window") == false)) continue;
            return fail(errc::unsupported, in.file(), ": \"", where, key, "\" is ", io::printable(value.dump()),
                        "; attention within a window is not computed");
        }
        const known_setting* known = find_setting(key, architecture);
        if (known == nullptr) {
            if (says_nothing(value)) continue;
            return unknown_setting(in.file(), where + key, value);
        }
        if (known->what == known_setting::rule::must_be && !value.is_null()) {
            const std::string dumped = value.dump();
            bool fits = false;
            for (std::string_view left = known->values; !left.empty() && !fits;) {
                const auto bar = left.find('|');
                fits = left.substr(0, bar) == dumped;
                left = bar == std::string_view::npos ? std::string_view() : left.substr(bar + 1);
            }
            if (!fits)
                return fail(errc::unsupported, in.file(), ": \"", where, key, "\" is ", io::printable(dumped), "; only ",
                            known->values, " is computed");
        }
        if (text != nullptr && known->what == known_setting::rule::read && key != "model_type" && key != "tie_word_embeddings" &&
            key != "eos_token_id") {
            const auto inner = text->find(key);
            if (!value.is_null() && (inner == text->end() ? nothing : *inner) != value)
                return fail(errc::unsupported, in.file(), ": \"", key,
                            "\" beside \"text_config\" has no effect there; it belongs in \"text_config\"");
        }
    }
    return {};
}

/// Base, rotated part, sections and scaling of the rotary embedding. They lie in an object of their own: "rope_parameters", or in
/// older files "rope_scaling" with the base beside it; or all lie beside the sizes.
[[nodiscard]] inline status read_rope(const json_config& in, config& c) {
    const nlohmann::json* own = nullptr;
    const char* name = "";
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
        if (!in.has(key)) continue;
        if (!in.at(key).is_object()) return in.wrong(key, "an object");
        if (in.at(key).empty() || (own != nullptr && *own == in.at(key))) continue;
        if (own != nullptr)
            return fail(errc::malformed_file, in.file(), ": \"rope_parameters\" and \"rope_scaling\" are different; give one");
        own = &in.at(key);
        name = key;
    }
    const json_config rope(own != nullptr ? *own : in.object(), in.file());
    const auto of = [&](const char* key) -> const json_config& { return own != nullptr && !rope.has(key) ? in : rope; };

    FRUGAL_TRY(of("rope_theta").number("rope_theta", c.rope_theta));
    // transformers' default of these families, but for Qwen4-Exp.
    std::optional<double> part;
    if (c.architecture != qwen4exp<>::name) part = 0.25;
    FRUGAL_TRY(of("partial_rotary_factor").number_if("partial_rotary_factor", part));
    if (!part) return fail(errc::not_found, in.file(), ": \"partial_rotary_factor\" is missing");
    if (!(*part > 0 && *part <= 1)) return in.wrong("partial_rotary_factor", "above 0 and at most 1");
    c.rotary_dim = static_cast<std::size_t>(static_cast<double>(c.head_dim) * *part);
    std::vector<std::size_t> sections;
    if (rope.has("mrope_section"))
        FRUGAL_TRY(rope.sizes("mrope_section", sections));
    else if (c.rotary_dim == 64)
        sections = {11, 11, 10};  // transformers' default
    sections.resize(3, 0);
    for (std::size_t i = 0; i < 3; ++i) c.rope_sections[i] = static_cast<int>(sections[i] & 0xFFFF);
    if (own == nullptr) return {};

    std::string type = "default";
    for (const char* key : {"type", "rope_type"}) {
        if (!rope.has(key)) continue;
        if (!rope.at(key).is_string()) return rope.wrong(key, "a string");
        type = rope.at(key).get<std::string>();
    }
    ops::rope_scaling_settings given;
    given.type = type;
    given.context_length = static_cast<double>(c.context_length);
    FRUGAL_TRY(rope.number_if("factor", given.factor));
    FRUGAL_TRY(rope.number_if("original_max_position_embeddings", given.original_context));
    FRUGAL_TRY(in.number_if("original_max_position_embeddings", given.original_context));  // goes first, as in transformers
    FRUGAL_TRY(rope.number_if("beta_fast", given.beta_fast));
    FRUGAL_TRY(rope.number_if("beta_slow", given.beta_slow));
    if (given.beta_fast == 0.0) given.beta_fast.reset();  // 0 reads as not given, as in transformers
    if (given.beta_slow == 0.0) given.beta_slow.reset();
    FRUGAL_TRY(rope.number_if("attention_factor", given.attention_factor));
    FRUGAL_TRY(rope.number_if("mscale", given.mscale));
    FRUGAL_TRY(rope.number_if("mscale_all_dim", given.mscale_all_dim));
    FRUGAL_TRY(rope.flag_if("truncate", given.truncate));
    auto scaling = ops::make_rope_scaling(given);
    if (!scaling) return fail(scaling.error().code, in.file(), ": \"", name, "\": ", scaling.error().message);
    c.rope_scaling = *scaling;

    // What this type does not read would be lost without a word.
    constexpr std::array<std::string_view, 7> always = {"rope_type",
                                                        "type",
                                                        "rope_theta",
                                                        "partial_rotary_factor",
                                                        "mrope_section",
                                                        "mrope_interleaved",
                                                        "original_max_position_embeddings"};
    constexpr std::array<std::string_view, 6> yarn = {"attention_factor", "beta_fast",      "beta_slow",
                                                      "mscale",           "mscale_all_dim", "truncate"};
    const auto within = [](const auto& list, std::string_view key) {
        return std::find(list.begin(), list.end(), key) != list.end();
    };
    for (auto item = own->begin(); item != own->end(); ++item) {
        const std::string_view key = item.key();
        if (key == "mrope_interleaved" && !item->is_null() && *item != true)
            return fail(errc::unsupported, in.file(), ": \"", name, ".mrope_interleaved\" is ", io::printable(item->dump()),
                        "; only true is computed");
        const bool scaled = c.rope_scaling.kind != ops::rope_scaling_kind::none;
        const bool read = within(always, key) || (scaled && key == "factor") ||
                          (c.rope_scaling.kind == ops::rope_scaling_kind::yarn && within(yarn, key));
        if (read || says_nothing(*item) || (key == "factor" && *item == 1)) continue;
        if (within(yarn, key) || key == "factor")
            return fail(errc::unsupported, in.file(), ": \"", name, ".", key, "\" has no effect with rotary scaling of type \"",
                        type, "\"");
        return unknown_setting(in.file(), concat(name, ".", key), *item);
    }
    return {};
}

}  // namespace detail

}  // namespace model

FRUGAL_NAMESPACE_END
