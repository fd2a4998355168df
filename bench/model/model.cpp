// Whole models at real shapes with random weights: prefill of 512 tokens and decode of 64 at three depths, beside llama.cpp on the
// same file.
//
// The depth is made, not computed: caches are filled with rows of ordinary size (ours with random ones, llama.cpp's with those of
// its first tokens), because what a token costs depends on how many there are and not on what they hold.
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench.hpp"
#include "comparison.hpp"
#include "frugal/device/cpu/fork_join_executor.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/transformer.hpp"
#include "generator.hpp"
#include "limits.hpp"
#include "llama.hpp"

namespace bench {

namespace {

constexpr std::array<std::size_t, 3> depths{0, 8192, 32768};
constexpr std::size_t prefill_tokens = 512, decode_tokens = 64, round_tokens = 8, first_tokens = 64;
/// Nothing new is begun after so many seconds.
constexpr double enough_seconds = 480;
/// Both sides round activations to 8 bits before their products, and their caches hold other types: 0.99993 and more is seen. One
/// layer that is wrong costs about 0.01.
constexpr double least_cosine = 0.999;

// Qwen3.5-2B, and Qwen3.8-Flash-Next's layers: a quarter of them, with an eighth of the experts.
constexpr std::array<model_shape, 2> shapes{{{.name = "qwen35_2b",
                                              .architecture = "qwen35",
                                              .layers = 24,
                                              .hidden = 2048,
                                              .vocabulary = 248320,
                                              .heads = 8,
                                              .kv_heads = 2,
                                              .head_dim = 256,
                                              .key_heads = 16,
                                              .value_heads = 16,
                                              .intermediate = 6144,
                                              .experts = 0,
                                              .experts_used = 0,
                                              .expert_intermediate = 0,
                                              .streams = 1,
                                              .mix_rank = 0,
                                              .index_heads = 0,
                                              .index_dim = 0,
                                              .index_budget = 0,
                                              .ratio = 0},
                                             {.name = "qwen4exp_64",
                                              .architecture = "qwen4exp",
                                              .layers = 12,
                                              .hidden = 2560,
                                              .vocabulary = 248320,
                                              .heads = 24,
                                              .kv_heads = 2,
                                              .head_dim = 256,
                                              .key_heads = 16,
                                              .value_heads = 48,
                                              .intermediate = 0,
                                              .experts = 64,
                                              .experts_used = 10,
                                              .expert_intermediate = 640,
                                              .streams = 4,
                                              .mix_rank = 320,
                                              .index_heads = 4,
                                              .index_dim = 128,
                                              .index_budget = 2048,
                                              .ratio = 4}}};

/// One model of ours and one sequence of it.
class own_run {
public:
    own_run() = default;
    own_run(const own_run&) = delete;
    own_run& operator=(const own_run&) = delete;
    virtual ~own_run() = default;
    /// Appends the tokens; logits() are those of the last.
    [[nodiscard]] virtual fg::status forward(std::span<const std::int32_t> tokens) = 0;
    virtual void clear() = 0;
    /// Makes the sequence, which holds a few tokens, one of `depth` tokens.
    [[nodiscard]] virtual fg::status deepen(std::size_t depth) = 0;
    [[nodiscard]] std::span<const float> logits() const noexcept { return logits_; }

protected:
    std::vector<float> logits_;
};

constexpr fg::attention::sequence_id sequence{0};

template <class Spec, class Isa>
class typed_run final : public own_run {
public:
    using formats = fg::quant::list<fg::quant::f32, fg::quant::f16, fg::quant::bf16, fg::quant::q4_k, fg::quant::q6_k,
                                    fg::quant::q5_0, fg::quant::q8_0>;
    using device_type = fg::device::packed_cpu<Isa, fg::counters_off, formats, fg::device::q8_activations>;
    using model_type = fg::model::transformer<Spec, fg::model::convention::gguf, fg::policies<device_type, formats>>;

    [[nodiscard]] static fg::result<std::unique_ptr<own_run>> open(const fg::io::gguf_file& file, std::size_t context,
                                                                   fg::device::executor_ref executor) {
        FRUGAL_TRY_ASSIGN(const auto sizes, fg::model::read_config(file));
        FRUGAL_TRY_ASSIGN(auto weights, (fg::model::read_weights<Spec, formats>(file, sizes)));
        FRUGAL_TRY_ASSIGN(auto model, model_type::create(sizes, std::move(weights)));
        FRUGAL_TRY_ASSIGN(auto state, model.make_state({.sequences = 1, .max_tokens = context}));
        FRUGAL_TRY_ASSIGN(auto store, model.make_store({.on_failure = fg::reuse::on_device_failure::return_error}));
        return std::unique_ptr<own_run>(new typed_run(std::move(model), std::move(state), std::move(store), executor));
    }

