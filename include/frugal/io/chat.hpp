#pragma once
/// Conversations in the form that Qwen3.5 was trained on (ChatML turns with optional reasoning), rendered to token ids.
///
/// The essentials of the models' chat template, not a template engine: system text, turns, reasoning; no tools, no images.
/// Special tokens come only from the template's own text: a user who writes `<|im_end|>` has written plain characters.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/io/tokenizer.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// One turn. `role` is "system" (first turn only), "user" or "assistant".
struct chat_turn {
    std::string role, content;
};

struct chat_options {
    /// Whether the answer starts with reasoning. Published files differ in their default; the templates of Qwen3.5-2B and -4B
    /// think.
    bool thinking = true;
    /// Ends with the opening of an assistant turn, for the model to go on.
    bool add_generation_prompt = true;
};

/// An assistant's text taken apart at `</think>`.
struct reasoned_answer {
    std::string_view reasoning, answer;
};

/// Splits generated text. Without `</think>` everything is answer, unless `thinking`, where everything is still reasoning. Line
/// ends around either part and a leading `<think>` are dropped.
[[nodiscard]] inline reasoned_answer split_reasoning(std::string_view text, bool thinking = false) noexcept {
    constexpr std::string_view open = "<think>", close = "</think>";
    const auto trim = [](std::string_view part) {
        while (part.starts_with('\n')) part.remove_prefix(1);
        while (part.ends_with('\n')) part.remove_suffix(1);
        return part;
    };
    const auto end = text.rfind(close);
    if (end == std::string_view::npos && !thinking) return {{}, text};
    std::string_view reasoning = text.substr(0, end);
    if (const auto start = reasoning.rfind(open); start != std::string_view::npos) reasoning.remove_prefix(start + open.size());
    std::string_view answer = end == std::string_view::npos ? std::string_view{} : text.substr(end + close.size());
    while (answer.starts_with('\n')) answer.remove_prefix(1);
    return {trim(reasoning), answer};
}

/// Renders conversations for one tokenizer, which must outlive it.
class chat_template {
public:
    /// Errors: not_found (the vocabulary has no <|im_start|> or <|im_end|>: it is not a chat model's).
    [[nodiscard]] static result<chat_template> create(const tokenizer& source) {
        chat_template out(source);
        for (const auto& [text, id] : {std::pair(turn_start, &out.start_), std::pair(turn_end, &out.end_)}) {
            const auto found = source.id_of(text);
            if (!found || !source.is_added(*found))
                return fail(errc::not_found, "the vocabulary has no token ", printable(text), ", so it has no chat format");
            *id = *found;
        }
        return out;
    }

    /// Ids of the whole conversation. Reasoning of assistant turns before the last user turn is left out, as the models expect.
    /// Errors: invalid_argument (no turn, an unknown role, a system turn that is not the first), and those of tokenizer::encode.
    [[nodiscard]] result<std::vector<std::int32_t>> render(std::span<const chat_turn> turns, chat_options options = {}) const {
        if (turns.empty()) return fail(errc::invalid_argument, "a conversation needs at least one turn");
        std::size_t last_user = turns.size();
        for (std::size_t i = 0; i < turns.size(); ++i)
            if (turns[i].role == "user") last_user = i;
        builder out{*source_, {}, {}};
        for (std::size_t i = 0; i < turns.size(); ++i) {
            const auto& [role, content] = turns[i];
            if (role != "user" && role != "assistant" && role != "system")
                return fail(errc::invalid_argument, "turn ", i, " has role ", printable(role),
                            "; system, user and assistant are known");
            if (role == "system" && i != 0)
                return fail(errc::invalid_argument, "turn ", i, " is a system turn; only the first can be one");
            FRUGAL_TRY(out.token(start_));
            out.text(role + "\n");
            if (role == "assistant") {
                const auto [reasoning, answer] = split_reasoning(content);
                const bool keep = last_user != turns.size() && i > last_user;
                if (keep) {
                    FRUGAL_TRY(out.own_token("<think>"));
                    out.text("\n");
                    out.text(reasoning);
                    out.text("\n");
                    FRUGAL_TRY(out.own_token("</think>"));
                    out.text("\n\n");
                }
                out.text(answer);
            } else {
                out.text(content);
            }
            FRUGAL_TRY(out.token(end_));
            out.text("\n");
        }
        if (options.add_generation_prompt) {
            FRUGAL_TRY(out.token(start_));
            out.text("assistant\n");
            FRUGAL_TRY(out.own_token("<think>"));
            out.text(options.thinking ? "\n" : "\n\n");
            if (!options.thinking) {
                FRUGAL_TRY(out.own_token("</think>"));
                out.text("\n\n");
            }
        }
        FRUGAL_TRY(out.flush());
        return std::move(out.ids);
    }

    /// Ids at which a turn ends: the tokenizer's end-of-generation ids, <|im_end|> among them.
    [[nodiscard]] std::span<const std::int32_t> stop_ids() const noexcept { return source_->eos_ids(); }

private:
    static constexpr std::string_view turn_start = "<|im_start|>", turn_end = "<|im_end|>";

    /// Gathers plain text up to the next special token, since merges and normalisation reach across the seams within it.
    struct builder {
        const tokenizer& source;
        std::vector<std::int32_t> ids;
        std::string pending;

        void text(std::string_view part) { pending += part; }
        [[nodiscard]] status flush() {
            FRUGAL_TRY_ASSIGN(const auto part, source.encode(pending, false));
            ids.insert(ids.end(), part.begin(), part.end());
            pending.clear();
            return {};
        }
        [[nodiscard]] status token(std::int32_t id) {
            FRUGAL_TRY(flush());
            ids.push_back(id);
            return {};
        }
        /// A token of the template that small vocabularies lack; there it is plain text, as in the template's own rendering.
        [[nodiscard]] status own_token(std::string_view name) {
            const auto id = source.id_of(name);
            if (id && source.is_added(*id)) return token(*id);
            text(name);
            return {};
        }
    };

    explicit chat_template(const tokenizer& source) noexcept : source_(&source) {}

    const tokenizer* source_;
    std::int32_t start_ = -1, end_ = -1;
};

}  // namespace io

FRUGAL_NAMESPACE_END
