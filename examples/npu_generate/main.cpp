// Generates text with the products of every layer on an NPU, here an emulated one behind the real XRT.
//
//     npu_generate --prompt "In the beginning" --stats              weights stay on the device; the host prepares none twice
//     npu_generate --prompt "In the beginning" --stats --reload     the host prepares every weight in every step
//
// Both print the same text. Look at dequantize_calls, dequantized_bytes and load_nanoseconds.
#include <chrono>
#include <cstdio>
#include <string>

#include "cli.hpp"
#include "generator.hpp"
#include "npu_engine.hpp"
#include "terminal.hpp"

namespace {

using namespace frugal;

struct arguments {
    runner::model_arguments model;
    runner::generation_arguments generation;
    std::string prompt = "In the beginning";
    std::size_t memory_mib = 0;
    bool reload = false, strict = false, stats = false;
};

status run(arguments& args) {
    if (args.prompt.empty()) runner::wrong_use("the prompt is empty");
    const auto start = std::chrono::steady_clock::now();
    FRUGAL_TRY_ASSIGN(const auto file, args.model.open());
    const auto generation = args.generation.options(args.model, file, false);
    device::fork_join_executor executor(args.model.threads);
    runner::engine_options options = args.model.engine();
    if (args.strict) options.images.on_failure = reuse::on_device_failure::return_error;
    FRUGAL_TRY_ASSIGN(const auto engine,
                      runner::make_emulated_npu_engine(file, executor, options, args.reload, args.memory_mib << 20));
    FRUGAL_TRY_ASSIGN(auto text, runner::generator::create(generation, file, *engine));
    const double loading = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    FRUGAL_TRY_ASSIGN(const auto ids, file.tokenizer->encode_prompt(args.prompt));
    FRUGAL_TRY(runner::print(args.prompt));
    std::string reply;
    const auto ended = text.go_on(ids, reply);
    status done = runner::print("\n");
    if (done) done = ended ? runner::failure(*ended, text) : status(ended.error());
    if (const auto why = engine->last_failure())
        std::fprintf(stderr, "the host computed %llu products in place of the device: %s\n",
                     static_cast<unsigned long long>(engine->counted(counter::host_fallbacks)), why->message.c_str());
    if (args.stats) text.print_stats(loading);
    return done;
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app{"Generates text with a hybrid language model on an emulated NPU.", "npu_generate"};
    args.model.add_to(app);
    app.add_option("-p,--prompt", args.prompt, "text to continue")->capture_default_str();
    args.generation.add_to(app);
    app.add_flag("--reload", args.reload, "prepare every weight in every step, whether or not anybody reads it");
    app.add_option("--device-memory", args.memory_mib, "MiB of the device; the host computes what does not fit (0: plenty)")
        ->check(runner::whole_number(0, 1 << 20));
    app.add_flag("--strict", args.strict, "end with the device's error in place of letting the host compute");
    app.add_flag("--stats", args.stats, "print times, rates and counters to standard error");
    return runner::run_program(app, argc, argv, [&] { return run(args); });
}
