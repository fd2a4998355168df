// Access checks without a compiler plug-in: kernels are *compiled* with -fsanitize=thread, which makes the compiler call a
// function for every load and store, but the program is *linked* without that sanitizer's runtime, and these functions receive
// the calls. Works the same with gcc and clang. This file is compiled without the flag.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include <dlfcn.h>

namespace simt::detail {
void link_hooks();
void hooked_access(const void* address, std::size_t bytes, bool write, const void* code);
extern std::string (*code_describer)(const void*);
}  // namespace simt::detail

namespace {
std::string describe(const void* code) {
    Dl_info info{};
    if (dladdr(code, &info) == 0) return {};
    char line[64];
    std::snprintf(line, sizeof line, " (addr2line -Cfie PROGRAM 0x%zx)",
                  std::size_t(static_cast<const char*>(code) - static_cast<const char*>(info.dli_fbase)) - 1);
    return line;
}
[[maybe_unused]] const bool linked = [] {
    simt::detail::link_hooks();
    simt::detail::code_describer = &describe;
    return true;
}();
}  // namespace

#define SIMT_HERE __builtin_return_address(0)
#define SIMT_HOOK(name, bytes, write) \
    extern "C" void name(void* p) { simt::detail::hooked_access(p, bytes, write, SIMT_HERE); }

SIMT_HOOK(__tsan_read1, 1, false)
SIMT_HOOK(__tsan_read2, 2, false)
SIMT_HOOK(__tsan_read4, 4, false)
SIMT_HOOK(__tsan_read8, 8, false)
SIMT_HOOK(__tsan_read16, 16, false)
SIMT_HOOK(__tsan_write1, 1, true)
SIMT_HOOK(__tsan_write2, 2, true)
SIMT_HOOK(__tsan_write4, 4, true)
SIMT_HOOK(__tsan_write8, 8, true)
SIMT_HOOK(__tsan_write16, 16, true)
SIMT_HOOK(__tsan_unaligned_read2, 2, false)
SIMT_HOOK(__tsan_unaligned_read4, 4, false)
SIMT_HOOK(__tsan_unaligned_read8, 8, false)
SIMT_HOOK(__tsan_unaligned_read16, 16, false)
SIMT_HOOK(__tsan_unaligned_write2, 2, true)
SIMT_HOOK(__tsan_unaligned_write4, 4, true)
SIMT_HOOK(__tsan_unaligned_write8, 8, true)
SIMT_HOOK(__tsan_unaligned_write16, 16, true)
SIMT_HOOK(__tsan_vptr_read, sizeof(void*), false)

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* p, std::size_t n) { simt::detail::hooked_access(p, n, false, SIMT_HERE); }
void __tsan_write_range(void* p, std::size_t n) { simt::detail::hooked_access(p, n, true, SIMT_HERE); }
void* __tsan_memcpy(void* to, const void* from, std::size_t n) {
    simt::detail::hooked_access(from, n, false, SIMT_HERE);
    simt::detail::hooked_access(to, n, true, SIMT_HERE);
    return std::memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, std::size_t n) {
    simt::detail::hooked_access(from, n, false, SIMT_HERE);
    simt::detail::hooked_access(to, n, true, SIMT_HERE);
    return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int v, std::size_t n) {
    simt::detail::hooked_access(to, n, true, SIMT_HERE);
    return std::memset(to, v, n);
}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
}

// std::atomic in host code of an instrumented file (a test framework, say). Kernels use CUDA's own atomics, which need none of
// this.
#define SIMT_ATOMICS(bits)                                                                                               \
    extern "C" {                                                                                                         \
    using simt_u##bits = std::uint##bits##_t;                                                                            \
    simt_u##bits __tsan_atomic##bits##_load(const simt_u##bits* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
    void __tsan_atomic##bits##_store(simt_u##bits* p, simt_u##bits v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); } \
    simt_u##bits __tsan_atomic##bits##_exchange(simt_u##bits* p, simt_u##bits v, int) {                                  \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                              \
    }                                                                                                                    \
    simt_u##bits __tsan_atomic##bits##_fetch_add(simt_u##bits* p, simt_u##bits v, int) {                                 \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                               \
    }                                                                                                                    \
    simt_u##bits __tsan_atomic##bits##_fetch_sub(simt_u##bits* p, simt_u##bits v, int) {                                 \
        return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                                               \
    }                                                                                                                    \
    simt_u##bits __tsan_atomic##bits##_fetch_and(simt_u##bits* p, simt_u##bits v, int) {                                 \
        return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                                                               \
    }                                                                                                                    \
    simt_u##bits __tsan_atomic##bits##_fetch_or(simt_u##bits* p, simt_u##bits v, int) {                                  \
        return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                                                                \
    }                                                                                                                    \
    simt_u##bits __tsan_atomic##bits##_fetch_xor(simt_u##bits* p, simt_u##bits v, int) {                                 \
        return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST);                                                               \
    }                                                                                                                    \
    int __tsan_atomic##bits##_compare_exchange_strong(simt_u##bits* p, simt_u##bits* e, simt_u##bits v, int, int) {      \
        return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                          \
    }                                                                                                                    \
    int __tsan_atomic##bits##_compare_exchange_weak(simt_u##bits* p, simt_u##bits* e, simt_u##bits v, int, int) {        \
        return __atomic_compare_exchange_n(p, e, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
    }                                                                                                                    \
    simt_u##bits __tsan_atomic##bits##_compare_exchange_val(simt_u##bits* p, simt_u##bits e, simt_u##bits v, int, int) { \
        __atomic_compare_exchange_n(p, &e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                \
        return e;                                                                                                        \
    }                                                                                                                    \
    }
SIMT_ATOMICS(8)
SIMT_ATOMICS(16)
SIMT_ATOMICS(32)
SIMT_ATOMICS(64)
