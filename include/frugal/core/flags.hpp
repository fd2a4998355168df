#pragma once
/// Which instructions the compiler may use in this translation unit, as a tag in names.
///
/// The linker keeps one of all functions of a name, whatever flags each was compiled with: a baseline file beside one with
/// -march=x86-64-v3 might get AVX2 code, and die on a machine without. So what a consumer's flags compile has them in its name;
/// a class marked here is another one in a file of other flags: the linker says so where such files pass one to each other.
/// Not ours, and so not marked: functions of the standard library for types that are not ours, such as std::vector<float>'s.

#if defined(__SSE3__) || defined(__SSSE3__) || defined(__SSE4_1__) || defined(__SSE4_2__) || defined(__POPCNT__) ||    \
    defined(__LZCNT__) || defined(__BMI__) || defined(__BMI2__) || defined(__MOVBE__) || defined(__AVX__) ||           \
    defined(__AVX2__) || defined(__FMA__) || defined(__F16C__) || defined(__AVXVNNI__) || defined(__AVX512F__) ||      \
    defined(__AVX512CD__) || defined(__AVX512BW__) || defined(__AVX512DQ__) || defined(__AVX512VL__) ||                \
    defined(__AVX512VNNI__) || defined(__AVX512IFMA__) || defined(__AVX512VBMI__) || defined(__AVX512VBMI2__) ||       \
    defined(__AVX512BITALG__) || defined(__AVX512VPOPCNTDQ__) || defined(__AVX512BF16__) || defined(__AVX512FP16__) || \
    defined(__FMA4__) || defined(__XOP__) || defined(__TBM__) || defined(__ARM_FEATURE_ATOMICS) ||                     \
    defined(__ARM_FEATURE_DOTPROD) || defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) || defined(__ARM_FEATURE_BF16) ||  \
    defined(__ARM_FEATURE_MATMUL_INT8) || defined(__ARM_FEATURE_SVE) || defined(__ARM_FEATURE_SVE2)
/// In the head of a class and of a function: its name carries the flags, and so does that of what it holds or returns. Not for
/// what objects compiled apart (kernels) are called with; there everything is forced inline.
#define FRUGAL_FLAGGED [[gnu::abi_tag(FRUGAL_FLAGS)]]
#else
#define FRUGAL_FLAGGED
#endif

