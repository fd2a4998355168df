#include "frugal/reuse/engine/inputs.hpp"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <type_traits>
#include <utility>
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
using test::hit;
using test::make;
using test::non_causal;
using test::owned_batch;
using test::refused;
using test::seq;
using test::text;
using test::updated;
using test::work;

namespace {

using remembered = engine_inputs<4, reuse::memoised, causal, bias_cell<>>;

/// Fills, changes something and fills again. Says what the second fill was; it must give what the definition says.
template <class Change>
work after(cells held, owned_batch batch, Change&& change) {
    auto inputs = make<remembered>(held);
    REQUIRE(fill(inputs, held, batch) == built);
    change(held, batch);
    const work second = fill(inputs, held, batch);
    check_definition(inputs, held, batch);
    return second;
}

}  // namespace

TEST_CASE("K01 K02 K04 K07 K10 K11 K13 C37 inputs are used again only if everything that they are made from is equal") {
    auto held = cells::create(1, 64, 3).value();
    append(held, seq(0), 6);
    REQUIRE(held.copy(seq(0), seq(1)));
    const owned_batch batch = append(held, seq(0), 3);
    using change = void(cells&, owned_batch&);
    const auto is = [&](change* how) { return after(held, batch, how); };
    CHECK(is([](cells&, owned_batch&) {}) == hit);
    CHECK(is([](cells&, owned_batch& b) {
              b.sequences = {seq(1), seq(1), seq(1)}, b.places = {cell_index(0), cell_index(1), cell_index(2)};
              b.positions = {text(0), text(1), text(2)};
          }) == built);
    CHECK(is([](cells&, owned_batch& b) { b.window += 16; }) == built);
    CHECK(is([](cells&, owned_batch& b) { b.window += 1; }) == built);
    CHECK(is([](cells&, owned_batch& b) { b.positions[2].height = b.positions[2].width = 1; }) == hit);  // of text: no matter
    CHECK(is([](cells&, owned_batch& b) { b.components = 4; }) == built);
    CHECK(is([](cells&, owned_batch& b) { std::swap(b.places[0], b.places[1]), std::swap(b.positions[0], b.positions[1]); }) ==
          built);
    CHECK(is([](cells&, owned_batch& b) { b.positions.pop_back(), b.sequences.pop_back(), b.places.pop_back(); }) == built);
    CHECK(is([](cells& c, owned_batch&) { REQUIRE(c.set_extent(stream_id{}, cell_index(3), 9, 9)); }) == built);
    CHECK(is([](cells& c, owned_batch&) { REQUIRE(c.rollback(seq(1), 1)); }) == built);
    CHECK(is([](cells& c, owned_batch&) { REQUIRE(c.remove(seq(0), {2, 3})); }) == built);  // a cell freed for one of two
    CHECK(is([](cells& c, owned_batch&) { REQUIRE(c.move(stream_id{}, cell_index(0), cell_index(12))); }) == built);
    CHECK(is([](cells& c, owned_batch&) { REQUIRE(c.copy(seq(0), seq(2))); }) == built);
    CHECK(is([](cells& c, owned_batch&) { REQUIRE(c.shift(seq(0), {0, 4}, 0)); }) == hit);  // changes nothing
    CHECK(is([](cells& c, owned_batch&) { CHECK_FALSE(c.rollback(seq(2), 1)); }) == hit);

    // One query that both sequences share a cell with: only the sequence differs.
    owned_batch shared_cell;
    shared_cell.add(seq(0), cell_index(5), text(5));
    shared_cell.window = 16;
    CHECK(after(held, shared_cell, [](cells&, owned_batch& b) { b.sequences[0] = seq(1); }) == built);

    // A position that is not the cell's is refused, wherever it stands, and changes nothing.
    owned_batch spatial = batch;
    spatial.components = 3;
    auto inputs = make<remembered>(held);
    REQUIRE(fill(inputs, held, spatial) == built);
    for (std::size_t i = 0; i < batch.positions.size(); ++i)
        for (std::int32_t rope_position::*part : {&rope_position::temporal, &rope_position::height, &rope_position::width})
            for (const std::int32_t by : {1, 1 << 8, 1 << 16, 1 << 24}) {
                owned_batch wrong = spatial;
                wrong.positions[i].*part ^= by;
                CHECK(refused(inputs, held, wrong).code == fg::errc::invalid_argument);
            }
    CHECK(fill(inputs, held, spatial) == hit);

    // A sequence in another stream with the same counts, positions and cells.
    auto streams = cells::create(2, 32, 2).value();
    const owned_batch first = append(streams, seq(0), 5);
    const owned_batch second = append(streams, seq(1), 5);
    CHECK(first.places == second.places);
    CHECK(after(streams, first, [&](cells&, owned_batch& b) { b = second; }) == built);
}

