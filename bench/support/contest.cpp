#include "contest.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

namespace bench {

/// A contender in its rounds, or a way to reach the machine's limit.
struct contests::lane {
    const contender* who = nullptr;
    std::function<void()> run;
    std::size_t calls = 1, repeat = 1, rounds = 0;
    double error = 0, first = 0;    // first: seconds of the run before the check
    std::vector<double> seconds{};  // a call

    [[nodiscard]] bool peer() const { return who != nullptr && !who->ours; }
};

namespace {

constexpr std::size_t least_rounds = 3, most_rounds = 25;
constexpr double shortest = 1e-3;  // seconds that a timed piece lasts at least
constexpr double long_run = 2;     // seconds; such a run is not repeated

/// One thread is timed by its own processor time, which other load on the machine disturbs least; several by the clock.
double now(std::size_t threads) { return threads == 1 ? thread_seconds() : clock_seconds(); }

double smallest(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

}  // namespace

std::string_view name_of(bound which) {
    switch (which) {
        case bound::reading: return "reading memory";
        case bound::updating: return "updating memory";
        case bound::f32: return "f32 peak";
        case bound::int8: return "int8 peak";
        case bound::none: break;
    }
    return "";
}

std::vector<std::size_t> sample(std::size_t count, std::size_t step) {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < count; i += step) out.push_back(i);
    return out;
}

contests::contests(std::size_t most_threads, double seconds) : seconds_(seconds), peaks_(measure_peaks()) {
    if (auto loaded = peer::ggml::load(); loaded)
        peer_ = std::make_unique<peer::ggml>(*std::move(loaded));
    else
        std::fprintf(stderr, "no peer to compare with: %s\n", loaded.error().message.c_str());
    for (std::size_t threads = 1; threads <= most_threads; ++threads)
        bandwidth_.push_back(read_bandwidth(executor(threads), memory_));
}

bool contests::check(contest& what, lane& one) {
    std::vector<float> got = one.who->result();
    for (std::size_t i = 0; i < what.checked.size(); ++i) got[i] = got[what.checked[i]];  // ascending
    if (!what.checked.empty()) got.resize(what.checked.size());
    double square = 0, off = 0;
    for (std::size_t i = 0; i < what.want.size() && i < got.size(); ++i) {
        off += std::pow(static_cast<double>(got[i]) - what.want[i], 2);
        square += what.want[i] * what.want[i];
    }
    one.error = std::sqrt(off / square);
    const std::string problem = compare(got, what.want, one.who->tolerance);
    if (problem.empty()) return true;
    const std::string line = fg::concat(what.op, ' ', what.format, ' ', what.shape, " by ", one.peer() ? "ggml's " : "our ",
                                        one.who->name, ": ", problem);
    (one.peer() ? notes_ : wrong_).push_back(line);
    std::fprintf(stderr, "wrong result, not timed: %s\n", line.c_str());
    return false;
}

void contests::time(const contest& what, std::vector<lane>& lanes) {
    const auto timed = [&](lane& one) {
        // The peer's threads spin while they are awake; so they are awake in its turn only.
        if (one.peer()) peer_->wake(what.threads);
        if (what.threads > 1) std::this_thread::sleep_for(std::chrono::microseconds(300));
        const double start = now(what.threads);
        for (std::size_t i = 0; i < one.repeat; ++i) one.run();
        const double end = now(what.threads);
        if (one.peer()) peer_->rest();
        return (end - start) / static_cast<double>(one.repeat);
    };
    const double share = seconds_ / static_cast<double>(lanes.size());
    std::size_t turns = 0;
    for (lane& one : lanes) {
        // What takes seconds has been warm enough after its first run, and is timed once.
        const double once = one.first > long_run ? one.first : timed(one);
        one.repeat = once < shortest ? static_cast<std::size_t>(shortest / std::max(once, 1e-8)) + 1 : 1;
        const double rounds = share / (once * static_cast<double>(one.repeat));
        one.rounds = static_cast<std::size_t>(
            std::clamp(rounds, static_cast<double>(once > long_run ? 1 : least_rounds), static_cast<double>(most_rounds)));
        turns = std::max(turns, one.rounds);
    }
    // Who takes longer has fewer rounds, spread over the same time.
    for (std::size_t turn = 0; turn < turns; ++turn)
        for (lane& one : lanes)
            if (turn * one.rounds / turns != (turn + 1) * one.rounds / turns)
                one.seconds.push_back(timed(one) / static_cast<double>(one.calls));
}

fg::status contests::hold(contest what) {
    std::vector<lane> lanes;
    for (const contender& each : what.contenders) {
        lane one{&each, [&each] { (void)each.run(); }, each.calls};
        if (one.peer()) peer_->wake(what.threads);
        const double start = clock_seconds();
        fg::status done = each.run();
        one.first = clock_seconds() - start;
        if (one.peer()) peer_->rest();
        FRUGAL_TRY(std::move(done));
        if (check(what, one)) lanes.push_back(std::move(one));
    }
    if (lanes.empty()) return {};
    const auto pool = executor(what.threads);
    // As many bytes as the contenders with the most calls read, so that all are equally far from the cache.
    std::size_t calls = 1;
    for (const lane& one : lanes) calls = std::max(calls, one.calls);
    const double wanted = what.cost.bytes * static_cast<double>(calls);
    const auto count = static_cast<std::size_t>(std::min(wanted, static_cast<double>(memory_.bytes())));
    const auto add_limit = [&](std::function<void()> run) {
        lane one{nullptr, std::move(run)};
        lanes.push_back(std::move(one));
    };
    if (what.bound == bound::updating) add_limit([this, pool, count] { memory_.update(pool, count); });
    if (what.bound == bound::reading || what.bound == bound::updating)
        for (const reading way : readings) add_limit([this, pool, way, count] { memory_.read(pool, way, count); });
    time(what, lanes);
    for (lane& one : lanes)
        if (one.who == nullptr)
            for (double& each : one.seconds) each *= what.cost.bytes / static_cast<double>(count);
    conclude(what, lanes);
    return {};
}

void contests::conclude(const contest& what, const std::vector<lane>& lanes) {
    const lane* rival = nullptr;
    double least = 0, least_best = 0, update = 0, update_best = 0;  // of the ways to the limit
    std::size_t ours = 0, last = 0;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        const lane& one = lanes[i];
        const double middle = median(one.seconds);
        if (one.peer() && (rival == nullptr || middle < median(rival->seconds))) rival = &one;
        if (one.who == nullptr && what.bound == bound::updating && update == 0) {
            update = middle;
            update_best = smallest(one.seconds);
        } else if (one.who == nullptr) {
            least = least == 0 ? middle : std::min(least, middle);
            least_best = least_best == 0 ? smallest(one.seconds) : std::min(least_best, smallest(one.seconds));
        }
        if (one.who != nullptr && one.who->ours) {
            ++ours;
            last = i;
        }
    }
    if (ours == 0) return;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        const lane& one = lanes[i];
        if (one.who == nullptr || one.peer()) continue;
        standing out{what.figure, what.op, what.format, what.shape, one.who->name, rival != nullptr ? rival->who->name : ""};
        out.threads = what.threads;
        out.rounds = one.seconds.size();
        out.bound = what.bound;
        out.cost = what.cost;
        out.ours = median(one.seconds);
        out.ours_best = smallest(one.seconds);
        if (rival != nullptr) {
            out.theirs = median(rival->seconds);
            out.theirs_best = smallest(rival->seconds);
            out.peer_error = rival->error;
        }
        out.limit = what.bound == bound::updating ? update : least;
        out.limit_best = what.bound == bound::updating ? update_best : least_best;
        out.read = what.bound == bound::updating ? least : 0;
        if (what.bound == bound::f32 || what.bound == bound::int8) {
            const peaks& peak = peaks_.at(one.who->name);
            out.limit = what.cost.flops / (what.bound == bound::f32 ? peak.f32 : peak.int8) / static_cast<double>(what.threads);
            out.limit_best = out.limit;
        }
        out.error = one.error;
        out.main_figure = what.for_each_isa || i == last;
        out.names_isa = what.for_each_isa;
        out.names_threads = what.by_threads;
        std::fprintf(stderr, "%s %s %s, %zu threads: %s %.4g us", out.op.c_str(), out.format.c_str(), out.shape.c_str(),
                     out.threads, out.isa.c_str(), out.ours * 1e6);
        if (rival != nullptr) std::fprintf(stderr, ", ggml's %s %.4g us", out.peer.c_str(), out.theirs * 1e6);
        std::fputc('\n', stderr);
        standings_.push_back(std::move(out));
    }
}

