#include "cli.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string_view>
#include <utility>

#include "frugal/core/version.hpp"

namespace runner {

using namespace frugal;

namespace {

// CLI11 knows short options of one letter only.
constexpr std::array<std::pair<std::string_view, const char*>, 4> two_letters = {{
    {"-sys", "--system-prompt"},
    {"-cnv", "--conversation"},
    {"-no-cnv", "--no-conversation"},
    {"-st", "--single-turn"},
}};

/// The words of the command line in the order that CLI11 takes them, the last first.
std::vector<std::string> words(const CLI::App& app, int argc, char** argv) {
    std::vector<std::string> out;
    bool value = false, options = true;
    for (int i = 1; i < argc; ++i) {
        std::string word = argv[i];
        if (!value && options)
            for (const auto& [two, name] : two_letters)
                if (word == two && app.get_option_no_throw(name) != nullptr) word = name;
        if (!value && word == "--") options = false;
        const CLI::Option* option = !value && options && word.starts_with('-') ? app.get_option_no_throw(word) : nullptr;
        value = option != nullptr && option->get_items_expected_min() > 0;
        out.push_back(std::move(word));
    }
    std::reverse(out.begin(), out.end());
    return out;
}

template <class Number>
std::optional<Number> parsed(std::string_view text) {
    Number out{};
    if (text.starts_with('+')) text.remove_prefix(1);
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return out;
}

std::string spelled(double x) {
    char out[32];
    std::snprintf(out, sizeof(out), "%g", x);
    return out;
}

/// "15043+1.5", "15043-inf", as llama.cpp has them.
std::optional<ops::token_bias> parse_bias(std::string_view text) {
    const std::size_t sign = text.find_first_of("+-", 1);
    if (sign == std::string_view::npos) return std::nullopt;
    const auto token = parsed<std::int32_t>(text.substr(0, sign));
    const auto bias = parsed<float>(text.substr(sign));
    if (!token || *token < 0 || text.front() == '+' || !bias) return std::nullopt;
    if (!(*bias < std::numeric_limits<float>::infinity())) return std::nullopt;
    return ops::token_bias{*token, *bias};
}

int say(std::string_view text, const std::string& program) {
    const status done = print(text);
    if (done) return 0;
    std::fprintf(stderr, "%s: %s\n", program.c_str(), done.error().message.c_str());
    return 1;
}

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const std::function<status()>& run) {
    const std::string program = app.get_name();
    app.set_version_flag(
        "--version",
        concat(program, " (frugal ", FRUGAL_VERSION_MAJOR, '.', FRUGAL_VERSION_MINOR, '.', FRUGAL_VERSION_PATCH, ')'),
        "print the version and leave");
    try {
        app.parse(words(app, argc, argv));
        if (const status done = run(); !done) {
            std::fprintf(stderr, "%s: %s\n", program.c_str(), done.error().message.c_str());
            return 1;
        }
        return 0;
    } catch (const CLI::CallForHelp&) {
        return say(app.help(), program);
    } catch (const CLI::CallForVersion& version) {
        return say(concat(version.what(), '\n'), program);
    } catch (const CLI::ParseError& wrong) {
        std::fprintf(stderr, "%s: %s\n(%s --help lists the options)\n", program.c_str(), wrong.what(), program.c_str());
        return 2;
    }
}

void wrong_use(const std::string& message) { throw CLI::ValidationError(message); }

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
    return CLI::Validator(
        [=](std::string& text) -> std::string {
            const auto value = parsed<std::int64_t>(text);
            if (value && *value >= least && *value <= most) return {};
            const std::string bound = most == any_whole_number ? " up" : concat(" to ", most);
            return concat("must be a whole number from ", least, bound, ", not ", text);
        },
        "");
}

CLI::Validator number(double least, double most, bool above_least) {
    return CLI::Validator(
        [=](std::string& text) -> std::string {
            const auto value = parsed<double>(text);
            if (value && std::isfinite(static_cast<float>(*value)) && (above_least ? *value > least : *value >= least) &&
                *value <= most)
                return {};
            std::string bounds;
            if (std::isfinite(least)) bounds = concat(above_least ? " above " : " from ", spelled(least));
            if (std::isfinite(most)) bounds += concat(above_least ? ", at most " : " to ", spelled(most));
            if (std::isfinite(least) && !std::isfinite(most) && !above_least) bounds += " up";
            return concat("must be a number", bounds, ", not ", text);
        },
        "");
}

void model_arguments::add_to(CLI::App& app, const std::string& context_names, const std::string& context_help) {
    app.add_option("-m,--model", model, "GGUF file or Hugging Face directory, or an embedded model: tiny-qwen35, tiny-qwen4exp")
        ->capture_default_str();
    app.add_option("-t,--threads", threads, "threads; 0: as many as this process may use")
        ->check(whole_number(0, 4096))
        ->capture_default_str();
    app.add_option(context_names, context, context_help)
        ->check(whole_number(0))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->capture_default_str();
    app.add_option("--qsa-ratio", qsa_ratio, "QSA compress ratio in place of the file's; 0: dense attention")
        ->check(whole_number(0, 1 << 20));
    app.add_flag("--exact", exact, "multiply straight from the file, activations in f32 (default: images, 8 bits)");
    app.add_flag("--check-tensors", check_tensors, "decode every weight once and refuse NaN and infinity");
    app.add_flag("--allow-paging", allow_paging, "run a model that is larger than memory");
}

