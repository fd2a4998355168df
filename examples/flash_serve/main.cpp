// Serves single-turn requests, one a line of standard input: weights are packed once and stay where they are, the context is
// of a fixed size, and every request starts from a clean state.
//
//     printf 'In the beginning\nAnd God said\n' | flash_serve --n-predict 32
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli.hpp"
#include "frugal/io/chat.hpp"
#include "generator.hpp"
#if defined(FRUGAL_EXAMPLE_NPU)
#include "npu_engine.hpp"
#endif

namespace {

using namespace frugal;

struct arguments {
    runner::model_arguments model;
    runner::generation_arguments generation;
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

/// One request, from a clean state.
status serve(const arguments& args, const runner::model_file& file, runner::generator& text, const std::string& prompt) {
    text.clear();
    std::vector<std::int32_t> ids;
    if (args.chat) {
        FRUGAL_TRY_ASSIGN(const auto layout, io::chat_template::create(*file.tokenizer));
        const std::vector<io::chat_turn> turns = {{"user", prompt}};
        FRUGAL_TRY_ASSIGN(ids, layout.render(turns, {}));
    } else {
        FRUGAL_TRY_ASSIGN(ids, file.tokenizer->encode(prompt));
    }
    std::string reply;
    status done = text.go_on(ids, reply);
    std::fputc('\n', stdout);
    std::fflush(stdout);
    return done;
}

status run(arguments& args) {
    FRUGAL_TRY_ASSIGN(auto sampler, args.generation.sampler());
    FRUGAL_TRY_ASSIGN(const auto file, args.model.open());
    device::fork_join_executor executor(args.model.threads);
    FRUGAL_TRY_ASSIGN(const auto engine, make_engine(args, file, executor));
    args.generation.options.context = args.model.context;
    runner::generator text(args.generation.options, file, *engine, std::move(sampler));

    std::size_t served = 0, failed = 0;
    const auto one = [&](const std::string& prompt) {
        const std::uint64_t packed = engine->counted(counter::images_packed);
        const status done = serve(args, file, text, prompt);
        const runner::timing& t = text.times();
        std::fprintf(stderr,
                     "request %zu: %zu prompt tokens, first token after %.1f ms; %zu tokens, %.1f tokens/s; %llu images packed\n",
                     ++served, t.prompt_tokens, t.first_token * 1e3, t.new_tokens, runner::rate(t.steps(), t.generation),
                     static_cast<unsigned long long>(engine->counted(counter::images_packed) - packed));
        if (!done) {
            // The next request is served all the same.
            std::fprintf(stderr, "request %zu: %s\n", served, done.error().message.c_str());
            ++failed;
        }
    };
    for (const std::string& prompt : args.prompts) one(prompt);
    if (args.prompts.empty())
        for (std::string line; runner::read_line(line);) one(line);
    if (const auto why = engine->last_failure())
        std::fprintf(stderr, "the host computed in place of the device: %s\n", why->message.c_str());
    if (args.stats) text.print_stats();
    if (served == 0) return fail(errc::invalid_argument, "no requests: give --prompt, or lines on standard input");
    if (failed != 0) return fail(errc::invalid_argument, failed, " of ", served, " requests failed");
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app{"Serves single-turn requests with weights that stay resident between them."};
    args.model.context = 2048;
    args.model.add_to(app);
    app.add_option("-p,--prompt", args.prompts, "a request; may be given several times (default: lines of standard input)");
    args.generation.add_to(app);
    app.add_option(
           "--device", args.device,
           "packed: images in host memory, activations in 8 bits; npu: on an emulated NPU; cpu: straight from the file, in f32")
        ->check(CLI::IsMember({"packed", "npu", "cpu"}))
        ->capture_default_str();
    app.add_flag("--chat", args.chat, "wrap each request in the model's chat template");
    app.add_flag("--stats", args.stats, "print counters at the end");
    CLI11_PARSE(app, argc, argv);
    if (const status done = run(args); !done) return runner::report("flash_serve", done.error());
    return 0;
}