void contests::print() const {
    std::printf("%-24s %-8s %-24s %-9s %2s %12s %12s %8s %9s  %-16s  %s\n", "operator", "format", "shape", "isa", "t", "ours us",
                "ggml us", "ratio", "of limit", "limit", "ggml's by");
    for (const standing& s : standings_) {
        std::printf("%-24s %-8s %-24s %-9s %2zu %12.4g ", s.op.c_str(), s.format.c_str(), s.shape.c_str(), s.isa.c_str(),
                    s.threads, s.ours * 1e6);
        if (s.theirs > 0)
            std::printf("%12.4g %8.3g ", s.theirs * 1e6, s.ratio());
        else
            std::printf("%12s %8s ", "-", "-");
        if (s.limit > 0)
            std::printf("%8.1f%%  %-16s  ", 100 * s.fraction(), std::string(name_of(s.bound)).c_str());
        else
            std::printf("%9s  %-16s  ", "-", "-");
        std::printf("%s\n", s.theirs > 0 ? s.peer.c_str() : "-");
    }
    for (const std::string& note : notes_) std::printf("left out, its result is wrong: %s\n", note.c_str());
}

void contests::print_figures() const {
    for (std::size_t i = 0; i < bandwidth_.size(); ++i)
        std::printf("figure machine.read_gigabytes_per_second.%zu %.4g\n", i + 1, bandwidth_[i] * 1e-9);
    for (const auto& [isa, peak] : peaks_) {
        std::printf("figure machine.%s.peak_gigaflops %.4g\n", isa.c_str(), peak.f32 * 1e-9);
        std::printf("figure machine.%s.peak_int8_gigaops %.4g\n", isa.c_str(), peak.int8 * 1e-9);
    }
    for (const standing& s : standings_) {
        if (!s.main_figure) continue;
        std::string name = s.figure;
        if (s.names_isa) name += "." + s.isa;
        if (s.names_threads) name += fg::concat('.', s.threads);
        const auto figure = [&](const char* what, double value) {
            std::printf("figure %s.%s %.4g\n", name.c_str(), what, value);
        };
        if (s.limit > 0) figure("fraction", s.fraction());
        if (s.read > 0) figure("read_fraction", s.read / s.ours);
        if (s.theirs > 0) figure("vs_ggml", s.ratio());
        if (s.token_share > 0) figure("token_share", s.token_share);
        if (s.threads == 1) continue;
        // Several threads are disturbed more easily: the best round tells what is possible.
        if (s.limit > 0) figure("best_fraction", s.limit_best / s.ours_best);
        if (s.theirs > 0) figure("best_vs_ggml", s.theirs_best / s.ours_best);
    }
}

