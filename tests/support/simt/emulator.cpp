// The scheduler, the memories and the access checks of the SIMT emulator. Compiled without instrumentation.
#include "simt/emulator.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>

#include <sys/mman.h>
#include <unistd.h>

#include "simt/builtin_variables.hpp"
#include "simt/fiber.hpp"

namespace simt {
namespace {

constexpr int poison = 0xFF;  // every float format reads this as NaN, every signed integer as -1
constexpr std::uint32_t warp_lanes = 32;
constexpr std::size_t arena_bytes = 256 * 1024;
constexpr std::size_t guard_bytes = 64;

std::string text(const where& at) {
    std::string_view file = at.file;
    if (const auto slash = file.rfind('/'); slash != file.npos) file.remove_prefix(slash + 1);
    return std::string(file) + ":" + std::to_string(at.line);
}

enum class state : std::uint8_t { ready, at_barrier, at_warp, done };

struct thread {
    fiber context;
    uint3 index{};
    state status = state::ready;
    where at{};
    // warp operation this thread waits in
    std::uint32_t mask = 0;
    void* record = nullptr;
    void (*complete)(warp_view&) = nullptr;
    const char* operation = "";
    bool orders_memory = false;
    int predicate = 0;  // of a barrier with a reduction
};

struct warp {
    std::uint32_t live = 0, waiting = 0;  // lanes that have not exited; lanes in a warp operation
    std::uint32_t epoch = 1;              // counts __syncwarp, for the access checks
    bool uniform = true;                  // all that wait, wait in this operation:
    std::uint32_t mask = 0;
    void (*complete)(warp_view&) = nullptr;
};

struct pending_copy {
    std::uint32_t thread, group;
    void* to;
    const void* from;
    std::size_t bytes, from_bytes;
};

struct shared_variable {
    const void* key;
    std::size_t offset, bytes;
};

// Who touched a byte last. Threads are numbered within the block from 1; epochs count barriers and only ever grow.
struct cell {
    std::uint32_t write_epoch = 0, read_epoch = 0;
    std::uint32_t write_thread = 0, read_thread = 0;
    std::uint32_t write_warp_epoch = 0, read_warp_epoch = 0;
    bool write_atomic = false, host_wrote = false;
};
constexpr std::uint32_t many_threads = 0xFFFFFFFF;
constexpr std::uint32_t many_lanes = 0x80000000;  // | number of one of them

struct region {
    char* user;
    std::size_t bytes;
    std::unique_ptr<char[]> storage;
    std::vector<cell> cells;  // made on the first checked access
    bool host_filled = false;
};
constexpr std::size_t region_guard = 256;

bool hooks_linked = false;

struct machine {
    settings options;
    launch_report report;

    // one launch
    dim3 grid, block;
    std::uint32_t size = 0;
    void (*run_thread)(void*) = nullptr;
    void* closure = nullptr;
    std::exception_ptr failure;
    fiber outside;
    std::mt19937_64 random;

    // one block
    std::vector<thread> threads;
    std::vector<warp> warps;
    std::vector<std::uint32_t> ready;  // a ring of runnable threads
    std::size_t head = 0, count = 0;
    std::uint32_t current = 0, exited = 0, waiting_at_barrier = 0;
    bool running = false;
    std::uint32_t idle_yields = 0;
    std::uint32_t barrier_index = 0;
    barrier_reduction reduction = barrier_reduction::none;
    int reduction_value = 0;
    std::vector<pending_copy> copies;
    std::vector<std::uint32_t> copy_group;

    // stacks
    char* stacks = nullptr;
    std::size_t stack_stride = 0, stack_use = 0, stack_count = 0;

    // shared memory
    char* arena = nullptr;
    std::vector<shared_variable> variables;
    std::size_t arena_used = 0, static_bytes = 0, dynamic_bytes = 0;

