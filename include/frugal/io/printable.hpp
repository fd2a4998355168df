#pragma once
/// Text from files in messages: quoted, short, and without anything that a terminal would obey.
#include <cstddef>
#include <string>
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// `text` in single quotes; control and non-ASCII bytes as \xNN, and cut after 100 bytes.
[[nodiscard]] FRUGAL_FLAGGED inline std::string printable(std::string_view text) {
    constexpr std::size_t longest = 100;
    constexpr std::string_view digits = "0123456789abcdef";
    std::string out = "'";
    for (const char c : text.substr(0, longest)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7F) {
            out += c;
        } else {
            out += "\\x";
            out += digits[byte >> 4];
            out += digits[byte & 15u];
        }
    }
    if (text.size() > longest) out += "...";
    return out += '\'';
}

}  // namespace io

FRUGAL_NAMESPACE_END
