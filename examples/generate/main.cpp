// Generates text: streams it to standard output, everything else to standard error.
//
//     generate --prompt "In the beginning" --n-predict 64 --temp 0
//     generate --model model.gguf            (a chat, when standard input is a terminal)
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cli.hpp"
#include "frugal/io/chat.hpp"
#include "generator.hpp"

namespace {

using namespace frugal;

struct arguments {
    runner::model_arguments model;
    runner::generation_arguments generation;
    std::string prompt, file, system;
    bool stats = false, chat = false, think = false, has_prompt = false;
};

status chat(const arguments& args, const io::tokenizer& tokenizer, runner::generator& text) {
    FRUGAL_TRY_ASSIGN(const auto layout, io::chat_template::create(tokenizer));
    io::chat_options options;
    options.thinking = args.think;
    std::vector<io::chat_turn> turns;
    if (!args.system.empty()) turns.push_back({"system", args.system});
    std::fprintf(stderr, "Chat. An empty line or the end of input leaves.\n");
    for (std::string line;;) {
        std::fprintf(stderr, "\n> ");
        if (!runner::read_line(line) || line.empty()) return {};
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

    FRUGAL_TRY_ASSIGN(auto sampler, args.generation.sampler());
    FRUGAL_TRY_ASSIGN(const auto file, args.model.open());
    device::fork_join_executor executor(args.model.threads);
    FRUGAL_TRY_ASSIGN(const auto engine, runner::make_engine(file, executor, args.model.engine()));
    args.generation.options.context = args.model.context;
    runner::generator text(args.generation.options, file, *engine, std::move(sampler));
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
    if (args.stats) text.print_stats();
    return done;
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app{"Generates text with a hybrid language model."};
    args.model.add_to(app);
    auto* prompt = app.add_option("-p,--prompt", args.prompt, "text to continue");
    app.add_option("-f,--file", args.file, "file with the text to continue; - reads standard input")->excludes(prompt);
    args.generation.add_to(app);
    app.add_flag("--chat", args.chat, "hold a conversation (the default without a prompt at a terminal)");
    app.add_option("--system", args.system, "system message of the conversation");
    app.add_flag("--think", args.think, "let the model reason before it answers");
    app.add_flag("--stats", args.stats, "print times, rates and counters to standard error");
    CLI11_PARSE(app, argc, argv);
    args.has_prompt = prompt->count() != 0;
    if (const status done = run(args); !done) return runner::report("generate", done.error());
    return 0;
}