    // access checks
    std::vector<cell> arena_cells;
    std::uint32_t epoch = 0, block_epoch = 0, launch_epoch = 0;
    std::vector<region> regions;  // sorted by address
    std::size_t last_region = 0;
    bool have_note = false;
    fault note_kind{};
    std::string note;

    ~machine() {
        if (stacks != nullptr) munmap(stacks, stack_stride * stack_count);
#if TEST_ASAN
        if (arena != nullptr) __asan_unpoison_memory_region(arena, arena_bytes);
#endif
        ::operator delete (arena, std::align_val_t{256});
    }

    // ---- ready queue
    void push(std::uint32_t t) {
        std::size_t at = head + count++;
        if (at >= ready.size()) at -= ready.size();
        ready[at] = t;
    }
    std::uint32_t pop() {
        if (options.order == thread_order::shuffled && count > 1) {
            std::size_t other = head + random() % count;
            if (other >= ready.size()) other -= ready.size();
            std::swap(ready[head], ready[other]);
        }
        const std::uint32_t t = ready[head];
        if (++head == ready.size()) head = 0;
        --count;
        return t;
    }
    void resume(std::uint32_t next, bool ends) {
        thread& from = threads[current];
        if (next == current) return;
        current = next;
        threadIdx = threads[next].index;
        ++report.switches;
        fiber::switch_to(from.context, threads[next].context, ends);
    }
    void leave_block(bool ends) {
        running = false;
        fiber::switch_to(threads[current].context, outside, ends);
    }
    /// The current thread cannot go on: somebody else must, or nobody can.
    void wait() {
        if (count == 0) raise_deadlock();
        resume(pop(), false);
    }

    std::string who(std::uint32_t t) const {
        const uint3 i = threads[t].index;
        char out[96];
        std::snprintf(out, sizeof out, "thread (%u,%u,%u) of block (%u,%u,%u)", i.x, i.y, i.z, blockIdx.x, blockIdx.y,
                      blockIdx.z);
        return out;
    }
    [[noreturn]] void fail(fault kind, const std::string& message) const {
        throw kernel_fault(kind, std::string(name(kind)) + ": " + (running ? who(current) + ": " : std::string()) + message);
    }
    [[noreturn]] void raise_deadlock() const {
        std::string message = "nobody can run;";
        for (std::uint32_t t = 0, shown = 0; t < size && shown < 4; ++t) {
            const thread& th = threads[t];
            if (th.status != state::at_barrier && th.status != state::at_warp) continue;
            if (shown > 0 && th.at == threads[t - 1].at && th.status == threads[t - 1].status && th.mask == threads[t - 1].mask)
                continue;
            message += " thread " + std::to_string(t) + " waits at " +
                       (th.status == state::at_barrier ? "__syncthreads" : th.operation) + " (" + text(th.at) + ");";
            ++shown;
        }
        fail(fault::deadlock, message);
    }
    void raise_noted() {
        if (!have_note) return;
        have_note = false;
        throw kernel_fault(note_kind, note);
    }
    /// The same from a place the compiler believes cannot throw: ends the block and never goes back to this thread, so that a
    /// wild store does not happen.
    void abandon_noted() {
        if (!have_note) return;
        have_note = false;
        failure = std::make_exception_ptr(kernel_fault(note_kind, note));
        leave_block(true);
    }

