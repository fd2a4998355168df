// Executors with threads: every task once, nested calls, many callers, no lost wake-up, idle means asleep, and no collapse with
// more threads than CPUs.
#include <doctest/doctest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/eigen_executor.hpp"
#include "frugal/device/cpu/fork_join_executor.hpp"
#include "sanitizer.hpp"

namespace {

namespace fg = frugal;
using fg::device::eigen_executor;
using fg::device::fork_join_executor;
using fg::device::thread_limit;

/// Eigen's executor with a pool of its own.
struct eigen_pool {
    explicit eigen_pool(std::size_t threads, thread_limit) : pool(static_cast<int>(threads - 1)) {}
    Eigen::ThreadPool pool;
    eigen_executor own{pool};
    [[nodiscard]] std::size_t concurrency() const { return own.concurrency(); }
    void run(std::size_t n, fg::device::task_ref f) { own.run(n, f); }
};

#define FOR_EACH_EXECUTOR(name) TEST_CASE_TEMPLATE(name, executor, fork_join_executor, eigen_pool)

template <class Executor>
void check_every_task_once(Executor& pool, std::size_t n) {
    CAPTURE(n);
    std::vector<std::atomic<int>> calls(n);
    pool.run(n, [&](std::size_t task) { calls.at(task).fetch_add(1, std::memory_order_relaxed); });
    int wrong = 0;
    for (const auto& each : calls) wrong += each.load(std::memory_order_relaxed) != 1 ? 1 : 0;
    CHECK(wrong == 0);
}

TEST_CASE("a constant executor whose run() is const serves a device") {
    const fg::device::serial_executor serial{};
    fg::device::cpu<> cpu(serial);
    std::size_t done = 0;
    cpu.run(5, [&](std::size_t task) { done += task; });
    CHECK(done == 10);
    CHECK(cpu.concurrency() == 1);
}

FOR_EACH_EXECUTOR("every task runs once, whatever the number of tasks and threads") {
    for (std::size_t threads : {1u, 2u, 3u, 8u}) {
        executor pool(threads, thread_limit::insist);
        CHECK(pool.concurrency() == threads);
        for (std::size_t n : {0u, 1u, 2u, 3u, 7u, 8u, 9u, 100u, 5000u}) check_every_task_once(pool, n);
    }
    fg::device::serial_executor serial;
    for (std::size_t n : {0u, 1u, 5u}) check_every_task_once(serial, n);
}

FOR_EACH_EXECUTOR("thousands of short runs: no task is run twice, none past the last, none left out") {
    for (std::size_t threads : {2u, 3u}) {
        executor pool(threads, thread_limit::insist);
        std::array<std::atomic<int>, 8> calls{};
        for (std::size_t round = 0; round < 20000; ++round) {
            const std::size_t n = 2 + round % 3;
            pool.run(n, [&](std::size_t task) { calls.at(task).fetch_add(1, std::memory_order_relaxed); });
            for (std::size_t task = 0; task < calls.size(); ++task)
                REQUIRE(calls[task].exchange(0, std::memory_order_relaxed) == (task < n ? 1 : 0));
        }
    }
}

FOR_EACH_EXECUTOR("what tasks wrote without synchronisation is visible after run") {
    executor pool(4, thread_limit::insist);
    std::vector<std::size_t> out(64);
    for (std::size_t round = 1; round <= 300; ++round) {
        pool.run(out.size(), [&](std::size_t task) { out[task] = round * task; });
        for (std::size_t task = 0; task < out.size(); ++task) REQUIRE(out[task] == round * task);
    }
}

FOR_EACH_EXECUTOR("a task may call run: nested calls do not deadlock") {
    for (std::size_t threads : {1u, 2u, 4u}) {
        executor pool(threads, thread_limit::insist);
        std::atomic<int> leaves{0};
        pool.run(6, [&](std::size_t) {
            pool.run(5, [&](std::size_t) { pool.run(4, [&](std::size_t) { leaves.fetch_add(1, std::memory_order_relaxed); }); });
        });
        CHECK(leaves.load() == 6 * 5 * 4);
    }
}

FOR_EACH_EXECUTOR("several threads share one pool") {
    executor pool(3, thread_limit::insist);
    std::atomic<int> sum{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller)
        callers.emplace_back([&] {
            for (int round = 0; round < 100; ++round)
                pool.run(7, [&](std::size_t) { sum.fetch_add(1, std::memory_order_relaxed); });
        });
    for (auto& each : callers) each.join();
    CHECK(sum.load() == 4 * 100 * 7);
}

/// Runs as many tasks as the pool has threads, each of which waits for all to have begun: too few threads never do, but give up
/// after ten seconds. The threads that ran them.
template <class Executor>
std::set<std::thread::id> meet(Executor& pool) {
    const std::size_t n = pool.concurrency();
    std::atomic<std::size_t> begun{0};
    std::vector<std::thread::id> who(n);
    pool.run(n, [&](std::size_t task) {
        who[task] = std::this_thread::get_id();
        begun.fetch_add(1);
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (begun.load() < n && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    });
    return {who.begin(), who.end()};
}

FOR_EACH_EXECUTOR("the calling thread works too, and others help") {
    for (std::size_t threads : {2u, 3u, 8u}) {
        executor pool(threads, thread_limit::insist);
        const auto ids = meet(pool);
        CHECK(ids.size() == threads);
        CHECK(ids.contains(std::this_thread::get_id()));
    }
}

FOR_EACH_EXECUTOR("no wake-up is lost, whenever the next run comes") {
    // Pauses around the time that threads poll before they sleep: every state of falling asleep is met by a call.
    for (std::size_t threads : {2u, 5u}) {
        executor pool(threads, thread_limit::insist);
        for (int round = 0; round < 400; ++round) {
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(round % 100);
            while (std::chrono::steady_clock::now() < until) {
            }
            REQUIRE(meet(pool).size() == threads);
        }
    }
}

/// Seconds of processor time of all threads of this process.
double process_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

FOR_EACH_EXECUTOR("C68 threads with nothing to do sleep") {
    for (std::size_t threads : {2u, 8u}) {
        executor pool(threads, thread_limit::insist);
        for (int round = 0; round < 20; ++round) check_every_task_once(pool, 64);
        const double before = process_seconds();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        CHECK(process_seconds() - before < 0.03);  // one thread that polls would take ten times that
        // A task that takes long leaves its caller and the idle threads asleep too.
        const double begun = process_seconds();
        pool.run(2, [&](std::size_t task) {
            if (task == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        });
        CHECK(process_seconds() - begun < 0.03);
    }
}

TEST_CASE("eigen_executor takes a pool of the caller's own") {
    Eigen::ThreadPool own(2);
    eigen_executor pool(own);
    CHECK(pool.concurrency() == 3);
    check_every_task_once(pool, 50);
    fg::device::cpu<> dev(pool);
    CHECK(dev.concurrency() == 3);
    std::vector<int> covered(1000);
    dev.run_ranges(covered.size(), 1, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) ++covered[i];
    });
    CHECK(std::count(covered.begin(), covered.end(), 1) == 1000);
}

FOR_EACH_EXECUTOR("a pool may be destroyed right after run") {
    for (int round = 0; round < 50; ++round) {
        std::atomic<int> calls{0};
        {
            executor pool(4, thread_limit::insist);
            pool.run(3, [&](std::size_t) { calls.fetch_add(1); });
        }
        CHECK(calls.load() == 3);
    }
}

TEST_CASE("C68 threads are clamped to what the process may use, unless the caller insists") {
    const std::size_t available = fg::device::available_threads();
    CHECK(fork_join_executor().concurrency() == available);
    CHECK(fork_join_executor(1).concurrency() == 1);
    CHECK(fork_join_executor(available + 6).concurrency() == available);
    CHECK(fork_join_executor(static_cast<std::size_t>(-1)).concurrency() == available);
    CHECK(fork_join_executor(0, thread_limit::insist).concurrency() == available);
    CHECK(fork_join_executor(available + 6, thread_limit::insist).concurrency() == available + 6);
    std::size_t pinned = 0;
    std::thread([&] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
        REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
        pinned = fork_join_executor(8).concurrency();
    }).join();
    CHECK(pinned == 1);
}

