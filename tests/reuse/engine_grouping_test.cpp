// Blocks by rank and by position: what each says of holes, shifts, images and shared cells, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "engine_inputs_support.hpp"

namespace fg = frugal;
namespace reuse = frugal::reuse;
using reuse::bias_block;
using reuse::bias_cell;
using reuse::bias_none;
using reuse::causality;
using reuse::cell_index;
using reuse::cells;
using reuse::engine_inputs;
using reuse::rope_position;
using reuse::sequence_id;
using reuse::stream_id;
using test::append;
using test::built;
using test::causal;
using test::check_definition;
using test::fill;
using test::make;
using test::non_causal;
using test::owned_batch;
using test::refused;
using test::seq;
using test::text;
using test::updated;
using test::work;

namespace {

/// Places tokens of a sequence at these positions in the first empty cells.
void place(cells& held, sequence_id s, const std::vector<rope_position>& positions) {
    std::vector<reuse::placed_cell> placed;
    for (std::size_t j = 0; placed.size() < positions.size(); ++j)
        if (held.empty(held.stream_of(s), cell_index(j)))
            placed.push_back({held.stream_of(s), cell_index(j), positions[placed.size()], reuse::sequence_set(s)});
    REQUIRE(held.place(placed));
}

/// A batch of all tokens of some sequences of one stream.
owned_batch all_of(const cells& held, const std::vector<sequence_id>& sequences, std::size_t components = 1) {
    owned_batch out;
    for (const sequence_id s : sequences)
        for (const cell_index at : held.tokens(s)) out.add(s, at, held.at(held.stream_of(s), at).position);
    out.window = reuse::padded_window(held, out.sequences, 16);
    out.components = components;
    return out;
}

/// All forms of inputs by rank, each checked by the definition; by position either the same bytes or all refused. The message.
template <class Grouping>
std::string fill_all_forms(const cells& held, const owned_batch& batch) {
    std::string message;
    const auto form = [&]<class Bias, causality Sees>(std::type_identity<Bias>, std::integral_constant<causality, Sees>) {
        auto inputs = make<engine_inputs<4, reuse::incremental, Sees, Bias, Grouping>>(held);
        const auto want = test::naive(held, batch, 4, Sees, Bias::form, Grouping::cut_by);
        if (want.refused) {
            const fg::error error = refused(inputs, held, batch);
            CHECK(error.code == fg::errc::unsupported);
            message = error.message;
        } else {
            CHECK(fill(inputs, held, batch) == built);
            check_definition(inputs, held, batch);
        }
    };
    form(std::type_identity<bias_none>{}, std::integral_constant<causality, causal>{});
    form(std::type_identity<bias_cell<>>{}, std::integral_constant<causality, causal>{});
    form(std::type_identity<bias_cell<>>{}, std::integral_constant<causality, non_causal>{});
    form(std::type_identity<bias_block<>>{}, std::integral_constant<causality, causal>{});
    return message;
}

std::string by_rank(const cells& held, const owned_batch& batch) { return fill_all_forms<reuse::group_by_rank>(held, batch); }
std::string by_position(const cells& held, const owned_batch& batch) {
    return fill_all_forms<reuse::group_by_position>(held, batch);
}
bool names(const std::string& message, const char* what) { return message.find(what) != std::string::npos; }

std::vector<rope_position> texts(std::size_t first, std::size_t count) {
    std::vector<rope_position> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(text(first + i));
    return out;
}

/// Of the last query of a batch: how many cells compete and how many it always sees, and what the views say.
struct counted {
    std::ptrdiff_t competing = 0, always = 0;
    reuse::query_view view;
    friend bool operator==(const counted&, const counted&) = default;
};
counted count_last(const cells& held, const owned_batch& batch) {
    auto biased = make<engine_inputs<4, reuse::incremental, causal, bias_cell<>>>(held);
    auto inputs = make<engine_inputs<4>>(held);
    REQUIRE(fill(biased, held, batch) == built);
    REQUIRE(fill(inputs, held, batch) == built);
    const auto row = biased.bias().values.last(biased.bias_width());
    return {std::count(row.begin(), row.end(), 0.0f), std::count(row.begin(), row.end(), 1e9f), inputs.views().back()};
}

}  // namespace

