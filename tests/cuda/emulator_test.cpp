// What the emulator computes and which faults it reports.
#include <array>
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include "frugal/device/cuda/async_copy.cuh"
#include "frugal/device/cuda/tensor_core.cuh"

using namespace frugal::device::gpu;

namespace {

struct outcome {
    bool faulted = false;
    simt::fault kind{};
    std::string message;
};
template <class... P, class... A>
outcome run(void (*kernel)(P...), unsigned threads, A... arguments) {
    try {
        (void)launch(kernel, dim3(1), dim3(threads), 256, nullptr, arguments...);
    } catch (const simt::kernel_fault& f) {
        return {true, f.kind, f.what()};
    }
    return {};
}
#define CHECK_FAULT(expression, expected)               \
    do {                                                \
        const outcome o_ = (expression);                \
        CHECK(o_.faulted);                              \
        CHECK_MESSAGE(o_.kind == expected, o_.message); \
    } while (false)

template <int N = 0>
__global__ void indices(int* out) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += int(block * 1000 + thread);
}

template <int N = 0>
__global__ void warp_operations(int* out) {
    const int lane = int(threadIdx.x) % 32;
    int* o = out + threadIdx.x * 17;
    o[0] = __shfl_sync(full_warp, lane * 10, 5);
    o[1] = __shfl_sync(full_warp, lane * 10, 5, 8);
    o[2] = __shfl_up_sync(full_warp, lane, 3);
    o[3] = __shfl_down_sync(full_warp, lane, 3, 16);
    o[4] = __shfl_xor_sync(full_warp, lane, 17);
    o[5] = int(__ballot_sync(full_warp, lane % 3 == 0));
    o[6] = __any_sync(full_warp, lane == 7);
    o[7] = __all_sync(full_warp, lane < 31);
    o[8] = __reduce_add_sync(full_warp, lane - 20);
    o[9] = __reduce_max_sync(full_warp, lane - 40);
    o[10] =
        lane < 16 ? __shfl_xor_sync(0x0000FFFFu, lane, 1) : __shfl_xor_sync(0xFFFF0000u, lane, 2);  // two halves, two operations
    const double d = __shfl_down_sync(full_warp, lane * 0.5, 1);
    o[11] = int(d * 2);
    o[12] = __syncthreads_count(lane == 3);
    o[13] = __syncthreads_or(threadIdx.x == 40);
    o[14] = __syncthreads_and(threadIdx.x < 40);
    o[15] = int(__activemask() >> lane & 1);
    o[16] = int(__match_any_sync(full_warp, lane % 5 - 1));
}

