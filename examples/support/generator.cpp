#include "generator.hpp"

#include <chrono>
#include <cstdio>
#include <span>
#include <utility>

namespace runner {

using namespace frugal;

namespace {

using clock_type = std::chrono::steady_clock;
constexpr attention::sequence_id the_sequence{0};

double seconds_since(clock_type::time_point start) { return std::chrono::duration<double>(clock_type::now() - start).count(); }

void emit(const std::string& text, std::string& reply) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    reply += text;
}

}  // namespace

double rate(std::size_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0.0; }

generator::generator(const generation_options& options, const model_file& file, engine& model, ops::sampler sampler)
    : options_(options), file_(file), model_(model), first_sampler_(sampler), sampler_(std::move(sampler)) {
    context_ = options.context != 0 ? options.context : model.sizes().context_length;
}

void generator::clear() {
    model_.clear(the_sequence);
    seen_.clear();
    sampler_ = first_sampler_;
    time_ = {};
}

status generator::go_on(const std::vector<std::int32_t>& ids, std::string& reply) {
    if (ids.empty()) return fail(errc::invalid_argument, "the prompt is empty: it has no tokens");
    if (ids.size() > context_)
        return fail(errc::context_overflow, "the prompt has ", ids.size(), " tokens; the context holds ", context_,
                    " (see --ctx-size)");
    const auto start = clock_type::now();
    // Only what the model has not seen yet is computed, where the new text continues the old one.
    std::size_t known = 0;
    while (known < seen_.size() && known + 1 < ids.size() && seen_[known] == ids[known]) ++known;
    if (known != seen_.size()) {
        model_.clear(the_sequence);
        seen_.clear();
        known = 0;
    }
    std::vector<float> logits;
    FRUGAL_TRY(prefill(model_, the_sequence, std::span(ids).subspan(known), options_.batch, 1, logits));
    seen_ = ids;
    time_.prompt_tokens += ids.size() - known;

    io::stream_decoder stream(*file_.tokenizer);
    bool first = true;
    clock_type::time_point generation;
    for (int made = 0; options_.predict < 0 || made < options_.predict; ++made) {
        FRUGAL_TRY_ASSIGN(const std::int64_t choice, sampler_.sample(logits));
        const auto token = static_cast<std::int32_t>(choice);
        if (first) {
            time_.first_token = seconds_since(start);
            time_.bytes_before_generation = model_.counted(counter::weight_bytes_read);
            generation = clock_type::now();
            first = false;
        }
        if (!options_.ignore_eos && file_.tokenizer->is_eos(token)) break;
        emit(stream.push(token), reply);
        ++time_.new_tokens;
        if (made + 1 == options_.predict) break;
        if (seen_.size() == context_) {
            emit(stream.finish(), reply);
            return fail(errc::context_overflow, "the context of ", context_, " tokens is full (see --ctx-size)");
        }
        logits.resize(model_.sizes().vocabulary);
        FRUGAL_TRY(prefill(model_, the_sequence, {&token, 1}, 1, 1, logits));
        seen_.push_back(token);
    }
    emit(stream.finish(), reply);
    if (!first) time_.generation += seconds_since(generation);
    return {};
}

void generator::print_stats() const {
    std::fprintf(stderr, "\nmodel                     %s, %.1f MB of weights\n", model_.sizes().architecture.c_str(),
                 static_cast<double>(file_.bytes) * 1e-6);
    std::fprintf(stderr, "instruction set           %s\n", std::string(model_.isa()).c_str());
    std::fprintf(stderr, "loading                   %.1f ms, %.1f MB of weight images\n", model_.load_seconds * 1e3,
                 static_cast<double>(model_.image_bytes()) * 1e-6);
    std::fprintf(stderr, "prompt                    %zu tokens\n", time_.prompt_tokens);
    std::fprintf(stderr, "time to first token       %.1f ms (%.1f prompt tokens/s)\n", time_.first_token * 1e3,
                 rate(time_.prompt_tokens, time_.first_token));
    const std::size_t steps = time_.steps();
    std::fprintf(stderr, "generated                 %zu tokens, %.1f tokens/s\n", time_.new_tokens,
                 rate(steps, time_.generation));
    const std::uint64_t bytes = model_.counted(counter::weight_bytes_read);
    std::fprintf(
        stderr, "weight bytes read         %llu, %.2f MB for a generated token\n", static_cast<unsigned long long>(bytes),
        steps == 0 ? 0.0 : static_cast<double>(bytes - time_.bytes_before_generation) * 1e-6 / static_cast<double>(steps));
    for (std::size_t i = 0; i < counter_count; ++i)
        if (static_cast<counter>(i) != counter::weight_bytes_read)
            std::fprintf(stderr, "%-26s%llu\n", std::string(to_string(static_cast<counter>(i))).c_str(),
                         static_cast<unsigned long long>(model_.counted(static_cast<counter>(i))));
}

}  // namespace runner
