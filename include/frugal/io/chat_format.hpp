#pragma once
/// The chat templates of this family, as far as they render text: which one a file has, and how they differ.
///
/// Not a template engine. A template is known by its statements: those that text never reaches (tools, images, video) are left
/// out, and what remains must be exactly one of those that chat.hpp renders.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "frugal/core/error.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/io/json.hpp"
#include "frugal/io/utf8.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// What differs between the templates, for text. The default is that of Qwen3.5.
struct FRUGAL_FLAGGED chat_format {
    /// Whether an answer starts with reasoning, unless it is asked for. The small models of Qwen3.5 do not think.
    bool thinking = true;
    /// An assistant's text is taken apart at </think>; otherwise its reasoning comes beside it only.
    bool splits_reasoning = true;
    /// Reasoning of turns before the last question: `dropped`, or `dropped_unless_asked`, or `kept_unless_asked`.
    enum class earlier_reasoning : std::uint8_t { dropped, dropped_unless_asked, kept_unless_asked };
    earlier_reasoning earlier = earlier_reasoning::dropped;
    /// The system turn begins with a sentence on how much to reason.
    bool reasoning_effort = false;
    /// A system turn without text is left out.
    bool drops_empty_system = false;
    /// Two leading system turns are one, later ones are left out; "developer" is such a turn too; no question is needed.
    bool joins_system = false;

    friend bool operator==(const chat_format&, const chat_format&) = default;
};

namespace detail {

/// The statements of a template, each with its kind in front ('%' or '='), white space outside of quotes single. Nothing where
/// the template prints text of its own outside of statements.
[[nodiscard]] FRUGAL_FLAGGED inline std::optional<std::vector<std::string>> template_statements(std::string_view text) {
    std::vector<std::string> out;
    const auto blank = [](std::string_view part) { return part.find_first_not_of(" \t\r\n") == std::string_view::npos; };
    while (!text.empty()) {
        const auto open = text.find('{');
        // The last line end is no text.
        if (open == std::string_view::npos) return text == "\n" ? std::optional(out) : std::nullopt;
        if (open + 2 >= text.size() || !blank(text.substr(0, open))) return std::nullopt;
        const char kind = text[open + 1];
        if ((kind != '%' && kind != '{' && kind != '#') || (open != 0 && text[open + 2] != '-')) return std::nullopt;
        text.remove_prefix(open + 2);
        if (text.front() == '-') text.remove_prefix(1);
        const std::string close = kind == '{' ? "}}" : std::string(1, kind) + '}';
        std::string statement(1, kind == '{' ? '=' : '%');
        char quote = 0;
        for (;;) {
            if (text.empty()) return std::nullopt;
            const char c = text.front();
            if (quote == 0 && text.starts_with(close)) break;
            const std::size_t taken = quote != 0 && c == '\\' && text.size() > 1 ? 2 : 1;
            if (quote != 0) {
                statement += text.substr(0, taken);
                if (c == quote) quote = 0;
            } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
                if (statement.back() != ' ') statement += ' ';
            } else {
                if (kind != '#' && (c == '\'' || c == '"')) quote = c;
                statement += c;
            }
            text.remove_prefix(taken);
        }
        text.remove_prefix(2);
        if (kind == '#') continue;
        if (statement.back() == '-') statement.pop_back();
        while (statement.back() == ' ') statement.pop_back();
        if (statement.size() > 1 && statement[1] == ' ') statement.erase(1, 1);
        out.push_back(std::move(statement));
    }
    return out;
}

/// What of a template renders text, a statement a line.
struct FRUGAL_FLAGGED template_parts {
    std::string body, prompt;  ///< all but the opening of the answer; that alone
};

/// The statement that ends the block or branch begun by statement `i`; with `branch`, the next branch ends it too.
[[nodiscard]] FRUGAL_FLAGGED inline std::size_t end_of_block(const std::vector<std::string>& statements, std::size_t i,
                                                             bool branch) {
    std::size_t depth = 1;
    while (++i < statements.size()) {
        const std::string& line = statements[i];
        if (line.starts_with("%end") && --depth == 0) break;
        if (branch && depth == 1 && line.starts_with("%el")) break;
        if (line.starts_with("%if ") || line.starts_with("%for ") || line.starts_with("%macro ")) ++depth;
    }
    return i;
}

