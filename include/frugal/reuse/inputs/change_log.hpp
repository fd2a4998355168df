#pragma once
/// Versions of contents, and the changes between them.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// A number that no content of the process has had before. An object that changes takes a new one, and a copy keeps its
/// own: equal numbers mean equal contents, whatever was copied, restored or changed in between.
/// One counter for all files of a program, whatever their flags: forced inline, so that only the variable has a name.
[[nodiscard]] FRUGAL_ALWAYS_INLINE std::uint64_t next_content_version() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

/// The latest changes of a content, by version: whole steps, at most twice `capacity` changes of them. After a step of more
/// than `capacity` changes the log reaches back to the end of that step only.
template <class Change>
class FRUGAL_FLAGGED change_log {
public:
    /// Of a content that is now at `version`. `capacity` is at least 1.
    change_log(std::uint64_t version, std::size_t capacity) : capacity_(capacity), marks_{{version, 0}} {}

    /// A change of the step in progress. Calls drop(change) for each change that is kept no longer.
    template <class Drop>
    void add(const Change& change, Drop&& drop) {
        if (!too_many_ && changes_.size() - marks_.back().end < capacity_) {
            changes_.push_back(change);
            return;
        }
        too_many_ = true;
        for (const Change& old : changes_) drop(old);
        changes_.clear();
        drop(change);
    }
    /// Ends the step: the content is now at `version`.
    template <class Drop>
    void close(std::uint64_t version, Drop&& drop) {
        if (too_many_) {
            marks_.assign(1, {version, 0});
            too_many_ = false;
            return;
        }
        marks_.push_back({version, changes_.size()});
        if (changes_.size() <= 2 * capacity_) return;
        const auto first =
            std::find_if(marks_.begin(), marks_.end(), [&](const mark& m) { return changes_.size() - m.end <= capacity_; });
        const std::size_t gone = first->end;
        for (std::size_t i = 0; i < gone; ++i) drop(changes_[i]);
        changes_.erase(changes_.begin(), changes_.begin() + static_cast<std::ptrdiff_t>(gone));
        marks_.erase(marks_.begin(), first);
        for (mark& m : marks_) m.end -= gone;
    }
    /// The changes since `version`, the oldest first; nothing if the log does not reach back to it. Valid until the next one.
    [[nodiscard]] std::optional<std::span<const Change>> since(std::uint64_t version) const noexcept {
        const auto from = std::lower_bound(marks_.begin(), marks_.end(), version,
                                           [](const mark& m, std::uint64_t wanted) { return m.version < wanted; });
        if (from == marks_.end() || from->version != version) return std::nullopt;
        return std::span<const Change>(changes_).subspan(from->end);
    }

private:
    struct mark {
        std::uint64_t version;
        std::size_t end;  // changes made before this version
    };
    std::size_t capacity_;
    bool too_many_ = false;  // the step in progress made more than are kept
    std::vector<Change> changes_;
    std::vector<mark> marks_;  // never empty; the first is as far as the log reaches back
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
