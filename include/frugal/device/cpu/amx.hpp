#pragma once
/// Tiles: dot products of 16 rows of weights with 16 rows of activations at once (Intel AMX). A part of isa::avx512's products
/// where the processor has it; results have the same bits with and without. Sums of integers are exact; those of bfloat16 have
/// an order of their own, which the products without tiles follow.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/cpuid.hpp"
#include "frugal/tensor/scalar.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

FRUGAL_NAMESPACE_BEGIN

namespace device::amx {

namespace detail {

/// Forced inline, as all that objects with different flags call.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool ask(bool processor_has_it) noexcept {
#if defined(__x86_64__) && defined(__linux__)
    const char* const wish = std::getenv("FRUGAL_AMX");
    if (wish != nullptr && std::strcmp(wish, "0") == 0) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return processor_has_it && ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    (void)processor_has_it;
    return false;
#endif
}

}  // namespace detail

/// Whether this process may use AMX int8: the processor has it, the operating system grants it, and FRUGAL_AMX is not 0.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool available() noexcept {
    static const bool granted = detail::ask(cpuid::has_amx_int8());
    return granted;
}

/// The same for AMX bfloat16.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool bf16_available() noexcept {
    static const bool granted = detail::ask(cpuid::has_amx_bf16());
    return granted;
}

}  // namespace device::amx

namespace simd {

namespace detail {

/// The tile registers, configured while an object lives, on the thread that made it.
class FRUGAL_FLAGGED tile_registers {
#if defined(__x86_64__)
protected:
    /// Tile 0: 16 x 16 sums; 1 and 2: 16 rows of activations of `bytes` bytes, and the weights of as many columns; 3 and 4: of
    /// half as many.
    FRUGAL_ALWAYS_INLINE explicit tile_registers(std::uint8_t bytes) noexcept {
        struct alignas(64) {
            std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
            std::uint16_t row_bytes[16] = {64, 0, 64, 0, 64};
            std::uint8_t rows[16] = {16, 16, 0, 16, 0};
        } tiles;
        static_assert(sizeof(tiles) == 64);
        tiles.row_bytes[1] = bytes;
        tiles.row_bytes[3] = static_cast<std::uint16_t>(bytes / 2);
        tiles.rows[2] = static_cast<std::uint8_t>(bytes / 4);
        tiles.rows[4] = static_cast<std::uint8_t>(bytes / 8);
        asm volatile("ldtilecfg %0" : : "m"(tiles));
    }
    FRUGAL_ALWAYS_INLINE ~tile_registers() { asm volatile("tilerelease"); }
    tile_registers(const tile_registers&) = delete;
    tile_registers& operator=(const tile_registers&) = delete;

    static constexpr std::size_t line = 64;
#endif
};

}  // namespace detail

/// The tile registers, for `dots` of bytes. Anything with the same members may stand in its place (tests have one that computes
/// in plain C++).
class FRUGAL_FLAGGED amx_tiles : detail::tile_registers {
public:
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool available() noexcept { return device::amx::available(); }

#if defined(__x86_64__)
    FRUGAL_ALWAYS_INLINE amx_tiles() noexcept : detail::tile_registers(32) {}

