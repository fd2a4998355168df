// A SIMT emulator for unit tests: runs CUDA C++ kernels on the CPU, one fiber a CUDA thread, with no GPU and no CUDA runtime.
//
// This header is the control side, for tests: how threads are ordered, what a launch found, memory a kernel may touch.
// Kernels themselves see `language.hpp`, through the library's own `frugal/device/cuda/portable.cuh`.
//
// All state is per OS thread, so tests may launch from several OS threads at once. A launch is synchronous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <vector_types.h>  // CUDA toolkit: dim3, uint3. Plain C++.

#include "../sanitizer.hpp"

namespace simt {

/// A place in the source, for messages. As a default argument it names the caller's line.
struct where {
    const char* file = "";
    int line = 0;
    static constexpr where here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
    friend bool operator==(const where& a, const where& b) { return a.line == b.line && std::string_view(a.file) == b.file; }
};

/// The order in which runnable threads (and the blocks of a grid) get the CPU. No order is "right": a correct kernel gives the
/// same bytes under all of them.
enum class thread_order { forward, reverse, shuffled };

struct settings {
    thread_order order = thread_order::forward;
    std::uint64_t seed = 1;                  ///< for `shuffled`
    bool allow_exit_before_barrier = false;  ///< tolerate threads that return while others still wait at `__syncthreads`
    bool check_between_blocks = true;  ///< access checks: report two blocks that touch the same global bytes, one of them writing
    std::size_t static_shared_limit = 48 * 1024;
    std::size_t shared_limit = 99 * 1024;  ///< static + dynamic; the smallest of sm_80 (163), sm_90 (227) and sm_120 (99)
    std::size_t stack_bytes =
        0;  ///< a thread's stack; 0: 64 KiB, 256 KiB under AddressSanitizer. Fixed by the first launch of an OS thread
    int remove_barrier = -1;  ///< mutation: the barrier with this index in `launch_report::barriers` does nothing
};
/// Settings of the launches this OS thread makes from now on.
settings& config();

enum class fault {
    divergent_barrier,     ///< threads wait at different barriers, or some have exited
    divergent_collective,  ///< lanes named in one mask are at different warp operations or disagree on the mask
    lane_not_in_mask,      ///< the calling lane is missing from its own mask
    inactive_source,       ///< a shuffle reads a lane that does not take part
    deadlock,              ///< nobody can run and not everybody is done
    bad_launch,            ///< shape or shared memory beyond what devices allow
    misaligned,            ///< an address with less alignment than the instruction needs
    out_of_bounds,         ///< access checks: shared or global memory outside every variable
    uninitialised_read,    ///< access checks: bytes nobody wrote
    race,                  ///< access checks: two unordered accesses, at least one a write
};
std::string_view name(fault);

/// Thrown by a launch. `what()` names the kind, the thread, the block and the source lines.
class kernel_fault : public std::runtime_error {
public:
    kernel_fault(fault which, const std::string& message) : std::runtime_error(message), kind(which) {}
    fault kind;
};

struct barrier_site {
    where at;
    std::uint64_t passed = 0;  ///< how often a block went through it
};

/// What the last launch of this OS thread did.
struct launch_report {
    std::uint64_t blocks = 0, threads = 0, switches = 0, collectives = 0, checked_accesses = 0;
    std::size_t shared_bytes = 0;        ///< static + dynamic of one block
    std::vector<barrier_site> barriers;  ///< `__syncthreads` sites in order of first arrival
};
const launch_report& last_launch();

/// Whether a mutation can be asked for: on a GPU, where the same tests run, it cannot; nor where the address sanitizer is on, which
/// ends the program where a kernel without its barrier reads beyond an array.
inline constexpr bool barriers_can_be_removed = TEST_ASAN == 0;

/// True in a build whose kernels were compiled with the access checks (see README, "Checked build").
bool access_checks_active();

/// Runs `body` under several schedules: forward, reverse and `shuffles` seeded ones. `body` must set up its own inputs every
/// time.
template <class Body>
void for_each_schedule(Body&& body, int shuffles = 2) {
    const settings saved = config();
    const auto run = [&](thread_order order, std::uint64_t seed) {
        config() = saved;
        config().order = order;
        config().seed = seed;
        struct restore {
            const settings& to;
            ~restore() { config() = to; }
        } guard{saved};
        body();
    };
    run(thread_order::forward, 0);
    run(thread_order::reverse, 0);
    for (int i = 0; i < shuffles; ++i) run(thread_order::shuffled, std::uint64_t(i) + 1);
}

/// Calls `body`, which returns a vector of results, under several schedules. True if all results are the same bytes.
template <class Body>
bool same_under_all_schedules(Body&& body, int shuffles = 2) {
    bool first = true, same = true;
    decltype(body()) expected;
    for_each_schedule(
        [&] {
            auto got = body();
            if (first) expected = got;
            first = false;
            same = same && got.size() == expected.size() &&
                   (got.empty() || std::memcmp(got.data(), expected.data(), got.size() * sizeof(got[0])) == 0);
        },
        shuffles);
    return same;
}

/// Device memory: starts as NaN bytes (0xFF), has guard bytes around it, and is known to the access checks.
void* allocate(std::size_t bytes);
void release(void* memory) noexcept;
/// Tells the access checks that the host filled these bytes.
void mark_initialised(const void* memory, std::size_t bytes);

template <class T>
class device_array {
public:
    explicit device_array(std::size_t size) : data_(static_cast<T*>(allocate(size * sizeof(T)))), size_(size) {}
    explicit device_array(const std::vector<T>& from) : device_array(from.size()) {
        if (size_ != 0) std::memcpy(static_cast<void*>(data_), from.data(), size_ * sizeof(T));
        mark_initialised(data_, size_ * sizeof(T));
    }
    device_array(const device_array&) = delete;
    device_array& operator=(const device_array&) = delete;
    ~device_array() { release(data_); }
    T* data() { return data_; }
    std::vector<T> to_host() const { return std::vector<T>(data_, data_ + size_); }

private:
    T* data_;
    std::size_t size_;
};

// ---- What `language.hpp` and the library's device wrappers are built from
// -------------------------------------------------

/// Runs `thread(closure)` once for every thread of the grid.
void run_grid(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, void (*thread)(void*), void* closure);

/// The lanes of one completed warp operation: what each deposited, null where a lane does not take part.
struct warp_view {
    void* record[32];
    std::uint32_t active;  ///< lanes that take part
    std::uint32_t mask;    ///< the mask all of them gave
};
/// Deposits `record` and waits until every live lane of `mask` is here; then `complete` runs once. `complete` is the
/// operation's identity.
void converge(std::uint32_t mask, void* record, void (*complete)(warp_view&), const char* operation, where at,
              bool orders_memory = false);
/// Lanes of this warp that have not exited and are not waiting elsewhere (see README, "What it does not tell").
std::uint32_t active_lanes();

enum class barrier_reduction { none, count, all, any };
int block_barrier(barrier_reduction reduction, int predicate, where at);

/// The block's copy of the shared variable `key`, NaN bytes at the start of every block.
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment);
void* dynamic_shared();

/// Lets another thread of the block run: what makes spinning on an atomic end.
void yield_thread();

enum class access { read, write, atomic };
/// For operations the compiler's instrumentation cannot see (atomics, asynchronous copies, matrix loads).
void note_access(const void* address, std::size_t bytes, access kind);
[[noreturn]] void raise(fault kind, const std::string& message);

/// An asynchronous copy that lands only when the thread waits for its group.
void copy_async(void* shared_to, const void* global_from, std::size_t bytes, std::size_t zero_fill_from, where at);
void copy_async_commit();
void copy_async_wait(unsigned groups_left);

}  // namespace simt