    // ---- block barrier
    int barrier(barrier_reduction kind, int predicate, where at) {
        raise_noted();
        thread& self = threads[current];
        std::uint32_t index = 0;
        while (index < report.barriers.size() && !(report.barriers[index].at == at)) ++index;
        if (index == report.barriers.size()) report.barriers.push_back({at, 0});
        if (kind == barrier_reduction::none && options.remove_barrier == int(index)) return 0;
        if (exited != 0 && !options.allow_exit_before_barrier)
            fail(fault::divergent_barrier,
                 "waits at the barrier of " + text(at) + ", but " + std::to_string(exited) + " threads have already returned");
        if (waiting_at_barrier == 0) {
            barrier_index = index;
            reduction = kind;
            reduction_value = kind == barrier_reduction::all ? 1 : 0;
        } else if (index != barrier_index || reduction != kind) {
            fail(fault::divergent_barrier, "waits at the barrier of " + text(at) + " while others wait at the one of " +
                                               text(report.barriers[barrier_index].at));
        }
        const bool yes = predicate != 0;
        if (kind == barrier_reduction::count) reduction_value += yes;
        if (kind == barrier_reduction::any) reduction_value |= yes;
        if (kind == barrier_reduction::all) reduction_value &= yes;
        ++waiting_at_barrier;
        self.at = at;
        self.status = state::at_barrier;
        if (waiting_at_barrier + exited == size) {
            release_barrier(current);
            yield_if_shuffled();
        } else {
            wait();
        }
        return self.predicate;
    }
    void release_barrier(std::uint32_t continues) {
        ++report.barriers[barrier_index].passed;
        idle_yields = 0;
        waiting_at_barrier = 0;
        ++epoch;
        for_each_in_order(0, size, [&](std::uint32_t t) {
            if (threads[t].status != state::at_barrier) return;
            threads[t].status = state::ready;
            threads[t].predicate = reduction_value;
            if (t != continues) push(t);
        });
    }
    void yield_if_shuffled() {
        if (options.order == thread_order::shuffled && count > 0) {
            push(current);
            resume(pop(), false);
        }
    }
    template <class F>
    void for_each_in_order(std::uint32_t first, std::uint32_t last, F f) {
        if (options.order == thread_order::reverse) {
            for (std::uint32_t t = last; t-- > first;) f(t);
        } else {
            for (std::uint32_t t = first; t < last; ++t) f(t);
        }
    }

    // ---- warp operations
    void converge(std::uint32_t mask, void* record, void (*complete)(warp_view&), const char* operation, where at, bool orders) {
        raise_noted();
        const std::uint32_t first = current / warp_lanes * warp_lanes, lane = current - first;
        thread& self = threads[current];
        if ((mask >> lane & 1) == 0)
            fail(fault::lane_not_in_mask,
                 std::string(operation) + " (" + text(at) + ") with mask " + hex(mask) + ", lane " + std::to_string(lane));
        self.status = state::at_warp;
        self.at = at;
        self.mask = mask;
        self.record = record;
        self.complete = complete;
        self.operation = operation;
        self.orders_memory = orders;
        warp& w = warps[current / warp_lanes];
        if (w.waiting == 0) {
            w.mask = mask;
            w.complete = complete;
            w.uniform = true;
        } else if (w.mask != mask || w.complete != complete) {
            w.uniform = false;
        }
        w.waiting |= 1u << lane;
        for (std::uint32_t t = first; !w.uniform && t < std::min(first + warp_lanes, size); ++t) {
            const thread& other = threads[t];
            if (t == current || other.status != state::at_warp) continue;
            // Each waits for the other, in different operations. (Waiting one way only is fine: the other one may still come.)
            const bool mutual = (mask >> (t - first) & 1) != 0 && (other.mask >> lane & 1) != 0;
            if (mutual && (other.mask != mask || other.complete != complete))
                fail(fault::divergent_collective, std::string(operation) + " (" + text(at) + ") with mask " + hex(mask) +
                                                      " meets lane " + std::to_string(t - first) + " in " + other.operation +
                                                      " (" + text(other.at) + ") with mask " + hex(other.mask));
        }
        if (complete_warp_operation(current)) {
            yield_if_shuffled();
        } else {
            wait();
        }
    }
    /// Completes the operation `member` waits in if all live lanes of its mask are there.
    bool complete_warp_operation(std::uint32_t member) {
        const thread& one = threads[member];
        warp& w = warps[member / warp_lanes];
        if ((w.live & one.mask & ~w.waiting) != 0) return false;
        const std::uint32_t first = member / warp_lanes * warp_lanes, last = std::min(first + warp_lanes, size), mask = one.mask;
        warp_view view{};
        view.mask = mask;
        for (std::uint32_t t = first; t < last; ++t) {
            if ((mask >> (t - first) & 1) == 0 || threads[t].status == state::done) continue;
            if (threads[t].status != state::at_warp || threads[t].mask != mask || threads[t].complete != one.complete)
                return false;
            view.record[t - first] = threads[t].record;
            view.active |= 1u << (t - first);
        }
        ++report.collectives;
        idle_yields = 0;
        if (one.complete != nullptr) one.complete(view);
        if (one.orders_memory) ++w.epoch;
        w.waiting &= ~view.active;
        for_each_in_order(first, last, [&](std::uint32_t t) {
            if ((view.active >> (t - first) & 1) == 0) return;
            threads[t].status = state::ready;
            if (t != current) push(t);
        });
        return true;
    }
    static std::string hex(std::uint32_t v) {
        char out[16];
        std::snprintf(out, sizeof out, "0x%08x", v);
        return out;
    }

