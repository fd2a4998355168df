#pragma once
/// Parsing of JSON from files, with nlohmann/json: no exceptions, bounded depth, errors with their place.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "frugal/core/error.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/io/utf8.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// Values nested deeper than this are refused: no configuration needs them, and whoever walks such a tree recursively would
/// run out of stack.
inline constexpr std::size_t most_json_depth = 64;

namespace detail {

/// "line L, column C" of byte `at`, both counted from 1, columns in bytes.
[[nodiscard]] FRUGAL_FLAGGED inline std::string text_place(std::string_view text, std::size_t at) {
    const std::string_view before = text.substr(0, at);
    const auto newline = before.rfind('\n');
    const std::size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
    return concat("line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ", column);
}

/// Builds the tree while the text is parsed. It stops at the first thing that is wrong: the parser's own errors, a value that
/// is nested too deep, a key that an object has twice (readers disagree on which of the two counts).
class FRUGAL_FLAGGED json_tree_builder {
public:
    using json = nlohmann::json;

    json root;
    std::string problem;         ///< why parsing stopped, where it was not the syntax
    std::size_t bytes_read = 0;  ///< at an error of syntax, the byte that does not fit being the last

    bool null() { return put(nullptr); }
    bool boolean(bool value) { return put(value); }
    bool number_integer(json::number_integer_t value) { return put(value); }
    bool number_unsigned(json::number_unsigned_t value) { return put(value); }
    bool number_float(json::number_float_t value, const std::string&) { return put(value); }
    bool string(std::string& value) { return put(std::move(value)); }
    bool binary(json::binary_t&) { return false; }
    bool start_object(std::size_t) { return open(json::object()); }
    bool start_array(std::size_t) { return open(json::array()); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }
    bool key(std::string& name) {
        const auto [place, fresh] = open_.back()->get_ptr<json::object_t*>()->try_emplace(name);
        slot_ = &place->second;
        path_.back() = std::move(name);
        if (!fresh) problem = concat("key ", printable(path()), " is there twice");
        return fresh;
    }
    template <class Exception>
    bool parse_error(std::size_t position, const std::string&, const Exception&) {
        bytes_read = position;
        return false;
    }

private:
    /// Where the next value goes: to the end of an array, under the last key of an object.
    [[nodiscard]] json& place() {
        if (open_.empty()) return root;
        if (auto* list = open_.back()->get_ptr<json::array_t*>()) return list->emplace_back();
        return *slot_;
    }
    template <class Value>
    bool put(Value&& value) {
        place() = std::forward<Value>(value);
        return true;
    }
    bool open(json container) {
        if (open_.size() == most_json_depth) {
            problem = concat("nested deeper than ", most_json_depth, " levels");
            return false;
        }
        // A parent gets no further value while a child is open, so the child stays where it is.
        json& at = place();
        at = std::move(container);
        open_.push_back(&at);
        path_.emplace_back();
        return true;
    }
    bool close() {
        open_.pop_back();
        path_.pop_back();
        return true;
    }
    [[nodiscard]] std::string path() const {
        std::string out;
        for (const std::string& part : path_)
            if (!part.empty()) out += concat(out.empty() ? "" : ".", part);
        return out;
    }

    std::vector<json*> open_;
    std::vector<std::string> path_;  // the last key of each open container
    json* slot_ = nullptr;
};

}  // namespace detail

/// Parses `text`, which may begin with a byte order mark. Python's extensions (NaN, Infinity) are not JSON.
/// Errors: malformed_file (not JSON, nested too deep, a key twice in one object), with `name` and the place.
[[nodiscard]] inline result<nlohmann::json> parse_json(std::string_view text, const std::string& name) {
    text = without_byte_order_mark(text);
    detail::json_tree_builder builder;
    if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return std::move(builder.root);
    if (!builder.problem.empty()) return fail(errc::malformed_file, name, ": ", builder.problem);
    // At the end of the text the parser counts one byte more.
    const std::size_t at = (std::min)(builder.bytes_read == 0 ? 0 : builder.bytes_read - 1, text.size());
    const std::string_view rest = text.substr(at);
    std::string what = "the text ends too early";
    if (rest.starts_with("NaN") || rest.starts_with("Infinity"))
        what = "NaN and Infinity are Python's, not JSON's";
    else if (!rest.empty())
        what = concat(printable(rest.substr(0, rest.size() < 12 ? rest.size() : 12)), " does not belong there");
    return fail(errc::malformed_file, name, ": not valid JSON at ", detail::text_place(text, at), ": ", what);
}

}  // namespace io

FRUGAL_NAMESPACE_END
