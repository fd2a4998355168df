#pragma once
/// Choice of the next token from logits: greedy, or drawn with temperature, top-k, top-p and min-p. What changes the logits
/// before, as penalties do, is penalties.hpp.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/isa.hpp"
#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/sampling/random.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {

/// The id of the greatest logit, the lowest among equals. NaN and +infinity are errors; -infinity is a token that is ruled out,
/// but not all may be.
[[nodiscard]] inline result<std::size_t> greatest_logit(std::span<const float> logits) {
    // Not a kernel of each instruction set: a pass over the vocabulary waits for memory more than for registers.
    using isa = isa::baseline;
    typedef std::int32_t ints __attribute__((vector_size(isa::vector_bytes)));
    constexpr std::size_t width = simd::width<isa>, registers = 4, block = 1024;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    if (logits.empty()) return fail(errc::invalid_argument, "there are no logits to choose from");
    float greatest = -infinity;
    std::size_t at = 0;  // in the block where it first is
    for (std::size_t begin = 0; begin < logits.size(); begin += block) {
        const std::span<const float> part = logits.subspan(begin, (std::min)(block, logits.size() - begin));
        simd::vec<isa> most[registers];
        ints less[registers];  // than infinity: all bits set in lanes where every logit is
        simd::detail::unrolled<registers>([&](auto r) __attribute__((always_inline)) {
            most[r] = simd::broadcast<isa>(-infinity);
            less[r] = ~ints{};
        });
        const auto take = [&](std::size_t r, const simd::vec<isa>& some) __attribute__((always_inline)) {
            most[r] = simd::max<isa>(some, most[r]);
            less[r] &= some < simd::broadcast<isa>(infinity);
        };
        std::size_t i = 0;
        for (; i + registers * width <= part.size(); i += registers * width)
            simd::detail::unrolled<registers>([&](auto r) __attribute__((always_inline)) {
                take(r, simd::load<isa>(part.data() + i + r * width));
            });
        for (; i < part.size(); ++i) take(0, simd::broadcast<isa>(part[i]));
        float lanes[registers * width];
        std::memcpy(lanes, most, sizeof(lanes));
        const ints all = (less[0] & less[1]) & (less[2] & less[3]);
        if (all[0] + all[1] + all[2] + all[3] != -static_cast<std::int32_t>(width)) {
            const auto wrong = std::find_if(part.begin(), part.end(), [](float logit) { return !(logit < infinity); });
            return fail(errc::not_finite, "the logit of token ", begin + static_cast<std::size_t>(wrong - part.begin()), " is ",
                        *wrong);
        }
        const float here = *std::max_element(std::begin(lanes), std::end(lanes));
        if (here > greatest) {
            greatest = here;
            at = begin;
        }
    }
    if (greatest == -infinity) return fail(errc::not_finite, "every token's logit is minus infinity");
    while (logits[at] != greatest) ++at;
    return at;
}

/// Logits that are compared at once where few are expected to count.
inline constexpr std::size_t screened_logits = 16;

/// Whether one of screened_logits logits from here on is greater.
[[nodiscard]] FRUGAL_FLAGGED inline bool any_greater(const float* logits, float than) noexcept {
    using isa = isa::baseline;
    const simd::vec<isa> limit = simd::broadcast<isa>(than);
    auto found = simd::load<isa>(logits) > limit;
    for (std::size_t i = simd::width<isa>; i < screened_logits; i += simd::width<isa>)
        found |= simd::load<isa>(logits + i) > limit;
    std::uint64_t halves[2];
    std::memcpy(halves, &found, sizeof(halves));
    return (halves[0] | halves[1]) != 0;
}

}  // namespace detail

/// The token with the greatest logit; the lowest id among equals. Logits of -infinity rule a token out.
/// Errors: not_finite (a NaN, +infinity, or nothing but -infinity), invalid_argument (no logits).
[[nodiscard]] inline result<std::int32_t> greedy(std::span<const float> logits) {
    FRUGAL_TRY_ASSIGN(const std::size_t id, detail::greatest_logit(logits));
    return static_cast<std::int32_t>(id);
}

