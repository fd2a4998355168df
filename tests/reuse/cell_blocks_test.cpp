#include "frugal/reuse/engine/cell_blocks.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cell_editor.hpp"
#include "sanitizer.hpp"

namespace fg = frugal;
using namespace cell_test;
using fg::counter;

namespace {

using cell_list = std::vector<std::size_t>;

cells cells_of(std::size_t streams, std::size_t size, std::size_t sequences) {
    return cells::create(streams, size, sequences).value();
}
cell_blocks blocks_of(std::size_t ratio, const cells& from) {
    cell_blocks out = cell_blocks::create(ratio).value();
    out.refresh(from);
    return out;
}
void append(cells& to, std::size_t sequence, std::size_t cell, std::int64_t position) {
    const placed_cell placed = token(0, cell, text(position), sequence);
    REQUIRE(to.place({&placed, 1}));
}
/// Text tokens 0 … count - 1 of sequence 0 in the cells of the same numbers.
cells filled(std::size_t count, std::size_t size, std::size_t sequences) {
    cells out = cells_of(1, size, sequences);
    for (std::size_t i = 0; i < count; ++i) append(out, 0, i, static_cast<std::int64_t>(i));
    return out;
}
cell_list members(const cell_blocks& blocks, std::size_t s, std::size_t index) {
    cell_list out;
    for (const cell_index i : blocks.members(blocks.block(seq(s), block_index(index)))) out.push_back(i.value);
    return out;
}
/// Numbers that a copy of the layout has to be sent.
std::size_t words(const cell_blocks& blocks) {
    std::size_t sum = 0;
    for (const auto& delta : blocks.changed()) sum += delta.words();
    return sum;
}
}  // namespace

TEST_CASE("random edits: the layout equals a fresh build and the naive rule, its deltas and stamps too") {
    fg::counters_on counters;
    std::size_t states = 0;  // compared after a change
    const auto refresh = [&](cell_blocks& layout, layout_watch& watch, const editor& edits) {
        const auto builds = counters.read(counter::layout_builds), hits = counters.read(counter::layout_hits);
        layout.refresh(edits.tested, counters);
        if (counters.read(counter::layout_hits) == hits) ++states;
        return watch.compare(layout, edits.tested, edits.model, counters.read(counter::layout_builds) == builds);
    };
    unsigned seed = 0;
    for (const bool unified : {true, false}) {
        for (std::size_t ratio = 1; ratio <= 8; ++ratio) {
            for (std::size_t sequences = 1; sequences <= 4; ++sequences) {
                editor edits(++seed, unified ? 1 : sequences, 16 + 4 * sequences + ratio, sequences);
                cell_blocks often = blocks_of(ratio, edits.tested), seldom = blocks_of(ratio % 8 + 1, edits.tested);
                layout_watch often_watch, seldom_watch;
                for (std::size_t step = 0; step < test::rounds(4800); ++step) {
                    bool agreed = true;
                    const std::string what = edits.step(agreed);
                    INFO("seed " << seed << " step " << step << ": " << what);
                    REQUIRE(agreed);
                    REQUIRE(compare_cells(edits.tested, edits.model) == "");
                    REQUIRE(refresh(often, often_watch, edits) == "");
                    if (edits.below(3) == 0) REQUIRE(refresh(seldom, seldom_watch, edits) == "");
                }
            }
        }
    }
    const auto updates = counters.read(counter::layout_updates), builds = counters.read(counter::layout_builds);
    MESSAGE(states << " states after a change: " << updates << " updates, " << builds << " builds");
    CHECK(states >= test::rounds(200000));
    CHECK(states == updates + builds);
    CHECK(updates > 4 * builds);
    CHECK(builds > test::rounds(1000));
}

TEST_CASE("K12 a decode loop: an update a token, no build, at most 3 words a token") {
    for (std::size_t ratio = 1; ratio <= 8; ++ratio) {
        cells cache = filled(5, 2000, 1);
        cell_blocks blocks = blocks_of(ratio, cache);
        fg::counters_on counters;
        std::size_t sent = 0;
        for (std::size_t i = 5; i < 1005; ++i) {
            append(cache, 0, i, static_cast<std::int64_t>(i));
            blocks.refresh(cache, counters);
            REQUIRE(blocks.changed().size() == 1);
            REQUIRE(words(blocks) <= 3);
            sent += words(blocks);
            REQUIRE(blocks.length(seq(0)) == i + 1);
        }
        CHECK(counters.read(counter::layout_updates) == 1000);
        CHECK(counters.read(counter::layout_builds) == 0);
        CHECK(counters.read(counter::layout_hits) == 0);
        const auto begun = blocks.begun_blocks(seq(0)) - fg::reuse::block_ratio(ratio).begun_blocks(5);
        CHECK(sent == 1000 + 2 * begun);
        blocks.refresh(cache, counters);
        CHECK(counters.read(counter::layout_hits) == 1);
        CHECK(blocks.changed().empty());
    }
}

