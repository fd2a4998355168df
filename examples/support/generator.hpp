#pragma once
/// Text from an engine, token by token.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "frugal/io/tokenizer.hpp"
#include "frugal/ops/sampling/penalties.hpp"
#include "frugal/ops/sampling/sampling.hpp"
#include "model_file.hpp"

namespace runner {

struct generation_options {
    std::int64_t predict = 128;  ///< most tokens; negative: until the model ends
    std::size_t batch = 512;     ///< most prompt tokens of one forward pass
    std::size_t context = 0;     ///< most tokens of the sequence; 0: what the model was trained for
    bool ignore_eos = false;
    bool print = true;               ///< the text goes to standard output as it comes
    std::vector<std::string> stops;  ///< texts that end the generation, and are left out
    frugal::ops::sampling_options sampling;
    frugal::ops::penalty_options penalties;
};

/// Why a text has ended.
enum class ending { end_of_text, stop_text, length, context_full, interrupted };
[[nodiscard]] std::string_view to_string(ending why) noexcept;

struct timing {
    double prompt = 0, first_token = 0, generation = 0;  ///< seconds; first_token: from the prompt to the first token
    std::size_t texts = 0, prompt_tokens = 0, new_tokens = 0;
    std::size_t steps = 0;               ///< tokens that took time of their own: a first one comes from the prompt's logits
    std::uint64_t generation_bytes = 0;  ///< of weights read in these steps
};

/// n / seconds; 0 where no time has passed.
[[nodiscard]] double rate(std::size_t n, double seconds);

/// One conversation or completion in sequence 0 of an engine: what the model has seen, and how to go on.
class generator {
public:
    /// File and engine outlive the generator. Errors: invalid_argument (options of the choice of tokens).
    [[nodiscard]] static frugal::result<generator> create(generation_options options, const model_file& file, engine& model);

    /// Makes the model's sequence equal to `ids` and generates; the new text is appended to `reply`. After an error, too, `reply`
    /// holds what has been printed. Errors: invalid_argument (no ids), context_overflow (more ids than the context holds, with
    /// nothing changed), io, and those of the engine.
    [[nodiscard]] frugal::result<ending> go_on(const std::vector<std::int32_t>& ids, std::string& reply);
    /// Forgets everything: the sequence is as never used, and tokens are drawn from the seed.
    void clear();
    /// Most tokens of the sequence.
    [[nodiscard]] std::size_t context() const noexcept { return context_; }
    [[nodiscard]] const generation_options& options() const noexcept { return options_; }
    /// Of all calls since the last clear.
    [[nodiscard]] const timing& times() const noexcept { return time_; }
    /// Times, rates and counters on standard error. Loading has taken `loading` seconds.
    void print_stats(double loading) const;

private:
    generator(generation_options options, const model_file& file, engine& model)
        : options_(std::move(options)), file_(&file), model_(&model) {}
    /// Computes what the sequence lacks of `ids`; false where Ctrl-C came first.
    [[nodiscard]] frugal::result<bool> read_prompt(const std::vector<std::int32_t>& ids, std::vector<float>& logits);
    [[nodiscard]] frugal::status give_out(const std::string& text, std::string& reply) const;

    generation_options options_;
    const model_file* file_;
    engine* model_;
    frugal::ops::sampler sampler_;
    frugal::ops::penalties penalties_;
    std::vector<std::int32_t> seen_;
    std::size_t context_ = 0;
    timing time_;
};

/// A context that is full is a failure of programs that generate one text. Errors: context_overflow.
[[nodiscard]] frugal::status failure(ending why, const generator& by);

}  // namespace runner
