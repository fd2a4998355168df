#pragma once
/// Unicode normalization form C, with utf8proc (link libutf8proc).
#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/utf8.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// `text`, which must be valid UTF-8 and may hold NUL, in NFC. Errors: invalid_argument (not UTF-8).
///
/// utf8proc's own one-call interface orders combining marks by repeated swapping, quadratic in their number; here the library
/// decomposes and composes, and the ordering between is a stable sort.
[[nodiscard]] inline result<std::string> nfc(std::string_view text) {
    // Below U+0300 (lead byte 0xCC) nothing decomposes that NFC would not put back, and nothing combines.
    if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; }))
        return std::string(text);

    std::vector<utf8proc_int32_t> points;
    points.reserve(text.size());
    while (!text.empty()) {
        const auto next = next_utf8(text);
        if (next.what != utf8_sequence::kind::valid) return fail(errc::invalid_argument, "text to normalise is not valid UTF-8");
        text.remove_prefix(next.length);
        utf8proc_int32_t parts[16];  // the longest full canonical decomposition has 4
        const auto count =
            utf8proc_decompose_char(static_cast<utf8proc_int32_t>(next.code_point), parts, 16, UTF8PROC_DECOMPOSE, nullptr);
        if (count < 0 || count > 16) return fail(errc::invalid_argument, "a code point cannot be decomposed");
        points.insert(points.end(), parts, parts + count);
    }
    const auto mark_class = [](utf8proc_int32_t point) { return utf8proc_get_property(point)->combining_class; };
    for (auto run = points.begin(); run != points.end();) {
        if (*run < 0x300 || mark_class(*run) == 0) {
            ++run;
            continue;
        }
        const auto end = std::find_if(run, points.end(), [&](utf8proc_int32_t point) { return mark_class(point) == 0; });
        if (end - run > 1)
            std::stable_sort(run, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) { return mark_class(a) < mark_class(b); });
        run = end;
    }
    const auto length = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (length < 0) return fail(errc::invalid_argument, "text cannot be normalised");
    std::string out;
    out.reserve(static_cast<std::size_t>(length));
    for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(out, static_cast<char32_t>(points[static_cast<std::size_t>(i)]));
    return out;
}

}  // namespace io

FRUGAL_NAMESPACE_END