    // ---- a thread's life
    static void thread_main(void* self) { static_cast<machine*>(self)->live(); }
    void live() {
        try {
            run_thread(closure);
            copy_wait(0, true);
            raise_noted();
            leave();
        } catch (...) {
            failure = std::current_exception();
        }
        if (failure != nullptr) leave_block(true);
        if (exited == size) leave_block(true);
        resume(pop(), true);
        __builtin_unreachable();
    }
    void leave() {
        threads[current].status = state::done;
        warps[current / warp_lanes].live &= ~(1u << current % warp_lanes);
        ++exited;
        idle_yields = 0;
        if (waiting_at_barrier != 0) {
            if (!options.allow_exit_before_barrier)
                fail(fault::divergent_barrier, "returns while " + std::to_string(waiting_at_barrier) +
                                                   " threads wait at the barrier of " + text(report.barriers[barrier_index].at));
            if (waiting_at_barrier + exited == size) release_barrier(current);
        }
        const std::uint32_t first = current / warp_lanes * warp_lanes;
        for (std::uint32_t t = first; t < std::min(first + warp_lanes, size); ++t)
            if (threads[t].status == state::at_warp && (threads[t].mask >> (current - first) & 1) != 0)
                complete_warp_operation(t);
        if (exited != size && count == 0) raise_deadlock();
    }

    // ---- asynchronous copies
    void copy_wait(unsigned groups_left, bool uncommitted_too = false) {
        if (copies.empty()) return;
        const std::uint32_t mine = copy_group[current];
        std::size_t kept = 0;
        for (const pending_copy& c : copies) {
            if (c.thread != current || (!uncommitted_too && c.group + groups_left >= mine)) {
                copies[kept++] = c;
                continue;
            }
            check(c.to, c.bytes, access::write, nullptr);
            raise_noted();
            std::memcpy(c.to, c.from, c.from_bytes);
            std::memset(static_cast<char*>(c.to) + c.from_bytes, 0, c.bytes - c.from_bytes);
        }
        copies.resize(kept);
    }

    // ---- shared memory
    void* variable(const void* key, std::size_t bytes, std::size_t alignment) {
        for (const shared_variable& v : variables)
            if (v.key == key) return arena + v.offset;
        const std::size_t offset = (arena_used + alignment - 1) / alignment * alignment;
        if (key == &dynamic_bytes) {
            dynamic_bytes = bytes;
        } else {
            static_bytes += bytes;
            if (static_bytes > options.static_shared_limit)
                fail(fault::bad_launch, std::to_string(static_bytes) + " bytes of static shared memory; use dynamic_shared()");
        }
        if (static_bytes + dynamic_bytes > options.shared_limit || offset + bytes + guard_bytes > arena_bytes)
            fail(fault::bad_launch, std::to_string(static_bytes + dynamic_bytes) +
                                        " bytes of shared memory in one block, allowed " + std::to_string(options.shared_limit));
        variables.push_back({key, offset, bytes});
        arena_used = offset + bytes + guard_bytes;
#if TEST_ASAN
        __asan_unpoison_memory_region(arena + offset, bytes);
#endif
        std::memset(arena + offset, poison, bytes);
        report.shared_bytes = static_bytes + dynamic_bytes;
        return arena + offset;
    }
    void fresh_shared(std::size_t dynamic) {
        if (arena == nullptr) arena = static_cast<char*>(::operator new (arena_bytes, std::align_val_t{256}));
        variables.clear();
        arena_used = guard_bytes;
        static_bytes = dynamic_bytes = 0;
#if TEST_ASAN
        __asan_poison_memory_region(arena, arena_bytes);
#endif
        if (dynamic != 0) variable(&dynamic_bytes, dynamic, 256);
    }

