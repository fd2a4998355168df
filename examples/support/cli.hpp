#pragma once
/// What the example programs' command lines have in common.
#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "engine.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/fork_join_executor.hpp"
#include "frugal/ops/sampling/sampling.hpp"
#include "generator.hpp"
#include "model_file.hpp"

namespace runner {

/// Options that every program with a model takes.
struct model_arguments {
    std::string model = "tiny-qwen35";
    std::size_t threads = 0;
    std::size_t context = 0;
    int qsa_ratio = -1;
    bool check_tensors = false, allow_paging = false, exact = false;

    void add_to(CLI::App& app) {
        app.add_option("-m,--model", model,
                       "GGUF file or Hugging Face directory, or an embedded model: tiny-qwen35, tiny-qwen4exp")
            ->capture_default_str();
        app.add_option("-t,--threads", threads, "threads; 0: as many as this process may use")->capture_default_str();
        app.add_option("-c,--ctx-size", context, "most tokens of a sequence; 0: what the model was trained for")
            ->capture_default_str();
        app.add_option("--qsa-ratio", qsa_ratio, "QSA compress ratio in place of the file's; 0: dense attention")
            ->check(CLI::Range(0, 1 << 20));
        app.add_flag("--exact", exact, "multiply straight from the file, activations in f32 (default for GGUF: images, 8 bits)");
        app.add_flag("--check-tensors", check_tensors, "decode every weight once and refuse NaN and infinity");
        app.add_flag("--allow-paging", allow_paging, "run a model that is larger than memory");
    }
    [[nodiscard]] std::optional<std::size_t> ratio() const {
        return qsa_ratio < 0 ? std::nullopt : std::optional<std::size_t>(static_cast<std::size_t>(qsa_ratio));
    }
    [[nodiscard]] frugal::result<model_file> open() const { return open_model(resolve_model(model), {ratio(), allow_paging}); }
    [[nodiscard]] engine_options engine() const {
        engine_options out;
        out.max_tokens = context;
        out.qsa_ratio = ratio();
        out.check_tensors = check_tensors;
        out.exact = exact;
        return out;
    }
};

/// Options of every program that generates text.
struct generation_arguments {
    generation_options options;
    double temperature = 0.8, top_p = 0.95;
    std::size_t top_k = 40;
    std::uint64_t seed = 1;

    void add_to(CLI::App& app) {
        app.add_option("-n,--n-predict", options.predict, "most tokens to generate; -1: until the model ends")
            ->capture_default_str();
        app.add_option("--temp", temperature, "temperature; 0 takes the likeliest token")
            ->check(CLI::NonNegativeNumber)
            ->capture_default_str();
        app.add_option("--top-k", top_k, "sample from the k likeliest tokens; 0: all")->capture_default_str();
        app.add_option("--top-p", top_p, "sample from the likeliest tokens that make up this probability")
            ->check(CLI::Range(0.0, 1.0))
            ->capture_default_str();
        app.add_option("-s,--seed", seed, "seed of the sampler")->capture_default_str();
        app.add_option("-b,--batch-size", options.batch, "most prompt tokens of one forward pass")
            ->check(CLI::Range(1, 1 << 16))
            ->capture_default_str();
        app.add_flag("--ignore-eos", options.ignore_eos, "go on after an end-of-text token");
    }
    [[nodiscard]] frugal::result<frugal::ops::sampler> sampler() const {
        return frugal::ops::sampler::create(
            {.temperature = static_cast<float>(temperature), .top_k = top_k, .top_p = static_cast<float>(top_p), .seed = seed});
    }
};

/// Prints "program: message" and returns the exit status of a failed program.
inline int report(const char* program, const frugal::error& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.message.c_str());
    return 1;
}

/// Reads a line of any length from standard input; false at its end.
[[nodiscard]] inline bool read_line(std::string& line) {
    line.clear();
    int c = 0;
    while ((c = std::getc(stdin)) != EOF && c != '\n') line.push_back(static_cast<char>(c));
    return c != EOF || !line.empty();
}

/// Reads a whole file, or standard input for "-".
[[nodiscard]] inline frugal::result<std::string> read_text(const std::string& path) {
    std::FILE* in = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
    if (in == nullptr) return frugal::fail(frugal::errc::not_found, "cannot open ", path);
    std::string out;
    char block[1 << 16];
    for (std::size_t n = 0; (n = std::fread(block, 1, sizeof(block), in)) > 0;) out.append(block, n);
    const bool broken = std::ferror(in) != 0;
    if (in != stdin) std::fclose(in);
    if (broken) return frugal::fail(frugal::errc::io, "cannot read ", path);
    return out;
}

}  // namespace runner
