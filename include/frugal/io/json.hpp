#pragma once
/// Parsing of JSON from files, with nlohmann/json: no exceptions, bounded depth.
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// Values nested deeper than this are refused: no configuration needs them, and whoever walks such a tree recursively would
/// run out of stack.
inline constexpr int most_json_depth = 64;

/// Parses `text`. `on_event(depth, event, value)` sees every parse event before its value is stored (see nlohmann's
/// parser_callback_t). Errors: malformed_file (not JSON, or nested too deep), naming `name`.
template <class OnEvent>
[[nodiscard]] result<nlohmann::json> parse_json(std::string_view text, const std::string& name, OnEvent on_event) {
    bool too_deep = false;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
        if (depth > most_json_depth) {
            too_deep = true;
            return false;  // drops the value, so that the tree stays shallow
        }
        on_event(depth, event, value);
        return true;
    };
    nlohmann::json out = nlohmann::json::parse(text.begin(), text.end(), watch, false);
    if (too_deep) return fail(errc::malformed_file, name, ": JSON nested deeper than ", most_json_depth, " levels");
    if (out.is_discarded()) return fail(errc::malformed_file, name, ": not valid JSON");
    return out;
}

[[nodiscard]] inline result<nlohmann::json> parse_json(std::string_view text, const std::string& name) {
    return parse_json(text, name, [](int, nlohmann::json::parse_event_t, const nlohmann::json&) {});
}

}  // namespace io

FRUGAL_NAMESPACE_END