TEST_CASE("K03 a checkpoint: what is restored unedited hits, another edit after it does not") {
    auto held = cells::create(1, 32, 1).value();
    const owned_batch before = append(held, seq(0), 7);
    auto inputs = make<remembered>(held);
    CHECK(fill(inputs, held, before) == built);
    const cells checkpoint = held;
    const owned_batch one = append(held, seq(0), 1);
    CHECK(fill(inputs, held, one) == built);
    cells other = checkpoint;
    REQUIRE(other.remove(seq(0), {3, 4}));  // as many edits as the first had, another content
    owned_batch again = one;
    REQUIRE(other.place(std::array{reuse::placed_cell{stream_id{}, cell_index(7), text(7), reuse::sequence_set(seq(0))}}));
    CHECK(fill(inputs, other, again) == built);
    check_definition(inputs, other, again);
    held = checkpoint;
    CHECK(fill(inputs, held, before) == built);
    held = checkpoint;
    CHECK(fill(inputs, held, before) == hit);
    check_definition(inputs, held, before);
}

TEST_CASE("K06 causality, bias and grouping are part of the type") {
    using a = engine_inputs<4, reuse::memoised, causal, bias_cell<>>;
    static_assert(!std::is_same_v<a, engine_inputs<4, reuse::memoised, non_causal, bias_cell<>>>);
    static_assert(!std::is_same_v<a, engine_inputs<4, reuse::memoised, causal, bias_block<>>>);
    static_assert(!std::is_same_v<a, engine_inputs<8, reuse::memoised, causal, bias_cell<>>>);
    static_assert(!std::is_same_v<a, engine_inputs<4, reuse::memoised, causal, bias_cell<>, reuse::group_by_position>>);
    static_assert(!reuse::engine_grouping_policy<bias_none> && !reuse::engine_grouping_policy<reuse::shared>);
    static_assert(!reuse::engine_bias_policy<reuse::group_by_rank> && !reuse::shared_input_policy<reuse::group_by_position>);
    auto held = cells::create(1, 32, 1).value();
    append(held, seq(0), 9);
    const owned_batch batch = append(held, seq(0), 2);
    auto first = make<a>(held);
    auto second = make<engine_inputs<4, reuse::memoised, non_causal, bias_cell<>>>(held);
    CHECK(fill(first, held, batch) == built);
    CHECK(fill(second, held, batch) == built);
    check_definition(first, held, batch);
    check_definition(second, held, batch);
    CHECK_FALSE(test::same_bytes(first.bias().values, test::whole_bias(second, held)));
}

