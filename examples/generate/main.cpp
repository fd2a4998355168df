// Generates text: streams it to standard output, everything else to standard error.
//
//     generate --prompt "In the beginning" --n-predict 64 --temp 0
//     generate --model model.gguf            (a chat, when standard input is a terminal)
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cli.hpp"
#include "frugal/io/chat.hpp"
#include "frugal/ops/sampling/sampling.hpp"

namespace {

using namespace frugal;
using clock_type = std::chrono::steady_clock;

constexpr attention::sequence_id the_sequence{0};

struct arguments {
    runner::model_arguments model;
    std::string prompt, file, system;
    int predict = 128;
    double temperature = 0.8, top_p = 0.95;
    std::size_t top_k = 40, batch = 512;
    std::uint64_t seed = 1;
    bool stats = false, ignore_eos = false, chat = false, think = false, has_prompt = false;
};

struct timing {
    double first_token = 0, generation = 0;  // seconds
    std::size_t prompt_tokens = 0, new_tokens = 0;
    std::uint64_t bytes_before_generation = 0;
};

double seconds_since(clock_type::time_point start) {
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

/// One conversation or completion: what the model has seen, and how to go on.
class generator {
public:
    generator(const arguments& args, const runner::model_file& file, runner::engine& model, ops::sampler sampler)
        : args_(args), tokenizer_(*file.tokenizer), model_(model), sampler_(std::move(sampler)) {
        context_ = args.model.context != 0 ? args.model.context : model.sizes().context_length;
    }

    /// Makes the model's sequence equal to `ids` and generates; the new text goes to standard output as it comes.
    /// `reply` gets the new text. Errors keep what was printed.
    [[nodiscard]] status go_on(const std::vector<std::int32_t>& ids, std::string& reply) {
        if (ids.empty()) return fail(errc::invalid_argument, "the prompt is empty: it has no tokens");
        if (ids.size() > context_)
            return fail(errc::context_overflow, "the prompt has ", ids.size(), " tokens; the context holds ", context_,
                        " (see --ctx-size)");
        const auto start = clock_type::now();
        // Only what the model has not seen yet is computed, where the new text continues the old one.
        std::size_t known = 0;
        while (known < seen_.size() && known + 1 < ids.size() && seen_[known] == ids[known]) ++known;
        if (known != seen_.size()) {
            model_.clear(the_sequence);
            seen_.clear();
            known = 0;
        }
        std::vector<float> logits;
        FRUGAL_TRY(runner::prefill(model_, the_sequence, std::span(ids).subspan(known), args_.batch, 1, logits));
        seen_ = ids;
        time_.prompt_tokens += ids.size() - known;

        io::stream_decoder stream(tokenizer_);
        bool first = true;
        clock_type::time_point generation;
        for (int made = 0; args_.predict < 0 || made < args_.predict; ++made) {
            FRUGAL_TRY_ASSIGN(const std::int64_t choice, sampler_.sample(logits));
            const auto token = static_cast<std::int32_t>(choice);
            if (first) {
                time_.first_token = seconds_since(start);
                time_.bytes_before_generation = model_.counted(counter::weight_bytes_read);
                generation = clock_type::now();
                first = false;
            }
            if (!args_.ignore_eos && tokenizer_.is_eos(token)) break;
            emit(stream.push(token), reply);
            ++time_.new_tokens;
            if (made + 1 == args_.predict) break;
            if (seen_.size() == context_) {
                emit(stream.finish(), reply);
                return fail(errc::context_overflow, "the context of ", context_, " tokens is full (see --ctx-size)");
            }
            logits.resize(model_.sizes().vocabulary);
            FRUGAL_TRY(runner::prefill(model_, the_sequence, {&token, 1}, 1, 1, logits));
            seen_.push_back(token);
        }
        emit(stream.finish(), reply);
        if (!first) time_.generation += seconds_since(generation);
        return {};
    }

    void print_stats(const runner::model_file& file) const {
        const auto rate = [](std::size_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0.0; };
        std::fprintf(stderr, "\nmodel                     %s, %.1f MB of weights\n", model_.sizes().architecture.c_str(),
                     static_cast<double>(file.bytes) * 1e-6);
        std::fprintf(stderr, "instruction set           %s\n", std::string(model_.isa()).c_str());
        std::fprintf(stderr, "prompt                    %zu tokens\n", time_.prompt_tokens);
        std::fprintf(stderr, "time to first token       %.1f ms (%.1f prompt tokens/s)\n", time_.first_token * 1e3,
                     rate(time_.prompt_tokens, time_.first_token));
        const std::size_t steps = time_.new_tokens == 0 ? 0 : time_.new_tokens - 1;  // the first comes from the prompt's logits
        std::fprintf(stderr, "generated                 %zu tokens, %.1f tokens/s\n", time_.new_tokens, rate(steps, time_.generation));
        const std::uint64_t bytes = model_.counted(counter::weight_bytes_read);
        std::fprintf(stderr, "weight bytes read         %llu, %.2f MB for a generated token\n", static_cast<unsigned long long>(bytes),
                     steps == 0 ? 0.0 : static_cast<double>(bytes - time_.bytes_before_generation) * 1e-6 / static_cast<double>(steps));
        for (std::size_t i = 0; i < counter_count; ++i)
            if (static_cast<counter>(i) != counter::weight_bytes_read)
                std::fprintf(stderr, "%-26s%llu\n", std::string(to_string(static_cast<counter>(i))).c_str(),
                             static_cast<unsigned long long>(model_.counted(static_cast<counter>(i))));
    }

private:
    static void emit(const std::string& text, std::string& reply) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
        reply += text;
    }
    const arguments& args_;
    const io::tokenizer& tokenizer_;
    runner::engine& model_;
    ops::sampler sampler_;
    std::vector<std::int32_t> seen_;
    std::size_t context_ = 0;
    timing time_;
};

/// Reads a line of any length; false at the end of input.
bool read_line(std::string& line) {
    line.clear();
    for (int c = 0; (c = std::getc(stdin)) != EOF && c != '\n';) line.push_back(static_cast<char>(c));
    return !line.empty() || std::feof(stdin) == 0;
}

status chat(const arguments& args, const io::tokenizer& tokenizer, generator& text) {
    FRUGAL_TRY_ASSIGN(const auto layout, io::chat_template::create(tokenizer));
    io::chat_options options;
    options.thinking = args.think;
    std::vector<io::chat_turn> turns;
    if (!args.system.empty()) turns.push_back({"system", args.system});
    std::fprintf(stderr, "Chat. An empty line or the end of input leaves.\n");
    for (std::string line;;) {
        std::fprintf(stderr, "\n> ");
        if (!read_line(line) || line.empty()) return {};
        turns.push_back({"user", line});
        FRUGAL_TRY_ASSIGN(const auto ids, layout.render(turns, options));
        std::string reply;
        FRUGAL_TRY(text.go_on(ids, reply));
        std::fputc('\n', stdout);
        turns.push_back({"assistant", std::move(reply)});
    }
}

status run(arguments& args) {
    const bool terminal = ::isatty(STDIN_FILENO) != 0;
    std::string prompt = args.prompt;
    if (!args.file.empty()) {
        FRUGAL_TRY_ASSIGN(prompt, runner::read_text(args.file));
    } else if (!args.has_prompt && !args.chat) {
        if (terminal) {
            args.chat = true;
        } else {
            FRUGAL_TRY_ASSIGN(prompt, runner::read_text("-"));
        }
    }
    if (!args.chat && prompt.empty())
        return fail(errc::invalid_argument, "the prompt is empty; give --prompt, --file, or text on standard input");

    FRUGAL_TRY_ASSIGN(ops::sampler sampler, ops::sampler::create({.temperature = static_cast<float>(args.temperature),
                                                                  .top_k = args.top_k,
                                                                  .top_p = static_cast<float>(args.top_p),
                                                                  .seed = args.seed}));
    FRUGAL_TRY_ASSIGN(const auto file, args.model.open());
    device::eigen_executor executor(args.model.threads);
    FRUGAL_TRY_ASSIGN(const auto engine, runner::make_engine(file, executor, args.model.engine()));
    generator text(args, file, *engine, std::move(sampler));
    status done;
    if (args.chat) {
        done = chat(args, *file.tokenizer, text);
    } else {
        FRUGAL_TRY_ASSIGN(const auto ids, file.tokenizer->encode(prompt));
        std::fwrite(prompt.data(), 1, prompt.size(), stdout);
        std::string reply;
        done = text.go_on(ids, reply);
        std::fputc('\n', stdout);
    }
    if (args.stats) text.print_stats(file);
    return done;
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app{"Generates text with a hybrid language model."};
    args.model.add_to(app);
    auto* prompt = app.add_option("-p,--prompt", args.prompt, "text to continue");
    app.add_option("-f,--file", args.file, "file with the text to continue; - reads standard input")->excludes(prompt);
    app.add_option("-n,--n-predict", args.predict, "most tokens to generate; -1: until the model ends")->capture_default_str();
    app.add_option("--temp", args.temperature, "temperature; 0 takes the likeliest token")->check(CLI::NonNegativeNumber)->capture_default_str();
    app.add_option("--top-k", args.top_k, "sample from the k likeliest tokens; 0: all")->capture_default_str();
    app.add_option("--top-p", args.top_p, "sample from the likeliest tokens that make up this probability")->check(CLI::Range(0.0, 1.0))->capture_default_str();
    app.add_option("-s,--seed", args.seed, "seed of the sampler")->capture_default_str();
    app.add_option("-b,--batch-size", args.batch, "most prompt tokens of one forward pass")->check(CLI::Range(1, 1 << 16))->capture_default_str();
    app.add_flag("--ignore-eos", args.ignore_eos, "go on after an end-of-text token");
    app.add_flag("--chat", args.chat, "hold a conversation (the default without a prompt at a terminal)");
    app.add_option("--system", args.system, "system message of the conversation");
    app.add_flag("--think", args.think, "let the model reason before it answers");
    app.add_flag("--stats", args.stats, "print times, rates and counters to standard error");
    CLI11_PARSE(app, argc, argv);
    args.has_prompt = prompt->count() != 0;
    if (const status done = run(args); !done) return runner::report("generate", done.error());
    return 0;
}
