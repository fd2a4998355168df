#pragma once
/// The few vector steps of unpacking and of integer dot products, where compilers do not find them by themselves. All are
/// exact on integers, so every instruction set gives the same bits; everything is forced inline.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant::detail {

typedef std::uint8_t bytes_16 __attribute__((vector_size(16)));
typedef char chars_16 __attribute__((vector_size(16)));
typedef std::uint64_t words_2 __attribute__((vector_size(16)));
typedef std::int16_t shorts_8 __attribute__((vector_size(16)));
typedef std::int32_t ints_4 __attribute__((vector_size(16)));

FRUGAL_ALWAYS_INLINE bytes_16 load_bytes(const void* from) noexcept {
    bytes_16 out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}

FRUGAL_ALWAYS_INLINE void store_bytes(void* to, const bytes_16& value) noexcept { std::memcpy(to, &value, sizeof(value)); }

/// table[code] for each of 16 codes below 16.
FRUGAL_ALWAYS_INLINE bytes_16 look_up(const std::int8_t (&table)[16], const bytes_16& codes) noexcept {
#if defined(__SSSE3__)
    return reinterpret_cast<bytes_16>(
        __builtin_ia32_pshufb128(reinterpret_cast<chars_16>(load_bytes(table)), reinterpret_cast<chars_16>(codes)));
#else
    bytes_16 out{};
    for (std::size_t i = 0; i < 16; ++i) out[i] = static_cast<std::uint8_t>(table[codes[i]]);
    return out;
#endif
}

/// Bit j of `bits` (0 or 1) times 16 in byte j, for the low 16 bits.
FRUGAL_ALWAYS_INLINE bytes_16 spread_times_16(std::uint32_t bits) noexcept {
    // One bit of every copy of a byte is kept; adding 0x7F carries it, wherever it is, to the top of its byte.
    const words_2 copies{(bits & 0xFFu) * 0x0101010101010101u, ((bits >> 8) & 0xFFu) * 0x0101010101010101u};
    const words_2 kept = copies & 0x8040201008040201u;
    return reinterpret_cast<bytes_16>(((kept + 0x7F7F7F7F7F7F7F7Fu) >> 3) & 0x1010101010101010u);
}

FRUGAL_ALWAYS_INLINE shorts_8 load_shorts(const std::int16_t* from) noexcept {
    shorts_8 out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}

FRUGAL_ALWAYS_INLINE shorts_8 load_shorts(const std::int8_t* from) noexcept {
    typedef std::int8_t chars_8 __attribute__((vector_size(8)));
    chars_8 out;
    std::memcpy(&out, from, sizeof(out));
    return __builtin_convertvector(out, shorts_8);
}

/// sum a[i] * b[i], i < Size: 16-bit factors, 32-bit products and sums; nothing on the way can saturate.
template <std::size_t Size, class Code>
[[nodiscard]] FRUGAL_ALWAYS_INLINE std::int32_t sum_of_products(const Code (&a)[Size], const std::int8_t (&b)[Size]) noexcept {
    static_assert(Size % 32 == 0, "frugal: integer dot products cover a multiple of 32 codes");
#if defined(__AVX2__)
    typedef std::int16_t shorts_16 __attribute__((vector_size(32)));
    typedef std::int32_t ints_8 __attribute__((vector_size(32)));
    typedef std::int8_t signed_16 __attribute__((vector_size(16)));
    ints_8 sums[2] = {};
    for (std::size_t i = 0; i < Size; i += 32)
        for (std::size_t k = 0; k < 2; ++k) {
            shorts_16 left;
            signed_16 right;
            std::memcpy(&right, b + i + 16 * k, sizeof(right));
            if constexpr (sizeof(Code) == 1) {
                signed_16 narrow;
                std::memcpy(&narrow, a + i + 16 * k, sizeof(narrow));
                left = __builtin_convertvector(narrow, shorts_16);
            } else {
                std::memcpy(&left, a + i + 16 * k, sizeof(left));
            }
            sums[k] += __builtin_ia32_pmaddwd256(left, __builtin_convertvector(right, shorts_16));
        }
    const ints_8 both = sums[0] + sums[1];
    ints_4 low, high;
    std::memcpy(&low, &both, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&both) + sizeof(low), sizeof(high));
    const ints_4 total = low + high;
    return (total[0] + total[2]) + (total[1] + total[3]);
#elif defined(__SSE2__)
    ints_4 sums[2] = {};
    for (std::size_t i = 0; i < Size; i += 16)
        for (std::size_t k = 0; k < 2; ++k)
            sums[k] += __builtin_ia32_pmaddwd128(load_shorts(a + i + 8 * k), load_shorts(b + i + 8 * k));
    const ints_4 total = sums[0] + sums[1];
    return (total[0] + total[2]) + (total[1] + total[3]);