TEST_CASE("K08 memory of the engine: written once a content and epoch") {
    auto held = cells::create(1, 32, 1).value();
    const owned_batch batch = append(held, seq(0), 6);
    auto inputs = make<remembered>(held);
    struct {
        std::vector<std::int64_t> k_idxs;
        std::vector<std::int32_t> cell_blk, blk_cells, blk_pos;
        std::vector<float> bias;
    } memory;
    reuse::engine_memory to;
    CHECK(inputs.write_to(to).error().code == fg::errc::invalid_argument);  // nothing filled
    const auto allocate = [&] {
        memory.k_idxs.assign(inputs.k_idxs().size(), -7);
        memory.cell_blk.assign(inputs.cell_blk().size(), -7);
        memory.blk_cells.assign(inputs.blk_cells().size(), -7);
        memory.blk_pos.assign(inputs.blk_pos().size(), -7);
        memory.bias.assign(inputs.bias().values.size(), -7);
        to = {1, to.epoch, memory.k_idxs, memory.cell_blk, memory.blk_cells, memory.blk_pos, memory.bias};
    };
    const auto holds_all = [&] {
        const auto want = test::naive(held, batch, 4, causal, reuse::bias_form::cell);
        return memory.k_idxs == want.k_idxs && memory.cell_blk == want.cell_blk && memory.blk_cells == want.blk_cells &&
               memory.blk_pos == want.blk_pos && memory.bias == want.bias;
    };
    CHECK(fill(inputs, held, batch) == built);
    allocate();
    CHECK(inputs.write_to(to).value());
    CHECK(holds_all());
    CHECK(fill(inputs, held, batch) == hit);
    CHECK_FALSE(inputs.write_to(to).value());
    memory.cell_blk[0] = -7;  // somebody else wrote there: the engine says so with another epoch
    ++to.epoch;
    CHECK(inputs.write_to(to).value());
    CHECK(holds_all());
    to.id = 2;  // other memory
    CHECK(inputs.write_to(to).value());
    std::vector<std::int64_t> moved(memory.k_idxs.size());
    to.k_idxs = moved;
    CHECK(inputs.write_to(to).value());
    CHECK(moved == memory.k_idxs);
    REQUIRE(held.set_extent(stream_id{}, cell_index(0), 3, 3));
    CHECK(fill(inputs, held, batch) == built);
    CHECK(inputs.write_to(to).value());
    for (auto shorten : {+[](reuse::engine_memory& m) { m.k_idxs = m.k_idxs.first(1); },
                         +[](reuse::engine_memory& m) { m.cell_blk = m.cell_blk.first(1); },
                         +[](reuse::engine_memory& m) { m.blk_cells = m.blk_cells.first(1); },
                         +[](reuse::engine_memory& m) { m.blk_pos = m.blk_pos.first(1); },
                         +[](reuse::engine_memory& m) { m.bias = m.bias.first(1); }}) {
        reuse::engine_memory wrong = to;
        shorten(wrong);
        CHECK(inputs.write_to(wrong).error().code == fg::errc::shape_mismatch);
    }
    auto pieces = make<engine_inputs<4, reuse::memoised, causal, bias_cell<1>>>(held);
    CHECK(fill(pieces, held, batch) == built);
    CHECK(pieces.write_to(to).error().code == fg::errc::unsupported);
}

namespace {
template <class Shared>
work sum_of_decode(std::size_t steps) {
    auto held = cells::create(1, 2048, 1).value();
    auto inputs = make<engine_inputs<4, Shared>>(held);
    work sum;
    for (std::size_t t = 0; t < steps; ++t) {
        const owned_batch batch = append(held, seq(0), 1, 256);
        const work one = fill(inputs, held, batch);
        sum = {sum.builds + one.builds, sum.updates + one.updates, sum.hits + one.hits};
    }
    return sum;
}
}  // namespace

TEST_CASE("K12 a decode loop of 1000 tokens: fills or updates, never a hit") {
    CHECK(sum_of_decode<reuse::per_layer>(1000) == work{1000, 0, 0});
    CHECK(sum_of_decode<reuse::shared>(1000) == work{1000, 0, 0});
    CHECK(sum_of_decode<reuse::memoised>(1000) == work{1000, 0, 0});
    CHECK(sum_of_decode<reuse::incremental>(1000) == work{1, 999, 0});
}

TEST_CASE("K14 speculation: draft 4, accept 2, take back 2: updates alone, each what the definition says") {
    auto held = cells::create(1, 256, 1).value();
    auto inputs = make<engine_inputs<4>>(held);
    auto biased = make<engine_inputs<4, reuse::incremental, causal, bias_block<>>>(held);
    owned_batch batch = append(held, seq(0), 3);
    CHECK(fill(inputs, held, batch) == built);
    CHECK(fill(biased, held, batch) == built);
    for (int round = 0; round < 50; ++round) {
        batch = append(held, seq(0), 4);
        CHECK(fill(inputs, held, batch) == updated);
        CHECK(fill(biased, held, batch) == updated);
        check_definition(inputs, held, batch);
        check_definition(biased, held, batch);
        REQUIRE(held.rollback(seq(0), 2));
    }
}

