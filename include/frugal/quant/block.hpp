#pragma once
/// Fields of a packed block: unaligned little-endian loads and stores, nibbles, and single-rounded floats.
/// Everything is forced inline: kernels of every instruction set reach it.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "frugal/core/config.hpp"
#include "frugal/quant/vectors.hpp"
#include "frugal/tensor/half_vector.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant::detail {

[[nodiscard]] FRUGAL_ALWAYS_INLINE std::uint32_t load_u16(const std::byte* from) noexcept {
    std::uint16_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

[[nodiscard]] FRUGAL_ALWAYS_INLINE std::uint32_t load_u32(const std::byte* from) noexcept {
    std::uint32_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

FRUGAL_ALWAYS_INLINE void store_u32(std::byte* to, std::uint32_t value) noexcept { std::memcpy(to, &value, sizeof(value)); }

[[nodiscard]] FRUGAL_ALWAYS_INLINE float load_half(const std::byte* from) noexcept {
    return to_float(half{static_cast<std::uint16_t>(load_u16(from))});
}

/// Halves as floats.
template <std::size_t Count>
FRUGAL_ALWAYS_INLINE void load_halves(const std::byte* from, float (&out)[Count]) noexcept {
    std::size_t i = 0;
#if FRUGAL_HAS_HALF_VECTOR
    for (; i + 8 <= Count; i += 8) {
        const auto values = frugal::detail::load_eight_halves(from + 2 * i);
        std::memcpy(out + i, &values, sizeof(values));
    }
#endif
    for (; i < Count; ++i) out[i] = load_half(from + 2 * i);
}

FRUGAL_ALWAYS_INLINE void store_half(std::byte* to, float value) noexcept {
    const std::uint16_t bits = to_half(value).bits;
    std::memcpy(to, &bits, sizeof(bits));
}

/// Whether the half at `from` is neither NaN nor infinite.
[[nodiscard]] FRUGAL_ALWAYS_INLINE bool finite_half(const std::byte* from) noexcept {
    return (load_u16(from) & 0x7C00u) != 0x7C00u;
}

/// The value after rounding to float: keeps the compiler from fusing the multiplication that made it with a later addition,
/// where the bits must not depend on whether the machine can fuse.
[[nodiscard]] FRUGAL_ALWAYS_INLINE float rounded(float value) noexcept {
#if defined(__GNUC__) && defined(__SSE2__)
    asm("" : "+x"(value));
    return value;
#else
    volatile float kept = value;
    return kept;
#endif
}

/// 16 bytes of nibbles: byte j holds element j (low nibble) and element j + 16 (high nibble); `middle` is taken off each.
FRUGAL_ALWAYS_INLINE void load_nibbles(const std::byte* from, std::uint8_t middle, std::int8_t (&out)[32]) noexcept {
    const bytes_16 packed = load_bytes(from);
    store_bytes(out, (packed & 0xF) - middle);
    store_bytes(out + 16, (packed >> 4) - middle);
}

/// The same, as they are.
FRUGAL_ALWAYS_INLINE void load_nibbles(const std::byte* from, std::uint8_t* out) noexcept {
    const bytes_16 packed = load_bytes(from);
    store_bytes(out, packed & 0xF);
    store_bytes(out + 16, packed >> 4);
}

/// As load_nibbles, each nibble replaced by its level in the table.
FRUGAL_ALWAYS_INLINE void load_levels(const std::byte* from, const std::int8_t (&table)[16], std::int8_t (&out)[32]) noexcept {
    const bytes_16 packed = load_bytes(from);
    store_bytes(out, look_up(table, packed & 0xF));
    store_bytes(out + 16, look_up(table, packed >> 4));
}

/// As load_nibbles, with bit j of the 32-bit word `high` as bit 4 of element j.
FRUGAL_ALWAYS_INLINE void load_five_bits(const std::byte* nibbles, std::uint32_t high, std::uint8_t middle,
                                         std::int8_t (&out)[32]) noexcept {
    const bytes_16 packed = load_bytes(nibbles);
    store_bytes(out, ((packed & 0xF) | spread_times_16(high)) - middle);
    store_bytes(out + 16, ((packed >> 4) | spread_times_16(high >> 16)) - middle);
}

/// The same, as they are.
FRUGAL_ALWAYS_INLINE void load_five_bits(const std::byte* nibbles, std::uint32_t high, std::uint8_t (&out)[32]) noexcept {
    const bytes_16 packed = load_bytes(nibbles);
    store_bytes(out, (packed & 0xF) | spread_times_16(high));
    store_bytes(out + 16, (packed >> 4) | spread_times_16(high >> 16));
}

/// The low four bits of 32 codes, in the order of load_nibbles.
FRUGAL_ALWAYS_INLINE void store_nibbles(std::byte* to, const std::uint8_t (&codes)[32]) noexcept {
    std::uint8_t packed[16];
    for (std::size_t j = 0; j < 16; ++j) packed[j] = static_cast<std::uint8_t>((codes[j] & 0xFu) | ((codes[j + 16] & 0xFu) << 4));
    std::memcpy(to, packed, sizeof(packed));
}

/// Bits 4 of 32 codes as one word.
[[nodiscard]] FRUGAL_ALWAYS_INLINE std::uint32_t fifth_bits(const std::uint8_t (&codes)[32]) noexcept {
    std::uint32_t high = 0;
    for (std::size_t j = 0; j < 32; ++j) high |= ((static_cast<std::uint32_t>(codes[j]) >> 4) & 1u) << j;
    return high;
}

/// `value` towards zero, held within 0 … most; NaN gives 0.
[[nodiscard]] FRUGAL_ALWAYS_INLINE std::uint8_t clamp_code(float value, std::uint8_t most) noexcept {
    if (!(value > 0.0f)) return 0;
    return value < static_cast<float>(most) ? static_cast<std::uint8_t>(value) : most;
}

/// The table of IQ4_NL and IQ4_XS: 16 levels, denser near zero.
inline constexpr std::int8_t nonlinear_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

}  // namespace quant::detail

FRUGAL_NAMESPACE_END
