#pragma once
/// Fork and join for operators of a fraction of a millisecond: threads that stay, spin a moment, then sleep.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <thread>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/executor.hpp"
#include "frugal/device/cpu/topology.hpp"
#include "frugal/device/cpu/worker_thread.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

namespace detail {

/// Tells the processor that this thread polls: the other hyperthread of its core runs the faster.
FRUGAL_ALWAYS_INLINE void relax_cpu() noexcept {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __builtin_ia32_pause();
#elif defined(__GNUC__) && defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

}  // namespace detail

/// What happens to a request for more threads than available_threads().
enum class thread_limit : std::uint8_t {
    clamp,   ///< as many as available
    insist,  ///< as asked, up to fork_join_executor::most_threads
};

/// Fork and join; the calling thread works too.
///
/// Tasks are handed out one by one. The caller waits only for tasks that other threads have begun, so nothing depends on when
/// they wake. One `run` at a time has the threads: one that comes while another is under way, from a task or from another thread,
/// does all of its tasks on its own thread.
/// Between runs the threads poll for `spin_time`, so that operators that follow each other pay no wake-up, and sleep then.
/// A task must not throw: where it does the program ends. Precondition of the destructor: no `run` is under way.
class FRUGAL_FLAGGED fork_join_executor {
public:
    static constexpr std::size_t most_threads = 1024;
    /// How long a thread polls before it sleeps: about what waking a sleeping thread costs.
    static constexpr std::chrono::microseconds spin_time{50};

    /// `threads` threads, the calling one included; 0 = available_threads(). Where the system refuses to start that many, those
    /// that there are: see concurrency().
    explicit fork_join_executor(std::size_t threads = 0, thread_limit limit = thread_limit::clamp)
        : concurrency_(crew_.start(count(threads, limit) - 1) + 1) {}
    fork_join_executor(const fork_join_executor&) = delete;
    fork_join_executor& operator=(const fork_join_executor&) = delete;

    /// Threads that can work on one `run`.
    [[nodiscard]] std::size_t concurrency() const noexcept { return concurrency_; }

    /// Runs f(0) … f(n-1) and returns when all are done.
    void run(std::size_t n, task_ref f) {
        if (n <= 1 || concurrency_ == 1 || n > most_tasks || busy_.exchange(true, std::memory_order_acquire))
            return serial_executor::run(n, f);
        crew_.run(static_cast<std::uint32_t>(n), f);
        busy_.store(false, std::memory_order_release);
    }

private:
    /// Far below 2^32, so that no number of threads that come too late carries into the upper half of `ticket`.
    static constexpr std::size_t most_tasks = (std::size_t{1} << 31) - 1;

    /// The threads and what they share. Its destructor ends them.
    struct crew {
        crew() = default;
        crew(const crew&) = delete;
        crew& operator=(const crew&) = delete;
        ~crew() {
            stop.store(true, std::memory_order_relaxed);
            epoch.fetch_add(1, std::memory_order_seq_cst);
            epoch.notify_all();
            for (detail::worker_thread& each : workers) each.join();
        }

        /// Starts so many threads, or as many as the system lets it. How many.
        [[nodiscard]] std::size_t start(std::size_t wanted) {
            const auto work_on = [](void* self) -> void* {
                static_cast<crew*>(self)->work();
                return nullptr;
            };
            while (workers.size() < wanted) {
                if (workers.emplace_back().start(work_on, this)) continue;
                workers.pop_back();
                break;
            }
            return workers.size();
        }

        void run(std::uint32_t n, task_ref f) {
            // All tasks of the run before are done, so no thread reads `body`: it is read only with a task in hand.
            body = f;
            unfinished.store(static_cast<std::int32_t>(n), std::memory_order_relaxed);
            ticket.store(std::uint64_t{n} << 32, std::memory_order_release);
            epoch.fetch_add(1, std::memory_order_seq_cst);
            wake_two();
            take_tasks();
            std::int32_t left = unfinished.load(std::memory_order_acquire);
            if (left == 0 || spin([&] { return (left = unfinished.load(std::memory_order_acquire)) == 0; })) return;
            for (; left != 0; left = unfinished.load(std::memory_order_acquire)) unfinished.wait(left, std::memory_order_acquire);
        }

        void work() {
            for (std::int32_t seen = 0;;) {
                const auto called = [&] { return epoch.load(std::memory_order_acquire) != seen; };
                if (!called() && !spin(called)) epoch.wait(seen, std::memory_order_acquire);
                seen = epoch.load(std::memory_order_acquire);
                if (stop.load(std::memory_order_relaxed)) return;
                if (tasks_left() == 0) continue;
                wake_two();
                take_tasks();
            }
        }

    private:
        /// Waking a sleeper costs about as much as a small product: so nobody wakes many, and whoever is woken wakes two more
        /// while there is something to do.
        void wake_two() {
            for (std::uint32_t other = 0; other < 2 && tasks_left() > other + 1; ++other) epoch.notify_one();
        }

        [[nodiscard]] std::uint32_t tasks_left() const {
            const std::uint64_t now = ticket.load(std::memory_order_relaxed);
            const auto count = static_cast<std::uint32_t>(now >> 32), next = static_cast<std::uint32_t>(now);
            return next < count ? count - next : 0;
        }

        void take_tasks() noexcept {
            std::int32_t finished = 0;
            while (tasks_left() != 0) {
                // Count and next task are one word: a thread that comes late takes a task of the run under way or none, and
                // while it has one that run cannot end.
                const std::uint64_t mine = ticket.fetch_add(1, std::memory_order_acquire);
                const auto count = static_cast<std::uint32_t>(mine >> 32), task = static_cast<std::uint32_t>(mine);
                if (task >= count) break;
                body(task);
                ++finished;
            }
            if (finished != 0 && unfinished.fetch_sub(finished, std::memory_order_acq_rel) == finished) unfinished.notify_one();
        }

        /// Polls until `ready` or for spin_time; whether it is ready. Where someone else wants this CPU he gets it: the thread
        /// waited for may need it.
        template <class Ready>
        [[nodiscard]] static bool spin(Ready&& ready) {
            for (int i = 0; i < 64; ++i) {
                if (ready()) return true;
                detail::relax_cpu();
            }
            const auto end = std::chrono::steady_clock::now() + spin_time;
            do {
                std::this_thread::yield();
                if (ready()) return true;
            } while (std::chrono::steady_clock::now() < end);
            return false;
        }

        static constexpr auto nothing = [](std::size_t) {};
        // What a run is, in one cache line, and in another what its end writes. Sleepers of both must not share a slot of
        // libstdc++'s table of waiters (chosen by address), or whoever wakes one kind pays a system call for the other.
        alignas(64) std::atomic<std::int32_t> epoch{0};  ///< number of runs begun
        std::atomic<std::uint64_t> ticket{0};            ///< upper half: number of tasks; lower half: next task
        task_ref body{nothing};
        alignas(64) std::atomic<bool> stop{false};
        std::atomic<std::int32_t> unfinished{0};

        std::deque<detail::worker_thread> workers;
    };

    [[nodiscard]] static std::size_t count(std::size_t asked, thread_limit limit) {
        std::size_t most = most_threads;
        if (asked == 0 || limit == thread_limit::clamp) {
            const std::size_t available = available_threads();
            most = available < most ? available : most;
        }
        return asked == 0 || asked > most ? most : asked;
    }

    std::atomic<bool> busy_{false};
    crew crew_;
    std::size_t concurrency_;
};
static_assert(executor<fork_join_executor>, "frugal: fork_join_executor must model device::executor");

}  // namespace device

FRUGAL_NAMESPACE_END