struct tile {
    int value[64];
};
template <bool Barrier>
__global__ void reverse_by_shared(int* data) {
    auto& t = block_shared<tile>();
    t.value[threadIdx.x] = data[threadIdx.x];
    if (Barrier) __syncthreads();
    data[threadIdx.x] = t.value[blockDim.x - 1 - threadIdx.x];
}
template <int N = 0>
__global__ void all_atomics(int* i, float* f, unsigned* u) {
    atomicAdd(i, 2);
    atomicMax(i + 1, int(threadIdx.x));
    atomicMin(i + 2, int(threadIdx.x));
    atomicAdd(f, 0.5f);
    unsigned seen = *u, old;  // add by compare and swap
    do {
        old = seen;
        seen = atomicCAS(u, old, old + 1);
    } while (seen != old);
}
template <int N = 0>
__global__ void spin_lock(int* lock, int* count) {
    while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
    atomicAdd(count, 1);
    atomicExch(lock, 0);
}
template <int N = 0>
__global__ void dynamic(int* out) {
    int* s = dynamic_shared<int>();
    s[threadIdx.x] = int(threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < blockDim.x; ++i) *out += s[i];
}
// A plain __shared__ works, but nothing checks it.
template <int N = 0>
__global__ void keyword_shared(int* out) {
    __shared__ int s[32];
    s[threadIdx.x] = int(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = s[31 - threadIdx.x];
}
template <int N = 0>
__global__ void stale_shared(float* out) {
    out[threadIdx.x] = float(block_shared<tile>().value[threadIdx.x]);
}

// ---- faults
template <int N = 0>
__global__ void barrier_in_a_branch() {
    if (threadIdx.x < 16) __syncthreads();
}
template <int N = 0>
__global__ void exit_then_barrier() {
    if (threadIdx.x == 3) return;
    __syncthreads();
}
template <int N = 0>
__global__ void two_barriers() {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}
template <int N = 0>
__global__ void shuffle_in_a_branch(int* out) {
    if (threadIdx.x < 16) *out = __shfl_sync(full_warp, 1, 0);
    __syncthreads();
}
template <int N = 0>
__global__ void wrong_mask(int* out) {
    out[threadIdx.x] = __shfl_sync(0xFFFEu, 1, 2);
}
template <int N = 0>
__global__ void masks_differ(int* out) {
    out[threadIdx.x] = __shfl_sync(threadIdx.x < 8 ? 0xFFFFu : full_warp, 1, 0);
}
template <int N = 0>
__global__ void operations_differ(int* out) {
    out[threadIdx.x] = threadIdx.x < 8 ? __shfl_sync(full_warp, 1, 0) : int(__ballot_sync(full_warp, 1));
}
template <int N = 0>
__global__ void partial_warp(int* out) {
    out[threadIdx.x] = __shfl_xor_sync(full_warp, 1, 16);
}
template <int N = 0>
__global__ void spin_for_another_block(int* flag) {
    if (blockIdx.x + 1 < gridDim.x) {
        while (atomicAdd(flag, 0) == 0) __nanosleep(20);
    } else {
        atomicExch(flag, 1);
    }
}
template <int N = 0>
__global__ void too_much_shared() {
    (void)block_shared<float[20000]>();
}
template <int N = 0>
__global__ void beyond_shared(int n) {
    block_shared<tile>().value[n] = 1;
}
template <int N = 0>
__global__ void beyond_global(int* p, int n) {
    p[n] = 1;
}
template <int N = 0>
__global__ void add_without_atomic(int* p) {
    *p = *p + 1;
}
template <bool Sync>
__global__ void within_a_warp(int* out) {
    auto& t = block_shared<tile>();
    t.value[threadIdx.x] = 1;
    if (Sync) __syncwarp();
    out[threadIdx.x] = t.value[threadIdx.x ^ 1];
}
template <int N = 0>
__global__ void bytes_side_by_side(int* out) {  // neighbours, no race
    auto& t = block_shared<tile>();
    auto* bytes = reinterpret_cast<unsigned char*>(t.value);
    bytes[threadIdx.x] = 1;
    out[threadIdx.x] = bytes[threadIdx.x];
}
template <int Wait>
__global__ void async(const int* from, int* out) {
    auto& t = block_shared<tile>();
    async_copy_16(&t.value[threadIdx.x * 4], from + threadIdx.x * 4);
    async_copy_commit();
    if (Wait == 0) async_copy_wait<0>();
    __syncthreads();
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + unsigned(i)] = t.value[63 - (threadIdx.x * 4 + unsigned(i))];
}
template <int N = 0>
__global__ void small_mma(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d) {  // a [16][16], b [16][8] by rows
    struct matrix {
        alignas(16) __nv_bfloat16 x[16][8];
    };
    auto& shared = block_shared<matrix>();
    const int lane = int(threadIdx.x), row = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) shared.x[lane / 2][lane % 2 * 4 + i] = b[lane * 4 + i];
    __syncwarp();
    fragment_a fa;
    for (int x = 0; x < 4; ++x) fa.x[x] = *reinterpret_cast<const std::uint32_t*>(a + (row + x % 2 * 8) * 16 + pair + x / 2 * 8);
    fragment_c c{};
    multiply_add(c, fa, load_transposed(&shared.x[lane % 16][0]));
    for (int x = 0; x < 4; ++x) d[(row + x / 2 * 8) * 8 + pair + x % 2] = c.x[x];
}

}  // namespace

TEST_CASE("grid and block indices") {
    simt::for_each_schedule([] {
        simt::device_array<int> out(std::vector<int>(2 * 3 * 2 * 24, 0));
        (void)launch(indices<>, dim3(2, 3, 2), dim3(2, 3, 4), 0, nullptr, out.data());
        const auto got = out.to_host();
        for (int b = 0; b < 12; ++b)
            for (int t = 0; t < 24; ++t) CHECK(got[std::size_t(b * 24 + t)] == b * 1000 + t);
    });
}

TEST_CASE("warp operations") {
    simt::for_each_schedule([] {
        simt::device_array<int> out(64 * 17);
        (void)launch(warp_operations<>, dim3(1), dim3(64), 0, nullptr, out.data());
        const auto got = out.to_host();
        for (int t = 0; t < 64; ++t) {
            const int lane = t % 32;
            const int* o = got.data() + t * 17;
            CHECK(o[0] == 50);
            CHECK(o[1] == (lane / 8 * 8 + 5) * 10);
            CHECK(o[2] == (lane < 3 ? lane : lane - 3));
            CHECK(o[3] == (lane % 16 < 13 ? lane + 3 : lane));
            CHECK(o[4] == (lane ^ 17));
            CHECK(unsigned(o[5]) == 0x49249249u);
            CHECK(o[6] == 1);
            CHECK(o[7] == 0);
            CHECK(o[8] == 31 * 16 - 20 * 32);
            CHECK(o[9] == -9);
            CHECK(o[10] == (lane < 16 ? lane ^ 1 : lane ^ 2));
            CHECK(o[11] == (lane < 31 ? lane + 1 : lane));
            CHECK(o[12] == 2);
            CHECK(o[13] == 1);
            CHECK(o[14] == 0);
            CHECK(o[15] == 1);
            CHECK(unsigned(o[16]) ==
                  (std::array{0x42108421u, 0x84210842u, 0x08421084u, 0x10842108u, 0x21084210u}[std::size_t(lane % 5)]));
        }
    });
}

