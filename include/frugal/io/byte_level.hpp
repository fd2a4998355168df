#pragma once
/// The byte-level alphabet: vocabularies spell each byte as one printable character, so that a space reads as U+0120.
/// Bytes that are printable in Latin-1 spell themselves; the others take U+0100, U+0101, … in their order.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "frugal/core/config.hpp"
#include "frugal/io/utf8.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

namespace detail {
struct FRUGAL_FLAGGED byte_alphabet {
    std::array<char16_t, 256> spelling{};
    std::array<std::int16_t, 0x200> byte_of{};  // -1: no byte

    constexpr byte_alphabet() {
        byte_of.fill(-1);
        char16_t free = 0x100;
        for (std::uint16_t byte = 0; byte < 256; ++byte) {
            const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
            spelling[byte] = itself ? static_cast<char16_t>(byte) : free++;
            byte_of[spelling[byte]] = static_cast<std::int16_t>(byte);
        }
    }
};
inline constexpr byte_alphabet alphabet;
}  // namespace detail

/// The spelling of one byte, in UTF-8.
[[nodiscard]] FRUGAL_FLAGGED inline std::string spell_byte(std::uint8_t byte) {
    std::string out;
    append_utf8(out, detail::alphabet.spelling[byte]);
    return out;
}

/// The bytes that `spelled` stands for; nothing if it is not UTF-8 or holds a character outside the alphabet.
[[nodiscard]] FRUGAL_FLAGGED inline std::optional<std::string> unspell_bytes(std::string_view spelled) {
    std::string out;
    while (!spelled.empty()) {
        const auto next = next_utf8(spelled);
        if (next.what != utf8_sequence::kind::valid || next.code_point >= detail::alphabet.byte_of.size()) return std::nullopt;
        const int byte = detail::alphabet.byte_of[next.code_point];
        if (byte < 0) return std::nullopt;
        out.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
        spelled.remove_prefix(next.length);
    }
    return out;
}

}  // namespace io

FRUGAL_NAMESPACE_END