TEST_CASE("C29 several users in one cache: updates alone as long as few blocks get other numbers") {
    auto held = cells::create(1, 512, 3).value();
    auto inputs = make<engine_inputs<4>>(held);
    for (const std::size_t s : {0u, 1u, 2u}) append(held, seq(s), 40 + 3 * s);
    CHECK(fill(inputs, held, append(held, seq(0), 1, 512)) == built);
    for (std::size_t step = 0; step < 120; ++step) {
        const owned_batch batch = append(held, seq(step % 3), 1, 512);
        CHECK(fill(inputs, held, batch) == updated);
        check_definition(inputs, held, batch);
    }
    REQUIRE(held.rollback(seq(1), 75));  // now it completes a block before nearly all others
    owned_batch batch = append(held, seq(1), 4, 512);
    CHECK(fill(inputs, held, batch) == built);
    check_definition(inputs, held, batch);
    REQUIRE(held.copy(seq(0), seq(2), {0, 4}));  // cells of two sequences
    batch = append(held, seq(0), 1, 512);
    CHECK(fill(inputs, held, batch) == built);
    check_definition(inputs, held, batch);
    REQUIRE(held.remove(seq(2), {0, 4}));
    batch = append(held, seq(0), 1, 512);
    CHECK(fill(inputs, held, batch) == built);  // sequence 2 does not begin at 0
    check_definition(inputs, held, batch);
    batch = append(held, seq(0), 1, 512);
    CHECK(fill(inputs, held, batch) == updated);
    check_definition(inputs, held, batch);
}

TEST_CASE("tokens in any cells: updates alone, wherever cells are taken and freed") {
    auto held = cells::create(1, 64, 1).value();
    auto inputs = make<engine_inputs<4>>(held);
    std::size_t next = 0;
    const auto put = [&](std::size_t at) {
        REQUIRE(held.place(std::array{reuse::placed_cell{stream_id{}, cell_index(at), text(next), reuse::sequence_set(seq(0))}}));
        owned_batch out;
        out.add(seq(0), cell_index(at), text(next++));
        out.window = 64;
        return out;
    };
    CHECK(fill(inputs, held, put(3)) == built);
    for (const std::size_t at : {20u, 7u, 9u, 40u, 1u, 30u, 2u, 8u, 50u}) {  // holes appear, are filled, and blocks complete
        const owned_batch batch = put(at);
        CHECK(fill(inputs, held, batch) == updated);
        check_definition(inputs, held, batch);
    }
    for (const std::size_t back : {1u, 1u, 3u, 1u}) {  // of the tail, of blocks, of cells within others
        REQUIRE(held.rollback(seq(0), back));
        next -= back;
        owned_batch batch;
        batch.add(seq(0), cell_index(3), text(0));
        batch.window = 64;
        CHECK(fill(inputs, held, batch) == updated);
        check_definition(inputs, held, batch);
    }
}

TEST_CASE("K15 a batch that finds no room changes nothing") {
    auto held = cells::create(1, 16, 1).value();
    const owned_batch batch = append(held, seq(0), 14);
    auto inputs = make<remembered>(held);
    CHECK(fill(inputs, held, batch) == built);
    std::vector<reuse::placed_cell> three;
    for (const std::size_t j : {14u, 15u, 0u})
        three.push_back({stream_id{}, cell_index(j), text(14), reuse::sequence_set(seq(0))});
    CHECK_FALSE(held.place(three));
    CHECK(fill(inputs, held, batch) == hit);
    check_definition(inputs, held, batch);
    owned_batch wrong = batch;
    wrong.places[0] = cell_index(15);  // not placed
    fg::counters_off none;
    CHECK(inputs.fill(held, wrong.view(), none).error().code == fg::errc::invalid_argument);
    check_definition(inputs, held, batch);
    CHECK(fill(inputs, held, batch) == hit);
}

TEST_CASE("K17 two batches in flight: each copy keeps its own") {
    auto held = cells::create(1, 64, 1).value();
    const owned_batch first = append(held, seq(0), 5);
    auto inputs = make<engine_inputs<4>>(held);
    CHECK(fill(inputs, held, first) == built);
    auto ahead = inputs;
    const auto want = test::naive(held, first, 4, causal, reuse::bias_form::none);
    const owned_batch second = append(held, seq(0), 5);
    CHECK(fill(ahead, held, second) == updated);
    check_definition(ahead, held, second);
    CHECK(test::equals(inputs, held, want));
    CHECK(inputs.content() != ahead.content());
    CHECK(fill(inputs, held, second) == updated);
    check_definition(inputs, held, second);
}

