#pragma once
/// Cutting text into the pieces within which byte pairs may merge, with PCRE2 (link libpcre2-8).
#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/io/printable.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// Pattern of Qwen3.5, Qwen3.6 and Qwen4-Exp (transformers: qwen3_5/tokenization_qwen3_5.py). The alternatives, tried in this
/// order: a contraction; letters and combining marks, with one leading character that is no letter, digit or line end; one digit;
/// other characters with one leading space and the line ends behind; blanks that end in line ends; blanks before more
/// blanks; blanks. `qwen2_pattern` differs only in that marks neither join a word nor keep out of "other characters".
#define FRUGAL_QWEN_PATTERN(word, mark)                \
    "(?i:'(?:[sdmt]|re|ve|ll))"                        \
    "|[^\\r\\n\\p{L}\\p{N}]?" word                     \
    "|\\p{N}"                                          \
    "| ?[^\\s\\p{L}\\p{N}" mark "]+[\\r\\n]*"          \
    "|\\s*[\\r\\n]+"                                   \
    "|\\s+(?!\\S)"                                     \
    "|\\s+"
inline constexpr std::string_view qwen35_pattern = FRUGAL_QWEN_PATTERN("[\\p{L}\\p{M}]+", "\\p{M}");
inline constexpr std::string_view qwen2_pattern = FRUGAL_QWEN_PATTERN("\\p{L}+", "");
#undef FRUGAL_QWEN_PATTERN

/// A compiled pattern. Immutable; may be used from several threads at once.
class FRUGAL_FLAGGED pre_tokenizer {
public:
    /// Compiles a pattern as tokenizer.json files hold them. `\s` and `\S` mean Unicode's White_Space, as in the regular
    /// expressions of the tokenizers package (PCRE2's own would add U+180E). Errors: unsupported (not a pattern that PCRE2 reads,
    /// or a class in which the two dialects differ), out_of_memory.
    [[nodiscard]] static result<pre_tokenizer> compile(std::string_view pattern) {
        FRUGAL_TRY_ASSIGN(const std::string translated, translate(pattern));
        const std::unique_ptr<pcre2_compile_context_8, release> context(pcre2_compile_context_create_8(nullptr));
        if (context == nullptr) return fail(errc::out_of_memory, "cannot allocate a pattern");
        pcre2_set_max_pattern_length_8(context.get(), longest_pattern);
        pcre2_set_parens_nest_limit_8(context.get(), 50);
        int code = 0;
        PCRE2_SIZE offset = 0;
        pre_tokenizer out;
        out.code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
                                        PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context.get()));
        if (out.code_ == nullptr)
            return fail(errc::unsupported, "pre-tokenizer pattern ", printable(pattern), ": ", message(code), " at ", offset);
        // Without a just-in-time compiler (or where it may not run) the interpreter gives the same matches.
        static_cast<void>(pcre2_jit_compile_8(out.code_.get(), PCRE2_JIT_COMPLETE));
        return out;
    }

    /// Calls `on_piece(std::string_view)` for each match in turn and for each stretch between matches. `text` must be valid
    /// UTF-8. Errors: unsupported (the pattern needs more steps or memory than is allowed), out_of_memory.
    template <class OnPiece>
    [[nodiscard]] status split(std::string_view text, OnPiece&& on_piece) const {
        if (text.empty()) return {};
        const std::unique_ptr<pcre2_match_data_8, release> match(pcre2_match_data_create_8(1, nullptr));
        if (match == nullptr) return fail(errc::out_of_memory, "cannot allocate a match");
        const auto* subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
        std::size_t done = 0;
        while (done < text.size()) {
            // Without NO_UTF_CHECK every call would validate the whole text again.
            std::uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
            int found = pcre2_match_8(code_.get(), subject, text.size(), done, options, match.get(), nullptr);
            if (found == PCRE2_ERROR_JIT_STACKLIMIT)
                found = pcre2_match_8(code_.get(), subject, text.size(), done, options | PCRE2_NO_JIT, match.get(), nullptr);
            if (found == PCRE2_ERROR_NOMATCH) break;
            if (found < 0) return fail(errc::unsupported, "pre-tokenizer at byte ", done, " of the text: ", message(found));
            const PCRE2_SIZE* range = pcre2_get_ovector_pointer_8(match.get());
            // \K inside a lookaround can place a match where it may not be.
            if (range[0] < done || range[1] <= range[0] || range[1] > text.size())
                return fail(errc::unsupported, "the pre-tokenizer pattern matched backwards at byte ", done, " of the text");
            if (range[0] > done) on_piece(text.substr(done, range[0] - done));
            on_piece(text.substr(range[0], range[1] - range[0]));
            done = range[1];
        }
        if (done < text.size()) on_piece(text.substr(done));
        return {};
    }

private:
    static constexpr std::size_t longest_pattern = 4096;

    struct release {
        void operator()(pcre2_code_8* code) const noexcept { pcre2_code_free_8(code); }
        void operator()(pcre2_match_data_8* match) const noexcept { pcre2_match_data_free_8(match); }
        void operator()(pcre2_compile_context_8* context) const noexcept { pcre2_compile_context_free_8(context); }
    };

    [[nodiscard]] static std::string message(int code) {
        PCRE2_UCHAR8 text[256] = {};
        static_cast<void>(pcre2_get_error_message_8(code, text, sizeof(text)));
        return reinterpret_cast<const char*>(text);
    }

    /// Spells \s and \S out as classes of White_Space.
    [[nodiscard]] static result<std::string> translate(std::string_view pattern) {
        constexpr std::string_view blanks = "\\p{Z}\\t-\\r\\x{85}";
        std::string out;
        bool in_class = false;
        for (std::size_t i = 0; i < pattern.size(); ++i) {
            const char c = pattern[i];
            const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
            if (c == '\\' && next == 's') {
                out += in_class ? std::string(blanks) : concat('[', blanks, ']');
                ++i;
            } else if (c == '\\' && next == 'S') {
                if (in_class)
                    return fail(errc::unsupported, "pre-tokenizer pattern ", printable(pattern), ": \\S inside a class");
                out += concat("[^", blanks, ']');
                ++i;
            } else if (c == '\\') {
                out += c;
                if (++i < pattern.size()) out += pattern[i];
            } else {
                // Oniguruma nests classes and intersects them; PCRE2 would read the same text as something else.
                if (in_class && (c == '[' || (c == '&' && next == '&')))
                    return fail(errc::unsupported, "pre-tokenizer pattern ", printable(pattern), ": a class inside a class");
                if (c == '[') {
                    const std::size_t first = i + (next == '^' ? 2 : 1);
                    if (first < pattern.size() && pattern[first] == ']')
                        return fail(errc::unsupported, "pre-tokenizer pattern ", printable(pattern),
                                    ": a class that begins with ]");
                    in_class = true;
                }
                if (c == ']') in_class = false;
                out += c;
            }
        }
        return out;
    }

    std::unique_ptr<pcre2_code_8, release> code_;
};

}  // namespace io

FRUGAL_NAMESPACE_END