    /// out[t][r] = sum over k < 4 * Quads of (code k of row r) * x[t][k]. Codes: [Quads][16 rows][4], bytes; x: 16 rows of signed
    /// bytes, `stride` bytes apart.
    template <bool Signed, std::size_t Quads>
    FRUGAL_ALWAYS_INLINE void dots(const std::uint8_t* codes, const std::int8_t* x, std::size_t stride,
                                   std::int32_t (&out)[16][16]) const noexcept {
        static_assert(Quads == 8 || Quads == 4);
        if constexpr (Quads == 8)
            asm volatile(
                "tilezero %%tmm0\n\t"
                "tileloadd (%0,%1,1), %%tmm1\n\t"
                "tileloadd (%2,%3,1), %%tmm2"
                :
                : "r"(x), "r"(stride), "r"(codes), "r"(line)
                : "memory");
        else
            asm volatile(
                "tilezero %%tmm0\n\t"
                "tileloadd (%0,%1,1), %%tmm3\n\t"
                "tileloadd (%2,%3,1), %%tmm4"
                :
                : "r"(x), "r"(stride), "r"(codes), "r"(line)
                : "memory");
        if constexpr (Signed && Quads == 8) asm volatile("tdpbssd %%tmm2, %%tmm1, %%tmm0" : :);
        if constexpr (!Signed && Quads == 8) asm volatile("tdpbsud %%tmm2, %%tmm1, %%tmm0" : :);
        if constexpr (Signed && Quads == 4) asm volatile("tdpbssd %%tmm4, %%tmm3, %%tmm0" : :);
        if constexpr (!Signed && Quads == 4) asm volatile("tdpbsud %%tmm4, %%tmm3, %%tmm0" : :);
        asm volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(&out[0][0]), "r"(line) : "memory");
    }
#endif
};

/// The tile registers, for products of bfloat16. Each product of 2 * Pairs columns is the sum of the even columns plus that of
/// the odd ones, each one after the other from 0 on by fused multiply-adds; denormal numbers are 0, NaN and infinities as always.
/// Weights: [Pairs][16 rows][2]; x: 16 rows, `stride` bytes apart. Anything with the same members may stand in its place.
class FRUGAL_FLAGGED amx_bf16_tiles : detail::tile_registers {
public:
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool available() noexcept { return device::amx::bf16_available(); }

#if defined(__x86_64__)
    FRUGAL_ALWAYS_INLINE amx_bf16_tiles() noexcept : detail::tile_registers(64) {}

    /// out[t][r] = the product of row r of the weights with row t of x, over 2 * Pairs columns.
    template <std::size_t Pairs>
    FRUGAL_ALWAYS_INLINE void products(const std::byte* weights, const bfloat16* x, std::size_t stride,
                                       float (&out)[16][16]) const noexcept {
        static_assert(Pairs == 16 || Pairs == 8);
        if constexpr (Pairs == 16)
            asm volatile(
                "tilezero %%tmm0\n\t"
                "tileloadd (%0,%1,1), %%tmm1\n\t"
                "tileloadd (%2,%3,1), %%tmm2\n\t"
                "tdpbf16ps %%tmm2, %%tmm1, %%tmm0\n\t"
                "tilestored %%tmm0, (%4,%3,1)"
                :
                : "r"(x), "r"(stride), "r"(weights), "r"(line), "r"(&out[0][0])
                : "memory");
        else
            asm volatile(
                "tilezero %%tmm0\n\t"
                "tileloadd (%0,%1,1), %%tmm3\n\t"
                "tileloadd (%2,%3,1), %%tmm4\n\t"
                "tdpbf16ps %%tmm4, %%tmm3, %%tmm0\n\t"
                "tilestored %%tmm0, (%4,%3,1)"
                :
                : "r"(x), "r"(stride), "r"(weights), "r"(line), "r"(&out[0][0])
                : "memory");
    }

    /// sums[t][r] += the products of groups of 32 columns, one after the other. weights[g]: group g; x: the first group's
    /// columns, which the others' follow.
    FRUGAL_ALWAYS_INLINE void add_products(const std::byte* const* weights, std::size_t groups, const bfloat16* x,
                                           std::size_t stride, float* sums) const noexcept {
        asm volatile("tileloadd (%0,%1,1), %%tmm0" : : "r"(sums), "r"(line) : "memory");
        for (std::size_t g = 0; g < groups; ++g)
            asm volatile(
                "tileloadd (%0,%1,1), %%tmm1\n\t"
                "tileloadd (%2,%3,1), %%tmm2\n\t"
                "tdpbf16ps %%tmm2, %%tmm1, %%tmm0"
                :
                : "r"(x + 32 * g), "r"(stride), "r"(weights[g]), "r"(line)
                : "memory");
        asm volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(sums), "r"(line) : "memory");
    }
#endif
};

}  // namespace simd

FRUGAL_NAMESPACE_END
