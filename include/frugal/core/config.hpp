#pragma once
/// Namespace and compiler macros. Open the namespace only through FRUGAL_NAMESPACE_BEGIN / _END: the inline namespace
/// keeps objects built against another version or with checks on from being merged silently by the linker.
#include "frugal/core/flags.hpp"
#include "frugal/core/version.hpp"

#if defined(_MSVC_LANG)
#define FRUGAL_CPLUSPLUS _MSVC_LANG
#else
#define FRUGAL_CPLUSPLUS __cplusplus
#endif
#if FRUGAL_CPLUSPLUS < 202002L
#error "frugal: C++20 is required; compile with -std=c++20 (CMake: target_link_libraries(app frugal::frugal) sets it)"
#endif

// Kernels round by adding and subtracting a large number, let NaN through and promise bits: none of it survives these options.
// gcc has a macro for each of their parts, clang for the two worst; the others are turned off below. In CMake, for one file:
// set_source_files_properties(app.cpp PROPERTIES COMPILE_OPTIONS -fno-fast-math), which comes behind the target's own options.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(__ASSOCIATIVE_MATH__) || \
    defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "frugal: fast math breaks these kernels; add -fno-fast-math last for this file (CMake: its property COMPILE_OPTIONS)"
#endif

#if defined(FRUGAL_CHECKED)
#define FRUGAL_ABI v0_1_checked
#else
#define FRUGAL_ABI v0_1
#endif

#if defined(__clang__) && (defined(__x86_64__) || __clang_major__ >= 18)  // where targets know float_control
#define FRUGAL_PRECISE_BEGIN _Pragma("float_control(push)") _Pragma("clang fp reassociate(off)")
#define FRUGAL_PRECISE_END _Pragma("float_control(pop)")
#else
#define FRUGAL_PRECISE_BEGIN
#define FRUGAL_PRECISE_END
#endif

#define FRUGAL_NAMESPACE_BEGIN \
    FRUGAL_PRECISE_BEGIN       \
    namespace frugal {         \
    inline namespace FRUGAL_ABI {
#define FRUGAL_NAMESPACE_END \
    }                        \
    }                        \
    FRUGAL_PRECISE_END

/// Helpers reached from code compiled for one instruction set must leave no symbol that the linker could merge.
#if defined(__GNUC__)
#define FRUGAL_ALWAYS_INLINE [[gnu::always_inline]] inline
#define FRUGAL_RESTRICT __restrict__
#else
#define FRUGAL_ALWAYS_INLINE inline
#define FRUGAL_RESTRICT
#endif

#if defined(__has_builtin)
#define FRUGAL_HAS_BUILTIN(name) __has_builtin(name)
#else
#define FRUGAL_HAS_BUILTIN(name) 0
#endif

/// After FRUGAL_ALWAYS_INLINE: a function that kernels for GPUs call too.
#if defined(__CUDACC__)
#define FRUGAL_HOST_DEVICE __host__ __device__
// nvcc does not know the vector extensions that the CPU's kernels are written with: it sees their declarations, and what uses
// them links frugal::kernels.
#if !defined(FRUGAL_EXTERN_KERNELS)
#define FRUGAL_EXTERN_KERNELS
#endif
#else
#define FRUGAL_HOST_DEVICE
#endif

/// Before a kernel's declaration. Those of frugal::kernels, which FRUGAL_EXTERN_KERNELS asks for, have plain names, whatever the
/// caller's flags; those that a consumer compiles carry its flags.
#if defined(FRUGAL_EXTERN_KERNELS) || defined(FRUGAL_KERNEL_ISA)
#define FRUGAL_KERNEL
#else
#define FRUGAL_KERNEL FRUGAL_FLAGGED
#endif
