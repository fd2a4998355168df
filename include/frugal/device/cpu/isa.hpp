#pragma once
/// Instruction sets as tags. The tag is part of the name of every kernel, so objects compiled with different flags never
/// share a symbol. A new one = its line in FRUGAL_CPU_ISAS and what its flags define here, a probe in cpuid.hpp, and its flags in
/// kernels/CMakeLists.txt.
#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "frugal/core/config.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/device/cpu/cpuid.hpp"

/// X(tag, bytes of a vector register, needs at compile time, probe at run time), from the least to the most able.
#define FRUGAL_CPU_ISAS(X)                                            \
    X(baseline, 16, true, true)                                       \
    X(avx2, 32, FRUGAL_HAS_AVX2, ::frugal::device::cpuid::has_avx2()) \
    X(avx512, 64, FRUGAL_HAS_AVX512, ::frugal::device::cpuid::has_avx512())

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define FRUGAL_HAS_AVX2 true
#else
#define FRUGAL_HAS_AVX2 false
#endif
#if FRUGAL_HAS_AVX2 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512VNNI__)
#define FRUGAL_HAS_AVX512 true
#else
#define FRUGAL_HAS_AVX512 false
#endif

FRUGAL_NAMESPACE_BEGIN

namespace isa {

#define FRUGAL_DEFINE_ISA(tag, bytes, compiled, supported) \
    struct tag {                                           \
        static constexpr std::string_view name = #tag;     \
        static constexpr std::size_t vector_bytes = bytes; \
        static constexpr bool fused = bytes >= 32;         \
    };
FRUGAL_CPU_ISAS(FRUGAL_DEFINE_ISA)
#undef FRUGAL_DEFINE_ISA

/// An instruction set tag: `name`, `vector_bytes`, and `fused`: whether simd::multiply_add rounds once.
template <class Isa>
concept tag = requires {
    { Isa::name } -> std::convertible_to<std::string_view>;
    { Isa::vector_bytes } -> std::convertible_to<std::size_t>;
    { Isa::fused } -> std::convertible_to<bool>;
};

#define FRUGAL_LIST_ISA(tag, bytes, compiled, supported) , tag
template <class, class... Isa>
using list_without_first = type_list<Isa...>;
/// Every instruction set, from the least to the most able.
using all = list_without_first<void FRUGAL_CPU_ISAS(FRUGAL_LIST_ISA)>;
#undef FRUGAL_LIST_ISA

/// The most able instruction set that this translation unit's compiler flags allow.
#if FRUGAL_HAS_AVX512
using native = avx512;
#elif FRUGAL_HAS_AVX2
using native = avx2;
#else
using native = baseline;
#endif

static_assert(tag<native>, "frugal: isa::native must model isa::tag");

/// Whether this machine, its operating system included, can run kernels of `Isa`.
template <tag Isa>
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool supported() noexcept {
#define FRUGAL_PROBE_ISA(tag, bytes, compiled, probe) \
    if constexpr (std::is_same_v<Isa, tag>) return probe;
    FRUGAL_CPU_ISAS(FRUGAL_PROBE_ISA)
#undef FRUGAL_PROBE_ISA
    return false;
}

}  // namespace isa

FRUGAL_NAMESPACE_END

/// Kernel definitions check that the flags of their translation unit suit the tag; the message says what to do.
#define FRUGAL_REQUIRE_ISA_FLAGS(Isa)                                                                         \
    static_assert(!std::is_same_v<Isa, ::frugal::isa::avx2> || FRUGAL_HAS_AVX2,                               \
                  "frugal: isa::avx2 kernels need -mavx2 -mfma -mf16c in this translation unit; "             \
                  "add the flags, use isa::native, or link frugal::kernels and choose at run time");          \
    static_assert(!std::is_same_v<Isa, ::frugal::isa::avx512> || FRUGAL_HAS_AVX512,                           \
                  "frugal: isa::avx512 kernels need -march=x86-64-v4 -mavx512vnni in this translation unit; " \
                  "add the flags, use isa::native, or link frugal::kernels and choose at run time")
