// Whole models at real shapes with random weights beside llama.cpp on the same file: how the tokens a second grow or shrink with
// the depth of the context, with the sequences that are decoded at once, and with threads.
//
// The depth is made, not computed: caches are filled with rows of ordinary size (ours with random ones, llama.cpp's with those of
// its first tokens), because what a token costs depends on how many there are and not on what they hold.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench.hpp"
#include "comparison.hpp"
#include "frugal/io/gguf.hpp"
#include "generator.hpp"
#include "limits.hpp"
#include "llama.hpp"
#include "own_run.hpp"
#include "shapes.hpp"

namespace bench {

namespace {

constexpr std::size_t prefill_tokens = 512, decode_tokens = 64, decode_rounds = 8, first_tokens = 64;
constexpr std::size_t batch_rounds = 5, thread_rounds = 4, thread_prefill_tokens = 64;
/// Both sides round activations to 8 bits before their products, and their caches hold other types: 0.99993 and more is seen. One
/// layer that is wrong costs about 0.01.
constexpr double least_cosine = 0.999;

std::vector<std::int32_t> random_tokens(std::size_t count, unsigned seed, std::size_t vocabulary) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> out(count);
    for (std::int32_t& token : out) token = static_cast<std::int32_t>(random() % (vocabulary - 1));
    return out;
}

/// Cosine of two vectors; 0 where one is not finite.
double cosine(std::span<const float> a, std::span<const float> b) {
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
        aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
        bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    }
    const double out = ab / std::sqrt(aa * bb);
    return std::isfinite(out) ? out : 0;
}

/// The words that a variable of the environment holds, or those that stand for it.
std::vector<std::string> words(const char* variable, const char* otherwise) {
    const char* const set = std::getenv(variable);
    std::istringstream in(set == nullptr ? otherwise : set);
    std::vector<std::string> out;
    for (std::string each; in >> each;) out.push_back(each);
    return out;
}

/// Errors: invalid_argument (a word is no number of at least `least` that `multiple_of` divides, or there is none).
fg::result<std::vector<std::size_t>> numbers(const char* variable, const char* otherwise, std::size_t least,
                                             std::size_t multiple_of) {
    std::vector<std::size_t> out;
    for (const std::string& word : words(variable, otherwise)) {
        char* end = nullptr;
        const std::size_t value = std::strtoul(word.c_str(), &end, 10);
        if (*end != 0 || value < least || value % multiple_of != 0)
            return fg::fail(fg::errc::invalid_argument, variable, " holds ", word, "; wanted: multiples of ", multiple_of,
                            ", at least ", least);
        out.push_back(value);
    }
    if (out.empty()) return fg::fail(fg::errc::invalid_argument, variable, " holds no number");
    std::sort(out.begin(), out.end());
    return out;
}

/// What is asked for.
struct plan {
    std::vector<std::size_t> depths, batches, threads;
    bool context, batch, thread;  ///< which curves
    double seconds;               ///< nothing new is begun after so many

    /// Errors: invalid_argument.
    [[nodiscard]] static fg::result<plan> read() {
        plan out{};
        // llama.cpp's state is made deeper by repeating its first tokens.
        FRUGAL_TRY_ASSIGN(out.depths, numbers("FRUGAL_BENCH_DEPTHS", "0 8192 32768", 0, first_tokens));
        FRUGAL_TRY_ASSIGN(out.batches, numbers("FRUGAL_BENCH_BATCHES", "1 2 4 8 16", 1, 1));
        if (out.batches.back() > prefill_tokens)
            return fg::fail(fg::errc::invalid_argument, "FRUGAL_BENCH_BATCHES holds more than ", prefill_tokens);
        FRUGAL_TRY_ASSIGN(const auto seconds, numbers("FRUGAL_BENCH_SECONDS", "540", 1, 1));
        out.seconds = static_cast<double>(seconds[0]);
        // As many threads as `generate` takes, unless told otherwise; one, two, four … of them for their curve.
        FRUGAL_TRY_ASSIGN(const auto asked, numbers("FRUGAL_BENCH_THREADS", "0", 0, 1));
        const std::size_t most = executor(asked[0]).concurrency();
        for (std::size_t count = 1; count < most; count *= 2) out.threads.push_back(count);
        out.threads.push_back(most);
        for (const std::string& curve : words("FRUGAL_BENCH_CURVES", "context batch threads")) {
            bool* const which = curve == "context"   ? &out.context
                                : curve == "batch"   ? &out.batch
                                : curve == "threads" ? &out.thread
                                                     : nullptr;
            if (which == nullptr) return fg::fail(fg::errc::invalid_argument, "FRUGAL_BENCH_CURVES holds ", curve);
            *which = true;
        }
        return out;
    }
};