TEST_CASE("shared memory, static, dynamic and by keyword") {
    std::vector<int> numbers(64);
    for (int i = 0; i < 64; ++i) numbers[std::size_t(i)] = i;
    simt::for_each_schedule([&] {
        simt::device_array<int> data(numbers), sum(std::vector<int>{0}), mirrored(32);
        (void)launch(reverse_by_shared<true>, dim3(1), dim3(64), 0, nullptr, data.data());
        CHECK(data.to_host() == std::vector<int>(numbers.rbegin(), numbers.rend()));
        CHECK(simt::last_launch().barriers.size() == 1);
        CHECK(simt::last_launch().shared_bytes == 256);
        (void)launch(dynamic<>, dim3(1), dim3(64), 256, nullptr, sum.data());
        CHECK(sum.to_host()[0] == 63 * 32);
        (void)launch(keyword_shared<>, dim3(1), dim3(32), 0, nullptr, mirrored.data());
        CHECK(mirrored.to_host()[0] == 31);
    });
}

TEST_CASE("atomics") {
    simt::for_each_schedule([] {
        simt::device_array<int> i(std::vector<int>{0, 0, 999});
        simt::device_array<float> f(std::vector<float>{0});
        simt::device_array<unsigned> u(std::vector<unsigned>{0});
        simt::config().check_between_blocks = false;  // the plain first read of *u
        if (!simt::access_checks_active()) {
            (void)launch(all_atomics<>, dim3(3), dim3(100), 0, nullptr, i.data(), f.data(), u.data());
            CHECK(i.to_host() == std::vector<int>{600, 99, 0});
            CHECK(f.to_host()[0] == 150.0f);
            CHECK(u.to_host()[0] == 300);
        } else {
            CHECK_FAULT(run(all_atomics<>, 100, i.data(), f.data(), u.data()),
                        simt::fault::race);  // the plain read of *u beside atomics
        }
        simt::device_array<int> lock(std::vector<int>{0}), count(std::vector<int>{0});
        (void)launch(spin_lock<>, dim3(1), dim3(64), 0, nullptr, lock.data(), count.data());
        CHECK(count.to_host()[0] == 64);
    });
}

TEST_CASE("matrix multiply-add") {
    std::vector<__nv_bfloat16> a, b;
    for (int i = 0; i < 256; ++i) a.push_back(__float2bfloat16_rn(float(i * 7 % 13 - 6)));
    for (int i = 0; i < 128; ++i) b.push_back(__float2bfloat16_rn(float(i * 5 % 11 - 5)));
    simt::for_each_schedule([&] {
        simt::device_array<__nv_bfloat16> da(a), db(b);
        simt::device_array<float> d(128);
        (void)launch(small_mma<>, dim3(1), dim3(32), 0, nullptr, da.data(), db.data(), d.data());
        const auto got = d.to_host();
        for (int m = 0; m < 16; ++m)
            for (int n = 0; n < 8; ++n) {
                float sum = 0;
                for (int k = 0; k < 16; ++k)
                    sum += __bfloat162float(a[std::size_t(m * 16 + k)]) * __bfloat162float(b[std::size_t(k * 8 + n)]);
                CHECK(got[std::size_t(m * 8 + n)] == sum);
            }
    });
}

TEST_CASE("divergence is reported") {
    simt::device_array<int> out(64);
    simt::for_each_schedule([&] {
        CHECK_FAULT(run(barrier_in_a_branch<>, 64), simt::fault::divergent_barrier);
        CHECK_FAULT(run(exit_then_barrier<>, 64), simt::fault::divergent_barrier);
        CHECK_FAULT(run(two_barriers<>, 64), simt::fault::divergent_barrier);
        CHECK_FAULT(run(wrong_mask<>, 32, out.data()), simt::fault::lane_not_in_mask);
        CHECK_FAULT(run(operations_differ<>, 32, out.data()), simt::fault::divergent_collective);
        CHECK_FAULT(run(partial_warp<>, 24, out.data()), simt::fault::inactive_source);
        CHECK_FAULT(run(masks_differ<>, 32, out.data()), simt::fault::divergent_collective);
        const auto branch = run(shuffle_in_a_branch<>, 32, out.data());
        CHECK(branch.faulted);
        CHECK(branch.kind == simt::fault::deadlock);
        CHECK(branch.message.find("__shfl_sync (emulator_test.cpp:") != std::string::npos);
        CHECK(branch.message.find("__syncthreads (emulator_test.cpp:") != std::string::npos);
    });
    simt::config().allow_exit_before_barrier = true;
    CHECK_FALSE(run(exit_then_barrier<>, 64).faulted);
    CHECK_FALSE(run(barrier_in_a_branch<>, 64).faulted);
    simt::config() = {};
}

