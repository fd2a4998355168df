#pragma once
/// Which formats the compiled kernels (frugal::kernels) are for.
#include <type_traits>

#include "frugal/core/config.hpp"

/// X(format): every format of the library. formats.hpp includes their files.
#define FRUGAL_FORMATS(X) \
    X(f32)                \
    X(f16)                \
    X(bf16)               \
    X(q8_0)               \
    X(q4_0)               \
    X(q4_1)               \
    X(q5_0)               \
    X(q5_1)               \
    X(q4_k)               \
    X(q5_k)               \
    X(q6_k)               \
    X(iq4_nl)             \
    X(iq4_xs)             \
    X(mxfp4)

FRUGAL_NAMESPACE_BEGIN

namespace quant {

#define FRUGAL_DECLARE_FORMAT(format) struct format;
FRUGAL_FORMATS(FRUGAL_DECLARE_FORMAT)
#undef FRUGAL_DECLARE_FORMAT

#define FRUGAL_IS_FORMAT(format) || std::is_same_v<F, format>
/// Whether some object of the program has the CPU kernels of a format, where FRUGAL_EXTERN_KERNELS says that they are compiled
/// apart. For a format of your own whose kernels you instantiate yourself (as kernels/cpu does) specialise it as true.
template <class F>
inline constexpr bool has_compiled_kernels = false FRUGAL_FORMATS(FRUGAL_IS_FORMAT);
#undef FRUGAL_IS_FORMAT

}  // namespace quant

FRUGAL_NAMESPACE_END

/// Where a kernel is called for a format.
#if defined(FRUGAL_EXTERN_KERNELS)
#define FRUGAL_REQUIRE_KERNELS(Format)                                                                             \
    static_assert(::frugal::quant::has_compiled_kernels<Format>,                                                   \
                  "frugal: frugal::kernels (FRUGAL_EXTERN_KERNELS) has no kernels for a format of your own; link " \
                  "frugal::frugal in this target, or instantiate them and specialise quant::has_compiled_kernels")
#else
#define FRUGAL_REQUIRE_KERNELS(Format) static_assert(true)
#endif
