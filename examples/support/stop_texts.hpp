#pragma once
/// Ends a text that comes in pieces where one of several texts begins.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace runner {

/// What could be the beginning of a stop text is held back until it is known to be none.
class stop_texts {
public:
    /// `texts` are not empty.
    explicit stop_texts(const std::vector<std::string>& texts) : texts_(texts) {}

    /// Takes the next piece; what can be given out. Nothing once a stop text has come.
    [[nodiscard]] std::string push(std::string_view piece) {
        if (found_) return {};
        held_ += piece;
        std::size_t keep = held_.size();
        for (const std::string& text : texts_) keep = std::min(keep, held_.find(text));
        found_ = keep != held_.size();
        for (std::size_t from = 0; !found_ && from < keep; ++from) {
            const std::string_view rest = std::string_view(held_).substr(from);
            if (std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) { return text.starts_with(rest); }))
                keep = from;
        }
        std::string out = held_.substr(0, keep);
        held_.erase(0, keep);
        return out;
    }
    /// Whether a stop text has come.
    [[nodiscard]] bool found() const noexcept { return found_; }
    /// Nothing more comes: what was held back for no stop text.
    [[nodiscard]] std::string finish() { return found_ ? std::string() : std::exchange(held_, {}); }

private:
    const std::vector<std::string>& texts_;
    std::string held_;
    bool found_ = false;
};

}  // namespace runner