TEST_CASE("a prompt costs a cell a token, and an id and a position a block") {
    cells cache = cells_of(1, 600, 1);
    cell_blocks blocks = blocks_of(4, cache);
    std::vector<placed_cell> prompt;
    for (std::size_t i = 0; i < 512; ++i) prompt.push_back(token(0, i, text(static_cast<std::int64_t>(i)), 0));
    REQUIRE(cache.place(prompt));
    blocks.refresh(cache);
    CHECK(words(blocks) == 512 + 2 * 128);
    // Of an image, a block's position is three numbers.
    const placed_cell image = token(0, 512, {512, 3, 4}, 0);
    REQUIRE(cache.place({&image, 1}));
    blocks.refresh(cache);
    CHECK(words(blocks) == 1 + 1 + 3);
}

TEST_CASE("K14 speculation: draft 4, accept 2, roll back 2; a block that was rewound into has another stamp") {
    cells cache = filled(6, 300, 1);
    cell_blocks blocks = blocks_of(4, cache);
    fg::counters_on counters;
    for (std::size_t round = 0; round < 100; ++round) {
        const std::size_t length = blocks.length(seq(0));
        for (std::size_t i = length; i < length + 4; ++i) append(cache, 0, i, static_cast<std::int64_t>(i));
        blocks.refresh(cache, counters);
        std::vector<std::uint64_t> stamps;
        for (std::size_t b = 0; b < blocks.complete_blocks(seq(0)); ++b)
            stamps.push_back(blocks.stamp(blocks.block(seq(0), block_index(b))));
        REQUIRE(cache.rollback(seq(0), 2));
        blocks.refresh(cache, counters);
        REQUIRE(blocks.length(seq(0)) == length + 2);
        const cell_blocks fresh = blocks_of(4, cache);
        for (std::size_t b = 0; b < blocks.begun_blocks(seq(0)); ++b) REQUIRE(members(blocks, 0, b) == members(fresh, 0, b));
        for (std::size_t b = 0; b < stamps.size() && b < blocks.begun_blocks(seq(0)); ++b)
            REQUIRE((blocks.stamp(blocks.block(seq(0), block_index(b))) == stamps[b]) == ((b + 1) * 4 <= length + 2));
    }
    CHECK(counters.read(counter::layout_updates) == 200);
    CHECK(counters.read(counter::layout_builds) == 0);
}

TEST_CASE("a block rewound and filled with other tokens in the same cells has another stamp, seen at once or not") {
    for (const bool seen : {false, true}) {
        cells cache = filled(8, 8, 1);
        cell_blocks blocks = blocks_of(4, cache);
        const auto first = blocks.stamp(blocks.block(seq(0), block_index(0)));
        const auto second = blocks.stamp(blocks.block(seq(0), block_index(1)));
        REQUIRE(cache.rollback(seq(0), 1));
        if (seen) blocks.refresh(cache);
        append(cache, 0, 7, 7);
        blocks.refresh(cache);
        CHECK(members(blocks, 0, 1) == cell_list{4, 5, 6, 7});
        CHECK(blocks.stamp(blocks.block(seq(0), block_index(0))) == first);
        CHECK(blocks.stamp(blocks.block(seq(0), block_index(1))) != second);
    }
}

TEST_CASE("K15 an evaluation that is prepared and undone, or refused, leaves the layout as it was") {
    cells cache = filled(6, 16, 1);
    cell_blocks blocks = blocks_of(4, cache);
    const auto open = blocks.stamp(blocks.block(seq(0), block_index(1)));
    const std::vector<placed_cell> ubatch = {token(0, 6, text(6), 0), token(0, 7, text(7), 0)};
    REQUIRE(cache.place(ubatch));
    REQUIRE(cache.rollback(seq(0), 2));
    blocks.refresh(cache);
    CHECK(blocks.changed().empty());
    CHECK(blocks.stamp(blocks.block(seq(0), block_index(1))) == open);
    const std::vector<placed_cell> no_slot = {token(0, 6, text(6), 0), token(0, 5, text(7), 0)};
    CHECK_FALSE(cache.place(no_slot));
    fg::counters_on counters;
    blocks.refresh(cache, counters);
    CHECK(counters.read(counter::layout_hits) == 1);
    CHECK(members(blocks, 0, 1) == cell_list{4, 5});
}

