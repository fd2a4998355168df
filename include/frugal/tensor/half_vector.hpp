#pragma once
/// Eight halves as floats in one instruction (F16C), for kernels. Forced inline.
#include <cstring>

#include "frugal/core/config.hpp"

#if defined(__F16C__) && defined(__AVX__)
#define FRUGAL_HAS_HALF_VECTOR 1

FRUGAL_NAMESPACE_BEGIN

namespace detail {

typedef float floats_8 __attribute__((vector_size(32)));

/// The eight halves at `from`, exactly.
[[nodiscard]] FRUGAL_ALWAYS_INLINE floats_8 load_eight_halves(const void* from) noexcept {
    // <immintrin.h> would cost every file a second. gcc and clang up to 21 have the builtin, clang from 15 on the type.
#if __has_builtin(__builtin_ia32_vcvtph2ps256)
    typedef short bits_8 __attribute__((vector_size(16)));
    bits_8 bits;
    std::memcpy(&bits, from, sizeof(bits));
    return __builtin_ia32_vcvtph2ps256(bits);
#else
    typedef _Float16 halves_8 __attribute__((vector_size(16)));
    halves_8 halves;
    std::memcpy(&halves, from, sizeof(halves));
    return __builtin_convertvector(halves, floats_8);
#endif
}

}  // namespace detail

FRUGAL_NAMESPACE_END

#else
#define FRUGAL_HAS_HALF_VECTOR 0
#endif