json contests::as_json() const {
    json out{{"context", context(0)}, {"ops", {{"rows", json::array()}, {"notes", notes_}}}};
    if (peer_ != nullptr) out["context"]["ggml"] = peer_->ggml_version();
    const auto number = [](double value) { return fg::concat(value); };
    for (std::size_t i = 0; i < bandwidth_.size(); ++i)
        out["context"][i == 0 ? "read_gigabytes_per_second" : fg::concat("read_gigabytes_per_second_", i + 1)] =
            number(bandwidth_[i] * 1e-9);
    for (const auto& [isa, peak] : peaks_) {
        out["context"][isa + "_peak_gigaflops"] = number(peak.f32 * 1e-9);
        out["context"][isa + "_peak_int8_gigaops"] = number(peak.int8 * 1e-9);
    }
    for (const standing& s : standings_)
        out["ops"]["rows"].push_back({{"operator", s.op},
                                      {"format", s.format},
                                      {"shape", s.shape},
                                      {"isa", s.isa},
                                      {"threads", s.threads},
                                      {"rounds", s.rounds},
                                      {"ours_us", s.ours * 1e6},
                                      {"ours_best_us", s.ours_best * 1e6},
                                      {"ggml_us", s.theirs * 1e6},
                                      {"ggml_best_us", s.theirs_best * 1e6},
                                      {"ggml_by", s.peer},
                                      {"limit", name_of(s.bound)},
                                      {"limit_us", s.limit * 1e6},
                                      {"bytes", s.cost.bytes},
                                      {"flops", s.cost.flops},
                                      {"token_share", s.token_share},
                                      {"token", s.token},
                                      {"error", s.error},
                                      {"ggml_error", s.peer_error}});
    return out;
}

}  // namespace bench