TEST_CASE("a sequence that does not begin at 0: blocks of 4, 4 and a tail of 2; by position it is refused") {
    for (const std::size_t size : {16u, 2048u}) {
        auto held = cells::create(1, size, 1).value();
        place(held, seq(0), texts(1001, 10));
        const owned_batch batch = all_of(held, {seq(0)});
        auto inputs = make<engine_inputs<4>>(held);
        REQUIRE(fill(inputs, held, batch) == built);
        for (std::int32_t cell = 0; cell < 10; ++cell) CHECK(inputs.cell_blk()[static_cast<std::size_t>(cell)] == cell / 4);
        for (std::int32_t cell = 0; cell < 8; ++cell) CHECK(inputs.blk_cells()[static_cast<std::size_t>(cell)] == cell);
        CHECK(inputs.blk_pos()[0] == 1001);
        CHECK(inputs.blk_pos()[1] == 1005);
        for (std::int32_t rank = 0; rank < 10; ++rank)
            CHECK(inputs.views()[static_cast<std::size_t>(rank)] == reuse::query_view{(rank + 1) / 4, (rank + 1) % 4});
        CHECK(count_last(held, batch) == counted{8, 2, {2, 2}});
        CHECK(by_rank(held, batch).empty());
        CHECK(by_position(held, batch) ==
              "token 0 of sequence 0, at position 1001, begins a block at no multiple of the ratio, so that blocks of 4 cut by "
              "position are not those by rank; write reuse::group_by_rank");
    }
    // A first position that is a multiple of the ratio is the same by both, as long as the window holds it.
    auto held = cells::create(1, 2048, 1).value();
    place(held, seq(0), texts(1000, 10));
    owned_batch batch = all_of(held, {seq(0)});
    CHECK(by_rank(held, batch).empty());
    CHECK(names(by_position(held, batch), "at position 1000, stands past the window"));
    batch.window = 2048;
    CHECK(by_rank(held, batch).empty());
    CHECK(by_position(held, batch).empty());
}

TEST_CASE("a hole: what is behind it is cut anew, and the last query sees all 11 tokens; by position it is refused") {
    auto held = cells::create(1, 64, 1).value();
    place(held, seq(0), texts(0, 12));
    auto kept = make<engine_inputs<4>>(held);
    CHECK(fill(kept, held, all_of(held, {seq(0)})) == built);
    REQUIRE(held.remove(seq(0), {5, 6}));
    const owned_batch batch = all_of(held, {seq(0)});
    CHECK(fill(kept, held, batch) == updated);
    check_definition(kept, held, batch);
    CHECK(count_last(held, batch) == counted{8, 3, {2, 3}});
    CHECK(by_rank(held, batch).empty());
    CHECK(names(by_position(held, batch), "token 5 of sequence 0, at position 6, does not follow the one before it"));
    // A whole block that is gone leaves the others what they were.
    auto whole = cells::create(1, 64, 1).value();
    place(whole, seq(0), texts(0, 14));
    REQUIRE(whole.remove(seq(0), {4, 8}));
    CHECK(by_rank(whole, all_of(whole, {seq(0)})).empty());
    CHECK(by_position(whole, all_of(whole, {seq(0)})).empty());
}

TEST_CASE("context shifts and divisions: right by rank, by updates; by position where nothing else comes out") {
    for (const std::int32_t gone : {3, 4}) {
        CAPTURE(gone);
        auto held = cells::create(1, 64, 1).value();
        place(held, seq(0), texts(0, 22));
        auto kept = make<engine_inputs<4, reuse::incremental, causal, bias_cell<>>>(held);
        CHECK(fill(kept, held, all_of(held, {seq(0)})) == built);
        REQUIRE(held.remove(seq(0), {4, 4 + gone}));  // the first four tokens stay
        owned_batch batch = all_of(held, {seq(0)});
        CHECK(fill(kept, held, batch) == updated);
        check_definition(kept, held, batch);
        CHECK(by_position(held, batch).empty() == (gone == 4));
        REQUIRE(held.shift(seq(0), {4 + gone, -1}, -gone));
        batch = all_of(held, {seq(0)});
        CHECK(fill(kept, held, batch) == updated);
        check_definition(kept, held, batch);
        CHECK(by_rank(held, batch).empty());
        CHECK(by_position(held, batch).empty());
        REQUIRE(held.divide(seq(0), {}, 2));
        batch = all_of(held, {seq(0)});
        CHECK(fill(kept, held, batch) == updated);
        check_definition(kept, held, batch);
        CHECK(by_rank(held, batch).empty());
        CHECK(names(by_position(held, batch), "token 1 of sequence 0, at position 0, stands where the one before it stands"));
    }
}

