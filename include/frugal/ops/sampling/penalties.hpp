#pragma once
/// What changes logits before a token is chosen from them: penalties of tokens that came lately, and biases of single tokens.
///
///     penalties.accept(token);                    of every token of the text, the prompt's too
///     FRUGAL_TRY(penalties.apply(logits));        then ops::greedy or ops::sampler
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/rounded.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// What is added to one token's logit; minus infinity rules the token out.
struct FRUGAL_FLAGGED token_bias {
    std::int32_t token = 0;
    float bias = 0;
};

/// The formulas are llama.cpp's. First every bias is added. Then a token that is `count` times among the last_n newest has its
/// logit divided by `repeat`, or multiplied by it where it is not above 0, less count * frequency + presence.
struct FRUGAL_FLAGGED penalty_options {
    float repeat = 1.0f;               ///< above 0; 1: none
    float presence = 0.0f;             ///< 0: none; negative numbers favour what has come
    float frequency = 0.0f;            ///< the same, for each time
    std::size_t last_n = 64;           ///< tokens that are looked back at; 0: none
    std::vector<token_bias> biases{};  ///< those of one token add up
};

/// Errors: invalid_argument, naming the option.
[[nodiscard]] inline status validate(const penalty_options& options) {
    if (!(options.repeat > 0) || !std::isfinite(options.repeat) || !std::isfinite(1 / options.repeat))
        return fail(errc::invalid_argument, "the repeat penalty must be a finite number above 0, not ", options.repeat);
    if (!std::isfinite(options.presence))
        return fail(errc::invalid_argument, "the presence penalty must be a finite number, not ", options.presence);
    if (!std::isfinite(options.frequency))
        return fail(errc::invalid_argument, "the frequency penalty must be a finite number, not ", options.frequency);
    for (const auto& [token, bias] : options.biases) {
        if (token < 0) return fail(errc::invalid_argument, "a logit bias for token ", token, "; tokens are numbered from 0");
        if (!(bias < std::numeric_limits<float>::infinity()))
            return fail(errc::invalid_argument, "the logit bias of token ", token,
                        " must be a finite number or minus infinity, not ", bias);
    }
    return {};
}

/// Penalties of one text: remembers its newest tokens.
class FRUGAL_FLAGGED penalties {
public:
    penalties() = default;
    /// Errors: invalid_argument.
    [[nodiscard]] static result<penalties> create(penalty_options options) {
        FRUGAL_TRY(validate(options));
        penalties out;
        out.options_ = std::move(options);
        return out;
    }

    [[nodiscard]] const penalty_options& options() const noexcept { return options_; }

    /// The text goes on with `token`.
    void accept(std::int32_t token) {
        if (!looks_back()) return;
        ++counts_[token];
        if (newest_.size() < options_.last_n) return newest_.push_back(token);
        const std::int32_t oldest = std::exchange(newest_[next_], token);
        next_ = (next_ + 1) % newest_.size();
        if (const auto found = counts_.find(oldest); --found->second == 0) counts_.erase(found);
    }
    /// A new text begins.
    void clear() noexcept {
        newest_.clear();
        counts_.clear();
        next_ = 0;
    }

    /// Changes the logits of the next token. logits: [vocabulary].
    /// Errors, with nothing changed: invalid_argument (a token that is biased or has come is beyond the logits).
    [[nodiscard]] status apply(std::span<float> logits) const {
        const auto known = [&](std::int32_t token) { return token >= 0 && static_cast<std::size_t>(token) < logits.size(); };
        for (const auto& [token, bias] : options_.biases)
            if (!known(token)) return fail(errc::invalid_argument, "a logit bias for token ", token, " of ", logits.size());
        for (const auto& [token, count] : counts_)
            if (!known(token)) return fail(errc::invalid_argument, "token ", token, " has come, of ", logits.size(), " logits");
        for (const auto& [token, bias] : options_.biases) logits[static_cast<std::size_t>(token)] += bias;
        for (const auto& [token, count] : counts_) {
            float& logit = logits[static_cast<std::size_t>(token)];
            logit = logit > 0 ? logit / options_.repeat : simd::rounded(logit * options_.repeat);
            logit -= simd::rounded(static_cast<float>(count) * options_.frequency) + options_.presence;
        }
        return {};
    }

private:
    [[nodiscard]] bool looks_back() const noexcept {
        return options_.last_n != 0 && (options_.repeat != 1 || options_.presence != 0 || options_.frequency != 0);
    }

    penalty_options options_;
    std::vector<std::int32_t> newest_;  ///< a ring once it holds last_n
    std::size_t next_ = 0;              ///< the oldest of a full ring
    std::unordered_map<std::int32_t, std::size_t> counts_;
};

}  // namespace ops

FRUGAL_NAMESPACE_END