    // ---- access checks
    void take_note(fault kind, const std::string& message, const void* address, const void* code) {
        if (have_note) return;
        char place[64];
        std::snprintf(place, sizeof place, ", address %p", address);
        note_kind = kind;
        note = std::string(name(kind)) + ": " + who(current) + ": " + message + place;
        if (code != nullptr) {
            std::snprintf(place, sizeof place, ", code at %p", code);
            note += place;
            note += describe_code(code);
        }
        have_note = true;
    }
    static std::string describe_code(const void* code);

    static std::uint32_t number(std::uint32_t who) { return (who & ~many_lanes) - 1; }
    // Whether an earlier access by `by` happened before what the current thread does now. 2: made by another block of this
    // launch.
    int unordered(std::uint32_t by, std::uint32_t when, std::uint32_t warp_when) const {
        if (by == 0 || when < launch_epoch) return 0;
        if (when < block_epoch) return 2;
        if (when < epoch || by == current + 1) return 0;
        if (by == many_threads) return 1;
        const std::uint32_t mine = current / warp_lanes;
        return number(by) / warp_lanes == mine && warp_when < warps[mine].epoch ? 0 : 1;
    }
    void check_cell(cell& c, access kind, bool shared, const void* address, const void* code) {
        const auto report_race = [&](int how, const char* what, std::uint32_t by) {
            if (how == 0 || (how == 2 && (shared || !options.check_between_blocks))) return;
            std::string message = std::string(what) +
                                  (how == 2             ? " by another block"
                                   : by == many_threads ? " by several threads"
                                                        : " by thread " + std::to_string(number(by))) +
                                  (how == 2 ? " of this launch" : ", no barrier between");
            take_note(fault::race, message + (shared ? ", shared memory" : ", global memory"), address, code);
        };
        const std::uint32_t me = current + 1, mine = current / warp_lanes, now = warps[mine].epoch;
        if (kind == access::read || kind == access::atomic) {
            if (shared ? c.write_epoch < block_epoch : c.write_epoch == 0 && !c.host_wrote)
                take_note(fault::uninitialised_read,
                          shared ? "reads shared memory nobody wrote" : "reads global memory nobody wrote", address, code);
        }
        const bool both_atomic = kind == access::atomic && c.write_atomic;
        if (!both_atomic)
            report_race(unordered(c.write_thread, c.write_epoch, c.write_warp_epoch),
                        kind == access::read ? "reads what was written" : "writes what was written", c.write_thread);
        if (kind == access::read) {
            if (c.read_epoch != epoch || c.read_thread == 0) {
                c.read_thread = me;
            } else if (c.read_thread != me) {
                const bool one_warp = c.read_thread != many_threads && number(c.read_thread) / warp_lanes == mine;
                c.read_thread = !one_warp ? many_threads : c.read_warp_epoch < now ? me : (me | many_lanes);
            }
            c.read_epoch = epoch;
            c.read_warp_epoch = now;
        } else {
            if (c.read_epoch >= block_epoch || !shared)
                report_race(unordered(c.read_thread, c.read_epoch, c.read_warp_epoch), "writes what was read", c.read_thread);
            c.write_thread = me;
            c.write_epoch = epoch;
            c.write_warp_epoch = now;
            c.write_atomic = kind == access::atomic;
        }
    }
    void check(const void* address, std::size_t bytes, access kind, const void* code) {
        if (!hooks_linked || !running || bytes == 0) return;
        const char* at = static_cast<const char*>(address);
        if (at >= arena && at < arena + arena_bytes) {
            ++report.checked_accesses;
            const std::size_t offset = std::size_t(at - arena);
            bool inside = false;
            for (const shared_variable& v : variables)
                inside = inside || (offset >= v.offset && offset + bytes <= v.offset + v.bytes);
            if (!inside)
                return take_note(fault::out_of_bounds, std::to_string(bytes) + " bytes of shared memory outside every variable",
                                 address, code);
            if (arena_cells.empty()) arena_cells.resize(arena_bytes);
            for (std::size_t i = 0; i < bytes; ++i) check_cell(arena_cells[offset + i], kind, true, at + i, code);
            return;
        }
        if (at >= stacks && at < stacks + stack_stride * stack_count) return;
        region* r = find(at);
        if (r == nullptr) return;
        ++report.checked_accesses;
        if (at < r->user || at + bytes > r->user + r->bytes)
            return take_note(fault::out_of_bounds,
                             std::to_string(bytes) + " bytes beside a global array of " + std::to_string(r->bytes) + " bytes",
                             address, code);
        if (r->cells.empty()) {
            r->cells.resize(r->bytes);
            for (cell& c : r->cells) c.host_wrote = r->host_filled;
        }
        for (std::size_t i = 0; i < bytes; ++i) check_cell(r->cells[std::size_t(at - r->user) + i], kind, false, at + i, code);
    }
    region* find(const char* at) {
        const auto holds = [&](const region& r) { return at >= r.user - region_guard && at < r.user + r.bytes + region_guard; };
        if (last_region < regions.size() && holds(regions[last_region])) return &regions[last_region];
        auto it = std::upper_bound(regions.begin(), regions.end(), at,
                                   [](const char* a, const region& r) { return a < r.user - region_guard; });
        if (it == regions.begin() || !holds(*--it)) return nullptr;
        last_region = std::size_t(it - regions.begin());
        return &*it;
    }