TEST_CASE("K10 a block's first token moves within its image: another stamp, another first position") {
    cells cache = filled(5, 8, 1);
    cell_blocks blocks = blocks_of(4, cache);
    const block_id id = blocks.block(seq(0), block_index(0));
    const auto before = blocks.stamp(id);
    REQUIRE(cache.set_extent(row(0), cell_index(1), 7, 7));  // not the first
    blocks.refresh(cache);
    CHECK(blocks.stamp(id) == before);
    REQUIRE(cache.set_extent(row(0), cell_index(0), 0, 3));
    blocks.refresh(cache);
    CHECK(blocks.stamp(id) != before);
    CHECK(blocks.first_position(id) == rope_position{0, 0, 3});
}

TEST_CASE("a hole re-cuts what is behind it; blocks removed in whole leave the others theirs") {
    cells cache = filled(19, 32, 1);
    cell_blocks blocks = blocks_of(4, cache);
    REQUIRE(cache.remove(seq(0), {5, 7}));
    blocks.refresh(cache);
    CHECK(members(blocks, 0, 0) == cell_list{0, 1, 2, 3});
    CHECK(members(blocks, 0, 1) == cell_list{4, 7, 8, 9});
    CHECK(members(blocks, 0, 4) == cell_list{18});
    std::map<cell_list, std::pair<std::size_t, std::uint64_t>> known;
    for (std::size_t b = 0; b < 4; ++b) {
        const block_id id = blocks.block(seq(0), block_index(b));
        known[members(blocks, 0, b)] = {id.value, blocks.stamp(id)};
    }
    REQUIRE(cache.remove(seq(0), {-1, 8}));  // tokens 0 … 4 and 7: one block and two tokens
    REQUIRE(cache.remove(seq(0), {8, 10}));  // the rest of the second block
    blocks.refresh(cache);
    CHECK(blocks.length(seq(0)) == 9);
    for (std::size_t b = 0; b < 2; ++b) {
        const block_id id = blocks.block(seq(0), block_index(b));
        CHECK(known[members(blocks, 0, b)] == std::make_pair(id.value, blocks.stamp(id)));
    }
    CHECK(blocks.stored_blocks() == 3);
    CHECK(words(blocks) <= 2 + 3);  // two links, and the open block
}

TEST_CASE("C29 two sequences in interleaved cells: each is cut as if alone") {
    cells cache = cells_of(1, 32, 2);
    cell_blocks blocks = blocks_of(4, cache);
    for (std::size_t i = 0; i < 9; ++i) {
        append(cache, 0, 2 * i, static_cast<std::int64_t>(i));
        append(cache, 1, 2 * i + 1, static_cast<std::int64_t>(i));
        blocks.refresh(cache);
    }
    for (std::size_t s = 0; s < 2; ++s) {
        CHECK(blocks.complete_blocks(seq(s)) == 2);
        CHECK(members(blocks, s, 0) == cell_list{s, s + 2, s + 4, s + 6});
        CHECK(members(blocks, s, 1) == cell_list{s + 8, s + 10, s + 12, s + 14});
        CHECK(members(blocks, s, 2) == cell_list{s + 16});
        CHECK(cache.rank(seq(s), cell_index(s + 14)) == token_rank(7));
        CHECK_FALSE(cache.rank(seq(s), cell_index(15 - s)));
        const auto row_7 = blocks.row(token_rank(7)), row_8 = blocks.row(token_rank(8));
        CHECK(row_7.open_block == block_index(2));
        CHECK(row_7.tail_start == token_rank(8));
        CHECK(row_8.open_block == block_index(2));
        CHECK(row_8.tail_start == token_rank(8));
    }
    CHECK(blocks.stored_blocks() == 6);
}