/// Drops the statements that text never reaches: those on images and tools.
[[nodiscard]] inline template_parts text_parts(const std::vector<std::string>& statements) {
    template_parts out;
    for (std::size_t i = 0; i < statements.size(); ++i) {
        const std::string& line = statements[i];
        const auto begins = [&](std::string_view word) { return line.starts_with(word); };
        if (begins("%set image_count") || begins("%set video_count")) continue;
        if (begins("%if message.tool_calls and")) {
            i = end_of_block(statements, i, false);
            continue;
        }
        if (begins("%el") && line.find(".role == \"tool\"") != line.npos) {
            i = end_of_block(statements, i, true) - 1;
            continue;
        }
        if (begins("%if add_generation_prompt")) {
            const std::size_t end = end_of_block(statements, i, false);
            for (; i < end; ++i) out.prompt.append(statements[i]).append("\n");
            continue;
        }
        out.body.append(line).append("\n");
        if (begins("%if tools and")) i = end_of_block(statements, i, true) - 1;
        if (begins("%macro ")) {
            // Of a content, what is done with a text: its first branch, and that nothing follows the branches.
            const std::size_t end = end_of_block(statements, i, false);
            for (std::size_t k = i + 1; k < end; ++k)
                if (k < i + 4 || k + 1 == end) out.body.append(statements[k]).append("\n");
            i = end;
        }
    }
    return out;
}

/// FNV-1a, 64 bits.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::uint64_t fingerprint_of(std::string_view text) noexcept {
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    return hash;
}

}  // namespace detail

/// The format of a template's text; nothing where it is none of those that are rendered here.
[[nodiscard]] inline std::optional<chat_format> recognise_chat_format(std::string_view chat_template) {
    using earlier = chat_format::earlier_reasoning;
    const auto statements = detail::template_statements(without_byte_order_mark(chat_template));
    if (!statements) return std::nullopt;
    const auto parts = detail::text_parts(*statements);
    chat_format out;
    switch (detail::fingerprint_of(parts.body)) {
        case 0x368c3c7528a31b15u: break;  // Qwen3.5
        case 0xc55082b267c0fe12u:         // Qwen3.6
            out.earlier = earlier::dropped_unless_asked;
            break;
        case 0x3aea66b8374a7c5eu:  // Qwen3.6 as Unsloth's files have it
            out.earlier = earlier::dropped_unless_asked;
            out.drops_empty_system = out.joins_system = true;
            break;
        case 0xbc918dec4cd66b48u:  // Qwen3.8
            out.earlier = earlier::kept_unless_asked;
            out.splits_reasoning = false;
            out.reasoning_effort = out.drops_empty_system = true;
            break;
        default: return std::nullopt;
    }
    switch (detail::fingerprint_of(parts.prompt)) {
        case 0x16a6a7278bec0fcfu: break;                        // thinks unless told not to
        case 0x8c713911651790c6u: out.thinking = false; break;  // does not, unless told to
        default: return std::nullopt;
    }
    return out;
}

/// The text of the file's chat template; empty if it has none. Errors: invalid_argument (the key is no string).
[[nodiscard]] inline result<std::string> read_chat_template(const gguf_file& file) {
    if (!file.has("tokenizer.chat_template")) return std::string();
    FRUGAL_TRY_ASSIGN(const std::string_view text, file.string("tokenizer.chat_template"));
    return std::string(text);
}

/// The text of a checkpoint's chat template: chat_template.jinja, or "chat_template" of tokenizer_config.json (of a list, the one
/// named "default"); empty if there is none. `directory` is a safetensors_directory, or like one.
/// Errors: malformed_file, and those of reading the files.
template <class Directory>
[[nodiscard]] result<std::string> read_chat_template(const Directory& directory) {
    auto own = directory.read_text("chat_template.jinja");
    if (own || own.error().code != errc::not_found) return own;
    const std::string name = "tokenizer_config.json";
    auto text = directory.read_text(name);
    if (!text && text.error().code == errc::not_found) return std::string();
    FRUGAL_TRY(text);
    FRUGAL_TRY_ASSIGN(const nlohmann::json settings, parse_json(*text, name));
    const auto found = settings.is_object() ? settings.find("chat_template") : settings.end();
    if (found == settings.end() || found->is_null()) return std::string();
    if (const auto* one = found->template get_ptr<const std::string*>()) return *one;
    for (const auto& item : *found) {
        if (!item.is_object() || !item.contains("name") || item["name"] != "default" || !item.contains("template")) continue;
        if (const auto* one = item["template"].template get_ptr<const std::string*>()) return *one;
    }
    return fail(errc::malformed_file, name, ": \"chat_template\" is neither a text nor a list with one named \"default\"");
}

}  // namespace io

FRUGAL_NAMESPACE_END
