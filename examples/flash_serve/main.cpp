// Serves single-turn requests, one a line of standard input: weights are packed once and stay where they are, the context is
// of a fixed size, and every request starts from a clean state.
//
//     printf 'In the beginning\nAnd God said\n' | flash_serve --n-predict 32
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli.hpp"
#include "conversation.hpp"
#include "generator.hpp"
#include "terminal.hpp"
#if defined(FRUGAL_EXAMPLE_NPU)
#include "npu_engine.hpp"
#endif

namespace {

using namespace frugal;

struct arguments {
    runner::model_arguments model;
    runner::generation_arguments generation;
    runner::chat_arguments conversation;
    std::vector<std::string> prompts;
    std::string device = "packed";
    bool chat = false, stats = false;
};

result<std::unique_ptr<runner::engine>> make_engine(const arguments& args, const runner::model_file& file,
                                                    device::executor_ref executor) {
    runner::engine_options options = args.model.engine();
    if (args.device == "cpu") {
        options.exact = true;
        return runner::make_engine(file, executor, options);
    }
    if (args.device == "packed") return runner::make_packed_engine(file, executor, options);
#if defined(FRUGAL_EXAMPLE_NPU)
    return runner::make_emulated_npu_engine(file, executor, options, false, 0);
#else
    return fail(errc::unsupported, "built without XRT: --device npu needs libxrt-dev and uuid-dev");
#endif
}

/// One request, from a clean state, as a turn of `talk` or as it stands. A full context fails it.
status serve(const std::optional<runner::conversation>& talk, const runner::model_file& file, runner::generator& text,
             const std::string& prompt) {
    text.clear();
    std::vector<std::int32_t> ids;
    if (talk) {
        FRUGAL_TRY_ASSIGN(ids, talk->prompt(prompt));
    } else {
        FRUGAL_TRY_ASSIGN(ids, file.tokenizer->encode_prompt(prompt));
    }
    std::string reply;
    FRUGAL_TRY_ASSIGN(const runner::ending why, text.go_on(ids, reply));
    return runner::failure(why, text);
}

status run(arguments& args) {
    const auto start = std::chrono::steady_clock::now();
    FRUGAL_TRY_ASSIGN(const auto file, args.model.open());
    std::optional<runner::conversation> talk;
    if (args.chat) {
        FRUGAL_TRY_ASSIGN(talk, runner::conversation::create(args.conversation, file));
    }
    const auto generation = args.generation.options(args.model, file, args.chat);
    device::fork_join_executor executor(args.model.threads);
    FRUGAL_TRY_ASSIGN(const auto engine, make_engine(args, file, executor));
    FRUGAL_TRY_ASSIGN(auto text, runner::generator::create(generation, file, *engine));
    const double loading = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    std::size_t served = 0, failed = 0;
    const auto one = [&](const std::string& prompt) -> status {
        const std::uint64_t packed = engine->counted(counter::images_packed);
        const status done = serve(talk, file, text, prompt);
        FRUGAL_TRY(runner::print("\n"));
        const runner::timing& t = text.times();
        std::fprintf(stderr,
                     "request %zu: %zu prompt tokens, first token after %.1f ms; %zu tokens, %.1f tokens/s; %llu images packed\n",
                     ++served, t.prompt_tokens, t.first_token * 1e3, t.new_tokens, runner::rate(t.steps, t.generation),
                     static_cast<unsigned long long>(engine->counted(counter::images_packed) - packed));
        if (!done) {
            // The next request is served all the same.
            std::fprintf(stderr, "request %zu: %s\n", served, done.error().message.c_str());
            ++failed;
        }
        return {};
    };
    for (const std::string& prompt : args.prompts) FRUGAL_TRY(one(prompt));
    if (args.prompts.empty()) {
        runner::line_reader requests(false);
        for (std::string line; requests.read("", line) == runner::line_reader::event::text;) FRUGAL_TRY(one(line));
    }
    if (const auto why = engine->last_failure())
        std::fprintf(stderr, "the host computed in place of the device: %s\n", why->message.c_str());
    if (args.stats) text.print_stats(loading);
    if (served == 0) runner::wrong_use("no requests: give --prompt, or lines on standard input");
    if (failed != 0) return fail(errc::invalid_argument, failed, " of ", served, " requests failed");
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app{"Serves single-turn requests with weights that stay resident between them.", "flash_serve"};
    args.model.context = 2048;
    args.model.add_to(app);
    app.add_option("-p,--prompt", args.prompts, "a request; may be given several times (default: lines of standard input)")
        ->allow_extra_args(false);
    args.generation.add_to(app);
    app.add_option(
           "--device", args.device,
           "packed: images in host memory, activations in 8 bits; npu: on an emulated NPU; cpu: straight from the file, in f32")
        ->check(CLI::IsMember({"packed", "npu", "cpu"}))
        ->capture_default_str();
    app.add_flag("--chat,--conversation", args.chat, "wrap each request in the model's chat template (-cnv)");
    args.conversation.add_to(app);
    app.add_flag("--stats", args.stats, "print counters at the end");
    return runner::run_program(app, argc, argv, [&] { return run(args); });
}
