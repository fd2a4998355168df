#pragma once
/// The metadata of one architecture in a GGUF file: every key is read, known to change no number, or an error.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/ops/rope/scaling.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model::detail {

/// A key that must have one of two values where it is there: others mean arithmetic that this library does not do.
struct FRUGAL_FLAGGED fixed_gguf_key {
    std::string_view key;
    std::array<double, 2> values;
};

inline constexpr std::array fixed_gguf_keys = {
    fixed_gguf_key{"attention.causal", {1, 1}},
    fixed_gguf_key{"attention.clamp_kqv", {0, 0}},
    fixed_gguf_key{"attention.max_alibi_bias", {0, 0}},
    fixed_gguf_key{"attention.sliding_window", {0, 0}},
    fixed_gguf_key{"attention.sliding_window_pattern", {0, 0}},
    fixed_gguf_key{"attention.shared_kv_layers", {0, 0}},
    fixed_gguf_key{"attention.output_scale", {0, 1}},
    fixed_gguf_key{"attention.value_scale", {0, 1}},
    fixed_gguf_key{"attention.temperature_length", {0, 0}},
    fixed_gguf_key{"attention.temperature_scale", {0, 0}},
    fixed_gguf_key{"attention.logit_softcapping", {0, 0}},
    fixed_gguf_key{"attn_logit_softcapping", {0, 0}},
    fixed_gguf_key{"final_logit_softcapping", {0, 0}},
    fixed_gguf_key{"router_logit_softcapping", {0, 0}},
    fixed_gguf_key{"logit_scale", {0, 1}},
    fixed_gguf_key{"embedding_scale", {0, 1}},
    fixed_gguf_key{"residual_scale", {0, 1}},
    fixed_gguf_key{"use_parallel_residual", {0, 0}},
    fixed_gguf_key{"leading_dense_block_count", {0, 0}},
    fixed_gguf_key{"moe_every_n_layers", {0, 1}},
    fixed_gguf_key{"interleave_moe_layer_step", {0, 1}},
    fixed_gguf_key{"expert_group_count", {0, 1}},
    fixed_gguf_key{"expert_group_used_count", {0, 1}},
    fixed_gguf_key{"expert_weights_scale", {0, 1}},
    fixed_gguf_key{"expert_gating_func", {0, 1}},  // 1: softmax
    fixed_gguf_key{"swiglu_clamp_exp", {0, 0}},
    fixed_gguf_key{"swiglu_clamp_shexp", {0, 0}},
    fixed_gguf_key{"ssm.dt_b_c_rms", {0, 0}},
    fixed_gguf_key{"rope.mrope_interleaved", {1, 1}},
};

/// Keys that change no number of a text model.
inline constexpr std::array<std::string_view, 11> harmless_gguf_keys = {
    "vocab_size",  // the embedding's rows count
    "pooling_type",
    "rope.scaling.finetuned",
    "full_attention_interval",  // attention.recurrent_layers says the same, layer by layer
    "n_deepstack_layers",
    "deepstack_mapping",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "ple.image_token_id",
};

/// Beginnings of keys about parts that are not run: other inputs, prediction layers, how the file was cut.
inline constexpr std::array<std::string_view, 5> harmless_gguf_prefixes = {"vision.", "audio.", "nextn.", "mtp.", "split."};

/// Beginnings of keys that bear no architecture's name and yet mean arithmetic, which is not built.
inline constexpr std::array<std::string_view, 3> foreign_gguf_prefixes = {"adapter.", "diffusion.", "xielu."};

/// Reads the keys "ARCHITECTURE.…" of a file and notes which were asked for, so that none can be forgotten. Names are given
/// without the architecture.
class FRUGAL_FLAGGED gguf_keys {
public:
    gguf_keys(const io::gguf_file& file, std::string_view architecture)
        : file_(file), prefix_(concat(architecture, ".")), read_(file.metadata().size(), false) {}

    [[nodiscard]] std::string full(std::string_view key) const { return prefix_ + std::string(key); }
    [[nodiscard]] bool has(std::string_view key) const { return file_.has(full(key)); }

