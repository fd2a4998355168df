// CUDA's language for a plain C++ compiler: the keywords, built-in variables and device functions that kernels use, in the global
// namespace as in CUDA. Only what the tests of a kernel library need; add here what a new kernel uses.
//
// The types (dim3, float4, __half, __nv_bfloat16, ...) and the conversions and arithmetic on them are NVIDIA's own: the toolkit's
// cuda_fp16.h and cuda_bf16.h compile with g++ and clang. What they declare for device code only is added below.
#pragma once

#if defined(__CUDACC__)
#error "simt/language.hpp stands in for nvcc; do not compile it with nvcc"
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <driver_types.h>
#include <vector_functions.h>

#include "simt/builtin_variables.hpp"
#include "simt/emulator.hpp"
#include "simt/runtime.hpp"

// The toolkit's headers leave these empty for a host compiler.
#undef __shared__
#undef __launch_bounds__
#define __shared__ \
    static thread_local  // right for one block at a time; NOT poisoned or checked, see README: use block_shared<T>()
#define __launch_bounds__(...)

// ---- launches
namespace simt {
/// Queues `kernel` on the stream (runtime.hpp). A fault is thrown where the queue runs; on the null stream that is here.
template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, cudaStream_t stream,
                   std::tuple<Parameters...> arguments) {
    return enqueue_kernel(stream, [=] {
        struct call_t {
            void (*kernel)(Parameters...);
            const std::tuple<Parameters...>& arguments;
        } call{kernel, arguments};
        const auto one_thread = [](void* c) {
            const auto& closure = *static_cast<call_t*>(c);
            std::apply(closure.kernel, closure.arguments);
        };
        run_grid(grid, block, dynamic_shared_bytes, one_thread, &call);
    });
}
}  // namespace simt

// ---- barriers and fences
inline void __syncthreads(simt::where at = simt::where::here()) { simt::block_barrier(simt::barrier_reduction::none, 0, at); }
inline int __syncthreads_count(int predicate, simt::where at = simt::where::here()) {
    return simt::block_barrier(simt::barrier_reduction::count, predicate, at);
}
inline int __syncthreads_and(int predicate, simt::where at = simt::where::here()) {
    return simt::block_barrier(simt::barrier_reduction::all, predicate, at);
}
inline int __syncthreads_or(int predicate, simt::where at = simt::where::here()) {
    return simt::block_barrier(simt::barrier_reduction::any, predicate, at);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, simt::where at = simt::where::here()) {
    simt::converge(mask, nullptr, nullptr, "__syncwarp", at, true);
}
inline void __threadfence_block() {}
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { simt::yield_thread(); }
inline unsigned __activemask() { return simt::active_lanes(); }