TEST_CASE("images: several tokens of one temporal position") {
    const std::vector<rope_position> picture = {text(0),   text(1),   text(2),   {3, 3, 3}, {3, 3, 4}, {3, 3, 5},
                                                {3, 4, 3}, {3, 4, 4}, {3, 4, 5}, text(6),   text(7)};
    auto held = cells::create(1, 64, 2).value();
    place(held, seq(0), picture);
    owned_batch batch = all_of(held, {seq(0)}, 4);
    CHECK(by_rank(held, batch).empty());
    CHECK(by_position(held, batch).empty());
    {  // by updates, too
        cells more = held;
        auto kept = make<engine_inputs<4, reuse::incremental, causal, bias_none, reuse::group_by_position>>(more);
        CHECK(fill(kept, more, batch) == built);
        place(more, seq(0), {text(8)});
        CHECK(fill(kept, more, all_of(more, {seq(0)}, 4)) == updated);
        check_definition(kept, more, all_of(more, {seq(0)}, 4));
        place(more, seq(0), {text(8)});
        CHECK(names(refused(kept, more, all_of(more, {seq(0)}, 4)).message, "stands where the one before it stands"));
    }
    batch.components = 1;  // nobody says that these positions have heights and widths
    CHECK(by_rank(held, batch).empty());
    CHECK(names(by_position(held, batch), "token 4 of sequence 0, at position 3, stands where the one before it stands"));
    place(held, seq(1), texts(0, 6));
    for (const auto& who : {std::vector{seq(0)}, std::vector{seq(0), seq(1)}}) {
        batch = all_of(held, who, 4);
        CHECK(by_rank(held, batch).empty());
        CHECK(names(by_position(held, batch), "stands where the one before it stands"));
    }
    CHECK(by_position(held, all_of(held, {seq(1)}, 4)).empty());
    // An image of one token that begins a block: the block stands where the image does.
    auto small = cells::create(1, 64, 1).value();
    place(small, seq(0), {{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {4, 5, 9}, {5, 5, 5}, {6, 6, 6}, {7, 7, 7}});
    CHECK(by_rank(small, all_of(small, {seq(0)}, 4)).empty());
    CHECK(names(by_position(small, all_of(small, {seq(0)}, 4)), "begins a block and has a height and a width of its own"));
    // Two tokens of one place are ordered as they were placed.
    auto same = cells::create(1, 64, 1).value();
    place(same, seq(0), {text(0), text(0), text(0), text(1), text(2)});
    CHECK(by_rank(same, all_of(same, {seq(0)}, 4)).empty());
    CHECK(names(by_position(same, all_of(same, {seq(0)}, 4)), "token 1 of sequence 0, at position 0, stands where"));
}

TEST_CASE("sequences that share a prefix: together where they cut it alike, else in batches of their own") {
    for (const std::size_t prefix : {8u, 6u}) {
        CAPTURE(prefix);
        auto held = cells::create(1, 64, 3).value();
        place(held, seq(0), texts(0, prefix));
        REQUIRE(held.copy(seq(0), seq(1)));
        REQUIRE(held.copy(seq(0), seq(2)));
        place(held, seq(0), texts(prefix, 5));
        const bool aligned = prefix == 8;
        // So far only one of them has a block with these cells: they are the tail of the others.
        CHECK(by_rank(held, all_of(held, {seq(0), seq(1), seq(2)})).empty());
        place(held, seq(1), texts(prefix, 7));
        CHECK(by_rank(held, all_of(held, {seq(0), seq(2)})).empty());
        CHECK(by_rank(held, all_of(held, {seq(1), seq(2)})).empty());
        const std::string together = by_rank(held, all_of(held, {seq(0), seq(1)}));
        CHECK(together.empty() == aligned);
        if (!aligned)
            CHECK(together ==
                  "cell 4 is in one block of sequence 0 and in another of sequence 1, which one row of tensors cannot "
                  "say; put the two in different batches, or let them part at a multiple of 4 tokens");
        const std::string position = by_position(held, all_of(held, {seq(0)}));
        CHECK(position.empty() == aligned);
        if (!aligned)
            CHECK(names(position, "token 6 of sequence 0, at position 6, is of other sequences than the first of its block"));
        CHECK(by_position(held, all_of(held, {seq(2)})).empty());
    }
    // The same cells at other ranks: blocks are shared where they are whole, else refused.
    auto held = cells::create(1, 64, 3).value();
    place(held, seq(0), texts(0, 16));
    REQUIRE(held.copy(seq(0), seq(1), {4, -1}));
    REQUIRE(held.copy(seq(0), seq(2), {3, -1}));
    CHECK(by_rank(held, all_of(held, {seq(0), seq(1)})).empty());
    CHECK(by_rank(held, all_of(held, {seq(2)})).empty());
    CHECK(names(by_rank(held, all_of(held, {seq(0), seq(2)})), "of sequence 0 and in another of sequence 2"));
}

TEST_CASE("dense sequences: both groupings are the same bytes, by updates too") {
    auto held = cells::create(1, 256, 3).value();
    auto ranks = make<engine_inputs<4, reuse::incremental, causal, bias_block<>>>(held);
    auto positions = make<engine_inputs<4, reuse::incremental, causal, bias_block<>, reuse::group_by_position>>(held);
    for (std::size_t step = 0; step < 60; ++step) {
        owned_batch batch = append(held, seq(step % 3), 1 + step % 5);
        batch.components = 4;
        const work done = fill(ranks, held, batch);
        CHECK(fill(positions, held, batch) == done);
        CHECK(test::same_bytes(ranks.cell_blk(), std::vector(positions.cell_blk().begin(), positions.cell_blk().end())));
        CHECK(test::same_bytes(ranks.blk_cells(), std::vector(positions.blk_cells().begin(), positions.blk_cells().end())));
        CHECK(test::same_bytes(ranks.blk_pos(), std::vector(positions.blk_pos().begin(), positions.blk_pos().end())));
        CHECK(test::same_bytes(ranks.bias().values, test::whole_bias(positions, held)));
        if (step % 7 == 6) REQUIRE(held.rollback(seq(step % 3), 1));
    }
}

TEST_CASE("a batch that was refused leaves nothing behind: the next one is right") {
    auto held = cells::create(1, 64, 1).value();
    place(held, seq(0), texts(0, 9));
    auto inputs = make<engine_inputs<4, reuse::incremental, causal, bias_cell<>, reuse::group_by_position>>(held);
    CHECK(fill(inputs, held, all_of(held, {seq(0)})) == built);
    place(held, seq(0), texts(12, 3));
    CHECK(refused(inputs, held, all_of(held, {seq(0)})).code == fg::errc::unsupported);
    CHECK(inputs.bias().values.empty());
    CHECK(inputs.bias(held, 0).error().code == fg::errc::invalid_argument);
    CHECK(inputs.write_to({}).error().code == fg::errc::invalid_argument);
    REQUIRE(held.rollback(seq(0), 3));
    const owned_batch batch = all_of(held, {seq(0)});
    CHECK(fill(inputs, held, batch) == built);
    check_definition(inputs, held, batch);
    place(held, seq(0), texts(9, 3));
    CHECK(fill(inputs, held, all_of(held, {seq(0)})) == updated);
    check_definition(inputs, held, all_of(held, {seq(0)}));
}

TEST_CASE("an image that is past a smaller window does not make indices ranks there") {
    auto held = cells::create(1, 64, 1).value();
    auto inputs = make<engine_inputs<4, reuse::incremental, causal, bias_cell<>>>(held);
    auto by_position = make<engine_inputs<4, reuse::incremental, causal, bias_cell<>, reuse::group_by_position>>(held);
    owned_batch batch;
    std::vector<reuse::placed_cell> placed;
    for (const rope_position& at : {rope_position{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {40, 40, 40}, {40, 40, 41}}) {
        placed.push_back({stream_id{}, cell_index(placed.size()), at, reuse::sequence_set(seq(0))});
        batch.add(seq(0), placed.back().cell, at);
    }
    REQUIRE(held.place(placed));
    batch.components = 4;
    for (const std::size_t window : {64u, 60u, 16u}) {
        batch.window = window;
        CHECK(fill(inputs, held, batch) == (window == 64 ? built : updated));
        check_definition(inputs, held, batch);
        if (window == 16) continue;
        CHECK(fill(by_position, held, batch) == (window == 64 ? built : updated));
        check_definition(by_position, held, batch);
    }
    CHECK(refused(by_position, held, batch).message ==
          "token 5 of sequence 0, at position 40, stands where the one before it stands, so that blocks of 4 cut by position are "
          "not those by rank; write reuse::group_by_rank");
}
