#include "frugal/reuse/inputs/token_index.hpp"

#include <doctest/doctest.h>

#include <concepts>
#include <type_traits>

namespace reuse = frugal::reuse;
using reuse::block_index;
using reuse::block_ratio;
using reuse::token_rank;

namespace {
template <class A, class B>
concept comparable = requires(A a, B b) {
    a < b;
};
template <class A, class B>
concept addable = requires(A a, B b) {
    a + b;
};
template <class Index>
concept starts_a_block = requires(const block_ratio& ratio, Index index) {
    ratio.first_token(index);
};
template <class Index>
concept lies_in_a_block = requires(const block_ratio& ratio, Index index) {
    ratio.block_of(index);
};
}  // namespace

// C34: a unit taken for another does not compile.
static_assert(!std::is_convertible_v<token_rank, block_index> && !std::is_convertible_v<block_index, token_rank>);
static_assert(!std::is_constructible_v<token_rank, block_index> && !std::is_constructible_v<block_index, token_rank>);
static_assert(!std::is_assignable_v<token_rank&, block_index> && !std::is_assignable_v<block_index&, token_rank>);
static_assert(!std::is_convertible_v<std::size_t, token_rank> && !std::is_convertible_v<token_rank, std::size_t>);
static_assert(!std::is_convertible_v<std::size_t, block_index> && !std::is_convertible_v<block_index, std::size_t>);
static_assert(comparable<token_rank, token_rank> && !comparable<token_rank, block_index> && !comparable<token_rank, std::size_t>);
static_assert(!addable<token_rank, block_index> && !addable<token_rank, std::size_t>);
static_assert(starts_a_block<block_index> && !starts_a_block<token_rank> && !starts_a_block<std::size_t>);
static_assert(lies_in_a_block<token_rank> && !lies_in_a_block<block_index> && !lies_in_a_block<std::size_t>);

TEST_CASE("C34 every conversion between ranks and blocks, 12 tokens in blocks of 4") {
    const block_ratio ratio(4);
    CHECK(ratio.tokens() == 4);
    for (std::size_t t = 0; t < 12; ++t) {
        const token_rank rank(t);
        CHECK(ratio.block_of(rank) == block_index(t / 4));
        CHECK(ratio.slot_of(rank) == t % 4);
        CHECK(ratio.completes(rank) == (t == 3 || t == 7 || t == 11));
        CHECK(ratio.open_block(rank) == block_index((t + 1) / 4));
        CHECK(ratio.tail_start(rank) == token_rank((t + 1) / 4 * 4));
        CHECK(ratio.first_token(ratio.block_of(rank)).value + ratio.slot_of(rank) == t);
    }
    CHECK(ratio.open_block(token_rank(3)) == block_index(1));  // its own token completes block 0 …
    CHECK(ratio.tail_start(token_rank(3)) > token_rank(3));    // … and leaves no tail
    CHECK(ratio.complete_blocks(12) == 3);
    CHECK(ratio.complete_blocks(11) == 2);
    CHECK(ratio.begun_blocks(0) == 0);
    CHECK(ratio.begun_blocks(8) == 2);
    CHECK(ratio.begun_blocks(9) == 3);
    const block_ratio single(1);
    CHECK(single.open_block(token_rank(0)) == block_index(1));
    CHECK(single.tail_start(token_rank(5)) == token_rank(6));
}