#if defined(__SSE3__)
#define FRUGAL_FLAG_SSE3 "a"
#else
#define FRUGAL_FLAG_SSE3
#endif
#if defined(__SSSE3__)
#define FRUGAL_FLAG_SSSE3 "b"
#else
#define FRUGAL_FLAG_SSSE3
#endif
#if defined(__SSE4_1__)
#define FRUGAL_FLAG_SSE4_1 "c"
#else
#define FRUGAL_FLAG_SSE4_1
#endif
#if defined(__SSE4_2__)
#define FRUGAL_FLAG_SSE4_2 "d"
#else
#define FRUGAL_FLAG_SSE4_2
#endif
#if defined(__POPCNT__)
#define FRUGAL_FLAG_POPCNT "e"
#else
#define FRUGAL_FLAG_POPCNT
#endif
#if defined(__LZCNT__)
#define FRUGAL_FLAG_LZCNT "f"
#else
#define FRUGAL_FLAG_LZCNT
#endif
#if defined(__BMI__)
#define FRUGAL_FLAG_BMI "g"
#else
#define FRUGAL_FLAG_BMI
#endif
#if defined(__BMI2__)
#define FRUGAL_FLAG_BMI2 "h"
#else
#define FRUGAL_FLAG_BMI2
#endif
#if defined(__MOVBE__)
#define FRUGAL_FLAG_MOVBE "i"
#else
#define FRUGAL_FLAG_MOVBE
#endif
#if defined(__AVX__)
#define FRUGAL_FLAG_AVX "j"
#else
#define FRUGAL_FLAG_AVX
#endif
#if defined(__AVX2__)
#define FRUGAL_FLAG_AVX2 "k"
#else
#define FRUGAL_FLAG_AVX2
#endif
#if defined(__FMA__)
#define FRUGAL_FLAG_FMA "l"
#else
#define FRUGAL_FLAG_FMA
#endif
#if defined(__F16C__)
#define FRUGAL_FLAG_F16C "m"
#else
#define FRUGAL_FLAG_F16C
#endif
#if defined(__AVXVNNI__)
#define FRUGAL_FLAG_AVXVNNI "n"
#else
#define FRUGAL_FLAG_AVXVNNI
#endif
#if defined(__AVX512F__)
#define FRUGAL_FLAG_AVX512F "o"
#else
#define FRUGAL_FLAG_AVX512F
#endif
#if defined(__AVX512CD__)
#define FRUGAL_FLAG_AVX512CD "p"
#else
#define FRUGAL_FLAG_AVX512CD
#endif
#if defined(__AVX512BW__)
#define FRUGAL_FLAG_AVX512BW "q"
#else
#define FRUGAL_FLAG_AVX512BW
#endif
#if defined(__AVX512DQ__)
#define FRUGAL_FLAG_AVX512DQ "r"
#else
#define FRUGAL_FLAG_AVX512DQ
#endif
#if defined(__AVX512VL__)
#define FRUGAL_FLAG_AVX512VL "s"
#else
#define FRUGAL_FLAG_AVX512VL
#endif
#if defined(__AVX512VNNI__)
#define FRUGAL_FLAG_AVX512VNNI "t"
#else
#define FRUGAL_FLAG_AVX512VNNI
#endif
#if defined(__AVX512IFMA__)
#define FRUGAL_FLAG_AVX512IFMA "u"
#else
#define FRUGAL_FLAG_AVX512IFMA
#endif
#if defined(__AVX512VBMI__)
#define FRUGAL_FLAG_AVX512VBMI "v"
#else
#define FRUGAL_FLAG_AVX512VBMI
#endif
#if defined(__AVX512VBMI2__)
#define FRUGAL_FLAG_AVX512VBMI2 "w"
#else
#define FRUGAL_FLAG_AVX512VBMI2
#endif
#if defined(__AVX512BITALG__)
#define FRUGAL_FLAG_AVX512BITALG "x"
#else
#define FRUGAL_FLAG_AVX512BITALG
#endif
#if defined(__AVX512VPOPCNTDQ__)
#define FRUGAL_FLAG_AVX512VPOPCNTDQ "y"
#else
#define FRUGAL_FLAG_AVX512VPOPCNTDQ
#endif
#if defined(__AVX512BF16__)
#define FRUGAL_FLAG_AVX512BF16 "z"
#else
#define FRUGAL_FLAG_AVX512BF16
#endif
#if defined(__AVX512FP16__)
#define FRUGAL_FLAG_AVX512FP16 "A"
#else
#define FRUGAL_FLAG_AVX512FP16
#endif
#if defined(__FMA4__)
#define FRUGAL_FLAG_FMA4 "B"
#else
#define FRUGAL_FLAG_FMA4
#endif
#if defined(__XOP__)
#define FRUGAL_FLAG_XOP "C"
#else
#define FRUGAL_FLAG_XOP
#endif
#if defined(__TBM__)
#define FRUGAL_FLAG_TBM "D"
#else
#define FRUGAL_FLAG_TBM
#endif
#if defined(__ARM_FEATURE_ATOMICS)
#define FRUGAL_FLAG_ATOMICS "E"
#else
#define FRUGAL_FLAG_ATOMICS
#endif
#if defined(__ARM_FEATURE_DOTPROD)
#define FRUGAL_FLAG_DOTPROD "F"
#else
#define FRUGAL_FLAG_DOTPROD
#endif
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define FRUGAL_FLAG_FP16_VECTOR_ARITHMETIC "G"
#else
#define FRUGAL_FLAG_FP16_VECTOR_ARITHMETIC
#endif
#if defined(__ARM_FEATURE_BF16)
#define FRUGAL_FLAG_BF16 "H"
#else
#define FRUGAL_FLAG_BF16
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define FRUGAL_FLAG_MATMUL_INT8 "I"
#else
#define FRUGAL_FLAG_MATMUL_INT8
#endif
#if defined(__ARM_FEATURE_SVE)
#define FRUGAL_FLAG_SVE "J"
#else
#define FRUGAL_FLAG_SVE
#endif
#if defined(__ARM_FEATURE_SVE2)
#define FRUGAL_FLAG_SVE2 "K"
#else
#define FRUGAL_FLAG_SVE2
#endif

// A letter each, so that names stay short.
#define FRUGAL_FLAGS                                                                                                         \
    "f" FRUGAL_FLAG_SSE3 FRUGAL_FLAG_SSSE3 FRUGAL_FLAG_SSE4_1 FRUGAL_FLAG_SSE4_2 FRUGAL_FLAG_POPCNT FRUGAL_FLAG_LZCNT        \
        FRUGAL_FLAG_BMI FRUGAL_FLAG_BMI2 FRUGAL_FLAG_MOVBE FRUGAL_FLAG_AVX FRUGAL_FLAG_AVX2 FRUGAL_FLAG_FMA FRUGAL_FLAG_F16C \
            FRUGAL_FLAG_AVXVNNI FRUGAL_FLAG_AVX512F FRUGAL_FLAG_AVX512CD FRUGAL_FLAG_AVX512BW FRUGAL_FLAG_AVX512DQ           \
                FRUGAL_FLAG_AVX512VL FRUGAL_FLAG_AVX512VNNI FRUGAL_FLAG_AVX512IFMA FRUGAL_FLAG_AVX512VBMI                    \
                    FRUGAL_FLAG_AVX512VBMI2 FRUGAL_FLAG_AVX512BITALG FRUGAL_FLAG_AVX512VPOPCNTDQ FRUGAL_FLAG_AVX512BF16      \
                        FRUGAL_FLAG_AVX512FP16 FRUGAL_FLAG_FMA4 FRUGAL_FLAG_XOP FRUGAL_FLAG_TBM FRUGAL_FLAG_ATOMICS          \
                            FRUGAL_FLAG_DOTPROD FRUGAL_FLAG_FP16_VECTOR_ARITHMETIC FRUGAL_FLAG_BF16 FRUGAL_FLAG_MATMUL_INT8  \
                                FRUGAL_FLAG_SVE FRUGAL_FLAG_SVE2
