#pragma once
/// Arithmetic without denormal numbers, for as long as an object lives.
#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// While it lives, this thread's vector arithmetic takes denormal numbers for 0 and gives 0 instead of them: some processors
/// need a hundred times as long for one. What decays gets there by itself. Then the caller's mode is back. Elsewhere than on
/// x86 nothing changes.
class FRUGAL_FLAGGED flush_denormals {
public:
    FRUGAL_ALWAYS_INLINE flush_denormals() noexcept {
#if defined(__SSE2__)
        constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
        before_ = __builtin_ia32_stmxcsr();
        set(before_ | flush_to_zero | denormals_are_zero);
#endif
    }
    FRUGAL_ALWAYS_INLINE ~flush_denormals() {
#if defined(__SSE2__)
        set(before_);
#endif
    }
    flush_denormals(const flush_denormals&) = delete;
    flush_denormals& operator=(const flush_denormals&) = delete;

private:
#if defined(__SSE2__)
    FRUGAL_ALWAYS_INLINE static void set(unsigned mode) noexcept {
        asm volatile("" ::: "memory");  // what was loaded and stored before stays before
        __builtin_ia32_ldmxcsr(mode);
        asm volatile("" ::: "memory");
    }
    unsigned before_ = 0;
#endif
};

}  // namespace device

FRUGAL_NAMESPACE_END
