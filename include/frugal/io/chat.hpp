#pragma once
/// Conversations as the chat templates of this family render them (ChatML turns with reasoning), as text and as token ids.
///
/// For text, what the file's own template renders, where it is one that is known (io/chat_format.hpp): contents trimmed,
/// reasoning taken apart, the same conversations refused. No tools, no images. Special tokens come only from the template's own
/// text: a user who writes `<|im_end|>` has written plain characters.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/chat_format.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/io/tokenizer.hpp"
#include "frugal/io/utf8.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// One turn. `role` is "system" (first turn only), "user" or "assistant".
struct FRUGAL_FLAGGED chat_turn {
    std::string role, content;
    /// Of an assistant, where it is known apart; otherwise most templates take it from the content.
    std::optional<std::string> reasoning = {};
};

struct FRUGAL_FLAGGED chat_options {
    /// Whether the answer starts with reasoning. Empty: as the template has it.
    std::optional<bool> thinking = {};
    /// Ends with the opening of an assistant turn, for the model to go on.
    bool add_generation_prompt = true;
    /// Whether reasoning before the last question stays, where the template can do both. Empty: as the template has it.
    std::optional<bool> keep_reasoning = {};
    /// "low", "medium" or "xhigh", where the template knows it. Empty: the template's own, xhigh.
    std::string_view reasoning_effort = {};
};

/// An assistant's text taken apart at `</think>`.
struct FRUGAL_FLAGGED reasoned_answer {
    std::string_view reasoning, answer;
};

