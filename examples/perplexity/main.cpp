// Perplexity of a text: windows of a fixed length, each from an empty state, every token of a window but its first predicted.
//
//     perplexity --model tiny-qwen35 --file text.txt
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cli.hpp"
#include "terminal.hpp"

namespace {

using namespace frugal;

/// Token ids in text form, separated by white space.
result<std::vector<std::int32_t>> parse_ids(const std::string& text) {
    std::vector<std::int32_t> out;
    for (std::size_t i = 0; i < text.size();) {
        if (text[i] == ' ' || text[i] == '\n' || text[i] == '\r' || text[i] == '\t') {
            ++i;
            continue;
        }
        std::int64_t value = 0;
        const std::size_t start = i;
        for (; i < text.size() && text[i] >= '0' && text[i] <= '9' && value <= 0x7FFFFFFF; ++i)
            value = value * 10 + (text[i] - '0');
        if (i == start || value > 0x7FFFFFFF) return fail(errc::invalid_argument, "not a token id at byte ", start);
        out.push_back(static_cast<std::int32_t>(value));
    }
    return out;
}

/// -log softmax(logits)[token], in double.
double negative_log_likelihood(std::span<const float> logits, std::int32_t token) {
    double highest = -INFINITY;
    for (const float x : logits) highest = std::max(highest, static_cast<double>(x));
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x) - highest);
    return highest + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

struct arguments {
    runner::model_arguments model;
    std::string file, ids;
    std::size_t batch = 512, most = 0;
};

status run(const arguments& args) {
    if (args.file.empty() && args.ids.empty()) runner::wrong_use("give --file or --ids");
    if (args.model.context == 1) runner::wrong_use("--ctx-size: a window of one token predicts nothing");
    FRUGAL_TRY_ASSIGN(const auto file, args.model.open());
    const std::size_t length = args.model.context != 0 ? args.model.context : file.sizes.context_length;
    std::vector<std::int32_t> tokens;
    if (!args.ids.empty()) {
        FRUGAL_TRY_ASSIGN(const std::string text, runner::read_text(args.ids));
        FRUGAL_TRY_ASSIGN(tokens, parse_ids(text));
    } else {
        FRUGAL_TRY_ASSIGN(const std::string text, runner::read_text(args.file));
        FRUGAL_TRY_ASSIGN(tokens, file.tokenizer->encode_prompt(text));
    }
    std::size_t windows = tokens.size() / length;
    if (args.most != 0) windows = std::min(windows, args.most);
    if (windows == 0)
        return fail(errc::invalid_argument, "the text has ", tokens.size(), " tokens; one window takes ", length,
                    " (see --ctx-size)");

    device::fork_join_executor executor(args.model.threads);
    auto options = args.model.engine();
    options.max_tokens = length;
    FRUGAL_TRY_ASSIGN(const auto engine, runner::make_engine(file, executor, options));
    const std::size_t vocabulary = engine->sizes().vocabulary;
    constexpr attention::sequence_id sequence{0};
    double total = 0;
    std::size_t predicted = 0;
    std::vector<float> logits;
    for (std::size_t w = 0; w < windows; ++w) {
        const auto window = std::span(tokens).subspan(w * length, length);
        engine->clear(sequence);
        FRUGAL_TRY(runner::prefill(*engine, sequence, window, args.batch, window.size(), logits));
        for (std::size_t i = 0; i + 1 < window.size(); ++i) {
            const double loss = negative_log_likelihood(std::span(logits).subspan(i * vocabulary, vocabulary), window[i + 1]);
            if (!std::isfinite(loss))
                return fail(errc::not_finite, "the loss at token ", i, " of window ", w, " is not finite; try --check-tensors");
            total += loss;
            ++predicted;
        }
        std::fprintf(stderr, "[%zu/%zu] %.4f\n", w + 1, windows, std::exp(total / static_cast<double>(predicted)));
    }
    const double mean = total / static_cast<double>(predicted);
    char line[256];
    std::snprintf(line, sizeof(line), "windows %zu of %zu tokens, %zu predictions, mean nll %.6f, perplexity %.5f\n", windows,
                  length, predicted, mean, std::exp(mean));
    return runner::print(line);
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app{"Perplexity of a text under a model.", "perplexity"};
    args.model.context = 512;
    args.model.add_to(app, "-c,--ctx-size,--window", "tokens of a window; 0: as many as the model was trained for");
    auto* text = app.add_option("-f,--file", args.file, "text file; - reads standard input");
    auto* ids = app.add_option("--ids", args.ids, "file of token ids instead of text");
    text->excludes(ids);
    app.add_option("--windows,--chunks", args.most, "most windows; 0: all")
        ->check(runner::whole_number(0))
        ->capture_default_str();
    app.add_option("-b,--batch-size", args.batch, "most tokens of one forward pass")
        ->check(runner::whole_number(1, 1 << 16))
        ->capture_default_str();
    return runner::run_program(app, argc, argv, [&] { return run(args); });
}
