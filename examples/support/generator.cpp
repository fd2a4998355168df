#include "generator.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <span>
#include <utility>

#include "stop_texts.hpp"
#include "terminal.hpp"

namespace runner {

using namespace frugal;

namespace {

using clock_type = std::chrono::steady_clock;
constexpr attention::sequence_id the_sequence{0};

double seconds_since(clock_type::time_point start) { return std::chrono::duration<double>(clock_type::now() - start).count(); }

// Of models with QSA, and of devices other than the host.
constexpr std::array layout_counters = {counter::layout_builds, counter::layout_updates, counter::layout_hits};
constexpr std::array device_counters = {counter::images_packed,    counter::image_bytes_uploaded, counter::image_products,
                                        counter::dequantize_calls, counter::dequantized_bytes,    counter::loads_skipped,
                                        counter::load_nanoseconds, counter::device_nanoseconds,   counter::host_fallbacks};

}  // namespace

std::string_view to_string(ending why) noexcept {
    switch (why) {
        case ending::end_of_text: return "end_of_text";
        case ending::stop_text: return "stop_text";
        case ending::length: return "length";
        case ending::context_full: return "context_full";
        case ending::interrupted: return "interrupted";
    }
    return "";
}

double rate(std::size_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0.0; }

result<generator> generator::create(generation_options options, const model_file& file, engine& model) {
    generator out(std::move(options), file, model);
    out.context_ = out.options_.context != 0 ? out.options_.context : model.sizes().context_length;
    FRUGAL_TRY_ASSIGN(out.sampler_, ops::sampler::create(out.options_.sampling));
    FRUGAL_TRY_ASSIGN(out.penalties_, ops::penalties::create(out.options_.penalties));
    return out;
}

void generator::clear() {
    model_->clear(the_sequence);
    seen_.clear();
    sampler_.random() = ops::random_generator(options_.sampling.seed);
    time_ = {};
}

status generator::give_out(const std::string& text, std::string& reply) const {
    reply += text;
    return options_.print && !text.empty() ? print(text) : status();
}

result<bool> generator::read_prompt(const std::vector<std::int32_t>& ids, std::vector<float>& logits) {
    // Only what the model has not seen yet is computed, where the new text continues the old one.
    const auto differ = std::mismatch(seen_.begin(), seen_.end(), ids.begin(), ids.end()).first;
    if (differ != seen_.end() || seen_.size() == ids.size()) {
        model_->clear(the_sequence);
        seen_.clear();
    }
    while (seen_.size() < ids.size()) {
        if (interrupted()) return false;
        const std::size_t count = std::min(options_.batch, ids.size() - seen_.size());
        const auto piece = std::span(ids).subspan(seen_.size(), count);
        const bool last = seen_.size() + count == ids.size();
        FRUGAL_TRY(prefill(*model_, the_sequence, piece, count, last ? 1 : 0, logits));
        seen_.insert(seen_.end(), piece.begin(), piece.end());
        time_.prompt_tokens += count;
    }
    return true;
}

result<ending> generator::go_on(const std::vector<std::int32_t>& ids, std::string& reply) {
    if (ids.empty()) return fail(errc::invalid_argument, "the prompt is empty: it has no tokens");
    if (ids.size() > context_)
        return fail(errc::context_overflow, "the prompt has ", ids.size(), " tokens; the context holds ", context_,
                    " (see --ctx-size)");
    const auto start = clock_type::now();
    std::vector<float> logits;
    FRUGAL_TRY_ASSIGN(const bool read, read_prompt(ids, logits));
    ++time_.texts;
    time_.prompt += seconds_since(start);
    if (!read) return ending::interrupted;
    penalties_.clear();
    for (const std::int32_t id : ids) penalties_.accept(id);

    io::stream_decoder stream(*file_->tokenizer);
    stop_texts stops(options_.stops);
    clock_type::time_point generation;
    std::uint64_t bytes_before = 0;
    // Whatever ends the text, its time counts.
    const auto finish = [&](ending why) -> result<ending> {
        if (generation != clock_type::time_point{}) {
            time_.generation += seconds_since(generation);
            time_.generation_bytes += model_->counted(counter::weight_bytes_read) - bytes_before;
        }
        FRUGAL_TRY(give_out(stops.push(stream.finish()), reply));
        FRUGAL_TRY(give_out(stops.finish(), reply));
        return stops.found() ? ending::stop_text : why;
    };
    for (std::int64_t made = 0; options_.predict < 0 || made < options_.predict; ++made) {
        if (interrupted()) return finish(ending::interrupted);
        FRUGAL_TRY(penalties_.apply(logits));
        FRUGAL_TRY_ASSIGN(const std::int32_t token, sampler_.sample(logits));
        if (made == 0) {
            time_.first_token += seconds_since(start);
            bytes_before = model_->counted(counter::weight_bytes_read);
            generation = clock_type::now();
        } else {
            ++time_.steps;
        }
        if (!options_.ignore_eos && file_->tokenizer->is_eos(token)) return finish(ending::end_of_text);
        penalties_.accept(token);
        ++time_.new_tokens;
        FRUGAL_TRY(give_out(stops.push(stream.push(token)), reply));
        if (stops.found()) return finish(ending::stop_text);
        if (made + 1 == options_.predict) break;
        if (seen_.size() == context_) return finish(ending::context_full);
        FRUGAL_TRY(prefill(*model_, the_sequence, {&token, 1}, 1, 1, logits));
        seen_.push_back(token);
    }
    return finish(ending::length);
}

status failure(ending why, const generator& by) {
    if (why != ending::context_full) return {};
    return fail(errc::context_overflow, "the context of ", by.context(), " tokens is full (see --ctx-size)");
}

void generator::print_stats(double loading) const {
    const auto line = [](std::string_view name, const char* form, auto... values) {
        std::fprintf(stderr, "%-26.*s", static_cast<int>(name.size()), name.data());
        std::fprintf(stderr, form, values...);
        std::fputc('\n', stderr);
    };
    const auto counted = [&](counter which) {
        std::string name(frugal::to_string(which));
        const std::uint64_t value = model_->counted(which);
        if (name.ends_with("nanoseconds")) {
            name.replace(name.size() - std::string_view("nanoseconds").size(), std::string::npos, "time");
            line(name, "%.1f ms", static_cast<double>(value) * 1e-6);
        } else if (name.find("bytes") != std::string::npos) {
            line(name, "%.3f MB", static_cast<double>(value) * 1e-6);
        } else {
            line(name, "%llu", static_cast<unsigned long long>(value));
        }
    };
    const model::config& sizes = model_->sizes();
    std::fputc('\n', stderr);
    line("model", "%s, %.1f MB of weights, context of %zu tokens", sizes.architecture.c_str(),
         static_cast<double>(file_->bytes) * 1e-6, context_);
    line("instruction set", "%s", std::string(model_->isa()).c_str());
    line("loading", "%.1f ms", loading * 1e3);
    if (options_.sampling.temperature > 0) line("seed", "%llu", static_cast<unsigned long long>(options_.sampling.seed));
    line("prompt", "%zu tokens in %.1f ms, %.1f tokens/s", time_.prompt_tokens, time_.prompt * 1e3,
         rate(time_.prompt_tokens, time_.prompt));
    line("time to first token", "%.1f ms", time_.texts == 0 ? 0.0 : time_.first_token * 1e3 / static_cast<double>(time_.texts));
    line("generated", "%zu tokens in %.1f ms, %.1f tokens/s", time_.new_tokens, time_.generation * 1e3,
         rate(time_.steps, time_.generation));
    line("weight bytes read", "%.3f MB, %.3f MB for a generated token",
         static_cast<double>(model_->counted(counter::weight_bytes_read)) * 1e-6,
         time_.steps == 0 ? 0.0 : static_cast<double>(time_.generation_bytes) * 1e-6 / static_cast<double>(time_.steps));
    // What this model and device do not have is left out.
    for (const counter which : {counter::tokens, counter::matmul_calls, counter::activation_quantize_calls}) counted(which);
    if (std::any_of(sizes.qsa_ratios.begin(), sizes.qsa_ratios.end(), [](std::size_t ratio) { return ratio != 0; }))
        for (const counter which : layout_counters) counted(which);
    const std::string_view device = model_->device();
    if (device != "cpu" && device != "packed_cpu")
        for (const counter which : device_counters) counted(which);
    else if (model_->image_bytes() != 0)
        counted(counter::images_packed);
    if (model_->image_bytes() != 0) line("weight images", "%.3f MB", static_cast<double>(model_->image_bytes()) * 1e-6);
}

}  // namespace runner