/// `text` without white space at either end, as Python's str.strip has it.
[[nodiscard]] FRUGAL_FLAGGED inline std::string_view trim_white_space(std::string_view text) noexcept {
    const auto is_space = [](char32_t c) {
        return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
               (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
    };
    while (!text.empty()) {
        const auto next = next_utf8(text);
        if (next.what != utf8_sequence::kind::valid || !is_space(next.code_point)) break;
        text.remove_prefix(next.length);
    }
    while (!text.empty()) {
        std::size_t length = 1;  // of the last character: continuation bytes and what leads them
        while (length < 4 && length < text.size() && (static_cast<unsigned char>(text[text.size() - length]) & 0xC0u) == 0x80)
            ++length;
        const auto last = next_utf8(text.substr(text.size() - length));
        if (last.what != utf8_sequence::kind::valid || last.length != length || !is_space(last.code_point)) break;
        text.remove_suffix(length);
    }
    return text;
}

/// Splits generated text as the templates do. Without `</think>` everything is answer, unless `thinking`, where everything is
/// still reasoning. A leading `<think>` is dropped, and white space around either part.
[[nodiscard]] inline reasoned_answer split_reasoning(std::string_view text, bool thinking = false) noexcept {
    constexpr std::string_view open = "<think>", close = "</think>";
    text = trim_white_space(text);
    const auto end = text.find(close);
    if (end == std::string_view::npos && !thinking) return {{}, text};
    std::string_view reasoning = text.substr(0, end);
    if (const auto start = reasoning.rfind(open); start != std::string_view::npos) reasoning.remove_prefix(start + open.size());
    std::string_view answer = end == std::string_view::npos ? std::string_view{} : text.substr(text.rfind(close) + close.size());
    while (answer.starts_with('\n')) answer.remove_prefix(1);
    return {trim_white_space(reasoning), answer};
}

/// Renders conversations for one tokenizer, which must outlive it.
class FRUGAL_FLAGGED chat_template {
public:
    /// `format`: that of the file's own template (recognise_chat_format), or of a model like it.
    /// Errors: not_found (the vocabulary has no <|im_start|> or <|im_end|>: it is not a chat model's).
    [[nodiscard]] static result<chat_template> create(const tokenizer& source, const chat_format& format = {}) {
        for (const auto text : {turn_start, turn_end}) {
            const auto found = source.id_of(text);
            if (!found || !source.is_added(*found))
                return fail(errc::not_found, "the vocabulary has no token ", printable(text), ", so it has no chat format");
        }
        return chat_template(source, format);
    }

    [[nodiscard]] const chat_format& format() const noexcept { return format_; }

    /// Ids of the whole conversation, as of render_text's text, but that special tokens are the template's alone.
    /// Errors: those of render_text and of tokenizer::encode.
    [[nodiscard]] result<std::vector<std::int32_t>> render(std::span<const chat_turn> turns,
                                                           const chat_options& options = {}) const {
        FRUGAL_TRY_ASSIGN(const auto pieces, compose(turns, options));
        std::vector<std::int32_t> out;
        std::string pending;  // plain text up to the next token: merges and normalisation reach across the seams within it
        const auto flush = [&]() -> status {
            FRUGAL_TRY_ASSIGN(const auto part, source_->encode(pending, false));
            out.insert(out.end(), part.begin(), part.end());
            pending.clear();
            return {};
        };
        for (const piece& one : pieces) {
            // A token of the template that small vocabularies lack is plain text, as in the template's own rendering.
            const auto id = one.token ? source_->id_of(one.text) : std::nullopt;
            if (!id || !source_->is_added(*id)) {
                pending += one.text;
                continue;
            }
            FRUGAL_TRY(flush());
            out.push_back(*id);
        }
        FRUGAL_TRY(flush());
        return out;
    }

    /// The conversation's text, as the template renders it. Reasoning of assistant turns before the last question is left out
    /// where the template does so.
    /// Errors: invalid_argument (no turn, no question where the template wants one, an unknown role, a system turn that is not
    /// the first, an unknown reasoning effort).
    [[nodiscard]] result<std::string> render_text(std::span<const chat_turn> turns, const chat_options& options = {}) const {
        FRUGAL_TRY_ASSIGN(const auto pieces, compose(turns, options));
        std::string out;
        for (const piece& one : pieces) out += one.text;
        return out;
    }

    /// Ids at which a turn ends: the tokenizer's end-of-generation ids, <|im_end|> among them.
    [[nodiscard]] std::span<const std::int32_t> stop_ids() const noexcept { return source_->eos_ids(); }

private:
    static constexpr std::string_view turn_start = "<|im_start|>", turn_end = "<|im_end|>";

    struct piece {
        std::string text;
        bool token;  ///< the template's own special token
    };
    struct composition {
        std::vector<piece> all;

        void token(std::string_view text) { all.push_back({std::string(text), true}); }
        void text(std::string_view part) { all.push_back({std::string(part), false}); }
        void open(std::string_view role) {
            token(turn_start);
            text(concat(role, "\n"));
        }
        void close() {
            token(turn_end);
            text("\n");
        }
        void reason(std::string_view reasoning) {
            token("<think>");
            text(concat("\n", reasoning, "\n"));
            token("</think>");
            text("\n\n");
        }
    };

    chat_template(const tokenizer& source, const chat_format& format) noexcept : source_(&source), format_(format) {}

    [[nodiscard]] static bool is_system(const chat_turn& turn, bool joins) {
        return turn.role == "system" || (joins && turn.role == "developer");
    }

    /// What the template says on how much to reason.
    [[nodiscard]] result<std::string_view> effort(const chat_options& options) const {
        if (!format_.reasoning_effort || !options.thinking.value_or(true)) return std::string_view();
        const std::string_view wanted = options.reasoning_effort;
        if (wanted.empty() || wanted == "xhigh")
            return std::string_view(
                "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
                "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.");
        if (wanted == "low")
            return std::string_view(
                "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without "
                "unnecessary elaboration.");
        if (wanted == "medium") return std::string_view();
        return fail(errc::invalid_argument, "reasoning effort ", printable(wanted), " is not one of low, medium, xhigh");
    }

    [[nodiscard]] result<std::vector<piece>> compose(std::span<const chat_turn> turns, const chat_options& options) const {
        if (turns.empty()) return fail(errc::invalid_argument, "a conversation needs at least one turn");
        const bool joins = format_.joins_system;
        for (std::size_t i = 0; i < turns.size(); ++i) {
            const std::string& role = turns[i].role;
            if (role != "user" && role != "assistant" && !is_system(turns[i], joins))
                return fail(errc::invalid_argument, "turn ", i, " has role ", printable(role),
                            "; system, user and assistant are known");
            if (role == "system" && i != 0 && !joins)
                return fail(errc::invalid_argument, "turn ", i, " is a system turn; only the first can be one");
        }
        // What a tool says comes as a user's turn, and is no question.
        std::optional<std::size_t> question;
        for (std::size_t i = turns.size(); i-- > 0 && !question;) {
            const std::string_view text = trim_white_space(turns[i].content);
            if (turns[i].role == "user" && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>")))
                question = i;
        }
        if (!question && !joins) return fail(errc::invalid_argument, "the conversation has no turn of a user with a question");
        const std::size_t last_question = question.value_or(turns.size() - 1);

        composition out;
        FRUGAL_TRY_ASSIGN(const std::string_view instructions, effort(options));
        std::string system{instructions};
        std::size_t leading = is_system(turns[0], joins) ? 1 : 0;
        if (leading != 0) {
            const std::string_view text = trim_white_space(turns[0].content);
            if (!text.empty() && !system.empty()) system += "\n\n";
            system += text;
            if (joins && turns.size() > 1 && is_system(turns[1], joins)) {
                system += concat("\n", trim_white_space(turns[1].content));
                leading = 2;
            }
        }
        if (!system.empty() || (leading != 0 && !format_.drops_empty_system)) {
            out.open("system");
            out.text(system);
            out.close();
        }
        using earlier = chat_format::earlier_reasoning;
        const bool keeps = format_.earlier == earlier::dropped_unless_asked ? options.keep_reasoning.value_or(false)
                           : format_.earlier == earlier::kept_unless_asked  ? options.keep_reasoning.value_or(true)
                                                                            : false;
        for (std::size_t i = leading; i < turns.size(); ++i) {
            const chat_turn& turn = turns[i];
            if (is_system(turn, joins)) continue;
            out.open(turn.role);
            std::string_view content = trim_white_space(turn.content);
            if (turn.role == "assistant") {
                std::string_view reasoning;
                if (turn.reasoning) {
                    reasoning = trim_white_space(*turn.reasoning);
                } else if (format_.splits_reasoning) {
                    const auto parts = split_reasoning(content);
                    reasoning = parts.reasoning;
                    content = parts.answer;
                }
                if (keeps || i > last_question) out.reason(reasoning);
            }
            out.text(content);
            out.close();
        }
        if (options.add_generation_prompt) {
            out.open("assistant");
            if (options.thinking.value_or(format_.thinking)) {
                out.token("<think>");
                out.text("\n");
            } else {
                out.reason("");
            }
        }
        return std::move(out.all);
    }

    const tokenizer* source_;
    chat_format format_;
};

}  // namespace io

FRUGAL_NAMESPACE_END