TEST_CASE("C30 a sequence copied over another that held something is its source, until they part") {
    SUBCASE("within a stream: full blocks are shared by reference, the straddling one is split") {
        cells cache = filled(9, 32, 2);
        for (std::size_t i = 0; i < 6; ++i) append(cache, 1, 16 + i, static_cast<std::int64_t>(i));
        cell_blocks blocks = blocks_of(4, cache);
        REQUIRE(cache.remove(seq(1), {}));
        REQUIRE(cache.copy(seq(0), seq(1)));
        fg::counters_on counters;
        blocks.refresh(cache, counters);
        CHECK(counters.read(counter::layout_updates) == 1);
        CHECK(blocks.length(seq(1)) == 9);
        for (std::size_t b = 0; b < 3; ++b) {
            CHECK(members(blocks, 1, b) == members(blocks, 0, b));
            CHECK((blocks.block(seq(1), block_index(b)) == blocks.block(seq(0), block_index(b))) == (b < 2));
        }
        CHECK(words(blocks) <= 2 + 3);
        // They part: the block that both had begun is pooled for each with its own tokens.
        for (std::size_t s = 0; s < 2; ++s)
            for (std::size_t i = 0; i < 3; ++i) append(cache, s, 9 + 3 * s + i, static_cast<std::int64_t>(9 + i));
        blocks.refresh(cache);
        CHECK(members(blocks, 0, 2) == cell_list{8, 9, 10, 11});
        CHECK(members(blocks, 1, 2) == cell_list{8, 12, 13, 14});
        CHECK(blocks.stored_blocks() == 4);
        // One rewinds into a block that both have: the other's is as it was.
        const block_id shared = blocks.block(seq(0), block_index(1));
        const auto stamp = blocks.stamp(shared);
        REQUIRE(cache.rollback(seq(1), 6));
        blocks.refresh(cache);
        CHECK(members(blocks, 1, 1) == cell_list{4, 5});
        CHECK(members(blocks, 0, 1) == cell_list{4, 5, 6, 7});
        CHECK(blocks.block(seq(0), block_index(1)) == shared);
        CHECK(blocks.stamp(shared) == stamp);
        CHECK(blocks.references(shared) == 1);
    }
    SUBCASE("across streams: in blocks of its own") {
        cells cache = cells_of(2, 16, 2);
        for (std::size_t i = 0; i < 9; ++i) {
            const placed_cell source = token(0, i, text(static_cast<std::int64_t>(i)), 0);
            const placed_cell other = token(1, 15 - i, text(static_cast<std::int64_t>(i + 3)), 1);
            REQUIRE(cache.place({&source, 1}));
            REQUIRE(cache.place({&other, 1}));
        }
        cell_blocks blocks = blocks_of(4, cache);
        REQUIRE(cache.copy(seq(0), seq(1)));
        blocks.refresh(cache);
        CHECK(blocks.length(seq(1)) == 9);
        for (std::size_t b = 0; b < 3; ++b) {
            const block_id mine = blocks.block(seq(1), block_index(b)), source = blocks.block(seq(0), block_index(b));
            CHECK(members(blocks, 1, b) == members(blocks, 0, b));
            CHECK(blocks.first_position(mine) == blocks.first_position(source));
            CHECK(mine != source);
            CHECK(blocks.stream(mine) == row(1));
        }
        CHECK(cache.used_end(row(1)) == 9);
    }
}

TEST_CASE("a copy within a stream refers to blocks and writes none, from any block on and through other copies") {
    cells cache = filled(40, 64, 4);
    cell_blocks blocks = blocks_of(4, cache);
    REQUIRE(cache.copy(seq(0), seq(1), {8, -1}));   // from block 2 on
    REQUIRE(cache.copy(seq(1), seq(2), {-1, 30}));  // ranks 0 … 21: block 5 of the copy is open
    REQUIRE(cache.rollback(seq(0), 6));             // block 8 is not the copies' any more
    REQUIRE(cache.copy(seq(0), seq(3), {2, -1}));   // cut elsewhere: nothing in common
    blocks.refresh(cache);
    for (std::size_t b = 0; b < 8; ++b) {
        CHECK((blocks.block(seq(1), block_index(b)) == blocks.block(seq(0), block_index(b < 6 ? b + 2 : b))) == (b < 6));
        if (b < 6) CHECK((blocks.block(seq(2), block_index(b)) == blocks.block(seq(1), block_index(b))) == (b < 5));
    }
    CHECK(members(blocks, 1, 7) == cell_list{36, 37, 38, 39});
    CHECK(members(blocks, 2, 5) == cell_list{28, 29});
    CHECK(members(blocks, 3, 0) == cell_list{2, 3, 4, 5});
    std::size_t written = 0, linked = 0;
    for (const auto& delta : blocks.changed()) {
        if (delta.sequence != seq(1) && delta.sequence != seq(2)) continue;
        written += delta.end_slot - delta.first_slot;
        linked += delta.linked ? 1 : 0;
    }
    CHECK(linked == 8 + 6);
    CHECK(written <= 4 + 2);
}

