#pragma once
/// Byte-pair encoding of one piece: the pair of neighbours whose merge was learned first merges first.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// Merge rules by pair of token ids, in one flat hash table, and the ids of the 256 bytes.
class FRUGAL_FLAGGED byte_pair_merger {
public:
    static constexpr std::uint32_t no_rank = (std::numeric_limits<std::uint32_t>::max)();

    /// Working memory of `encode`, to be kept between calls.
    struct scratch {
        struct symbol {
            std::int32_t id;
            std::uint32_t rank;  // of the merge with the next symbol; no_rank if there is none
            std::uint32_t previous, next;
        };
        struct candidate {
            std::uint32_t rank, position;
        };
        std::vector<symbol> symbols;
        std::vector<candidate> heap;
    };

    std::array<std::int32_t, 256> byte_ids{};

    /// Room for `merges` rules.
    void reserve(std::size_t merges) {
        std::size_t size = 16;
        while (size < merges * 2) size *= 2;
        table_.assign(size, slot{});
    }

    /// left + right = merged. A pair that occurs again takes the later rank, as in the tokenizers package. After reserve().
    void add(std::int32_t left, std::int32_t right, std::uint32_t rank, std::int32_t merged) {
        slot& place = table_[find_slot(pair_key(left, right))];
        place = {pair_key(left, right), rank, merged};
    }

    /// Appends the ids of `piece` to `out`. Among equal ranks the leftmost pair merges first. O(n log n); n < 2^32.
    void encode(std::string_view piece, scratch& work, std::vector<std::int32_t>& out) const {
        if (piece.empty()) return;
        constexpr std::uint32_t none = no_rank;
        auto& symbols = work.symbols;
        auto& heap = work.heap;
        symbols.clear();
        heap.clear();
        const auto count = static_cast<std::uint32_t>(piece.size());
        for (std::uint32_t i = 0; i < count; ++i)
            symbols.push_back(
                {byte_ids[static_cast<unsigned char>(piece[i])], none, i == 0 ? none : i - 1, i + 1 < count ? i + 1 : none});
        const auto later = [](const scratch::candidate& a, const scratch::candidate& b) {
            return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
        };
        for (std::uint32_t i = 0; i + 1 < count; ++i)
            if (const auto rank = rank_of(symbols[i].id, symbols[i + 1].id); rank != none) {
                symbols[i].rank = rank;
                heap.push_back({rank, i});
            }
        std::make_heap(heap.begin(), heap.end(), later);
        const auto renew = [&](std::uint32_t position) {
            auto& symbol = symbols[position];
            symbol.rank = symbol.next == none ? none : rank_of(symbol.id, symbols[symbol.next].id);
            if (symbol.rank == none) return;
            heap.push_back({symbol.rank, position});
            std::push_heap(heap.begin(), heap.end(), later);
        };
        while (!heap.empty()) {
            std::pop_heap(heap.begin(), heap.end(), later);
            const auto [rank, position] = heap.back();
            heap.pop_back();
            auto& left = symbols[position];
            if (left.rank != rank) continue;  // one of the pair has merged otherwise meanwhile
            auto& right = symbols[left.next];
            left.id = table_[find_slot(pair_key(left.id, right.id))].merged;
            right.rank = none;
            left.next = right.next;
            if (left.next != none) symbols[left.next].previous = position;
            renew(position);
            if (left.previous != none) renew(left.previous);
        }
        for (std::uint32_t i = 0; i != none; i = symbols[i].next) out.push_back(symbols[i].id);
    }

private:
    struct slot {
        std::uint64_t key = (std::numeric_limits<std::uint64_t>::max)();  // no pair of non-negative ids
        std::uint32_t rank = no_rank;
        std::int32_t merged = -1;
    };

    [[nodiscard]] static std::uint64_t pair_key(std::int32_t left, std::int32_t right) noexcept {
        return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
    }
    /// The slot of the key, or the free one where it belongs. The table is never more than half full.
    [[nodiscard]] std::size_t find_slot(std::uint64_t key) const noexcept {
        std::uint64_t hash = (key ^ (key >> 31)) * 0x9E3779B97F4A7C15u;
        hash = (hash ^ (hash >> 29)) * 0xBF58476D1CE4E5B9u;
        std::size_t place = static_cast<std::size_t>(hash >> 32) & (table_.size() - 1);
        while (table_[place].key != key && table_[place].merged >= 0) place = (place + 1) & (table_.size() - 1);
        return place;
    }
    [[nodiscard]] std::uint32_t rank_of(std::int32_t left, std::int32_t right) const noexcept {
        return table_[find_slot(pair_key(left, right))].rank;
    }

    std::vector<slot> table_ = std::vector<slot>(16);
};

}  // namespace io

FRUGAL_NAMESPACE_END
