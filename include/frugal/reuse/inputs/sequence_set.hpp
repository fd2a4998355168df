#pragma once
/// Sets of sequences, and a store that keeps each different set once, so that sets are compared by one number.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frugal/reuse/inputs/batch.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Sequences that a cache can tell apart.
inline constexpr std::size_t max_sequences = 256;

/// A set of sequences 0 … max_sequences - 1.
class FRUGAL_FLAGGED sequence_set {
public:
    constexpr sequence_set() noexcept = default;
    /// The set of one sequence. Precondition of this and the other members: 0 <= s < max_sequences.
    explicit constexpr sequence_set(sequence_id s) noexcept { add(s); }

    constexpr void add(sequence_id s) noexcept { words_[word(s)] |= bit(s); }
    constexpr void remove(sequence_id s) noexcept { words_[word(s)] &= ~bit(s); }
    [[nodiscard]] constexpr bool contains(sequence_id s) const noexcept { return (words_[word(s)] & bit(s)) != 0; }
    [[nodiscard]] constexpr bool empty() const noexcept { return *this == sequence_set(); }
    [[nodiscard]] constexpr std::size_t count() const noexcept {
        std::size_t sum = 0;
        for (const std::uint64_t w : words_) sum += static_cast<std::size_t>(std::popcount(w));
        return sum;
    }
    /// Adds every member of `other`.
    constexpr void add(const sequence_set& other) noexcept {
        for (std::size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
    }
    /// Calls visit(sequence_id) for every member, the lowest first.
    template <class Visit>
    constexpr void for_each(Visit&& visit) const {
        for (std::size_t w = 0; w < words_.size(); ++w)
            for (std::uint64_t left = words_[w]; left != 0; left &= left - 1)
                visit(static_cast<sequence_id>(w * 64 + static_cast<std::size_t>(std::countr_zero(left))));
    }
    /// 64 bits a word, the lowest sequence in the lowest bit of the first.
    [[nodiscard]] constexpr const std::array<std::uint64_t, max_sequences / 64>& words() const noexcept { return words_; }

    friend constexpr bool operator==(const sequence_set&, const sequence_set&) noexcept = default;

private:
    [[nodiscard]] static constexpr std::size_t word(sequence_id s) noexcept { return static_cast<std::size_t>(s) / 64; }
    [[nodiscard]] static constexpr std::uint64_t bit(sequence_id s) noexcept {
        return std::uint64_t{1} << (static_cast<std::size_t>(s) % 64);
    }
    std::array<std::uint64_t, max_sequences / 64> words_{};
};

/// A set that a `sequence_sets` keeps. Two of one store are equal if and only if their sets are. May be given to another
/// set once nothing refers to this one any more.
enum class set_index : std::uint32_t { empty = 0 };

/// Different sets, each kept once for as long as it is referred to.
class FRUGAL_FLAGGED sequence_sets {
public:
    sequence_sets() : sets_(1), references_(1, 1) {}

    [[nodiscard]] const sequence_set& at(set_index index) const noexcept { return sets_[static_cast<std::size_t>(index)]; }
    /// The index of a set, kept from now on. Refer to it before anything else is released.
    [[nodiscard]] set_index intern(const sequence_set& set) {
        if (set.empty()) return set_index::empty;
        // Runs of cells have the same set.
        if (references_[static_cast<std::size_t>(latest_)] != 0 && at(latest_) == set) return latest_;
        if (const auto known = index_of_.find(set); known != index_of_.end()) return latest_ = known->second;
        set_index index{};
        if (free_.empty()) {
            index = static_cast<set_index>(sets_.size());
            sets_.push_back(set);
            references_.push_back(0);
        } else {
            index = free_.back();
            free_.pop_back();
            sets_[static_cast<std::size_t>(index)] = set;
        }
        index_of_.emplace(set, index);
        return latest_ = index;
    }
    void refer(set_index index) noexcept {
        if (index != set_index::empty) ++references_[static_cast<std::size_t>(index)];
    }
    void release(set_index index) {
        if (index == set_index::empty || --references_[static_cast<std::size_t>(index)] != 0) return;
        index_of_.erase(at(index));
        free_.push_back(index);
    }
    /// Sets kept, the empty one not counted.
    [[nodiscard]] std::size_t size() const noexcept { return index_of_.size(); }

private:
    struct hash {
        [[nodiscard]] std::size_t operator()(const sequence_set& set) const noexcept {
            std::uint64_t mixed = 0;
            for (const std::uint64_t w : set.words()) mixed = (mixed ^ w) * 0x9E3779B97F4A7C15u, mixed ^= mixed >> 32;
            return static_cast<std::size_t>(mixed);
        }
    };
    std::vector<sequence_set> sets_;  // set 0 is the empty one
    std::vector<std::size_t> references_;
    std::vector<set_index> free_;
    set_index latest_ = set_index::empty;
    std::unordered_map<sequence_set, set_index, hash> index_of_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
