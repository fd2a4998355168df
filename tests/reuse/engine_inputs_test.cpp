#include "frugal/reuse/engine/inputs.hpp"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine_inputs_naive.hpp"

namespace fg = frugal;
namespace reuse = frugal::reuse;
using fg::counter;
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
using test::owned_batch;
using test::seq;

namespace {

constexpr auto causal = causality::causal, non_causal = causality::non_causal;

rope_position text(std::size_t index) {
    const auto at = static_cast<std::int32_t>(index);
    return {at, at, at};
}

/// Appends tokens of a sequence to the first empty cells; the batch is these.
owned_batch append(cells& held, sequence_id s, std::size_t count, std::size_t padding = 16) {
    owned_batch out;
    std::vector<reuse::placed_cell> placed;
    const std::size_t length = held.tokens(s).size();
    for (std::size_t j = 0; placed.size() < count; ++j) {
        if (!held.empty(held.stream_of(s), cell_index(j))) continue;
        const rope_position at = text(length + placed.size());
        placed.push_back({held.stream_of(s), cell_index(j), at, reuse::sequence_set(s)});
        out.add(s, cell_index(j), at);
    }
    REQUIRE(held.place(placed));
    out.window = reuse::padded_window(held, out.sequences, padding);
    return out;
}

template <class Inputs>
Inputs make(const cells& like, std::size_t tokens = 8) {
    return Inputs::create(like, tokens).value();
}

/// Builds, updates and hits of one fill.
struct work {
    std::uint64_t builds = 0, updates = 0, hits = 0;
    friend bool operator==(const work&, const work&) = default;
};
constexpr work built{1, 0, 0}, updated{0, 1, 0}, hit{0, 0, 1};

template <class Inputs>
work fill(Inputs& inputs, const cells& held, const owned_batch& batch) {
    fg::counters_on counters;
    REQUIRE(inputs.fill(held, batch.view(), counters));
    return {counters.read(counter::layout_builds), counters.read(counter::layout_updates), counters.read(counter::layout_hits)};
}

template <std::size_t Ratio, class Shared, causality Sees, class Bias, class Grouping>
void check_definition(engine_inputs<Ratio, Shared, Sees, Bias, Grouping>& inputs, const cells& held, const owned_batch& batch) {
    const auto want = test::naive(held, batch, Ratio, Sees, Bias::form, Grouping::cut_by);
    CHECK_FALSE(want.refused);
    CHECK(test::equals(inputs, held, want));
    CHECK(test::sees_by_rank(inputs, held, batch, Sees, Bias::form));
}

using remembered = engine_inputs<4, reuse::memoised, causal, bias_cell<>>;

/// The error of a fill that must fail.
template <class Inputs>
fg::error refused(Inputs& inputs, const cells& held, const owned_batch& batch) {
    fg::counters_off none;
    const fg::status done = inputs.fill(held, batch.view(), none);
    REQUIRE_FALSE(done);
    return done.error();
}

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
