#include "bench.hpp"

#include <benchmark/benchmark.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "comparison.hpp"
#include "limits.hpp"

namespace bench {

namespace {

struct machine_limits {
    double bandwidth = 0;                             // bytes a second
    std::map<std::string, double, std::less<>> peak;  // operations a second of all threads, by instruction set
};
machine_limits limits;
std::set<std::string> failed;
std::map<std::string, work> costs;

/// One thread is timed by its own processor time, which other load on the machine disturbs least; several by the clock.
bool by_cpu_time() { return executor().concurrency() == 1; }

/// Keeps the times of all repetitions, and shows them when all have run: they run in no order.
class reporter : public benchmark::ConsoleReporter {
public:
    void ReportRuns(const std::vector<Run>& runs) override {
        for (const Run& run : runs) {
            const std::string& name = run.run_name.function_name;
            if (run.run_type != Run::RT_Iteration || failed.contains(name) || run.iterations <= 0) continue;
            order_[run.family_index] = name;
            seconds_[name].push_back((by_cpu_time() ? run.cpu_accumulated_time : run.real_accumulated_time) /
                                     static_cast<double>(run.iterations));
        }
    }

    /// Nothing where the benchmarks were only listed.
    void print_results() const {
        if (seconds_.empty()) return;
        print_table();
        std::printf("figure machine.read_gigabytes_per_second %.4g\n", limits.bandwidth * 1e-9);
        for (const auto& [isa, peak] : limits.peak)
            std::printf("figure machine.%s.peak_gigaflops %.4g\n", isa.c_str(), peak * 1e-9);
        for (const auto& [name, seconds] : seconds_) {
            std::string dotted = name;
            std::replace(dotted.begin(), dotted.end(), '/', '.');
            const double time = median(seconds);
            const work& cost = costs.at(name);
            std::printf("figure %s.microseconds %.4g\n", dotted.c_str(), time * 1e6);
            std::printf("figure %s.bandwidth_fraction %.4g\n", dotted.c_str(), cost.bytes / time / limits.bandwidth);
            if (cost.flops > 0) std::printf("figure %s.peak_fraction %.4g\n", dotted.c_str(), cost.flops / time / peak_of(name));
        }
    }

    static double peak_of(const std::string& name);

private:
    /// One line a benchmark, in the order of registration.
    void print_table() const {
        std::size_t width = 9;
        for (const auto& [index, name] : order_) width = std::max(width, name.size());
        const int column = static_cast<int>(width);
        std::printf("%-*s %12s %7s %8s %10s %9s %8s\n", column, "benchmark", "microseconds", "range", "GB/s", "of limit",
                    "Gflop/s", "of peak");
        for (const auto& [index, name] : order_) {
            const std::vector<double>& all = seconds_.at(name);
            const double time = median(all);
            const auto [least, most] = std::minmax_element(all.begin(), all.end());
            const work& cost = costs.at(name);
            std::printf("%-*s %12.4g %6.1f%% %8.2f %9.1f%%", column, name.c_str(), time * 1e6, 100 * (*most - *least) / time,
                        cost.bytes / time * 1e-9, 100 * cost.bytes / time / limits.bandwidth);
            if (cost.flops > 0) std::printf(" %9.2f %7.1f%%", cost.flops / time * 1e-9, 100 * cost.flops / time / peak_of(name));
            std::printf("\n");
        }
    }

    std::map<std::string, std::vector<double>> seconds_;
    std::map<std::int64_t, std::string> order_;
};

std::map<std::string, std::string> isa_of;

double reporter::peak_of(const std::string& name) { return limits.peak.at(isa_of.at(name)); }

}  // namespace

void add(const std::string& name, std::string_view isa, std::function<prepared()> prepare) {
    isa_of[name] = std::string(isa);
    auto body = [name, prepare = std::move(prepare)](benchmark::State& state) {
        // The library calls this several times for one benchmark; the data of one benchmark at a time is kept.
        static std::string current;
        static prepared ready;
        static std::map<std::string, std::string> checked;
        if (current != name) {
            ready = {};  // the old data goes before the new comes
            ready = prepare();
            current = name;
        }
        if (!checked.contains(name)) {
            checked[name] = ready.check();
            costs[name] = ready.cost;
        }
        if (!checked[name].empty()) {
            failed.insert(name);
            state.SkipWithError(("wrong result: " + checked[name]).c_str());
            return;
        }
        for (auto _ : state) ready.run();
        using benchmark::Counter;
        const auto rate = Counter::kIsIterationInvariantRate;
        state.counters["bytes/s"] = Counter(ready.cost.bytes, rate);
        state.counters["of_bandwidth"] = Counter(ready.cost.bytes / limits.bandwidth, rate);
        if (ready.cost.flops > 0) {
            state.counters["flops/s"] = Counter(ready.cost.flops, rate);
            state.counters["of_peak"] = Counter(ready.cost.flops / limits.peak.at(isa_of.at(name)), rate);
        }
    };
    auto* const registered = benchmark::RegisterBenchmark(name.c_str(), std::move(body))->Unit(benchmark::kMicrosecond);
    if (!by_cpu_time()) registered->UseRealTime();
}

}  // namespace bench

int main(int argc, char** argv) {
#if defined(__GLIBC__)
    // Freed memory is kept: the data of the next benchmark would cost a page fault for every page otherwise.
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
    // Defaults first: what the user says comes later and wins.
    std::vector<std::string> words{argv[0], "--benchmark_repetitions=5", "--benchmark_min_time=0.05",
                                   "--benchmark_enable_random_interleaving=true"};
    words.insert(words.end(), argv + 1, argv + argc);
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    benchmark::Initialize(&count, arguments.data());
    if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;

    if (const auto chosen = frugal::device::select_isa<frugal::isa::all>(); !chosen) {
        std::fprintf(stderr, "FRUGAL_ISA: %s\n", chosen.error().message.c_str());
        return 2;
    }
    using bench::limits;
    const std::size_t concurrency = bench::executor().concurrency();
    {
        bench::memory memory;
        limits.bandwidth = bench::read_bandwidth(bench::executor(), memory);
    }
    for (const auto& [isa, peak] : bench::measure_peaks()) limits.peak[isa] = peak.f32 * static_cast<double>(concurrency);
    benchmark::AddCustomContext("frugal_version",
                                frugal::concat(FRUGAL_VERSION_MAJOR, '.', FRUGAL_VERSION_MINOR, '.', FRUGAL_VERSION_PATCH));
    benchmark::AddCustomContext("compiler", FRUGAL_BENCH_COMPILER);
    benchmark::AddCustomContext("commit", FRUGAL_BENCH_COMMIT);
    benchmark::AddCustomContext("threads", std::to_string(concurrency));
    benchmark::AddCustomContext("read_gigabytes_per_second", std::to_string(limits.bandwidth * 1e-9));
    for (const auto& [isa, peak] : limits.peak) benchmark::AddCustomContext(isa + "_peak_gigaflops", std::to_string(peak * 1e-9));

    bench::register_benchmarks();
    bench::reporter display;
    const std::size_t ran = benchmark::RunSpecifiedBenchmarks(&display);
    benchmark::Shutdown();
    if (ran == 0) return 2;
    display.print_results();
    for (const auto& name : bench::failed) std::fprintf(stderr, "not timed, because its result is wrong: %s\n", name.c_str());
    return bench::failed.empty() ? 0 : 1;
}