    [[nodiscard]] status size(std::string_view key, std::size_t& out) {
        FRUGAL_TRY_ASSIGN(const std::uint32_t value, file_.u32(note(key)));
        out = value;
        return {};
    }
    [[nodiscard]] result<std::uint32_t> u32_or(std::string_view key, std::uint32_t fallback) {
        return file_.u32_or(note(key), fallback);
    }
    [[nodiscard]] result<float> f32(std::string_view key) { return file_.f32(note(key)); }
    [[nodiscard]] result<std::int64_t> i64(std::string_view key) { return file_.i64(note(key)); }
    [[nodiscard]] result<std::vector<std::uint64_t>> u64_list(std::string_view key) { return file_.u64_list(note(key)); }
    [[nodiscard]] result<std::vector<std::int64_t>> i64_list(std::string_view key) { return file_.i64_list(note(key)); }
    [[nodiscard]] result<std::vector<bool>> bool_list(std::string_view key) { return file_.bool_list(note(key)); }
    [[nodiscard]] result<std::string_view> string_or(std::string_view key, std::string_view fallback) {
        return file_.string_or(note(key), fallback);
    }

    /// The key, if it is there, says nothing that matters here.
    void skip(std::string_view key) { static_cast<void>(note(key)); }

    /// Whatever number or boolean the key holds, or every one of its list; empty without the key.
    [[nodiscard]] result<std::vector<double>> numbers(std::string_view key) {
        std::vector<double> out;
        const std::string name = note(key);
        const io::gguf_entry* entry = file_.find_entry(name);
        if (entry == nullptr) return out;
        const auto append = [&](const auto& list) {
            for (const auto value : list) out.push_back(static_cast<double>(value));
        };
        using enum io::gguf_value_type;
        if (entry->element_type == boolean) {
            FRUGAL_TRY_ASSIGN(const auto list, file_.bool_list(name));
            append(list);
        } else if (entry->element_type == io::gguf_value_type::f32 || entry->element_type == f64) {
            FRUGAL_TRY_ASSIGN(const auto list, file_.f32_list(name));
            append(list);
        } else {
            FRUGAL_TRY_ASSIGN(const auto list, file_.i64_list(name));
            append(list);
        }
        return out;
    }
    [[nodiscard]] status number(std::string_view key, std::optional<double>& out) {
        if (!has(key)) return {};
        FRUGAL_TRY_ASSIGN(const auto list, numbers(key));
        if (list.size() != 1)
            return fail(errc::invalid_argument, file_.name(), ": metadata key ", io::printable(full(key)), " holds ", list.size(),
                        " numbers; one is wanted");
        out = list[0];
        return {};
    }

    /// Where the key is there, each of its numbers must be one of `allowed`. Errors: unsupported, invalid_argument (no number).
    [[nodiscard]] status expect(std::string_view key, std::initializer_list<double> allowed) {
        return expect(key, allowed.begin(), allowed.size());
    }

    /// Where the key is there, its text must be one of `allowed`.
    [[nodiscard]] status expect_text(std::string_view key, std::initializer_list<std::string_view> allowed) {
        FRUGAL_TRY_ASSIGN(const std::string_view text, string_or(key, *allowed.begin()));
        for (const std::string_view each : allowed)
            if (text == each) return {};
        return fail(errc::unsupported, file_.name(), ": metadata key ", io::printable(full(key)), " is ", io::printable(text),
                    "; only ", *allowed.begin(), " is built");
    }