    // ---- launches
    void make_stacks(std::size_t wanted) {
        if (stack_count >= wanted) return;
        if (stacks != nullptr) munmap(stacks, stack_stride * stack_count);
        const std::size_t page = std::size_t(sysconf(_SC_PAGESIZE));
        std::size_t use = options.stack_bytes != 0 ? options.stack_bytes : TEST_ASAN ? 256 * 1024 : 64 * 1024;
        use = (use + page - 1) / page * page;
        stack_use = use;
        stack_stride = use + page;
        void* m =
            mmap(nullptr, stack_stride * wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED) throw std::bad_alloc();
        stacks = static_cast<char*>(m);
        stack_count = wanted;
        for (std::size_t i = 0; i < wanted; ++i) mprotect(stacks + i * stack_stride, page, PROT_NONE);
    }
    void run_block() {
        ++report.blocks;
        report.threads += size;
        block_epoch = ++epoch;
        head = count = 0;
        exited = waiting_at_barrier = idle_yields = 0;
        for (std::uint32_t i = 0; i < warps.size(); ++i) {
            warps[i].live = size - i * warp_lanes >= warp_lanes ? 0xFFFFFFFFu : (1u << (size - i * warp_lanes)) - 1;
            warps[i].waiting = 0;
        }
        copies.clear();
        std::fill(copy_group.begin(), copy_group.end(), 0);
        for (std::uint32_t t = 0; t < size; ++t) {
            thread& th = threads[t];
            th.status = state::ready;
            th.mask = 0;
            th.index = {t % block.x, t / block.x % block.y, t / (block.x * block.y)};
            th.context.prepare(stacks + t * stack_stride + (stack_stride - stack_use), stack_use, &machine::thread_main, this);
        }
        for_each_in_order(0, size, [&](std::uint32_t t) { push(t); });
        current = pop();
        threadIdx = threads[current].index;
        running = true;
        fiber::switch_to(outside, threads[current].context);
        running = false;
        if (failure != nullptr) {
            auto e = failure;
            failure = nullptr;
            have_note = false;
            std::rethrow_exception(e);
        }
    }
    void launch(dim3 g, dim3 b, std::size_t dynamic, void (*thread_function)(void*), void* c) {
        report = {};
        grid = g;
        block = b;
        const std::uint64_t total = std::uint64_t(b.x) * b.y * b.z;
        if (total == 0 || total > 1024 || b.z > 64 || g.x == 0 || g.y == 0 || g.z == 0 || g.y > 65535 || g.z > 65535)
            throw kernel_fault(fault::bad_launch, "bad launch: block of " + std::to_string(total) + " threads, grid " +
                                                      std::to_string(g.x) + "x" + std::to_string(g.y) + "x" +
                                                      std::to_string(g.z));
        size = std::uint32_t(total);
        run_thread = thread_function;
        closure = c;
        have_note = false;
        random.seed(options.seed);
        make_stacks(size);
        if (threads.size() < size) threads = std::vector<thread>(size);
        ready.resize(size);
        copy_group.resize(size);
        warps.resize((size + warp_lanes - 1) / warp_lanes);
        launch_epoch = epoch + 1;
        outside = fiber();
        blockDim = b;
        gridDim = g;
        const std::uint64_t blocks = std::uint64_t(g.x) * g.y * g.z;
        const std::uint64_t start = options.order == thread_order::shuffled ? random() % blocks : 0;
        for (std::uint64_t i = 0; i < blocks; ++i) {
            const std::uint64_t n = options.order == thread_order::reverse ? blocks - 1 - i : (i + start) % blocks;
            blockIdx = {unsigned(n % g.x), unsigned(n / g.x % g.y), unsigned(n / (std::uint64_t(g.x) * g.y))};
            fresh_shared(dynamic);
            run_block();
        }
        ++epoch;
    }
};

machine& self() {
    static thread_local machine m;
    return m;
}

}  // namespace

settings& config() { return self().options; }
const launch_report& last_launch() { return self().report; }
bool access_checks_active() { return hooks_linked; }

std::string_view name(fault f) {
    switch (f) {
        case fault::divergent_barrier: return "divergent barrier";
        case fault::divergent_collective: return "divergent warp operation";
        case fault::lane_not_in_mask: return "lane not in its own mask";
        case fault::inactive_source: return "shuffle from an inactive lane";
        case fault::deadlock: return "deadlock";
        case fault::bad_launch: return "bad launch";
        case fault::misaligned: return "misaligned address";
        case fault::out_of_bounds: return "out of bounds";
        case fault::uninitialised_read: return "uninitialised read";
        case fault::race: return "race";
    }
    return "fault";
}

void run_grid(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, void (*thread)(void*), void* closure) {
    self().launch(grid, block, dynamic_shared_bytes, thread, closure);
}
void converge(std::uint32_t mask, void* record, void (*complete)(warp_view&), const char* operation, where at,
              bool orders_memory) {
    self().converge(mask, record, complete, operation, at, orders_memory);
}
int block_barrier(barrier_reduction reduction, int predicate, where at) { return self().barrier(reduction, predicate, at); }
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment) { return self().variable(key, bytes, alignment); }
void* dynamic_shared() {
    machine& m = self();
    if (m.dynamic_bytes == 0) m.fail(fault::bad_launch, "uses dynamic shared memory, launched with 0 bytes");
    return m.variable(&m.dynamic_bytes, 0, 256);
}
void raise(fault kind, const std::string& message) { self().fail(kind, message); }
void note_access(const void* address, std::size_t bytes, access kind) {
    machine& m = self();
    m.check(address, bytes, kind, __builtin_return_address(0));
    m.raise_noted();
}