/// Seconds of the tokens that each side took in each of its rounds; of theirs none where it does not run.
struct timed {
    std::vector<double> ours, theirs;
};

/// One model on both sides, and what is known of it.
class measurement {
public:
    measurement(const model_shape& shape, const plan& what, json& out, double until)
        : shape_(shape), name_(shape.name), plan_(what), out_(out), until_(until) {}

    /// Errors: those of the sides, and invalid_argument: both sides' logits differ.
    [[nodiscard]] fg::status run(const std::string& path, const peer::llama* library) {
        FRUGAL_TRY_ASSIGN(file_, fg::io::gguf_file::open(path));
        if (library != nullptr) {
            auto opened = peer::llama_file::open(*library, path);
            if (opened)
                their_file_.emplace(*std::move(opened));
            else
                std::fprintf(stderr, "%s runs alone: %s\n", name_.c_str(), opened.error().message.c_str());
        }
        const std::size_t context = plan_.depths.back() + prefill_tokens + decode_tokens;
        FRUGAL_TRY_ASSIGN(own_, open_own(shape_, *file_, plan_.batches.back(), context));
        FRUGAL_TRY(open_theirs(1, context));
        use_threads(plan_.threads.back());
        FRUGAL_TRY(compare_sides());
        if (plan_.thread) FRUGAL_TRY(measure_threads());
        if (plan_.batch) {
            FRUGAL_TRY(open_theirs(plan_.batches.back(), batch_context));
            FRUGAL_TRY(measure_batches());
            FRUGAL_TRY(open_theirs(1, context));
        }
        // The longest last.
        if (plan_.context) FRUGAL_TRY(measure_depths());
        return {};
    }

private:
    static constexpr std::size_t batch_context = 256;

    [[nodiscard]] fg::status open_theirs(std::size_t sequences, std::size_t context) {
        other_.reset();
        if (!their_file_) return {};
        FRUGAL_TRY_ASSIGN(auto run, peer::llama_run::open(*their_file_, sequences, context));
        other_.emplace(std::move(run));
        use_threads(plan_.threads.back());
        return {};
    }
    void use_threads(std::size_t count) {
        own_->use_threads(count);
        if (other_) other_->use_threads(count);
    }
    [[nodiscard]] fg::status forward(std::span<const std::int32_t> tokens, std::size_t sequences = 1) {
        FRUGAL_TRY(own_->forward(tokens, sequences));
        return other_ ? other_->forward(tokens, sequences) : fg::status{};
    }
    void clear() {
        own_->clear();
        if (other_) other_->clear();
    }
    [[nodiscard]] bool no_time_for(const std::string& what) const {
        if (clock_seconds() < until_) return false;
        std::fprintf(stderr, "%s %s is left out: no time is left (FRUGAL_BENCH_SECONDS)\n", name_.c_str(), what.c_str());
        return true;
    }
    [[nodiscard]] std::vector<std::int32_t> tokens(std::size_t count, unsigned seed) const {
        return random_tokens(count, seed, shape_.vocabulary);
    }
    /// Least cosine of both sides' logits.
    [[nodiscard]] double agreement(std::size_t sequences) const {
        double least = 1;
        for (std::size_t i = 0; i < sequences; ++i)
            least = std::min(least, cosine(own_->logits(i, shape_.vocabulary), other_->logits(i, shape_.vocabulary)));
        return least;
    }

