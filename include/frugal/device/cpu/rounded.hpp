#pragma once
/// A product that is rounded by itself, whatever the compiler may fuse.
#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace simd {

/// `value`, which is a product: what is added to it is not fused with it. Compilers fuse as they please where flags let them,
/// another way in each loop that they unroll, and the last bit goes with it. Of registers: device/cpu/simd.hpp.
FRUGAL_ALWAYS_INLINE float rounded(float value) noexcept {
#if defined(__FMA__)
    asm("" : "+x"(value));
#elif defined(__aarch64__)
    asm("" : "+w"(value));
#endif
    return value;
}

}  // namespace simd

FRUGAL_NAMESPACE_END
