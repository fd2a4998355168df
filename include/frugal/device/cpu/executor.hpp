#pragma once
/// Who runs the tasks of a kernel: an executor concept, a serial default, and a type-erased reference for kernels.
#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// A non-owning reference to a callable `void(std::size_t task)`; lives only as long as the call it is passed to.
class FRUGAL_FLAGGED task_ref {
public:
    template <class F>
        requires(std::invocable<F&, std::size_t> && !std::is_same_v<std::remove_cvref_t<F>, task_ref>)
    task_ref(F&& f)
    noexcept  // NOLINT: implicit by design, like std::function_ref
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
          call_([](void* object, std::size_t task) { (*static_cast<std::remove_reference_t<F>*>(object))(task); }) {}
    void operator()(std::size_t task) const { call_(object_, task); }

private:
    void* object_;
    void (*call_)(void*, std::size_t);
};

/// Runs tasks 0 … n-1, in any order, on any threads, and returns when all are done.
/// `concurrency()` is how many may run at once; kernels use it to choose how finely to cut.
template <class E>
concept executor = requires(E& e, std::size_t n, task_ref f) {
    { e.concurrency() } -> std::convertible_to<std::size_t>;
    e.run(n, f);
};

/// Runs every task on the calling thread.
struct FRUGAL_FLAGGED serial_executor {
    [[nodiscard]] static constexpr std::size_t concurrency() noexcept { return 1; }
    static void run(std::size_t n, task_ref f) {
        for (std::size_t task = 0; task < n; ++task) f(task);
    }
};
static_assert(executor<serial_executor>);

/// A non-owning, type-erased executor; default: serial.
class FRUGAL_FLAGGED executor_ref {
public:
    executor_ref() noexcept = default;
    template <executor E>
        requires(!std::is_same_v<std::remove_cv_t<E>, executor_ref>)
    executor_ref(E& e)
    noexcept  // NOLINT: implicit by design
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(e)))),
          concurrency_([](void* object) { return static_cast<std::size_t>(static_cast<E*>(object)->concurrency()); }),
          run_([](void* object, std::size_t n, task_ref f) { static_cast<E*>(object)->run(n, f); }) {}
    /// Anything else, so that the compiler says what is wrong with it.
    template <class E>
        requires(!std::is_same_v<std::remove_cvref_t<E>, executor_ref> &&
                 !(std::is_lvalue_reference_v<E> && executor<std::remove_reference_t<E>>))
    executor_ref(E&&)
    noexcept {  // NOLINT: implicit by design
        constexpr bool runs = executor<std::remove_cvref_t<E>>, named = std::is_lvalue_reference_v<E>;
        static_assert(runs,
                      "frugal: a device runs its tasks on an executor, an object with concurrency() and run(n, "
                      "device::task_ref); write device::fork_join_executor threads; device::cpu<> cpu(threads);");
        static_assert(named || !runs,
                      "frugal: a device refers to its executor, and a temporary one is gone too early; give it a name: "
                      "device::fork_join_executor threads; device::cpu<> cpu(threads);");
        static_assert(!named || !runs,
                      "frugal: a device calls run() of its executor, which this constant one does not allow; declare it "
                      "without const");
    }

    [[nodiscard]] std::size_t concurrency() const { return concurrency_(object_); }
    void run(std::size_t n, task_ref f) const {
        if (n == 1) return f(0);
        if (n != 0) run_(object_, n, f);
    }

private:
    void* object_ = nullptr;
    std::size_t (*concurrency_)(void*) = [](void*) { return serial_executor::concurrency(); };
    void (*run_)(void*, std::size_t, task_ref) = [](void*, std::size_t n, task_ref f) { serial_executor::run(n, f); };
};

}  // namespace device

FRUGAL_NAMESPACE_END
