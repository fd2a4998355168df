// Perplexity of a text: windows of a fixed length, each from an empty state, every token of a window but its first predicted.
//
//     perplexity --model tiny-qwen35 --file text.txt
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cli.hpp"

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
    std::size_t window = 512, most = 0;
};

status run(const arguments& args) {
    FRUGAL_TRY_ASSIGN(const auto file, args.model.open());
    std::vector<std::int32_t> tokens;
    if (!args.ids.empty()) {
        FRUGAL_TRY_ASSIGN(const std::string text, runner::read_text(args.ids));
        FRUGAL_TRY_ASSIGN(tokens, parse_ids(text));
    } else {
        FRUGAL_TRY_ASSIGN(const std::string text, runner::read_text(args.file));
        FRUGAL_TRY_ASSIGN(tokens, file.tokenizer->encode(text));
    }
    std::size_t windows = tokens.size() / args.window;
    if (args.most != 0) windows = std::min(windows, args.most);
    if (windows == 0)
        return fail(errc::invalid_argument, "the text has ", tokens.size(), " tokens; one window takes ", args.window);

    device::fork_join_executor executor(args.model.threads);
    auto options = args.model.engine();
    options.max_tokens = args.window;
    FRUGAL_TRY_ASSIGN(const auto engine, runner::make_engine(file, executor, options));
    const std::size_t vocabulary = engine->sizes().vocabulary;
    constexpr attention::sequence_id sequence{0};
    double total = 0;
    std::size_t predicted = 0;
    std::vector<float> logits;
    for (std::size_t w = 0; w < windows; ++w) {
        const auto window = std::span(tokens).subspan(w * args.window, args.window);
        engine->clear(sequence);
        FRUGAL_TRY(runner::prefill(*engine, sequence, window, 512, window.size(), logits));
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
    std::printf("windows %zu of %zu tokens, %zu predictions, mean nll %.6f, perplexity %.5f\n", windows, args.window, predicted,
                mean, std::exp(mean));
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    arguments args;
    CLI::App app{"Perplexity of a text under a model."};
    args.model.add_to(app);
    auto* text = app.add_option("-f,--file", args.file, "text file; - reads standard input");
    auto* ids = app.add_option("--ids", args.ids, "file of token ids instead of text");
    text->excludes(ids);
    app.add_option("--window", args.window, "tokens of a window")->check(CLI::Range(2, 1 << 20))->capture_default_str();
    app.add_option("--windows", args.most, "most windows; 0: all")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    if (args.file.empty() && args.ids.empty()) {
        std::fprintf(stderr, "perplexity: give --file or --ids\n");
        return 2;
    }
    if (const status done = run(args); !done) return runner::report("perplexity", done.error());
    return 0;
}
