#pragma once
/// Which formats the compiled kernels (frugal::kernels) are for.
#include <type_traits>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

namespace detail {
template <class F>
inline constexpr bool is_of_the_library = false;
template <class F>
    requires requires { typename F::library_format; }
inline constexpr bool is_of_the_library<F> = std::is_same_v<typename F::library_format, F>;  // not what derives from one
}  // namespace detail

/// Whether some object of the program has the CPU kernels of a format, where FRUGAL_EXTERN_KERNELS says that they are compiled
/// apart. For a format of your own whose kernels you instantiate yourself (as kernels/cpu does) specialise it as true.
template <class F>
inline constexpr bool has_compiled_kernels = detail::is_of_the_library<F>;

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
