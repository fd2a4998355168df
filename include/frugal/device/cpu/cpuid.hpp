#pragma once
/// What the processor and the operating system offer, asked at run time.
///
/// Own CPUID reads rather than __builtin_cpu_supports: clang 14 does not know "f16c" there, and the builtin does not name
/// all that -march=x86-64-v4 -mavx512vnni lets the compiler use. Forced inline: the answers are needed in differently flagged
/// objects.
#include "frugal/core/config.hpp"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

FRUGAL_NAMESPACE_BEGIN

namespace device::cpuid {

#if defined(__x86_64__) || defined(__i386__)

namespace detail {

struct registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

/// All zero where the processor has no such leaf.
FRUGAL_ALWAYS_INLINE registers leaf(unsigned number, unsigned sub = 0) noexcept {
    registers out;
    if (__get_cpuid_count(number, sub, &out.a, &out.b, &out.c, &out.d) == 0) return {};
    return out;
}

FRUGAL_ALWAYS_INLINE bool has_bits(unsigned value, unsigned bits) noexcept { return (value & bits) == bits; }

/// Register state that the operating system saves (XCR0); 0 where it does not say.
FRUGAL_ALWAYS_INLINE unsigned saved_state() noexcept {
    constexpr unsigned osxsave = 1u << 27;
    if (!has_bits(leaf(1).c, osxsave)) return 0;
    unsigned low = 0;
    [[maybe_unused]] unsigned high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

}  // namespace detail

/// AVX2 with FMA and F16C, and the operating system saves the 256-bit registers.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool has_avx2() noexcept {
    constexpr unsigned fma = 1u << 12, avx = 1u << 28, f16c = 1u << 29, avx2 = 1u << 5;
    constexpr unsigned xmm_ymm = 0x6;
    return detail::has_bits(detail::leaf(1).c, fma | avx | f16c) && detail::has_bits(detail::leaf(7).b, avx2) &&
           detail::has_bits(detail::saved_state(), xmm_ymm);
}

/// All of x86-64-v4 (AVX-512 F, BW, CD, DQ, VL and what v3 has) and VNNI, and the operating system saves the 512-bit registers.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool has_avx512() noexcept {
    constexpr unsigned movbe = 1u << 22, lzcnt = 1u << 5, bmi1 = 1u << 3, bmi2 = 1u << 8;
    constexpr unsigned f = 1u << 16, dq = 1u << 17, cd = 1u << 28, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
    constexpr unsigned xmm_ymm_zmm = 0xE6;
    return has_avx2() && detail::has_bits(detail::leaf(1).c, movbe) && detail::has_bits(detail::leaf(0x80000001u).c, lzcnt) &&
           detail::has_bits(detail::leaf(7).b, bmi1 | bmi2 | f | dq | cd | bw | vl) &&
           detail::has_bits(detail::leaf(7).c, vnni) && detail::has_bits(detail::saved_state(), xmm_ymm_zmm);
}

/// AMX with 8-bit integers, and the operating system saves tiles. A process must ask for them too; see amx.hpp.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool has_amx_int8() noexcept {
    constexpr unsigned tile = 1u << 24, int8 = 1u << 25, tile_state = 0x60000;
    return detail::has_bits(detail::leaf(7).d, tile | int8) && detail::has_bits(detail::saved_state(), tile_state);
}

/// AMX with bfloat16, in the same sense.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool has_amx_bf16() noexcept {
    constexpr unsigned tile = 1u << 24, bf16 = 1u << 22, tile_state = 0x60000;
    return detail::has_bits(detail::leaf(7).d, tile | bf16) && detail::has_bits(detail::saved_state(), tile_state);
}

#else

[[nodiscard]] FRUGAL_ALWAYS_INLINE bool has_amx_bf16() noexcept { return false; }
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool has_amx_int8() noexcept { return false; }
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool has_avx2() noexcept { return false; }
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool has_avx512() noexcept { return false; }

#endif

}  // namespace device::cpuid

FRUGAL_NAMESPACE_END