// ---- shuffles
namespace simt::shuffles {
enum class kind { index, up, down, exclusive_or };
struct record {
    std::uint64_t bits;
    int lane_argument, width;
    bool bad_source;
};
template <kind K>
void complete(warp_view& view) {
    std::uint64_t given[32];
    for (int lane = 0; lane < 32; ++lane)
        given[lane] = view.record[lane] != nullptr ? static_cast<record*>(view.record[lane])->bits : 0;
    for (int lane = 0; lane < 32; ++lane) {
        if (view.record[lane] == nullptr) continue;
        record& r = *static_cast<record*>(view.record[lane]);
        const int first = lane / r.width * r.width;
        int from = lane;
        if constexpr (K == kind::index) from = first + (r.lane_argument & (r.width - 1));
        if constexpr (K == kind::up) from = lane - r.lane_argument;
        if constexpr (K == kind::down) from = lane + r.lane_argument;
        if constexpr (K == kind::exclusive_or) from = lane ^ r.lane_argument;
        // Outside the segment a lane keeps its own value; an exclusive-or may reach back into an earlier segment.
        if (from < (K == kind::exclusive_or ? 0 : first) || from >= first + r.width) from = lane;
        r.bad_source = (view.active >> from & 1) == 0;
        r.bits = given[from];
    }
}
template <kind K, class T>
T run(const char* operation, unsigned mask, T value, int lane_argument, int width, where at) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    record r{0, lane_argument, width, false};
    std::memcpy(&r.bits, &value, sizeof(T));
    converge(mask, &r, &complete<K>, operation, at);
    if (r.bad_source)
        raise(fault::inactive_source, std::string(operation) + " (" + at.file + ":" + std::to_string(at.line) + ")");
    std::memcpy(&value, &r.bits, sizeof(T));
    return value;
}
}  // namespace simt::shuffles

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, simt::where at = simt::where::here()) {
    return simt::shuffles::run<simt::shuffles::kind::index>("__shfl_sync", mask, value, lane, width, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, simt::where at = simt::where::here()) {
    return simt::shuffles::run<simt::shuffles::kind::up>("__shfl_up_sync", mask, value, int(delta), width, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, simt::where at = simt::where::here()) {
    return simt::shuffles::run<simt::shuffles::kind::down>("__shfl_down_sync", mask, value, int(delta), width, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, simt::where at = simt::where::here()) {
    return simt::shuffles::run<simt::shuffles::kind::exclusive_or>("__shfl_xor_sync", mask, value, lane_mask, width, at);
}

// ---- votes and warp reductions
namespace simt::reductions {
struct ballot {
    static unsigned start() { return 0; }
    static unsigned step(unsigned all, unsigned value, int lane) { return all | (value != 0 ? 1u << lane : 0u); }
};
struct add {
    static unsigned start() { return 0; }
    static unsigned step(unsigned all, unsigned value, int) { return all + value; }
};
struct bit_or {
    static unsigned start() { return 0; }
    static unsigned step(unsigned all, unsigned value, int) { return all | value; }
};
struct bit_and {
    static unsigned start() { return ~0u; }
    static unsigned step(unsigned all, unsigned value, int) { return all & value; }
};
struct bit_xor {
    static unsigned start() { return 0; }
    static unsigned step(unsigned all, unsigned value, int) { return all ^ value; }
};
struct max_u {
    static unsigned start() { return 0; }
    static unsigned step(unsigned all, unsigned value, int) { return value > all ? value : all; }
};
struct min_u {
    static unsigned start() { return ~0u; }
    static unsigned step(unsigned all, unsigned value, int) { return value < all ? value : all; }
};
struct max_i {
    static unsigned start() { return 0x80000000u; }
    static unsigned step(unsigned all, unsigned value, int) { return int(value) > int(all) ? value : all; }
};
struct min_i {
    static unsigned start() { return 0x7FFFFFFFu; }
    static unsigned step(unsigned all, unsigned value, int) { return int(value) < int(all) ? value : all; }
};
template <class Op>
void complete(warp_view& view) {
    unsigned all = Op::start();
    for (int lane = 0; lane < 32; ++lane)
        if (view.record[lane] != nullptr) all = Op::step(all, *static_cast<unsigned*>(view.record[lane]), lane);
    for (void* r : view.record)
        if (r != nullptr) *static_cast<unsigned*>(r) = all;
}
template <class Op>
unsigned run(const char* operation, unsigned mask, unsigned value, where at) {
    converge(mask, &value, &complete<Op>, operation, at);
    return value;
}
}  // namespace simt::reductions

inline unsigned __ballot_sync(unsigned mask, int predicate, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::ballot>("__ballot_sync", mask, unsigned(predicate), at);
}
inline int __any_sync(unsigned mask, int predicate, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::bit_or>("__any_sync", mask, predicate != 0, at) != 0;
}
inline int __all_sync(unsigned mask, int predicate, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::min_u>("__all_sync", mask, predicate != 0, at) != 0;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::add>("__reduce_add_sync", mask, value, at);
}
inline int __reduce_add_sync(unsigned mask, int value, simt::where at = simt::where::here()) {
    return int(simt::reductions::run<simt::reductions::add>("__reduce_add_sync", mask, unsigned(value), at));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::max_u>("__reduce_max_sync", mask, value, at);
}
inline int __reduce_max_sync(unsigned mask, int value, simt::where at = simt::where::here()) {
    return int(simt::reductions::run<simt::reductions::max_i>("__reduce_max_sync", mask, unsigned(value), at));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::min_u>("__reduce_min_sync", mask, value, at);
}
inline int __reduce_min_sync(unsigned mask, int value, simt::where at = simt::where::here()) {
    return int(simt::reductions::run<simt::reductions::min_i>("__reduce_min_sync", mask, unsigned(value), at));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::bit_or>("__reduce_or_sync", mask, value, at);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::bit_and>("__reduce_and_sync", mask, value, at);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, simt::where at = simt::where::here()) {
    return simt::reductions::run<simt::reductions::bit_xor>("__reduce_xor_sync", mask, value, at);
}

namespace simt::matches {
struct record {
    std::uint64_t bits;
    unsigned lanes;
};
inline void complete(warp_view& view) {
    for (void* own : view.record) {
        if (own == nullptr) continue;
        auto& r = *static_cast<record*>(own);
        for (int lane = 0; lane < 32; ++lane)
            if (view.record[lane] != nullptr && static_cast<record*>(view.record[lane])->bits == r.bits) r.lanes |= 1u << lane;
    }
}
}  // namespace simt::matches
template <class T>
unsigned __match_any_sync(unsigned mask, T value, simt::where at = simt::where::here()) {
    static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
    simt::matches::record r{static_cast<std::uint64_t>(value), 0};
    simt::converge(mask, &r, &simt::matches::complete, "__match_any_sync", at);
    return r.lanes;
}

// ---- atomics. The threads of this process's grid never run at once, so plain code is atomic. `SIMT_UNCHECKED` keeps the
// compiler from reporting these accesses a second time, as plain ones.
#define SIMT_UNCHECKED __attribute__((noinline, no_sanitize_thread))
namespace simt::atomics {
template <class T, class F>
SIMT_UNCHECKED T apply(T* address, F f) {
    if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T) != 0) raise(fault::misaligned, "atomic operation");
    note_access(address, sizeof(T), access::atomic);
    const T old = *address;
    *address = f(old);
    return old;
}
template <class T>
concept word = std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;
template <class T>
concept addable = word<T> || std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, __half> ||
    std::is_same_v<T, __nv_bfloat16>;
}  // namespace simt::atomics

template <simt::atomics::addable T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
    return simt::atomics::apply(
        p, [v](T o) __attribute__((no_sanitize_thread)) { return T(o + v); });
}
template <simt::atomics::word T>
T atomicSub(T* p, std::type_identity_t<T> v) {
    return simt::atomics::apply(
        p, [v](T o) __attribute__((no_sanitize_thread)) { return T(o - v); });
}
template <simt::atomics::word T>
T atomicMax(T* p, std::type_identity_t<T> v) {
    return simt::atomics::apply(
        p, [v](T o) __attribute__((no_sanitize_thread)) { return o > v ? o : v; });
}
template <simt::atomics::word T>
T atomicMin(T* p, std::type_identity_t<T> v) {
    return simt::atomics::apply(
        p, [v](T o) __attribute__((no_sanitize_thread)) { return o < v ? o : v; });
}
template <simt::atomics::word T>
T atomicAnd(T* p, std::type_identity_t<T> v) {
    return simt::atomics::apply(
        p, [v](T o) __attribute__((no_sanitize_thread)) { return T(o & v); });
}
template <simt::atomics::word T>
T atomicOr(T* p, std::type_identity_t<T> v) {
    return simt::atomics::apply(
        p, [v](T o) __attribute__((no_sanitize_thread)) { return T(o | v); });
}
template <simt::atomics::word T>
T atomicXor(T* p, std::type_identity_t<T> v) {
    return simt::atomics::apply(
        p, [v](T o) __attribute__((no_sanitize_thread)) { return T(o ^ v); });
}
template <class T>
    requires simt::atomics::word<T> || std::is_same_v<T, float> T atomicExch(T* p, std::type_identity_t<T> v) {
        return simt::atomics::apply(
            p, [v](T) __attribute__((no_sanitize_thread)) { return v; });
    }