#else
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < Size; ++i) sum += static_cast<std::int32_t>(a[i]) * static_cast<std::int32_t>(b[i]);
    return sum;
#endif
}

/// out[i] = scale * codes[i], or that plus `offset` where one is given (adding 0 would lose the sign of zeros), i < Count.
/// Products of a format's scales and codes fit into 24 bits, so it does not matter whether the addition is fused.
template <std::size_t Count, class Code, class... Offset>
FRUGAL_ALWAYS_INLINE void decode_codes(const Code* codes, float* out, float scale, Offset... offset) noexcept {
#if defined(__AVX2__)
    typedef std::int32_t ints_8 __attribute__((vector_size(32)));
    typedef float floats_8 __attribute__((vector_size(32)));
    static_assert(Count % 8 == 0, "frugal: codes are decoded eight at a time");
    for (std::size_t i = 0; i < Count; i += 8) {
#if defined(__clang__)
        typedef Code codes_8 __attribute__((vector_size(8 * sizeof(Code))));
        codes_8 narrow;
        std::memcpy(&narrow, codes + i, sizeof(narrow));
        const ints_8 wide = __builtin_convertvector(narrow, ints_8);
#else
        ints_8 wide;
        if constexpr (sizeof(Code) == 1) {
            std::uint64_t eight;
            std::memcpy(&eight, codes + i, sizeof(eight));
            wide = __builtin_ia32_pmovsxbd256(reinterpret_cast<chars_16>(words_2{eight, 0}));
        } else {
            wide = __builtin_ia32_pmovsxwd256(load_shorts(codes + i));
        }
#endif
        const floats_8 value = ((__builtin_convertvector(wide, floats_8) * scale) + ... + offset);
        std::memcpy(out + i, &value, sizeof(value));
    }
#else
    for (std::size_t i = 0; i < Count; ++i) out[i] = ((scale * static_cast<float>(codes[i])) + ... + offset);
#endif
}

#if defined(__AVX2__)
typedef std::int32_t ints_8 __attribute__((vector_size(32)));

/// Eight bytes, signed or not.
template <class Byte>
FRUGAL_ALWAYS_INLINE ints_8 load_ints(const std::byte* from) noexcept {
#if defined(__clang__)
    typedef Byte bytes_8 __attribute__((vector_size(8)));
    bytes_8 narrow;
    std::memcpy(&narrow, from, sizeof(narrow));
    return __builtin_convertvector(narrow, ints_8);
#else
    std::uint64_t eight;
    std::memcpy(&eight, from, sizeof(eight));
    const chars_16 narrow = reinterpret_cast<chars_16>(words_2{eight, 0});
    if constexpr (static_cast<Byte>(-1) < 0)
        return __builtin_ia32_pmovsxbd256(narrow);
    else
        return __builtin_ia32_pmovzxbd256(narrow);
#endif
}
#endif

/// out[i] = factors[i] * bytes[i] for 16 bytes, signed or not.
template <class Byte>
FRUGAL_ALWAYS_INLINE void multiply_bytes(const float (&factors)[16], const std::byte* bytes, float (&out)[16]) noexcept {
#if defined(__AVX2__)
    typedef float floats_8 __attribute__((vector_size(32)));
    for (std::size_t i = 0; i < 16; i += 8) {
        floats_8 factor;
        std::memcpy(&factor, factors + i, sizeof(factor));
        const floats_8 product = factor * __builtin_convertvector(load_ints<Byte>(bytes + i), floats_8);
        std::memcpy(out + i, &product, sizeof(product));
    }
#else
    for (std::size_t i = 0; i < 16; ++i) out[i] = factors[i] * static_cast<float>(static_cast<Byte>(bytes[i]));
#endif
}

/// out[i] = 2^(bytes[i] - 128) for 16 bytes; subnormal for bytes 0 and 1.
FRUGAL_ALWAYS_INLINE void load_powers(const std::byte* bytes, float (&out)[16]) noexcept {
#if defined(__AVX2__)
    for (std::size_t i = 0; i < 16; i += 8) {
        const ints_8 byte = load_ints<std::uint8_t>(bytes + i), low = byte < 2;
        const ints_8 bits = ((0x00200000 + ((byte & 1) << 21)) & low) | (((byte - 1) << 23) & ~low);
        std::memcpy(out + i, &bits, sizeof(bits));
    }
#else
    for (std::size_t i = 0; i < 16; ++i) {
        const auto byte = static_cast<std::uint32_t>(bytes[i]);
        const std::uint32_t bits = byte < 2 ? 0x00200000u << byte : (byte - 1) << 23;
        std::memcpy(out + i, &bits, sizeof(bits));
    }
#endif
}

}  // namespace quant::detail

FRUGAL_NAMESPACE_END