result<model_file> model_arguments::open() const {
    FRUGAL_TRY_ASSIGN(auto file, open_model(resolve_model(model), {ratio(), allow_paging}));
    if (context > file.sizes.context_length)
        std::fprintf(stderr, "warning: a context of %zu tokens is beyond the %zu that the model was trained for\n", context,
                     file.sizes.context_length);
    return file;
}

void generation_arguments::add_to(CLI::App& app) {
    constexpr double any = std::numeric_limits<double>::infinity();
    ops::sampling_options& sampling = options_.sampling;
    ops::penalty_options& penalties = options_.penalties;
    sampling = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 1};

    app.add_option("-n,--n-predict,--predict", predict_,
                   "most tokens to generate; -1: until the model ends (default: 128, and -1 in a chat)")
        ->check(whole_number(-1));
    app.add_option("--temp,--temperature", sampling.temperature, "temperature; 0 takes the likeliest token")
        ->check(number(0, any))
        ->capture_default_str();
    app.add_option("--top-k", sampling.top_k, "sample from the k likeliest tokens; 0: all")
        ->check(whole_number(0))
        ->capture_default_str();
    app.add_option("--top-p", sampling.top_p, "sample from the likeliest tokens that make up this probability")
        ->check(number(0, 1, true))
        ->capture_default_str();
    app.add_option("--min-p", sampling.min_p, "and from those at least this share as likely as the likeliest; 0: all")
        ->check(number(0, 1))
        ->capture_default_str();
    app.add_option_function<std::string>(
           "-s,--seed",
           [&sampling](const std::string& text) {
               const auto given = parsed<std::uint64_t>(text);
               if (text == "-1")
                   sampling.seed = std::random_device{}();
               else if (given)
                   sampling.seed = *given;
               else
                   throw CLI::ValidationError("--seed", "must be a whole number from 0 up, or -1, not " + text);
           },
           "seed of the sampler; -1: another one every time")
        ->default_str("1")
        ->type_name("INT");
    app.add_option("--repeat-penalty", penalties.repeat, "divide the logits of tokens that came lately by this; 1: none")
        ->check(number(0, any, true))
        ->capture_default_str();
    app.add_option("--repeat-last-n", penalties.last_n, "how many of the newest tokens penalties are for; 0: none")
        ->check(whole_number(0))
        ->capture_default_str();
    app.add_option("--presence-penalty", penalties.presence, "take this from the logits of tokens that came lately")
        ->check(number(-any, any))
        ->capture_default_str();
    app.add_option("--frequency-penalty", penalties.frequency, "and this for each time that they came")
        ->check(number(-any, any))
        ->capture_default_str();
    app.add_option("-l,--logit-bias", biases_, "add to the logit of a token: 15043+1, 15043-0.5, 15043-inf (several times)")
        ->check(CLI::Validator(
            [](std::string& text) -> std::string {
                return parse_bias(text) ? std::string() : concat("must be like 15043+1 or 15043-inf, not ", text);
            },
            ""))
        ->allow_extra_args(false)
        ->type_name("TOKEN(+/-)BIAS");
    app.add_option("--stop", options_.stops, "end where this text comes, and leave it out (several times)")
        ->check(CLI::Validator([](std::string& text) { return text.empty() ? "must be a text, not an empty one" : ""; }, ""))
        ->allow_extra_args(false);
    app.add_option("-b,--batch-size", options_.batch, "most prompt tokens of one forward pass")
        ->check(whole_number(1, 1 << 16))
        ->capture_default_str();
    app.add_flag("--ignore-eos", options_.ignore_eos, "go on after an end-of-text token");
}

generation_options generation_arguments::options(const model_arguments& model, const model_file& file, bool chat) const {
    generation_options out = options_;
    out.context = model.context;
    out.predict = predict_.value_or(chat ? -1 : 128);
    for (const std::string& text : biases_) {
        const auto bias = parse_bias(text).value_or(ops::token_bias{});
        if (static_cast<std::size_t>(bias.token) >= file.sizes.vocabulary)
            wrong_use(concat("--logit-bias: the model has no token ", bias.token, ", but ", file.sizes.vocabulary, " from 0 on"));
        out.penalties.biases.push_back(bias);
    }
    return out;
}

void chat_arguments::add_to(CLI::App& app) {
    app.add_option("--system-prompt,--system", system, "system message of the conversation (-sys)");
    app.add_flag_function(
        "--think,!--no-think", [this](std::int64_t n) { think = n > 0; },
        "let the model reason before it answers, or not (default: as the file's template has it)");
}

}  // namespace runner
