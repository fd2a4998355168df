#pragma once
/// How a rotary embedding is stretched over more tokens than it was trained on: what files say of it, checked and settled.
/// Sources: linear, Chen et al. 2023 (arXiv:2306.15595); yarn, Peng et al. 2023 (arXiv:2309.00071), as transformers computes both
/// (modeling_rope_utils.py) and, with the same numbers, llama.cpp.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

enum class rope_scaling_kind : std::uint8_t {
    none,
    linear,  ///< every frequency divided by the factor
    yarn,    ///< slow frequencies divided by the factor, fast ones kept, a ramp between; longer cosines and sines
};

/// Settled; the default changes nothing.
struct FRUGAL_FLAGGED rope_scaling {
    rope_scaling_kind kind = rope_scaling_kind::none;
    double factor = 1;            ///< by how much the context is longer; positive
    double original_context = 0;  ///< yarn: tokens of the context before
    /// yarn: turns within the original context from which a frequency is kept, and below which it is divided by the factor.
    double beta_fast = 32, beta_slow = 1;
    bool whole_ends = true;  ///< yarn: the ramp's ends are whole indices of frequencies, as nearly all models have it
    double magnitude = 1;    ///< of every cosine and sine: the attention factor

    friend bool operator==(const rope_scaling&, const rope_scaling&) = default;
};

/// Errors: invalid_argument (names the number that cannot be).
[[nodiscard]] inline status validate(const rope_scaling& scaling) {
    const auto positive = [](double value, std::string_view what) -> status {
        if (std::isfinite(value) && value > 0) return {};
        return fail(errc::invalid_argument, "the rotary scaling's ", what, " is ", value, "; it must be above 0");
    };
    FRUGAL_TRY(positive(scaling.magnitude, "attention factor"));
    if (scaling.kind == rope_scaling_kind::none) return {};
    FRUGAL_TRY(positive(scaling.factor, "factor"));
    if (scaling.kind == rope_scaling_kind::linear) return {};
    FRUGAL_TRY(positive(scaling.original_context, "original context"));
    FRUGAL_TRY(positive(scaling.beta_fast, "beta_fast"));
    FRUGAL_TRY(positive(scaling.beta_slow, "beta_slow"));
    if (scaling.beta_fast < scaling.beta_slow)
        return fail(errc::invalid_argument, "the rotary scaling's beta_fast ", scaling.beta_fast, " is below its beta_slow ",
                    scaling.beta_slow);
    return {};
}

/// The settings as a file has them; what it does not say stays empty.
struct FRUGAL_FLAGGED rope_scaling_settings {
    std::string_view type = "none";  ///< "none", "default", "linear", "yarn"; others are refused
    std::optional<double> factor = {}, original_context = {};
    std::optional<double> beta_fast = {}, beta_slow = {};
    std::optional<double> attention_factor = {};             ///< yarn: in place of the one that follows from the factor
    std::optional<double> mscale = {}, mscale_all_dim = {};  ///< yarn: where both are given, the attention factor is a quotient
    double attention_multiplier = 1;                         ///< of the attention factor, for every type (GGUF's attn_factor)
    bool truncate = true;                                    ///< yarn: rope_scaling::whole_ends
    double context_length = 0;                               ///< of the model
};

/// Settles what a file says. yarn without an original context takes the model's, as both references do; without a factor it
/// takes the quotient of the two contexts, as transformers does. Its attention factor is 1 + 0.1 ln(factor) unless the file has
/// another.
/// Errors: unsupported (a type that is not built, by its name), not_found (no factor), invalid_argument (names the number).
[[nodiscard]] inline result<rope_scaling> make_rope_scaling(const rope_scaling_settings& given) {
    rope_scaling out;
    out.magnitude = given.attention_multiplier;
    if (given.type == "linear" || given.type == "yarn") {
        const bool yarn = given.type == "yarn";
        if (!given.factor && !(yarn && given.original_context))
            return fail(errc::not_found, "the rotary scaling of type \"", given.type, "\" has no factor");
        out.kind = yarn ? rope_scaling_kind::yarn : rope_scaling_kind::linear;
        if (yarn) out.original_context = given.original_context.value_or(given.context_length);
        out.factor = given.factor.value_or(given.context_length / out.original_context);
    } else if (given.type != "none" && given.type != "default") {
        return fail(errc::unsupported, "rotary scaling of type \"", given.type, "\" is not built; none, linear and yarn are");
    }
    if (out.kind == rope_scaling_kind::yarn) {
        out.beta_fast = given.beta_fast.value_or(out.beta_fast);
        out.beta_slow = given.beta_slow.value_or(out.beta_slow);
        out.whole_ends = given.truncate;
        const auto attention = [&](double share) { return out.factor > 1 ? 1 + 0.1 * share * std::log(out.factor) : 1.0; };
        if (given.attention_factor)
            out.magnitude *= *given.attention_factor;
        else if (given.mscale.value_or(0) != 0 && given.mscale_all_dim.value_or(0) != 0)
            out.magnitude *= attention(*given.mscale) / attention(*given.mscale_all_dim);
        else
            out.magnitude *= attention(1);
    }
    FRUGAL_TRY(validate(out));
    return out;
}

}  // namespace ops

FRUGAL_NAMESPACE_END