TEST_CASE("waiting for another block is reported") {
    simt::device_array<int> flag(std::vector<int>{0});
    outcome o;
    try {
        (void)launch(spin_for_another_block<>, dim3(2), dim3(32), 0, nullptr, flag.data());
    } catch (const simt::kernel_fault& f) {
        o = {true, f.kind, f.what()};
    }
    CHECK(o.faulted);
    CHECK(o.kind == simt::fault::deadlock);
}

TEST_CASE("the emulator goes on after a fault") {
    for (int i = 0; i < 100; ++i) CHECK(run(exit_then_barrier<>, 256).faulted);
}

TEST_CASE("impossible launches are reported") {
    CHECK_FAULT(run(exit_then_barrier<>, 1025), simt::fault::bad_launch);
    CHECK_FAULT(run(too_much_shared<>, 32), simt::fault::bad_launch);
}

TEST_CASE("shared memory starts as NaN bytes in every block") {
    if (simt::access_checks_active()) return;  // there it is a fault
    simt::device_array<float> out(32);
    (void)launch(stale_shared<>, dim3(2), dim3(32), 0, nullptr, out.data());
    CHECK(out.to_host()[5] == -1.0f);
}

TEST_CASE("a missing barrier or wait shows under some order") {
    std::vector<int> numbers(64, 7);
    bool faulted = false;
    const bool same = simt::same_under_all_schedules([&] {
        simt::device_array<int> data(numbers);
        faulted = run(reverse_by_shared<false>, 64, data.data()).faulted || faulted;
        return data.to_host();
    });
    CHECK((faulted || !same));
    const auto copies = [&](auto kernel) {
        simt::device_array<int> from(numbers), out(std::vector<int>(64, 0));
        try {
            (void)launch(kernel, dim3(1), dim3(16), 0, nullptr, from.data(), out.data());
        } catch (const simt::kernel_fault&) {
        }
        return out.to_host() == numbers;
    };
    CHECK(copies(async<0>));
    CHECK_FALSE(copies(async<1>));
}

TEST_CASE("access checks") {
    if (!simt::access_checks_active()) return;
    using simt::fault;
    std::vector<int> numbers(64, 7);
    simt::for_each_schedule([&] {
        simt::device_array<int> data(numbers), one(std::vector<int>{0}), nobody_wrote(64);
        CHECK(run(reverse_by_shared<false>, 64, data.data()).faulted);  // a race, or a read before the write, by the order
        CHECK_FAULT(run(beyond_shared<>, 1, 64), fault::out_of_bounds);
        CHECK_FAULT(run(beyond_shared<>, 1, -1), fault::out_of_bounds);
        CHECK_FAULT(run(beyond_global<>, 1, data.data(), 64), fault::out_of_bounds);
        CHECK_FAULT(run(add_without_atomic<>, 2, one.data()), fault::race);
        CHECK_FAULT(run(reverse_by_shared<true>, 64, nobody_wrote.data()), fault::uninitialised_read);
        CHECK(run(within_a_warp<false>, 32, data.data()).faulted);
        CHECK_FALSE(run(within_a_warp<true>, 32, data.data()).faulted);
        CHECK_FALSE(run(bytes_side_by_side<>, 64, data.data()).faulted);
        outcome blocks;
        try {
            (void)launch(add_without_atomic<>, dim3(2), dim3(1), 0, nullptr, one.data());
        } catch (const simt::kernel_fault& f) {
            blocks = {true, f.kind, f.what()};
        }
        CHECK(blocks.faulted);
        CHECK(blocks.message.find("another block") != std::string::npos);
    });
}

// Ends the program, so each runs alone, and only under AddressSanitizer (see CMakeLists.txt).
TEST_CASE("sanitizer: beyond a shared variable" * doctest::skip()) { (void)run(beyond_shared<>, 1, 64); }
TEST_CASE("sanitizer: beyond a global array" * doctest::skip()) {
    simt::device_array<int> data(64);
    (void)run(beyond_global<>, 1, data.data(), 64);
}
