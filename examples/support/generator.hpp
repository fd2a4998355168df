#pragma once
/// Text from an engine, token by token.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine.hpp"
#include "frugal/io/tokenizer.hpp"
#include "frugal/ops/sampling/sampling.hpp"
#include "model_file.hpp"

namespace runner {

struct generation_options {
    int predict = 128;        ///< most tokens; negative: until the model ends
    std::size_t batch = 512;  ///< most prompt tokens of one forward pass
    std::size_t context = 0;  ///< most tokens of the sequence; 0: what the model was trained for
    bool ignore_eos = false;
};

struct timing {
    double first_token = 0, generation = 0;  ///< seconds
    std::size_t prompt_tokens = 0, new_tokens = 0;
    std::uint64_t bytes_before_generation = 0;

    /// Tokens that took time of their own: the first comes from the prompt's logits.
    [[nodiscard]] std::size_t steps() const noexcept { return new_tokens == 0 ? 0 : new_tokens - 1; }
};

/// n / seconds; 0 where no time has passed.
[[nodiscard]] double rate(std::size_t n, double seconds);

/// One conversation or completion in sequence 0 of an engine: what the model has seen, and how to go on.
class generator {
public:
    /// Everything outlives the generator.
    generator(const generation_options& options, const model_file& file, engine& model, frugal::ops::sampler sampler);

    /// Makes the model's sequence equal to `ids` and generates; the new text goes to standard output as it comes, and is
    /// appended to `reply`. Errors keep what was printed.
    [[nodiscard]] frugal::status go_on(const std::vector<std::int32_t>& ids, std::string& reply);
    /// Forgets everything: the sequence is as never used, and the sampler as it was given.
    void clear();
    /// Of all calls since the last clear.
    [[nodiscard]] const timing& times() const noexcept { return time_; }
    /// Times, rates and counters on standard error.
    void print_stats() const;

private:
    const generation_options& options_;
    const model_file& file_;
    engine& model_;
    frugal::ops::sampler first_sampler_, sampler_;
    std::vector<std::int32_t> seen_;
    std::size_t context_ = 0;
    timing time_;
};

}  // namespace runner
