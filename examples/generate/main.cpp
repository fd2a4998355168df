// Generates text: streams it to standard output, everything else to standard error.
//
//     generate --prompt "In the beginning" --n-predict 64 --temp 0
//     generate --model model.gguf            (a chat, when standard input is a terminal)
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli.hpp"
#include "conversation.hpp"
#include "generator.hpp"
#include "terminal.hpp"

namespace {

using namespace frugal;

struct arguments {
    runner::model_arguments model;
    runner::generation_arguments generation;
    runner::chat_arguments conversation;
    std::string prompt, file;
    bool chat = false, single_turn = false, json = false, hide_prompt = false, stats = false;
    const CLI::Option *prompt_option = nullptr, *chat_option = nullptr;
};

/// Holds a conversation until somebody leaves.
status chat(const arguments& args, const std::string& first, runner::conversation& talk, runner::generator& by) {
    using event = runner::line_reader::event;
    runner::catch_interrupts();
    runner::line_reader input(true);
    if (input.terminal() && !args.single_turn)
        std::fprintf(stderr,
                     "Chat. Ctrl-C ends a reply; /undo takes the last turn back, /clear begins anew; an empty line or Ctrl-D "
                     "leaves.\n");
    if (input.terminal() && !first.empty() && !args.hide_prompt) std::fprintf(stderr, "\n> %s\n", first.c_str());
    bool leaving = false;  // Ctrl-C has come once
    for (std::string text = first;; text.clear()) {
        while (text.empty()) {
            if (input.terminal()) std::fputc('\n', stderr);
            const event what = input.read("> ", text);
            if (what == event::end || (what == event::interrupt && leaving)) return {};
            leaving = what == event::interrupt;
            if (leaving) std::fprintf(stderr, "(Ctrl-C again leaves)\n");
            if (what != event::text) continue;
            if (text.empty()) return {};
            if (text != "/undo" && text != "/clear") break;
            text == "/undo" ? talk.undo() : talk.clear();
            text.clear();
        }
        std::string reply;
        auto done = talk.say(text, by, reply);
        runner::forget_interrupt();
        if (!done && done.error().code == errc::context_overflow && !args.single_turn) {
            std::fprintf(stderr, "%s; this turn is left out: a shorter one, /undo or /clear may fit\n",
                         done.error().message.c_str());
            continue;
        }
        FRUGAL_TRY(done);
        FRUGAL_TRY(runner::print("\n"));
        if (*done == runner::ending::interrupted) std::fprintf(stderr, "(interrupted)\n");
        if (args.single_turn) return runner::failure(*done, by);
        if (*done == runner::ending::context_full)
            std::fprintf(stderr, "%s; /undo or /clear make room\n", runner::failure(*done, by).error().message.c_str());
    }
}

/// One object: the text, why it ended, counts and times.
std::string as_json(const arguments& args, const std::string& prompt, const std::string& reply, runner::ending why,
                    const runner::engine& engine, const runner::generator& by, double loading) {
    const runner::timing& time = by.times();
    nlohmann::ordered_json out = {
        {"model", args.model.model},
        {"architecture", engine.sizes().architecture},
        {"prompt", prompt},
        {"text", reply},
        {"ending", runner::to_string(why)},
        {"seed", by.options().sampling.seed},
        {"tokens", {{"prompt", time.prompt_tokens}, {"generated", time.new_tokens}, {"context", by.context()}}},
        {"milliseconds",
         {{"loading", loading * 1e3},
          {"prompt", time.prompt * 1e3},
          {"first_token", time.first_token * 1e3},
          {"generation", time.generation * 1e3}}},
        {"tokens_per_second",
         {{"prompt", runner::rate(time.prompt_tokens, time.prompt)}, {"generation", runner::rate(time.steps, time.generation)}}},
    };
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

status run(arguments& args) {
    std::string prompt = args.prompt;
    bool given = args.prompt_option->count() != 0, is_chat = args.chat || args.single_turn;
    if (!args.file.empty()) {
        FRUGAL_TRY_ASSIGN(prompt, runner::read_text(args.file));
        given = true;
    } else if (!given && !is_chat) {
        is_chat = args.chat_option->count() == 0 && ::isatty(STDIN_FILENO) != 0;
        if (!is_chat) {
            FRUGAL_TRY_ASSIGN(prompt, runner::read_text("-"));
        }
    }
    if (prompt.empty() && (given || !is_chat))
        runner::wrong_use("the prompt is empty; give --prompt, --file, or text on standard input");
    if (args.json && is_chat && !given) runner::wrong_use("--json is for one text: give --prompt or --file");

    const auto start = std::chrono::steady_clock::now();
    FRUGAL_TRY_ASSIGN(const auto file, args.model.open());
    auto options = args.generation.options(args.model, file, is_chat);
    options.print = !args.json;
    device::fork_join_executor executor(args.model.threads);
    FRUGAL_TRY_ASSIGN(const auto engine, runner::make_engine(file, executor, args.model.engine()));
    FRUGAL_TRY_ASSIGN(auto text, runner::generator::create(options, file, *engine));
    const double loading = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    status done;
    std::string reply;
    if (is_chat && !args.json) {
        FRUGAL_TRY_ASSIGN(auto talk, runner::conversation::create(args.conversation, file));
        done = chat(args, prompt, talk, text);
    } else {
        std::vector<std::int32_t> ids;
        if (is_chat) {
            FRUGAL_TRY_ASSIGN(const auto talk, runner::conversation::create(args.conversation, file));
            FRUGAL_TRY_ASSIGN(ids, talk.prompt(prompt));
        } else {
            FRUGAL_TRY_ASSIGN(ids, file.tokenizer->encode_prompt(prompt));
        }
        if (!args.json && !args.hide_prompt) FRUGAL_TRY(runner::print(prompt));
        const auto why = text.go_on(ids, reply);
        if (why && args.json)
            done = runner::print(as_json(args, prompt, reply, *why, *engine, text, loading));
        else if (why)
            done = runner::print("\n");
        else if (!args.json)
            std::fputc('\n', stdout);
        if (done) done = why ? runner::failure(*why, text) : status(why.error());
    }
    if (args.stats) text.print_stats(loading);
    return done;
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app{"Generates text with a hybrid language model.", "generate"};
    args.model.add_to(app);
    args.prompt_option = app.add_option("-p,--prompt", args.prompt, "text to continue; in a chat, its first turn");
    app.add_option("-f,--file", args.file, "file with that text; - reads standard input")->excludes(app.get_option("--prompt"));
    args.generation.add_to(app);
    args.chat_option = app.add_flag("--chat,--conversation,!--no-conversation", args.chat,
                                    "hold a conversation, or not (-cnv, -no-cnv; default: without a prompt at a terminal)");
    args.conversation.add_to(app);
    app.add_flag("--single-turn", args.single_turn, "a conversation of one turn (-st)");
    app.add_flag("--no-display-prompt", args.hide_prompt, "print the new text alone");
    app.add_flag("--json", args.json, "print one JSON object: the new text, counts and times");
    app.add_flag("--stats", args.stats, "print times, rates and counters to standard error");
    return runner::run_program(app, argc, argv, [&] { return run(args); });
}