template <simt::atomics::word T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
    const T old = simt::atomics::apply(
        p, [=](T o) __attribute__((no_sanitize_thread)) { return o == expected ? desired : o; });
    if (old != expected) simt::yield_thread();  // somebody may be spinning
    return old;
}

// ---- memory
template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
T __ldcg(const T* p) {
    return *p;
}
template <class T>
T __ldcs(const T* p) {
    return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> v) {
    *p = v;
}

// ---- arithmetic. The fast versions are the exact ones here: tests need a tolerance that covers the device's error.
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }

inline int __dp4a(int a, int b, int c) {
    std::int8_t x[4], y[4];
    std::memcpy(x, &a, 4);
    std::memcpy(y, &b, 4);
    unsigned sum = unsigned(c);
    for (int i = 0; i < 4; ++i) sum += unsigned(int(x[i]) * int(y[i]));
    return int(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 0xFF) * (b >> 8 * i & 0xFF);
    return c;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
    return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const std::uint64_t both = std::uint64_t(b) << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned s = selector >> 4 * i & 0xF;
        unsigned byte = unsigned(both >> 8 * (s & 7)) & 0xFF;
        if ((s & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
        r |= byte << 8 * i;
    }
    return r;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((std::uint64_t(high) << 32 | low) >> (shift & 31));
}
inline float __int_as_float(int x) {
    float f;
    std::memcpy(&f, &x, 4);
    return f;
}
inline float __uint_as_float(unsigned x) {
    float f;
    std::memcpy(&f, &x, 4);
    return f;
}
inline int __float_as_int(float x) {
    int i;
    std::memcpy(&i, &x, 4);
    return i;
}
inline unsigned __float_as_uint(float x) {
    unsigned i;
    std::memcpy(&i, &x, 4);
    return i;
}
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }

// ---- half and bfloat16: what the toolkit declares for device code only
inline __half __hfma(__half a, __half b, __half c) {
    return __float2half_rn(float(std::fma(double(__half2float(a)), double(__half2float(b)), double(__half2float(c)))));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __halves2half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
inline __half hexp(__half x) { return __float2half_rn(std::exp(__half2float(x))); }
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return __float2bfloat16_rn(std::fma(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    return __halves2bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline __nv_bfloat16 hexp(__nv_bfloat16 x) { return __float2bfloat16_rn(std::exp(__bfloat162float(x))); }