struct FRUGAL_FLAGGED sampling_options {
    float temperature = 1.0f;  ///< logits are divided by it; 0 = greedy
    std::size_t top_k = 0;     ///< only the k most probable tokens; 0 = all
    float top_p = 1.0f;        ///< of those, the fewest most probable that together reach this share; 1 = all
    std::uint64_t seed = 0;
    /// Of those, the tokens at least this share as probable as the most probable one, 0 = all. It is llama.cpp's: probabilities
    /// are those of a temperature of 1.
    float min_p = 0.0f;
};

/// Errors: invalid_argument, naming the option.
[[nodiscard]] inline status validate(const sampling_options& options) {
    if (!(options.temperature >= 0) || options.temperature == std::numeric_limits<float>::infinity())
        return fail(errc::invalid_argument, "temperature must be a finite number from 0 up, not ", options.temperature);
    if (!(options.top_p > 0) || !(options.top_p <= 1))
        return fail(errc::invalid_argument, "top-p must be above 0 and at most 1, not ", options.top_p);
    if (!(options.min_p >= 0) || !(options.min_p <= 1))
        return fail(errc::invalid_argument, "min-p must be from 0 to 1, not ", options.min_p);
    return {};
}

/// Draws tokens. Equal options and equal logits give equal tokens, whatever the compiler and standard library (as far as
/// its `exp` agrees). Tokens are ordered by logit, then by id, so equal logits are cut the same way every time.
class FRUGAL_FLAGGED sampler {
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

    /// The next token: temperature, then top-k, top-p and min-p, then one draw. Greedy choices draw nothing.
    /// Errors: as `greedy`; nothing is drawn then.
    [[nodiscard]] result<std::int32_t> sample(std::span<const float> logits) {
        if (options_.temperature == 0) return greedy(logits);
        FRUGAL_TRY_ASSIGN(const std::size_t most_probable, detail::greatest_logit(logits));
        const double greatest = static_cast<double>(logits[most_probable]);
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
                pick(logits, (std::max)(known * 8, options_.top_k == 0 ? std::size_t{64} : options_.top_k));
                for (std::size_t i = known; i < order_.size(); ++i) ranked_.push_back({order_[i], relative(order_[i])});
            }
            return ranked_[rank];
        };

        std::size_t count = options_.top_k == 0 ? logits.size() : (std::min)(options_.top_k, logits.size());
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
        if (options_.min_p > 0) {
            const float least = logits[most_probable] + std::log(options_.min_p);
            const std::size_t most = count;
            total = 0;
            for (count = 0; count < most && (count == 0 || logits[ranked(count).token] >= least); ++count)
                total += ranked(count).weight;
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
        return static_cast<std::int32_t>(ranked(possible).token);
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
        const auto consider = [&](std::size_t id) {
            if (!(logits[id] > logits[order_.front()])) return;
            std::pop_heap(order_.begin(), order_.end(), more_probable);
            order_.back() = static_cast<std::uint32_t>(id);
            std::push_heap(order_.begin(), order_.end(), more_probable);
        };
        constexpr std::size_t step = detail::screened_logits;
        std::size_t id = count;
        for (; id + step <= logits.size(); id += step)
            if (detail::any_greater(logits.data() + id, logits[order_.front()]))
                for (std::size_t i = 0; i < step; ++i) consider(id + i);
        for (; id < logits.size(); ++id) consider(id);
        std::sort_heap(order_.begin(), order_.end(), more_probable);
    }

    sampling_options options_;
    random_generator random_;
    std::vector<std::uint32_t> order_;
    std::vector<candidate> ranked_;  ///< most probable first, as far as needed
};

}  // namespace ops

FRUGAL_NAMESPACE_END
