#pragma once
/// A conversation with a model: its turns, and the options with which they are rendered.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli.hpp"
#include "frugal/io/chat.hpp"
#include "generator.hpp"

namespace runner {

class conversation {
public:
    /// The file outlives the conversation. Errors: those of chat_layout.
    [[nodiscard]] static frugal::result<conversation> create(const chat_arguments& args, const model_file& file) {
        FRUGAL_TRY_ASSIGN(auto layout, chat_layout(file));
        conversation out(std::move(layout));
        out.options_.thinking = args.think;
        if (!args.system.empty()) out.turns_.push_back({"system", args.system});
        out.opening_ = out.turns_.size();
        return out;
    }

    /// Ids of the conversation with `text` as its next turn, up to where the reply begins.
    [[nodiscard]] frugal::result<std::vector<std::int32_t>> prompt(const std::string& text) const {
        auto turns = turns_;
        turns.push_back({"user", text});
        return layout_.render(turns, options_);
    }
    /// Says `text`; the reply is printed and appended to `reply`. Both turns are kept, unless there is an error, or Ctrl-C before
    /// the reply. Errors: those of prompt() and generator::go_on.
    [[nodiscard]] frugal::result<ending> say(const std::string& text, generator& by, std::string& reply) {
        FRUGAL_TRY_ASSIGN(const auto ids, prompt(text));
        FRUGAL_TRY_ASSIGN(const ending why, by.go_on(ids, reply));
        if (why == ending::interrupted && reply.empty()) return why;
        turns_.push_back({"user", text});
        const auto parts = frugal::io::split_reasoning(reply, options_.thinking.value_or(layout_.format().thinking));
        turns_.push_back({"assistant", std::string(parts.answer), std::string(parts.reasoning)});
        return why;
    }
    /// Takes the last turn and its reply back.
    void undo() {
        if (turns_.size() > opening_) turns_.resize(turns_.size() - 2);
    }
    /// Begins anew.
    void clear() { turns_.resize(opening_); }

private:
    explicit conversation(frugal::io::chat_template layout) : layout_(std::move(layout)) {}

    frugal::io::chat_template layout_;
    frugal::io::chat_options options_;
    std::vector<frugal::io::chat_turn> turns_;
    std::size_t opening_ = 0;  ///< turns before anybody has spoken
};

}  // namespace runner