    fg::status forward(std::span<const std::int32_t> tokens) override {
        logits_.resize(model_.sizes().vocabulary);
        const fg::attention::segment all{sequence, 0, tokens.size()};
        const std::size_t last = tokens.size() - 1;
        return model_.forward(device_, scratch_, store_, state_, {tokens, {&all, 1}, {}, {&last, 1}},
                              {logits_.data(), 1, logits_.size()});
    }
    void clear() override { state_.clear(sequence); }
    fg::status deepen(std::size_t depth) override {
        const fg::model::config& sizes = model_.sizes();
        const std::size_t begin = state_.length(sequence), more = depth - begin;
        const std::vector<float> rows = normal(65521, 7);
        const auto row = [&](std::size_t token, std::size_t width) { return rows.data() + token * 31 % (rows.size() - width); };
        FRUGAL_TRY(state_.reserve(sequence, more));
        for (auto& cache : state_.template parts<typename model_type::attention_variant::state>()) {
            const std::size_t width = sizes.kv_heads * sizes.head_dim;
            for (std::size_t t = begin; t < depth; ++t) cache.write(sequence, t, row(2 * t, width), row(2 * t + 1, width));
            if constexpr (model_type::sparse) {
                for (std::size_t t = begin; t < depth; ++t)
                    cache.write_raw_key(sequence, fg::reuse::token_rank(t), row(t, sizes.index_dim));
                for (std::size_t b = cache.ratio().complete_blocks(begin); b < cache.ratio().complete_blocks(depth); ++b)
                    cache.write_block_key(sequence, fg::reuse::block_index(b), row(b, sizes.index_dim));
            }
            cache.commit(sequence, more);
        }
        if constexpr (model_type::sparse) {
            std::vector<fg::attention::rope_position> positions(more);
            for (std::size_t i = 0; i < more; ++i) {
                const auto position = static_cast<std::int32_t>(begin + i);
                positions[i] = {position, position, position};
            }
            const fg::attention::segment all{sequence, 0, more};
            fg::counters_off none;
            for (auto& layouts : state_.template parts<typename model_type::layouts_type>())
                FRUGAL_TRY(layouts.append(fg::attention::batch{{&all, 1}, positions}, none));
        }
        state_.advance(sequence, more);
        return {};
    }

private:
    typed_run(model_type model, typename model_type::state state, typename model_type::store_type store,
              fg::device::executor_ref executor)
        : model_(std::move(model)), state_(std::move(state)), store_(std::move(store)), device_(executor) {}

