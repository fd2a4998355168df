#pragma once
/// Indices with a unit. Tokens, blocks of tokens and rows of storage are all counted from 0, and a mix-up reads plausible
/// garbage; here it does not compile.
#include <compare>
#include <cstddef>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// An index or count of `Unit`s. Never converts from or to anything by itself.
template <class Unit>
struct FRUGAL_FLAGGED unit_index {
    std::size_t value = 0;

    constexpr unit_index() noexcept = default;
    explicit constexpr unit_index(std::size_t index) noexcept : value(index) {}
    friend constexpr auto operator<=>(unit_index, unit_index) noexcept = default;
};

/// Rank of a token among the visible tokens of its sequence: 0 is the first.
using token_rank = unit_index<struct token_unit>;
/// A block of `ratio` consecutive ranks of one sequence.
using block_index = unit_index<struct block_unit>;

/// Tokens in a block, and the only conversions between ranks and blocks.
class FRUGAL_FLAGGED block_ratio {
public:
    /// `tokens` is at least 1.
    explicit constexpr block_ratio(std::size_t tokens) noexcept : tokens_(tokens) {}

    [[nodiscard]] constexpr std::size_t tokens() const noexcept { return tokens_; }
    /// The block that a token belongs to.
    [[nodiscard]] constexpr block_index block_of(token_rank rank) const noexcept { return block_index(rank.value / tokens_); }
    /// Place of a token within its block, 0 … tokens() - 1.
    [[nodiscard]] constexpr std::size_t slot_of(token_rank rank) const noexcept { return rank.value % tokens_; }
    /// First token of a block.
    [[nodiscard]] constexpr token_rank first_token(block_index block) const noexcept { return token_rank(block.value * tokens_); }
    /// The first block that is not complete for a query at `rank`, the query's own token included. Blocks before it compete;
    /// as a number it is the count of complete blocks.
    [[nodiscard]] constexpr block_index open_block(token_rank rank) const noexcept {
        return block_index((rank.value + 1) / tokens_);
    }
    /// First token of the tail that a query at `rank` always sees. If the query completes a block, this is rank + 1: no tail.
    [[nodiscard]] constexpr token_rank tail_start(token_rank rank) const noexcept { return first_token(open_block(rank)); }
    /// Whether the token at `rank` completes a block.
    [[nodiscard]] constexpr bool completes(token_rank rank) const noexcept { return slot_of(rank) + 1 == tokens_; }
    /// Blocks that the first `tokens` tokens of a sequence complete.
    [[nodiscard]] constexpr std::size_t complete_blocks(std::size_t tokens) const noexcept { return tokens / tokens_; }
    /// Blocks that the first `tokens` tokens of a sequence begin.
    [[nodiscard]] constexpr std::size_t begun_blocks(std::size_t tokens) const noexcept {
        return tokens / tokens_ + (tokens % tokens_ != 0 ? 1 : 0);
    }

private:
    std::size_t tokens_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END
