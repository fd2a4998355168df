#pragma once
/// UTF-8 without a library: sequence boundaries, code points, and repair of broken text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// What stands at the start of a text.
struct FRUGAL_FLAGGED utf8_sequence {
    enum class kind : std::uint8_t { valid, invalid, cut_off };
    kind what = kind::valid;
    std::size_t length = 0;   ///< bytes of the sequence; if invalid, of its longest prefix that could have begun one (at least 1)
    char32_t code_point = 0;  ///< if valid
};

/// Examines the start of `text`, which must not be empty. `cut_off`: the text ends inside a sequence that is right so far.
/// Overlong forms, surrogates and values above U+10FFFF are invalid.
[[nodiscard]] constexpr utf8_sequence next_utf8(std::string_view text) noexcept {
    using kind = utf8_sequence::kind;
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned lead = at(0);
    if (lead < 0x80) return {kind::valid, 1, lead};
    if (lead < 0xC2 || lead > 0xF4) return {kind::invalid, 1, 0};
    const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // Only the second byte has a narrower range after some leads.
    unsigned low = 0x80, high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    char32_t value = lead & (0x7Fu >> length);
    for (std::size_t i = 1; i < length; ++i) {
        if (i == text.size()) return {kind::cut_off, i, 0};
        const unsigned byte = at(i);
        if (byte < low || byte > high) return {kind::invalid, i, 0};
        low = 0x80;
        high = 0xBF;
        value = (value << 6) | (byte & 0x3Fu);
    }
    return {kind::valid, length, value};
}

FRUGAL_FLAGGED inline void append_utf8(std::string& out, char32_t code_point) {
    const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
    if (code_point < 0x80) {
        put(code_point);
    } else if (code_point < 0x800) {
        put(0xC0 | (code_point >> 6));
        put(0x80 | (code_point & 0x3F));
    } else if (code_point < 0x10000) {
        put(0xE0 | (code_point >> 12));
        put(0x80 | ((code_point >> 6) & 0x3F));
        put(0x80 | (code_point & 0x3F));
    } else {
        put(0xF0 | (code_point >> 18));
        put(0x80 | ((code_point >> 12) & 0x3F));
        put(0x80 | ((code_point >> 6) & 0x3F));
        put(0x80 | (code_point & 0x3F));
    }
}

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";  // U+FFFD

/// `text` without the byte order mark (U+FEFF) that some editors put in front of a file: it is no part of the text.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::string_view without_byte_order_mark(std::string_view text) noexcept {
    constexpr std::string_view mark = "\xEF\xBB\xBF";
    if (text.starts_with(mark)) text.remove_prefix(mark.size());
    return text;
}

/// Length of the longest valid prefix.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t valid_utf8_prefix(std::string_view text) noexcept {
    std::size_t i = 0;
    while (i < text.size()) {
        const auto next = next_utf8(text.substr(i));
        if (next.what != utf8_sequence::kind::valid) break;
        i += next.length;
    }
    return i;
}

/// `text` with every invalid or cut-off sequence replaced by one U+FFFD for each longest prefix that could have begun a
/// character: what Python's `bytes.decode("utf-8", "replace")` and web browsers do.
[[nodiscard]] FRUGAL_FLAGGED inline std::string repair_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const auto next = next_utf8(text);
        if (next.what == utf8_sequence::kind::valid)
            out.append(text.substr(0, next.length));
        else
            out.append(replacement_character);
        text.remove_prefix(next.length);
    }
    return out;
}

}  // namespace io

FRUGAL_NAMESPACE_END
