// fails NO_CONCURRENCY: frugal: a device runs its tasks on an executor, an object with concurrency() and run(n, device::task_ref); write device::fork_join_executor threads; device::cpu<> cpu(threads);
// fails NUMBER_OF_THREADS: frugal: a device runs its tasks on an executor
// fails POINTER: frugal: a device runs its tasks on an executor
// fails TEMPORARY: frugal: a device refers to its executor, and a temporary one is gone too early; give it a name: device::fork_join_executor threads; device::cpu<> cpu(threads);
// fails CONSTANT: frugal: a device calls run() of its executor, which this constant one does not allow; declare it without const
#include <cstddef>
#include <type_traits>

#include "frugal/device/cpu/cpu.hpp"

namespace fg = frugal;

struct threads {
#if !defined(NO_CONCURRENCY)
    std::size_t concurrency() const { return 1; }
#endif
    void run(std::size_t n, fg::device::task_ref f) {
        for (std::size_t task = 0; task < n; ++task) f(task);
    }
};

#if defined(CONSTANT)
const threads mine{};
#else
threads mine;
#endif
#if defined(NUMBER_OF_THREADS)
fg::device::cpu<> cpu(4);
#elif defined(POINTER)
fg::device::cpu<> cpu(&mine);
#elif defined(TEMPORARY)
fg::device::cpu<> cpu(threads{});
#else
fg::device::cpu<> cpu(mine);
#endif

// One whose run() is const may be constant.
const fg::device::serial_executor serial{};
fg::device::cpu<> of_constant(serial);
fg::device::executor_ref copy(const fg::device::executor_ref& other) { return other; }
static_assert(!std::is_copy_constructible_v<fg::device::cpu<>>);
