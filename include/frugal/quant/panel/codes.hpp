#pragma once
/// How the 512 codes of a panel group are stored: planes of bits, cut so that unpacking is shifts and masks of whole registers.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "frugal/core/config.hpp"
#include "frugal/quant/panel/layout.hpp"
#include "frugal/quant/vectors.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

namespace detail {

// The widest register that this translation unit's flags allow; all that uses it is forced inline.
#if defined(__AVX512BW__)
inline constexpr std::size_t plane_width = 64;
#elif defined(__AVX2__)
inline constexpr std::size_t plane_width = 32;
#else
inline constexpr std::size_t plane_width = 16;
#endif
// Shifts of 16-bit lanes with masks of bytes: no processor shifts bytes.
typedef std::uint16_t plane_words __attribute__((vector_size(plane_width)));

[[nodiscard]] FRUGAL_ALWAYS_INLINE plane_words load_plane(const void* from) noexcept {
    plane_words out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}

FRUGAL_ALWAYS_INLINE void store_plane(std::uint8_t* to, const plane_words& value) noexcept {
    std::memcpy(to, &value, sizeof(value));
}

#if defined(__AVX2__)
/// The same 16 bytes in every part of a register: by one instruction, where copies in memory would be waited for.
template <std::size_t... Lane>
[[nodiscard]] FRUGAL_ALWAYS_INLINE auto repeat(const chars_16& part, std::index_sequence<Lane...>) noexcept {
    return __builtin_shufflevector(part, part, static_cast<int>(Lane % 16)...);
}
#endif

/// table[code] for each code below 16.
[[nodiscard]] FRUGAL_ALWAYS_INLINE plane_words look_up(const std::int8_t (&table)[16], const plane_words& codes) noexcept {
    plane_words out;
#if defined(__AVX512BW__) || defined(__AVX2__)
    typedef char chars __attribute__((vector_size(plane_width)));
    const chars tables = repeat(reinterpret_cast<chars_16>(load_bytes(table)), std::make_index_sequence<plane_width>{});
#if defined(__AVX512BW__) && defined(__clang__)
    const chars found = __builtin_ia32_pshufb512(tables, reinterpret_cast<chars>(codes));
#elif defined(__AVX512BW__)
    const chars found = __builtin_ia32_pshufb512_mask(tables, reinterpret_cast<chars>(codes), tables, ~0ull);
#else
    const chars found = __builtin_ia32_pshufb256(tables, reinterpret_cast<chars>(codes));
#endif
    std::memcpy(&out, &found, sizeof(out));
#else
    bytes_16 bytes;
    std::memcpy(&bytes, &codes, sizeof(bytes));
    bytes = look_up(table, bytes);
    std::memcpy(&out, &bytes, sizeof(out));
#endif
    return out;
}

}  // namespace detail

/// Bytes, as they are.
struct byte_codes {
    static constexpr std::size_t bytes = panel_codes;
    FRUGAL_ALWAYS_INLINE static void pack(const std::uint8_t (&codes)[panel_codes], std::byte* to) noexcept {
        std::memcpy(to, codes, panel_codes);
    }
    /// The codes: in `room`, or where they lie.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static const std::uint8_t* unpack(const std::byte* from, std::uint8_t*) noexcept {
        return reinterpret_cast<const std::uint8_t*>(from);
    }
};

/// Four bits a code and, in planes behind them, `HighBits` (0 to 2) more. Byte i of 256 has the low bits of codes i and i + 256;
/// byte i of the other plane the upper bits of codes i, i + n, i + 2 n, … with n bytes in the plane.
template <std::size_t HighBits>
struct plane_codes {
    static_assert(HighBits <= 2, "frugal: codes of a panel have 4, 5, 6 or 8 bits");
    static constexpr std::size_t low_bytes = panel_codes / 2, high_bytes = panel_codes * HighBits / 8;
    static constexpr std::size_t bytes = low_bytes + high_bytes;

    FRUGAL_ALWAYS_INLINE static void pack(const std::uint8_t (&codes)[panel_codes], std::byte* to) noexcept {
        for (std::size_t i = 0; i < low_bytes; ++i)
            to[i] = static_cast<std::byte>((codes[i] & 0xFu) | ((codes[i + low_bytes] & 0xFu) << 4));
        if constexpr (HighBits != 0) {
            for (std::size_t i = 0; i < high_bytes; ++i) {
                unsigned packed = 0;
                for (std::size_t part = 0; part < 8 / HighBits; ++part)
                    packed |= (static_cast<unsigned>(codes[part * high_bytes + i]) >> 4) << (HighBits * part);
                to[low_bytes + i] = static_cast<std::byte>(packed);
            }
        }
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static const std::uint8_t* unpack(const std::byte* from, std::uint8_t* room) noexcept {
        for (std::size_t i = 0; i < low_bytes; i += detail::plane_width) {
            const detail::plane_words both = detail::load_plane(from + i);
            detail::store_plane(room + i, both & 0x0F0F);
            detail::store_plane(room + i + low_bytes, (both >> 4) & 0x0F0F);
        }
        if constexpr (HighBits != 0) {
            constexpr std::uint16_t mask = HighBits == 1 ? 0x1010 : 0x3030;
            for (std::size_t i = 0; i < high_bytes; i += detail::plane_width) {
                const detail::plane_words packed = detail::load_plane(from + low_bytes + i);
                for (std::size_t part = 0; part < 8 / HighBits; ++part) {
                    const std::size_t shift = HighBits * part;
                    const detail::plane_words upper = (shift <= 4 ? packed << (4 - shift) : packed >> (shift - 4)) & mask;
                    std::uint8_t* const at = room + part * high_bytes + i;
                    detail::store_plane(at, detail::load_plane(at) | upper);
                }
            }
        }
        return room;
    }
};

/// Four bits a code, each an index into a table of levels; `unpack` gives table[code] + Offset.
template <const std::int8_t (&Table)[16], int Offset>
struct table_codes {
    static constexpr std::size_t bytes = plane_codes<0>::bytes;
    struct moved_table {
        std::int8_t levels[16];
        constexpr moved_table() noexcept : levels{} {
            for (std::size_t i = 0; i < 16; ++i) levels[i] = static_cast<std::int8_t>(Table[i] + Offset);
        }
    };
    static constexpr moved_table moved{};
    FRUGAL_ALWAYS_INLINE static void pack(const std::uint8_t (&codes)[panel_codes], std::byte* to) noexcept {
        plane_codes<0>::pack(codes, to);
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static const std::uint8_t* unpack(const std::byte* from, std::uint8_t* room) noexcept {
        for (std::size_t i = 0; i < bytes; i += detail::plane_width) {
            const detail::plane_words both = detail::load_plane(from + i);
            detail::store_plane(room + i, detail::look_up(moved.levels, both & 0x0F0F));
            detail::store_plane(room + i + bytes, detail::look_up(moved.levels, (both >> 4) & 0x0F0F));
        }
        return room;
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
