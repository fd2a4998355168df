// Renders conversations for check_chat.py: a JSON object a line in, one out.
//
// In: "template" (a chat template's text), "turns" ([{"role", "content", "reasoning"}]), "thinking", "keep_reasoning", "effort",
// "prompt". Out: "known" (whether the template is), "text" or "error", "same" (whether the ids are those of the text).
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "frugal/io/chat.hpp"
#include "tiny_vocabulary.hpp"

namespace io = frugal::io;

namespace {

io::tokenizer make_tokenizer() {
    test::vocabulary vocabulary;
    for (const char* text : {"<|im_start|>", "<|im_end|>"}) vocabulary.add(text, 3);
    for (const char* text : {"<think>", "</think>"}) vocabulary.add(text, 4);
    const std::string newline = io::spell_byte(10), space = io::spell_byte(32);
    vocabulary.merge(newline, newline);
    vocabulary.merge(newline + newline, newline);
    vocabulary.merge(space, space);
    vocabulary.merge(space, newline);
    vocabulary.merge("e", "r");
    const std::string bytes = vocabulary.gguf();
    const auto file = io::gguf_file::parse(std::as_bytes(std::span(bytes)), "memory.gguf");
    return std::move(*io::tokenizer::from_gguf(*file));
}

std::optional<bool> flag(const nlohmann::json& from, const char* key) {
    return from.contains(key) ? std::optional(from[key].get<bool>()) : std::nullopt;
}

}  // namespace

int main() {
    const io::tokenizer tokenizer = make_tokenizer();
    for (std::string line; std::getline(std::cin, line);) {
        const auto in = nlohmann::json::parse(line);
        nlohmann::json out;
        const auto format = io::recognise_chat_format(in["template"].get<std::string>());
        out["known"] = format.has_value();
        const auto chat = io::chat_template::create(tokenizer, format.value_or(io::chat_format{}));
        std::vector<io::chat_turn> turns;
        for (const auto& one : in["turns"]) {
            turns.push_back({one["role"], one["content"]});
            if (one.contains("reasoning")) turns.back().reasoning = one["reasoning"].get<std::string>();
        }
        const std::string effort = in.value("effort", std::string());
        const io::chat_options options{flag(in, "thinking"), in["prompt"].get<bool>(), flag(in, "keep_reasoning"), effort};
        const auto text = chat->render_text(turns, options);
        if (text) {
            const auto ids = chat->render(turns, options);
            out["text"] = *text;
            out["same"] = ids && *ids == *tokenizer.encode(*text);
            out["decoded"] = ids && tokenizer.decode(*ids) == *io::nfc(*text);
            out["special"] = ids ? std::count_if(ids->begin(), ids->end(), [&](auto id) { return tokenizer.is_special(id); }) : 0;
        } else {
            out["error"] = text.error().message;
        }
        std::cout << out.dump() << '\n';
    }
}