TEST_CASE("what two numbers say of a query of a dense sequence is what its bias says") {
    auto held = cells::create(1, 128, 2).value();
    for (std::size_t i = 0; i < 30; ++i) append(held, seq(i % 3 == 0 ? 1 : 0), 1);
    owned_batch batch;
    for (const sequence_id s : {seq(0), seq(1)})
        for (const cell_index at : held.tokens(s)) batch.add(s, at, held.at(stream_id{}, at).position);
    batch.window = 32;
    auto numbers = make<engine_inputs<4, reuse::shared>>(held);
    auto blocks = make<engine_inputs<4, reuse::shared, causal, bias_block<>>>(held);
    auto by_cell = make<engine_inputs<4, reuse::shared, causal, bias_cell<>>>(held);
    REQUIRE(fill(numbers, held, batch) == built);
    REQUIRE(fill(blocks, held, batch) == built);
    REQUIRE(fill(by_cell, held, batch) == built);
    for (std::size_t i = 0; i < batch.positions.size(); ++i) {
        const auto view = numbers.views()[i];
        const auto of_blocks = blocks.bias().values.subspan(i * blocks.bias_width(), blocks.bias_width());
        const auto of_cells = by_cell.bias().values.subspan(i * by_cell.bias_width(), by_cell.bias_width());
        CHECK(std::count(of_blocks.begin(), of_blocks.end(), 0.0f) == view.blocks);
        CHECK(std::count(of_cells.begin(), of_cells.end(), 0.0f) == view.blocks * 4);
        CHECK(std::count(of_cells.begin(), of_cells.end(), 1e9f) == view.tail);
    }
}

TEST_CASE("C29 two sequences in one cache: each sees what it sees alone") {
    constexpr std::size_t length = 9;
    auto both = cells::create(1, 32, 2).value();
    for (std::size_t i = 0; i < 2 * length; ++i) append(both, seq(i % 2), 1);
    using inputs_type = engine_inputs<4, reuse::incremental, causal, bias_cell<>>;
    for (const sequence_id s : {seq(0), seq(1)}) {
        auto alone = cells::create(1, 32, 2).value();
        append(alone, s, length);
        auto inputs = make<inputs_type>(both, length), wanted = make<inputs_type>(alone, length);
        // What each query sees of each position, and the block that the position is in, by its positions.
        const auto seen = [&](const cells& held, inputs_type& of) {
            owned_batch batch;
            for (const cell_index at : held.tokens(s)) batch.add(s, at, held.at(stream_id{}, at).position);
            batch.window = 32;
            CHECK(fill(of, held, batch) == built);
            std::vector<float> out;
            for (std::size_t i = 0; i < length; ++i) {
                std::size_t others = 0;
                for (std::size_t j = 0; j < 32; ++j)
                    if (held.empty(stream_id{}, cell_index(j)) || !held.belongs(held.at(stream_id{}, cell_index(j)), s))
                        others += of.bias().values[i * 32 + j] == -std::numeric_limits<float>::infinity() ? 0 : 1;
                CHECK(others == 0);
                for (const cell_index at : held.tokens(s)) out.push_back(of.bias().values[i * 32 + at.value]);
            }
            for (const cell_index at : held.tokens(s)) {
                const auto block = static_cast<std::size_t>(of.cell_blk()[at.value]);
                for (std::size_t slot = 0; slot < 4 && held.rank(s, at)->value < 8; ++slot) {
                    const auto other = static_cast<std::size_t>(of.blk_cells()[block * 4 + slot]);
                    out.push_back(static_cast<float>(held.at(stream_id{}, cell_index(other)).position.temporal));
                }
            }
            return out;
        };
        CHECK(seen(both, inputs) == seen(alone, wanted));
    }
}