    model_type model_;
    typename model_type::state state_;
    typename model_type::store_type store_;
    device_type device_;
    fg::workspace scratch_;
};

fg::result<std::unique_ptr<own_run>> open_own(const model_shape& shape, const fg::io::gguf_file& file, std::size_t context,
                                              fg::device::executor_ref executor) {
    std::unique_ptr<own_run> out;
    FRUGAL_TRY(fg::device::dispatch<fg::isa::all>([&]<class Isa>(fg::type_tag<Isa>) -> fg::status {
        if (shape.architecture == fg::model::qwen35::name) {
            FRUGAL_TRY_ASSIGN(out, (typed_run<fg::model::qwen35, Isa>::open(file, context, executor)));
        } else {
            FRUGAL_TRY_ASSIGN(out, (typed_run<fg::model::qwen4exp<>, Isa>::open(file, context, executor)));
        }
        return {};
    }));
    return out;
}

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

/// Seconds of the tokens, appended `piece` at a time.
template <class Run>
fg::result<double> time_tokens(Run& run, std::span<const std::int32_t> tokens, std::size_t piece) {
    const double start = clock_seconds();
    for (std::size_t at = 0; at < tokens.size(); at += piece) FRUGAL_TRY(run.forward(tokens.subspan(at, piece)));
    return clock_seconds() - start;
}

/// The sequence at the depth; `first` are its first tokens.
template <class Run>
fg::status go_to(Run& run, std::span<const std::int32_t> first, std::size_t depth) {
    run.clear();
    if (depth == 0) return {};
    FRUGAL_TRY(run.forward(first));
    return run.deepen(depth);
}

fg::status measure(const model_shape& shape, const std::string& path, const peer::llama* library,
                   fg::device::executor_ref executor, double begun) {
    const std::size_t context = depths.back() + prefill_tokens + decode_tokens;
    const std::string name(shape.name);
    FRUGAL_TRY_ASSIGN(const auto file, fg::io::gguf_file::open(path));
    FRUGAL_TRY_ASSIGN(const auto own, open_own(shape, file, context, executor));
    std::optional<peer::llama_run> other;
    if (library != nullptr) {
        auto opened = peer::llama_run::open(*library, path, context, executor.concurrency());
        if (opened)
            other.emplace(*std::move(opened));
        else
            std::fprintf(stderr, "%s runs alone: %s\n", name.c_str(), opened.error().message.c_str());
    }
    const auto first = random_tokens(first_tokens, 1, shape.vocabulary);
    const auto prompt = random_tokens(prefill_tokens, 2, shape.vocabulary);
    const auto text = random_tokens(decode_tokens, 3, shape.vocabulary);

    // Both once, untimed: ours packs its images. The logits must agree, after a prompt and token by token.
    for (const auto& [tokens, piece] :
         {std::pair(std::span(first), first.size()), std::pair(std::span(text).first(2), std::size_t{1})}) {
        FRUGAL_TRY(time_tokens(*own, tokens, piece));
        if (!other) continue;
        FRUGAL_TRY(time_tokens(*other, tokens, piece));
        const double agreement = cosine(own->logits(), other->logits(shape.vocabulary));
        std::printf("%s: cosine of both sides' logits %.6f\n", name.c_str(), agreement);
        if (agreement < least_cosine)
            return fg::fail(fg::errc::invalid_argument, name, ": the logits of both sides have a cosine of ", agreement);
    }

    for (const std::size_t depth : depths) {
        if (clock_seconds() - begun > enough_seconds) {
            std::fprintf(stderr, "%s at %zu is left out: no time is left\n", name.c_str(), depth);
            continue;
        }
        FRUGAL_TRY(go_to(*own, first, depth));
        if (other) FRUGAL_TRY(go_to(*other, first, depth));
        const auto report = [&](const char* phase, std::size_t tokens, const std::vector<double>& ours,
                                const std::vector<double>& theirs) {
            const std::string figure = fg::concat("figure model.", name, ".", phase, ".", depth);
            std::printf("%s.tokens_per_second %.6g\n", figure.c_str(), static_cast<double>(tokens) / median(ours));
            if (theirs.empty()) return;
            std::vector<double> ratios;
            for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(theirs[i] / ours[i]);
            std::printf("%s.vs_llamacpp %.6g\n", figure.c_str(), median(std::move(ratios)));
        };
        // Rounds of a few tokens alternate.
        std::vector<double> ours, theirs;
        for (std::size_t at = 0; at < decode_tokens; at += round_tokens) {
            const auto part = std::span(text).subspan(at, round_tokens);
            FRUGAL_TRY_ASSIGN(const double a, time_tokens(*own, part, 1));
            ours.push_back(a);
            if (!other) continue;
            FRUGAL_TRY_ASSIGN(const double b, time_tokens(*other, part, 1));
            theirs.push_back(b);
        }
        report("decode", round_tokens, ours, theirs);
        // A prompt of its own at depth 0, after the decoded tokens elsewhere.
        if (depth == 0) {
            own->clear();
            if (other) other->clear();
        }
        FRUGAL_TRY_ASSIGN(const double a, time_tokens(*own, std::span<const std::int32_t>(prompt), prompt.size()));
        ours = {a};
        theirs.clear();
        if (other) {
            FRUGAL_TRY_ASSIGN(const double b, time_tokens(*other, std::span<const std::int32_t>(prompt), prompt.size()));
            theirs = {b};
        }
        report("prefill", prompt.size(), ours, theirs);
    }
    return {};
}

fg::status run(json& out) {
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // also into a file: a run takes minutes
    const double begun = clock_seconds();
    // As many threads as `generate` takes, unless told otherwise.
    const char* const asked = std::getenv("FRUGAL_BENCH_THREADS");
    fg::device::fork_join_executor executor(asked == nullptr ? 0 : static_cast<std::size_t>(std::strtol(asked, nullptr, 10)));
    auto library = peer::llama::load();
    if (!library) std::fprintf(stderr, "without llama.cpp: %s\n", library.error().message.c_str());
    const char* const chosen = std::getenv("FRUGAL_BENCH_MODEL");
    const char* const folder = std::getenv("FRUGAL_BENCH_FOLDER");
    const char* const layers = std::getenv("FRUGAL_BENCH_LAYERS");
    std::printf("%zu threads\n", executor.concurrency());
    out["context"] = context(executor.concurrency());
    for (model_shape shape : shapes) {
        if (layers != nullptr) shape.layers = static_cast<std::size_t>(std::strtol(layers, nullptr, 10));
        if (chosen != nullptr && shape.name != chosen) continue;
        const std::string path = fg::concat(folder == nullptr ? "." : folder, "/", shape.name, ".gguf");
        FRUGAL_TRY(write_model(shape, path));
        fg::status done = measure(shape, path, library ? &*library : nullptr, executor, begun);
        (void)::unlink(path.c_str());
        FRUGAL_TRY(std::move(done));
    }
    return {};
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("model", argc, argv, bench::run); }