    /// Seconds of the tokens of `sequences`, appended `piece` at a time.
    template <class Run>
    [[nodiscard]] static fg::result<double> seconds(Run& run, std::span<const std::int32_t> tokens, std::size_t piece,
                                                    std::size_t sequences) {
        const double start = clock_seconds();
        for (std::size_t at = 0; at < tokens.size(); at += piece) FRUGAL_TRY(run.forward(tokens.subspan(at, piece), sequences));
        return clock_seconds() - start;
    }
    /// Both sides in turn, an equal part of the tokens a round.
    [[nodiscard]] fg::result<timed> rounds(std::span<const std::int32_t> tokens, std::size_t count, std::size_t piece,
                                           std::size_t sequences = 1) {
        timed out;
        const std::size_t part = tokens.size() / count;
        for (std::size_t round = 0; round < count; ++round) {
            FRUGAL_TRY_ASSIGN(const double ours, seconds(*own_, tokens.subspan(round * part, part), piece, sequences));
            out.ours.push_back(ours);
            if (!other_) continue;
            FRUGAL_TRY_ASSIGN(const double theirs, seconds(*other_, tokens.subspan(round * part, part), piece, sequences));
            out.theirs.push_back(theirs);
        }
        return out;
    }
    /// `at` is the place on the curve, `count` the tokens of a round.
    void report(const char* curve, const char* phase, std::size_t at, std::size_t count, const timed& both) {
        const bool depth = std::strcmp(curve, "context") == 0;
        const std::string figure = fg::concat("figure model.", name_, ".", phase, depth ? "." : fg::concat(".", curve, "."), at);
        const double ours = static_cast<double>(count) / median(both.ours);
        json point{{"model", name_}, {"layers", shape_.layers},    {"phase", phase},
                   {"at", at},       {"rounds", both.ours.size()}, {"ours", ours},
                   {"llamacpp", 0}};
        std::printf("%s.tokens_per_second %.6g\n", figure.c_str(), ours);
        if (!both.theirs.empty()) {
            std::vector<double> ratios;
            for (std::size_t i = 0; i < both.ours.size(); ++i) ratios.push_back(both.theirs[i] / both.ours[i]);
            std::printf("%s.vs_llamacpp %.6g\n", figure.c_str(), median(std::move(ratios)));
            point["llamacpp"] = static_cast<double>(count) / median(both.theirs);
        }
        out_[curve].push_back(std::move(point));
    }

    /// Both once, untimed: ours packs its images. The logits must agree, after a prompt and token by token.
    [[nodiscard]] fg::status compare_sides() {
        const auto prompt = tokens(first_tokens, 1), text = tokens(2, 3);
        for (const auto part : {std::span(prompt), std::span(text).first(1), std::span(text).last(1)}) {
            FRUGAL_TRY(forward(part));
            if (!other_) continue;
            const double cosine = agreement(1);
            std::printf("%s: cosine of both sides' logits %.6f\n", name_.c_str(), cosine);
            if (cosine < least_cosine)
                return fg::fail(fg::errc::invalid_argument, name_, ": the logits of both sides have a cosine of ", cosine);
        }
        return {};
    }

    [[nodiscard]] fg::status measure_threads() {
        const auto prompt = tokens(thread_prefill_tokens, 2), text = tokens(decode_tokens, 3);
        for (const std::size_t count : plan_.threads) {
            if (no_time_for(fg::concat("with ", count, " threads"))) break;
            use_threads(count);
            clear();
            FRUGAL_TRY_ASSIGN(const auto prefill, rounds(prompt, 1, prompt.size()));
            report("threads", "prefill", count, prompt.size(), prefill);
            constexpr std::size_t each = 4;
            FRUGAL_TRY_ASSIGN(const auto decode, rounds(std::span(text).first(thread_rounds * each), thread_rounds, 1));
            report("threads", "decode", count, each, decode);
        }
        use_threads(plan_.threads.back());
        return {};
    }