constexpr int limit_not_kept = 100, wrong = 101;  // of use_limited_pool

/// Eight threads wanted where this process may have `most` of its user: how many there are, or what is wrong. The limit counts all
/// processes of a user and root has none, so root becomes a user that nobody else is. An exception ends the child.
int use_limited_pool(rlim_t most) noexcept {
    if (geteuid() == 0 && setuid(static_cast<uid_t>(3000000 + getpid())) != 0) return limit_not_kept;
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0) return limit_not_kept;
    fork_join_executor pool(8, thread_limit::insist);
    pthread_t one_more{};
    if (pthread_create(
            &one_more, nullptr, [](void*) -> void* { return nullptr; }, nullptr) == 0)
        return pool.concurrency() == 8 ? limit_not_kept : wrong;  // not asked as often as it could
    std::array<std::atomic<int>, 100> calls{};
    pool.run(calls.size(), [&](std::size_t task) { ++calls[task]; });
    for (const auto& each : calls)
        if (each != 1) return wrong;
    return meet(pool).size() == pool.concurrency() ? static_cast<int>(pool.concurrency()) : wrong;
}

TEST_CASE("N09 under a limit on threads there are as many as the system starts, and concurrency() says how many") {
    const bool root = geteuid() == 0;
    for (const rlim_t most : {1u, 4u}) {
        if (most != 1 && !root) continue;  // this user's other processes count
        CAPTURE(most);
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) _exit(use_limited_pool(most));
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status));
        const int threads = WEXITSTATUS(status);
        if (threads == limit_not_kept) {
            MESSAGE("no limit on threads can be set here");
            return;
        }
        CHECK(threads >= 1);
        CHECK(threads <= static_cast<int>(most));
        if (!test::under_sanitizer) CHECK(threads == static_cast<int>(most));  // a sanitizer may have a thread of its own
    }
}

