#pragma once
/// Choice of the next token from logits: greedy, or drawn with temperature, top-k and top-p.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/ops/sampling/random.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {

/// NaN and +infinity are errors; -infinity is a token that is ruled out, but not all may be.
[[nodiscard]] inline status check_logits(std::span<const float> logits) {
    bool any = false;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (!(logits[i] < std::numeric_limits<float>::infinity()))
            return fail(errc::not_finite, "the logit of token ", i, " is ", logits[i]);
        any = any || logits[i] > -std::numeric_limits<float>::infinity();
    }
    if (any) return {};
    return logits.empty() ? fail(errc::invalid_argument, "there are no logits to choose from")
                          : fail(errc::not_finite, "every token's logit is minus infinity");
}

}  // namespace detail

/// The token with the greatest logit; the lowest id among equals. Logits of -infinity rule a token out.
/// Errors: not_finite (a NaN, +infinity, or nothing but -infinity), invalid_argument (no logits).
[[nodiscard]] inline result<std::int64_t> greedy(std::span<const float> logits) {
    FRUGAL_TRY(detail::check_logits(logits));
    // max_element keeps the first of equals.
    return static_cast<std::int64_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct sampling_options {
    float temperature = 1.0f;  ///< logits are divided by it; 0 = greedy
    std::size_t top_k = 0;     ///< only the k most probable tokens; 0 = all
    float top_p = 1.0f;        ///< of those, the fewest most probable that together reach this share; 1 = all
    std::uint64_t seed = 0;
};

/// Errors: invalid_argument, naming the option.
[[nodiscard]] inline status validate(const sampling_options& options) {
    if (!(options.temperature >= 0) || options.temperature == std::numeric_limits<float>::infinity())
        return fail(errc::invalid_argument, "temperature must be a finite number from 0 up, not ", options.temperature);
    if (!(options.top_p > 0) || !(options.top_p <= 1))
        return fail(errc::invalid_argument, "top-p must be above 0 and at most 1, not ", options.top_p);
    return {};
}

/// Draws tokens. Equal options and equal logits give equal tokens, whatever the compiler and standard library (as far as
/// its `exp` agrees). Tokens are ordered by logit, then by id, so equal logits are cut the same way every time.
class sampler {
public:
    sampler() = default;
    /// Errors: invalid_argument.
    [[nodiscard]] static result<sampler> create(const sampling_options& options) {
        FRUGAL_TRY(validate(options));
        sampler out;
        out.options_ = options;
        out.random_ = random_generator(options.seed);
        return out;
    }

    [[nodiscard]] const sampling_options& options() const noexcept { return options_; }
    /// The generator, so that a run can be stored and resumed.
    [[nodiscard]] random_generator& random() noexcept { return random_; }

    /// The next token: temperature, then top-k, then top-p, then one draw. Greedy choices draw nothing.
    /// Errors: as `greedy`; nothing is drawn then.
    [[nodiscard]] result<std::int64_t> sample(std::span<const float> logits) {
        if (options_.temperature == 0) return greedy(logits);
        FRUGAL_TRY(detail::check_logits(logits));
        const double greatest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
        const double temperature = static_cast<double>(options_.temperature);
        const auto relative = [&](std::size_t id) {
            return std::exp((static_cast<double>(logits[id]) - greatest) / temperature);
        };

        // Mostly the draw needs only a few of the most probable tokens: as many are picked in one pass, more where it asks for
        // more.
        ranked_.clear();
        const auto ranked = [&](std::size_t rank) -> const candidate& {
            if (ranked_.size() <= rank) {
                const std::size_t known = ranked_.size();
                pick(logits, std::max(known * 8, options_.top_k == 0 ? std::size_t{64} : options_.top_k));
                for (std::size_t i = known; i < order_.size(); ++i) ranked_.push_back({order_[i], relative(order_[i])});
            }
            return ranked_[rank];
        };

        std::size_t count = options_.top_k == 0 ? logits.size() : std::min(options_.top_k, logits.size());
        double total = 0;
        if (count < logits.size())
            for (std::size_t i = 0; i < count; ++i) total += ranked(i).weight;
        else
            for (std::size_t i = 0; i < logits.size(); ++i) total += relative(i);
        if (options_.top_p < 1) {
            const double share = static_cast<double>(options_.top_p) * total;
            const std::size_t most = count;
            total = 0;
            for (count = 0; count < most && (count == 0 || total < share); ++count) total += ranked(count).weight;
        }
        const double target = random_.uniform() * total;
        double sum = 0;
        std::size_t possible = 0;  // rounding can leave the whole sum at or below the target: then the last one possible
        for (std::size_t i = 0; i < count; ++i) {
            if (ranked(i).weight == 0) break;
            possible = i;
            sum += ranked(i).weight;
            if (target < sum) break;
        }
        return static_cast<std::int64_t>(ranked(possible).token);
    }

private:
    struct candidate {
        std::uint32_t token;
        double weight;  ///< probability relative to the most probable token
    };

    /// order_ = the `count` most probable tokens, or all, the most probable first.
    void pick(std::span<const float> logits, std::size_t count) {
        const auto more_probable = [&](std::uint32_t a, std::uint32_t b) {
            return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
        };
        const bool all = count > logits.size() / 4;  // then a heap of them saves nothing
        order_.resize(all ? logits.size() : count);
        for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::uint32_t>(i);
        if (all) return std::sort(order_.begin(), order_.end(), more_probable);
        // The least probable of those kept stands first. Of equals the later ones lose, as ids ascend.
        std::make_heap(order_.begin(), order_.end(), more_probable);
        for (std::size_t i = count; i < logits.size(); ++i) {
            if (!(logits[i] > logits[order_.front()])) continue;
            std::pop_heap(order_.begin(), order_.end(), more_probable);
            order_.back() = static_cast<std::uint32_t>(i);
            std::push_heap(order_.begin(), order_.end(), more_probable);
        }
        std::sort_heap(order_.begin(), order_.end(), more_probable);
    }

    sampling_options options_;
    random_generator random_;
    std::vector<std::uint32_t> order_;
    std::vector<candidate> ranked_;  ///< most probable first, as far as needed
};

}  // namespace ops

FRUGAL_NAMESPACE_END
