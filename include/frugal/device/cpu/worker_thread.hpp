#pragma once
/// A thread whose start may fail. std::thread throws where the process may have no more threads, which ends a program that is
/// compiled without exceptions.
#include "frugal/core/config.hpp"

#if defined(__unix__) || defined(__APPLE__)
#define FRUGAL_POSIX_THREADS 1
#include <pthread.h>
#else
#define FRUGAL_POSIX_THREADS 0
#include <thread>
#endif

FRUGAL_NAMESPACE_BEGIN

namespace device::detail {

/// Starts once at most; neither copied nor moved.
class FRUGAL_FLAGGED worker_thread {
public:
    using body = void* (*)(void*);

    worker_thread() = default;
    worker_thread(const worker_thread&) = delete;
    worker_thread& operator=(const worker_thread&) = delete;

    /// Calls run(object) on a new thread. Whether there is one: no where the system refuses (a limit on threads, no
    /// memory for a stack). Without POSIX threads it throws what std::thread throws.
    [[nodiscard]] bool start(body run, void* object) {
#if FRUGAL_POSIX_THREADS
        return pthread_create(&thread_, nullptr, run, object) == 0;
#else
        thread_ = std::thread(run, object);
        return true;
#endif
    }
    /// Waits for the thread's end. Precondition: it was started, and nobody has waited for it.
    void join() {
#if FRUGAL_POSIX_THREADS
        static_cast<void>(pthread_join(thread_, nullptr));
#else
        thread_.join();
#endif
    }

private:
#if FRUGAL_POSIX_THREADS
    pthread_t thread_{};
#else
    std::thread thread_;
#endif
};

}  // namespace device::detail

FRUGAL_NAMESPACE_END