/// Seconds of 200 products of a 256 x 256 matrix with a vector, cut into as many tasks as the device has threads.
template <class Executor>
double time_small_products(Executor& pool) {
    constexpr std::size_t n = 256;
    fg::device::cpu<> dev(pool);
    std::vector<float> w(n * n, 0.5f), x(n, 1.0f), y(n);
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < 200; ++call)
        dev.run_ranges(n, 1, [&](std::size_t begin, std::size_t end) {
            for (std::size_t r = begin; r < end; ++r) {
                float sum = 0;
                for (std::size_t c = 0; c < n; ++c) sum += w[r * n + c] * x[c];
                y[r] = sum;
            }
        });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    CHECK(y[n - 1] == 128.0f);
    return seconds;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

FOR_EACH_EXECUTOR("C68 eight threads on two CPUs are not slower than three times two threads") {
    // The threads of a pool inherit the mask of the thread that makes it.
    double ratio = 0;
    std::thread([&] {
        cpu_set_t allowed, two;
        CPU_ZERO(&allowed);
        REQUIRE(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
        CPU_ZERO(&two);
        for (std::size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++i)
            if (CPU_ISSET(i, &allowed)) CPU_SET(i, &two);
        REQUIRE(sched_setaffinity(0, sizeof(two), &two) == 0);
        executor few(2, thread_limit::insist), many(8, thread_limit::insist);
        // Rounds alternate, so that other load meets both; a burst of it may spoil one attempt, not three.
        for (int attempt = 0; attempt < 3; ++attempt) {
            std::vector<double> with_two, with_eight;
            for (int round = 0; round < 9; ++round) {
                with_two.push_back(time_small_products(few));
                with_eight.push_back(time_small_products(many));
            }
            ratio = median(with_eight) / median(with_two);
            if (ratio <= 3.0) return;
        }
    }).join();
    MESSAGE("eight threads take ", ratio, " times the time of two");
    CHECK(ratio <= 3.0);
}

}  // namespace