std::uint32_t active_lanes() {
    const machine& m = self();
    const std::uint32_t first = m.current / warp_lanes * warp_lanes;
    std::uint32_t mask = 0;
    for (std::uint32_t t = first; t < std::min(first + warp_lanes, m.size); ++t)
        if (m.threads[t].status == state::ready) mask |= 1u << (t - first);
    return mask;
}

void yield_thread() {
    machine& m = self();
    if (!m.running) return;
    if (++m.idle_yields > 10'000'000)
        m.fail(fault::deadlock, "spins, and no thread of the block gets on; note that blocks run one after the other");
    if (m.count == 0) return;
    m.push(m.current);
    m.resume(m.pop(), false);
}

void copy_async(void* to, const void* from, std::size_t bytes, std::size_t from_bytes, where at) {
    machine& m = self();
    if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
        m.fail(fault::misaligned, "asynchronous copy of " + std::to_string(bytes) + " bytes (" + text(at) + ")");
    m.check(from, from_bytes, access::read, nullptr);
    m.check(to, bytes, access::write, __builtin_return_address(0));  // it may land at any time from here to the wait
    m.raise_noted();
    // Where nothing else decides, land as late as allowed (a missing wait shows) or at once (a buffer still in use shows).
    if (m.options.order == thread_order::reverse || (m.options.order == thread_order::shuffled && (m.random() & 1) != 0)) {
        std::memcpy(to, from, from_bytes);
        std::memset(static_cast<char*>(to) + from_bytes, 0, bytes - from_bytes);
        return;
    }
    m.copies.push_back({m.current, m.copy_group[m.current], to, from, bytes, from_bytes});
}
void copy_async_commit() {
    machine& m = self();
    ++m.copy_group[m.current];
}
void copy_async_wait(unsigned groups_left) { self().copy_wait(groups_left); }

