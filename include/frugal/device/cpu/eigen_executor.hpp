#pragma once
/// A thread pool of Eigen's that the program has already, as an executor. The only header of the device layer that includes
/// Eigen: include it in one translation unit of a program, compiled with the program's ordinary flags.
#include <unsupported/Eigen/CXX11/ThreadPool>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/executor.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// Fork and join over a pool of the caller's, which must outlive this object; the calling thread works too. Without such a pool,
/// fork_join_executor is the better choice: it goes on with fewer threads where the system refuses some, while the constructor
/// of Eigen's pool throws std::system_error then, which ends a program that is compiled without exceptions.
///
/// Tasks are handed out one by one. The caller waits only for tasks that other threads have begun, so a task may itself call
/// `run`, and several threads may share one executor. Whoever has nothing to do sleeps after a short, bounded spin.
class FRUGAL_FLAGGED eigen_executor {
public:
    explicit eigen_executor(Eigen::ThreadPoolInterface& pool)
        : concurrency_(static_cast<std::size_t>(pool.NumThreads()) + 1), pool_(&pool) {}

    eigen_executor(const eigen_executor&) = delete;
    eigen_executor& operator=(const eigen_executor&) = delete;

    /// Threads that can work on one `run`.
    [[nodiscard]] std::size_t concurrency() const noexcept { return concurrency_; }

    /// Runs f(0) … f(n-1) and returns when all are done.
    void run(std::size_t n, task_ref f) {
        if (n <= 1) return serial_executor::run(n, f);
        const std::size_t most = concurrency_ - 1;
        const std::size_t helpers = n - 1 < most ? n - 1 : most;
        // Shared: a helper that the pool starts late finds no task left, and may do so after `run` has returned.
        const auto work = std::make_shared<job>(*pool_, f, n, helpers + 1);
        join(work, 0);
        work->wait();
    }

private:
    struct job {
        job(Eigen::ThreadPoolInterface& owner, task_ref f, std::size_t n, std::size_t workers) noexcept
            : pool(owner), body(f), count(n), most_workers(workers) {}

        void take_tasks() {
            std::size_t finished = 0;
            for (std::size_t task = next.fetch_add(1, std::memory_order_relaxed); task < count;
                 task = next.fetch_add(1, std::memory_order_relaxed)) {
                body(task);
                ++finished;
            }
            if (finished == 0) return;
            if (done.fetch_add(finished, std::memory_order_acq_rel) + finished != count) return;
            all_done.store(1, std::memory_order_release);
            all_done.notify_one();
        }

        void wait() const {
            // Tasks of one run end at nearly the same time, so a moment's spin often saves a sleep; it is bounded, and
            // yields, because with more threads than CPUs the thread waited for may need this very CPU.
            for (int i = 0; i < 64; ++i) {
                if (all_done.load(std::memory_order_acquire) != 0) return;
                if (i >= 48) std::this_thread::yield();
            }
            while (all_done.load(std::memory_order_acquire) == 0) all_done.wait(0, std::memory_order_acquire);
        }

        Eigen::ThreadPoolInterface& pool;
        const task_ref body;
        const std::size_t count, most_workers;
        std::atomic<std::size_t> next{0};
        std::atomic<std::size_t> done{0};
        std::atomic<std::int32_t> all_done{0};
    };

    /// Worker `rank` of a run (0 is the caller) calls two more, as in a binary heap, while there is something to do, then works.
    /// Waking a sleeper costs about as much as a small product: so nobody wakes many, and nobody is woken for nothing.
    static void join(const std::shared_ptr<job>& work, std::size_t rank) {
        for (std::size_t other = 2 * rank + 1; other <= 2 * rank + 2; ++other)
            if (other < work->most_workers && work->next.load(std::memory_order_relaxed) < work->count)
                work->pool.Schedule([work, other] { join(work, other); });
        work->take_tasks();
    }

    std::size_t concurrency_;
    Eigen::ThreadPoolInterface* pool_;
};
static_assert(executor<eigen_executor>, "frugal: eigen_executor must model device::executor");

}  // namespace device

FRUGAL_NAMESPACE_END