    /// The last step: every key of the architecture that nobody asked for. `ignored`: one more beginning of harmless keys.
    /// Errors: unsupported, with the key's name.
    [[nodiscard]] status finish(std::string_view ignored = {}) {
        for (const fixed_gguf_key& each : fixed_gguf_keys) FRUGAL_TRY(expect(each.key, each.values.data(), each.values.size()));
        for (std::size_t i = 0; i < read_.size(); ++i) {
            const std::string_view whole = file_.metadata()[i].key;
            if (std::any_of(foreign_gguf_prefixes.begin(), foreign_gguf_prefixes.end(),
                            [&](std::string_view prefix) { return whole.starts_with(prefix); }))
                return fail(errc::unsupported, file_.name(), ": metadata key ", io::printable(whole),
                            " belongs to another kind of file or model than is built");
            if (read_[i] || !whole.starts_with(prefix_)) continue;
            const std::string_view key = whole.substr(prefix_.size());
            const auto begins = [&](std::string_view prefix) { return !prefix.empty() && key.starts_with(prefix); };
            if (std::find(harmless_gguf_keys.begin(), harmless_gguf_keys.end(), key) != harmless_gguf_keys.end()) continue;
            if (std::any_of(harmless_gguf_prefixes.begin(), harmless_gguf_prefixes.end(), begins) || begins(ignored)) continue;
            return fail(errc::unsupported, file_.name(), ": metadata key ", io::printable(whole),
                        " is not known here; what it says could change what the model computes");
        }
        return {};
    }

private:
    /// The full name of a key that is about to be read.
    [[nodiscard]] std::string note(std::string_view key) {
        std::string name = full(key);
        if (const io::gguf_entry* entry = file_.find_entry(name))
            read_[static_cast<std::size_t>(entry - file_.metadata().data())] = true;
        return name;
    }

    [[nodiscard]] status expect(std::string_view key, const double* allowed, std::size_t count) {
        FRUGAL_TRY_ASSIGN(const auto found, numbers(key));
        for (const double value : found) {
            // Files hold f32: 1 / sqrt(d) comes back with its rounding.
            const auto same = [&](double want) { return std::abs(value - want) <= 1e-6 * std::abs(want); };
            if (!std::any_of(allowed, allowed + count, same))
                return fail(errc::unsupported, file_.name(), ": metadata key ", io::printable(full(key)), " is ", value,
                            "; only ", allowed[count - 1], " is built");
        }
        return {};
    }

    const io::gguf_file& file_;
    std::string prefix_;
    std::vector<bool> read_;  ///< [metadata entries]
};

/// How the file scales rotary positions. A factor without a type means linear, as in llama.cpp; yarn_attn_factor is the attention
/// factor itself, as the converter writes it, attn_factor multiplies it.
/// Errors: those of ops::make_rope_scaling, with the key's name.
[[nodiscard]] inline result<ops::rope_scaling> read_rope_scaling(gguf_keys& keys, std::size_t context_length) {
    ops::rope_scaling_settings found;
    FRUGAL_TRY(keys.number("rope.scale_linear", found.factor));  // its name in old files
    FRUGAL_TRY(keys.number("rope.scaling.factor", found.factor));
    if (found.factor == 0.0) found.factor.reset();  // how some writers say that there is none
    FRUGAL_TRY_ASSIGN(found.type, keys.string_or("rope.scaling.type", found.factor ? "linear" : "none"));
    FRUGAL_TRY(keys.number("rope.scaling.original_context_length", found.original_context));
    FRUGAL_TRY(keys.number("rope.scaling.yarn_beta_fast", found.beta_fast));
    FRUGAL_TRY(keys.number("rope.scaling.yarn_beta_slow", found.beta_slow));
    FRUGAL_TRY(keys.number("rope.scaling.yarn_attn_factor", found.attention_factor));
    std::optional<double> multiplier;
    FRUGAL_TRY(keys.number("rope.scaling.attn_factor", multiplier));
    found.attention_multiplier = multiplier.value_or(1);
    found.context_length = static_cast<double>(context_length);
    // Parts of yarn that no model of these families has: a partial ramp, an attention factor that is a quotient, a changed base.
    if (found.type == "yarn") {
        FRUGAL_TRY(keys.expect("rope.scaling.yarn_ext_factor", {1}));
        FRUGAL_TRY(keys.expect("rope.scaling.yarn_log_multiplier", {0}));
    }
    keys.skip("rope.scaling.yarn_ext_factor");
    keys.skip("rope.scaling.yarn_log_multiplier");
    FRUGAL_TRY(keys.expect("rope.scaling.alpha", {0, 1}));
    auto settled = ops::make_rope_scaling(found);
    if (!settled) return fail(settled.error().code, keys.full("rope.scaling"), ".*: ", settled.error().message);
    return settled;
}

}  // namespace model::detail

FRUGAL_NAMESPACE_END