void* allocate(std::size_t bytes) {
    machine& m = self();
    region r;
    r.storage = std::make_unique<char[]>(bytes + 3 * region_guard);
    r.user = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(r.storage.get()) + 2 * region_guard - 1) / region_guard *
                                     region_guard);
    r.bytes = bytes;
    std::memset(r.storage.get(), poison, bytes + 3 * region_guard);
#if TEST_ASAN
    __asan_poison_memory_region(r.storage.get(), bytes + 3 * region_guard);
    __asan_unpoison_memory_region(r.user, bytes);
#endif
    char* user = r.user;
    m.regions.insert(
        std::upper_bound(m.regions.begin(), m.regions.end(), user, [](const char* a, const region& o) { return a < o.user; }),
        std::move(r));
    return user;
}
void release(void* memory) noexcept {
    auto& all = self().regions;
    for (auto it = all.begin(); it != all.end(); ++it)
        if (it->user == memory) {
#if TEST_ASAN
            __asan_unpoison_memory_region(it->storage.get(), it->bytes + 3 * region_guard);
#endif
            all.erase(it);
            return;
        }
}
void mark_initialised(const void* memory, std::size_t bytes) {
    for (region& r : self().regions) {
        const char* at = static_cast<const char*>(memory);
        if (at < r.user || at >= r.user + r.bytes) continue;
        if (at == r.user && bytes == r.bytes) r.host_filled = true;
        if (r.cells.empty() && !r.host_filled) r.cells.resize(r.bytes);
        for (std::size_t i = 0; i < std::min(bytes, r.cells.size()); ++i) r.cells[std::size_t(at - r.user) + i].host_wrote = true;
    }
}

namespace detail {
// For access_hooks.cpp.
void link_hooks() { hooks_linked = true; }
void hooked_access(const void* address, std::size_t bytes, bool write, const void* code) {
    machine& m = self();
    m.check(address, bytes, write ? access::write : access::read, code);
    m.abandon_noted();
}
std::string (*code_describer)(const void*) = nullptr;
}  // namespace detail

std::string machine::describe_code(const void* code) {
    return detail::code_describer != nullptr ? detail::code_describer(code) : std::string();
}

}  // namespace simt