TEST_CASE("a sequence that takes over another's tokens keeps their blocks and stamps") {
    cells cache = filled(10, 16, 2);
    cell_blocks blocks = blocks_of(4, cache);
    const block_id id = blocks.block(seq(0), block_index(1));
    const auto stamp = blocks.stamp(id);
    REQUIRE(cache.copy(seq(0), seq(1)));
    REQUIRE(cache.keep(seq(1)));
    blocks.refresh(cache);
    CHECK(blocks.length(seq(0)) == 0);
    CHECK(blocks.block(seq(1), block_index(1)) == id);
    CHECK(blocks.stamp(id) == stamp);
    CHECK(blocks.stored_blocks() == 3);
}

TEST_CASE("K03 a layout follows a checkpoint: a hit if nothing was edited, else a build with new stamps") {
    cells cache = filled(8, 16, 1);
    const cells checkpoint = cache;
    cell_blocks blocks = blocks_of(4, cache);
    fg::counters_on counters;
    blocks.refresh(checkpoint, counters);
    CHECK(counters.read(counter::layout_hits) == 1);
    const auto stamp = blocks.stamp(blocks.block(seq(0), block_index(0)));
    REQUIRE(cache.rollback(seq(0), 4));
    blocks.refresh(cache, counters);
    CHECK(counters.read(counter::layout_updates) == 1);
    cache = checkpoint;
    REQUIRE(cache.rollback(seq(0), 1));  // as many edits since the checkpoint, but another
    blocks.refresh(cache, counters);
    CHECK(counters.read(counter::layout_builds) == 1);
    CHECK(members(blocks, 0, 1) == cell_list{4, 5, 6});
    CHECK(blocks.stamp(blocks.block(seq(0), block_index(0))) != stamp);
}

TEST_CASE("C34 cells, tokens, blocks and stored blocks do not pass for one another") {
    static_assert(!std::is_convertible_v<std::size_t, cell_index> && !std::is_convertible_v<cell_index, std::size_t>);
    static_assert(!std::is_constructible_v<cell_index, token_rank> && !std::is_constructible_v<token_rank, cell_index>);
    static_assert(!std::is_constructible_v<block_id, block_index> && !std::is_constructible_v<block_index, block_id>);
    static_assert(!std::is_invocable_v<decltype(&cell_blocks::members), const cell_blocks&, block_index>);
    static_assert(!std::is_invocable_v<decltype(&cell_blocks::cell), const cell_blocks&, sequence_id, cell_index>);
    // 12 tokens in cells 20, 21, … of a cache that was used before: token 7 is in block 1, stored wherever, cell 27.
    cells cache = filled(5, 40, 1);
    cell_blocks blocks = blocks_of(4, cache);
    for (std::size_t i = 0; i < 12; ++i) append(cache, 0, 20 + i, static_cast<std::int64_t>(100 + i));
    REQUIRE(cache.remove(seq(0), {0, 100}));
    blocks.refresh(cache);
    CHECK(blocks.complete_blocks(seq(0)) == 3);
    CHECK(blocks.cell(seq(0), token_rank(7)) == cell_index(27));
    CHECK(members(blocks, 0, 1) == cell_list{24, 25, 26, 27});
    CHECK(blocks.first_position(blocks.block(seq(0), block_index(1))) == text(104));
    CHECK(blocks.row(token_rank(11)).open_block == block_index(3));
}

TEST_CASE("a layout moves to a cache of another shape; what does not exist has length 0") {
    cell_blocks blocks = cell_blocks::create(4).value();
    CHECK(blocks.length(seq(0)) == 0);
    CHECK(cell_blocks::create(0).error().code == fg::errc::invalid_argument);
    blocks.refresh(filled(9, 32, 2));
    CHECK(blocks.length(seq(0)) == 9);
    blocks.refresh(filled(5, 16, 3));
    CHECK(blocks.sequences() == 3);
    CHECK(members(blocks, 0, 1) == cell_list{4});
    CHECK(blocks.length(seq(3)) == 0);
    CHECK(blocks.length(sequence_id::padding) == 0);
    CHECK(blocks.stored_blocks() == 2);
}
