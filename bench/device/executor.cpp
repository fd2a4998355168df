// Fork and join: what a run costs beyond its tasks, with fork_join_executor and with Eigen's pool, in alternating rounds.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "comparison.hpp"
#include "frugal/device/cpu/eigen_executor.hpp"
#include "frugal/device/cpu/fork_join_executor.hpp"
#include "limits.hpp"

namespace bench {
namespace {

namespace fg = frugal;

/// One processor's work of about so many microseconds: additions that depend on each other.
void work(std::size_t additions) {
    float sum = 0;
    for (std::size_t i = 0; i < additions; ++i) {
        sum += 1.0f;
        asm volatile("" : "+x"(sum));
    }
}

double additions_per_microsecond() {
    std::vector<double> rates;
    for (int i = 0; i < 21; ++i) {
        const double start = clock_seconds();
        work(200000);
        rates.push_back(200000 / (clock_seconds() - start) * 1e-6);
    }
    return median(std::move(rates));
}

/// A run of one task a thread. Before it, its caller works alone for `pause_us`, as it does between two operators.
struct pattern {
    std::string_view name;
    double pause_us, task_us;
    bool meet;  ///< every task waits until all have begun, so that each thread must come
    int runs;   ///< of one round
};
// Tasks that are over before anyone comes; every thread called, back to back and after pauses below and above the time that threads
// poll; operators of 20 us and of 0.2 ms.
constexpr std::array<pattern, 6> patterns{{{"empty", 0, 0, false, 2000},
                                           {"meet", 0, 0, true, 1000},
                                           {"meet_after_20us", 20, 0, true, 400},
                                           {"meet_after_500us", 500, 0, true, 40},
                                           {"work_20us", 5, 20, false, 400},
                                           {"work_200us", 5, 200, false, 60}}};

/// Microseconds of one run, pause excluded: the median of the runs of one round.
double time_round(fg::device::executor_ref pool, const pattern& how, double rate) {
    const auto pause = static_cast<std::size_t>(how.pause_us * rate), task = static_cast<std::size_t>(how.task_us * rate);
    std::vector<double> each;
    for (int run = 0; run < how.runs; ++run) {
        work(pause);
        std::atomic<std::size_t> begun{0};
        const std::size_t n = pool.concurrency();
        const double start = clock_seconds();
        pool.run(n, [&](std::size_t) {
            work(task);
            if (!how.meet) return;
            begun.fetch_add(1);
            while (begun.load() < n) fg::device::detail::relax_cpu();
        });
        each.push_back((clock_seconds() - start) * 1e6);
    }
    return median(std::move(each));
}

fg::status check(fg::device::executor_ref pool) {
    for (int round = 0; round < 1000; ++round) {
        std::vector<std::atomic<int>> calls(pool.concurrency() * 3);
        pool.run(calls.size(), [&](std::size_t task) { calls[task].fetch_add(1, std::memory_order_relaxed); });
        for (const auto& count : calls)
            if (count.load() != 1) return fg::fail(fg::errc::invalid_argument, "a task ran ", count.load(), " times");
    }
    return {};
}

fg::status run(json&) {
    const char* asked = std::getenv("FRUGAL_BENCH_THREADS");
    const std::size_t threads = std::max(2L, asked == nullptr ? 2L : std::strtol(asked, nullptr, 10));
    fg::device::fork_join_executor ours(threads, fg::device::thread_limit::insist);
    Eigen::ThreadPool pool(static_cast<int>(threads - 1));
    fg::device::eigen_executor eigen(pool);
    FRUGAL_TRY(check(ours));
    FRUGAL_TRY(check(eigen));
    const double rate = additions_per_microsecond();
    std::printf("%-20s %12s %12s   microseconds a run of %zu tasks, %zu threads\n", "", "fork_join", "eigen", threads, threads);
    for (const pattern& how : patterns) {
        std::vector<double> with_ours, with_eigen, alone;
        for (int round = 0; round < 15; ++round) {
            with_ours.push_back(time_round(ours, how, rate));
            with_eigen.push_back(time_round(eigen, how, rate));
            alone.push_back(time_round({}, how, rate));
        }
        const double a = median(with_ours), b = median(with_eigen);
        const std::string name(how.name);
        std::printf("%-20s %12.3f %12.3f\n", name.c_str(), a, b);
        std::printf("figure executor.%s.microseconds %.6g\n", name.c_str(), a);
        std::printf("figure executor.%s.vs_eigen %.6g\n", name.c_str(), b / a);
        // One thread does one task in the time of one: what is missing to 1 is the price of fork and join.
        if (how.task_us > 0) std::printf("figure executor.%s.efficiency %.6g\n", name.c_str(), median(alone) / a);
    }
    return {};
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("executor", argc, argv, bench::run); }