TEST_CASE("batches that break their rules are refused") {
    auto held = cells::create(2, 16, 2).value();
    const owned_batch first = append(held, seq(0), 4), second = append(held, seq(1), 4);
    fg::counters_off none;
    auto inputs = make<engine_inputs<4>>(held);
    owned_batch both = first;
    for (std::size_t i = 0; i < 4; ++i) both.add(seq(1), second.places[i], second.positions[i]);
    both.streams = 2;
    const auto code = [&](auto&& change) {
        owned_batch wrong = both;
        change(wrong);
        const auto done = inputs.fill(held, wrong.view(), none);
        return done ? fg::errc::io : done.error().code;
    };
    CHECK(code([](owned_batch&) {}) == fg::errc::io);
    CHECK(code([](owned_batch& b) { b = {}; }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.sequences.pop_back(); }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.places.pop_back(); }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.streams = 0; }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.streams = 3; }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.streams = 1; }) == fg::errc::invalid_argument);  // two streams in one row
    CHECK(code([](owned_batch& b) { b.window = 0; }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.window = 17; }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.window = 3; }) == fg::errc::invalid_argument);  // leaves out a cell
    CHECK(code([](owned_batch& b) {
              b = {};
              b.add(seq(0), cell_index(0), text(0));
              b.window = 2;  // leaves out cells of other tokens
          }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.sequences[5] = seq(2); }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.sequences[5] = sequence_id::padding; }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) { b.places[5] = cell_index(4); }) == fg::errc::invalid_argument);  // an empty cell
    CHECK(code([](owned_batch& b) { b.places[5] = cell_index(99); }) == fg::errc::invalid_argument);
    CHECK(code([](owned_batch& b) {
              for (std::size_t i = 4; i < 8; ++i) b.sequences[i] = seq(0);  // both rows of one stream
          }) == fg::errc::invalid_argument);
    // Each fault has a sentence of its own.
    const auto sentence = [&](auto&& change) {
        owned_batch wrong = both;
        change(wrong);
        return refused(inputs, held, wrong).message;
    };
    CHECK(sentence([](owned_batch& b) { b.places[5] = cell_index(99); }) == "token 5 of the batch is in cell 99 of 16");
    CHECK(sentence([](owned_batch& b) { b.places[5] = cell_index(4); }) ==
          "token 5 of the batch is not in cell 4; place the batch before its inputs are made");
    CHECK(sentence([](owned_batch& b) { b.window = 3; }) ==
          "the window of 3 cells leaves out cell 3 of token 3 of the batch; see padded_window");
    CHECK(sentence([](owned_batch& b) { b.positions[5] = text(9); }) ==
          "token 5 of the batch stands at position 9, 9, 9; its cell says 1, 1, 1");
    const auto other = cells::create(2, 32, 2).value();
    CHECK(inputs.fill(other, both.view(), none).error().code == fg::errc::invalid_argument);
    auto larger = cells::create(2, 32, 2).value();
    append(larger, seq(0), 4);
    CHECK(inputs.fill(larger, first.view(), none).error().code == fg::errc::invalid_argument);  // another shape of cache
    CHECK(engine_inputs<4>::create(held, 0).error().code == fg::errc::invalid_argument);

    // A token past the window: by rank that is no matter; by position a bias for cells copes, one for blocks cannot.
    auto late = cells::create(1, 16, 1).value();
    REQUIRE(late.place(std::array{reuse::placed_cell{stream_id{}, cell_index(0), text(40), reuse::sequence_set(seq(0))}}));
    owned_batch one;
    one.add(seq(0), cell_index(0), text(40));
    one.window = 16;
    auto by_rank = make<engine_inputs<4, reuse::memoised, causal, bias_block<>>>(late);
    CHECK(fill(by_rank, late, one) == built);
    check_definition(by_rank, late, one);
    auto by_cell = make<engine_inputs<4, reuse::memoised, causal, bias_cell<>, reuse::group_by_position>>(late);
    CHECK(fill(by_cell, late, one) == built);
    check_definition(by_cell, late, one);
    auto by_block = make<engine_inputs<4, reuse::memoised, causal, bias_block<>, reuse::group_by_position>>(late);
    CHECK(refused(by_block, late, one).code == fg::errc::unsupported);
    CHECK(refused(by_block, late, one).code == fg::errc::unsupported);  // and is not remembered
    CHECK(by_block.bias(late, 0).error().code == fg::errc::invalid_argument);
}