    /// Each sequence has a prompt and a text of its own. A row of ours has the bits that its sequence has alone; where llama.cpp's
    /// logits are others than with one sequence, it is left out.
    [[nodiscard]] fg::status measure_batches() {
        const std::size_t most = plan_.batches.back(), each = std::min(prefill_tokens / most, batch_context / 16);
        const auto prompts = tokens(most * each, 4), text = tokens(4 * most * batch_rounds, 5);
        own_->clear();
        FRUGAL_TRY(own_->forward(std::span(prompts).last(each), 1));
        const auto logits = own_->logits(0, shape_.vocabulary);
        const std::vector<float> alone(logits.begin(), logits.end());
        clear();
        FRUGAL_TRY(forward(prompts, most));
        const auto beside = own_->logits(most - 1, shape_.vocabulary);
        if (!std::equal(alone.begin(), alone.end(), beside.begin()))
            return fg::fail(fg::errc::invalid_argument, name_, ": a sequence's logits differ from what they are beside others");
        if (other_ && agreement(most) >= least_cosine) FRUGAL_TRY(forward(std::span(text).first(most), most));
        if (other_ && agreement(most) < least_cosine) {
            std::fprintf(stderr, "%s: llama.cpp is left out, its logits with %zu sequences have a cosine of %g\n", name_.c_str(),
                         most, agreement(most));
            other_.reset();
        }
        for (const std::size_t batch : plan_.batches) {
            if (no_time_for(fg::concat("with ", batch, " sequences"))) break;
            // Four tokens a round at least.
            const std::size_t steps = batch >= 4 ? 1 : 4 / batch;
            FRUGAL_TRY_ASSIGN(const auto both,
                              rounds(std::span(text).first(steps * batch * batch_rounds), batch_rounds, batch, batch));
            report("batch", "decode", batch, steps * batch, both);
        }
        own_->clear();
        return {};
    }

    [[nodiscard]] fg::status measure_depths() {
        const auto first = tokens(first_tokens, 1), prompt = tokens(prefill_tokens, 2), text = tokens(decode_tokens, 3);
        for (const std::size_t depth : plan_.depths) {
            if (no_time_for(fg::concat("at ", depth))) break;
            clear();
            if (depth != 0) {
                FRUGAL_TRY(forward(first));
                FRUGAL_TRY(own_->deepen(depth));
                if (other_) FRUGAL_TRY(other_->deepen(depth));
            }
            FRUGAL_TRY_ASSIGN(const auto decode, rounds(text, decode_rounds, 1));
            report("context", "decode", depth, decode_tokens / decode_rounds, decode);
            if (no_time_for(fg::concat("prefill at ", depth))) break;
            // A prompt of its own at depth 0, after the decoded tokens elsewhere.
            if (depth == 0) clear();
            FRUGAL_TRY_ASSIGN(const auto prefill, rounds(prompt, 1, prompt.size()));
            report("context", "prefill", depth, prompt.size(), prefill);
        }
        return {};
    }

    const model_shape& shape_;
    std::string name_;
    const plan& plan_;
    json& out_;
    double until_;
    // What reads a file goes before the file.
    std::optional<fg::io::gguf_file> file_;
    std::optional<peer::llama_file> their_file_;
    std::unique_ptr<own_run> own_;
    std::optional<peer::llama_run> other_;
};

fg::status run(json& out) {
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // also into a file: a run takes minutes
    const double begun = clock_seconds();
    FRUGAL_TRY_ASSIGN(const plan what, plan::read());
    auto library = peer::llama::load();
    if (!library) std::fprintf(stderr, "without llama.cpp: %s\n", library.error().message.c_str());
    const char* const folder = std::getenv("FRUGAL_BENCH_FOLDER");
    const char* const layers = std::getenv("FRUGAL_BENCH_LAYERS");
    const std::vector<std::string> chosen = words("FRUGAL_BENCH_MODEL", "qwen35_2b qwen4exp_64");
    std::printf("%zu threads\n", what.threads.back());
    out["context"] = context(what.threads.back());
    out["model"] = {{"context", json::array()}, {"batch", json::array()}, {"threads", json::array()}};
    std::size_t done = 0;
    for (model_shape shape : model_shapes) {
        if (std::find(chosen.begin(), chosen.end(), shape.name) == chosen.end()) continue;
        if (layers != nullptr) shape.layers = static_cast<std::size_t>(std::strtol(layers, nullptr, 10));
        const std::string path = fg::concat(folder == nullptr ? "." : folder, "/", shape.name, ".gguf");
        FRUGAL_TRY(write_model(shape, path));
        // What one model leaves of its share is for the next.
        const double share = static_cast<double>(++done) / static_cast<double>(chosen.size());
        measurement one(shape, what, out["model"], begun + what.seconds * share);
        fg::status ended = one.run(path, library ? &*library : nullptr);
        (void)::unlink(path.c_str());
        FRUGAL_TRY(std::move(ended));
    }
    if (done == 0) return fg::fail(fg::errc::invalid_argument, "FRUGAL_BENCH_MODEL names no model");
    return {};
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("model", argc, argv, bench::run); }
