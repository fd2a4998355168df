#include "frugal/reuse/engine/cells.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "cell_editor.hpp"

namespace fg = frugal;
using namespace cell_test;

namespace {

cells cells_of(std::size_t streams, std::size_t size, std::size_t sequences) {
    return cells::create(streams, size, sequences).value();
}
/// Text tokens 0 … count - 1 of a sequence in the cells of the same numbers.
void fill(cells& to, std::size_t sequence, std::size_t count) {
    std::vector<placed_cell> tokens;
    for (std::size_t i = 0; i < count; ++i)
        tokens.push_back(token(to.streams() == 1 ? 0 : sequence, i, text(static_cast<std::int64_t>(i)), sequence));
    REQUIRE(to.place(tokens));
}
std::vector<std::byte> saved(const cells& from) {
    fg::byte_writer out;
    from.save(out);
    return std::move(out).take();
}
std::vector<std::uint64_t> versions(const cells& from) {
    std::vector<std::uint64_t> out;
    for (std::size_t r = 0; r < from.streams(); ++r) out.push_back(from.version(row(r)));
    return out;
}
fg::errc code(const fg::status& failed) { return failed.error().code; }

}  // namespace

TEST_CASE("streams are one, or one a sequence") {
    CHECK(cells_of(1, 8, 3).stream_of(seq(2)) == row(0));
    CHECK(cells_of(3, 8, 3).stream_of(seq(2)) == row(2));
    CHECK(cells_of(1, 8, 256).sequences() == 256);
    for (const auto& [streams, size, sequences] : std::vector<std::array<std::size_t, 3>>{
             {0, 8, 3}, {2, 8, 3}, {1, 0, 3}, {1, 8, 0}, {1, 8, 257}, {4, 8, 3}, {1, std::size_t{1} << 31, 1}})
        CHECK(cells::create(streams, size, sequences).error().code == fg::errc::invalid_argument);
    const cells cache = cells_of(3, 8, 3);
    CHECK(cache.version(row(0)) != cache.version(row(1)));
    CHECK(cache.version(row(1)) != cache.version(row(2)));
}

TEST_CASE("a set of sequences, each kept once while it is referred to") {
    sequence_set set(seq(3));
    set.add(seq(64));
    set.add(seq(255));
    CHECK(set.count() == 3);
    set.remove(seq(64));
    std::vector<std::size_t> members;
    set.for_each([&](sequence_id s) { members.push_back(static_cast<std::size_t>(s)); });
    CHECK(members == std::vector<std::size_t>{3, 255});
    CHECK(sequence_set().empty());
    CHECK(set != sequence_set(seq(3)));

    fg::reuse::sequence_sets kept;
    CHECK(kept.intern({}) == fg::reuse::set_index::empty);
    const auto index = kept.intern(set);
    kept.refer(index);
    kept.refer(index);
    CHECK(kept.intern(set) == index);
    CHECK(kept.size() == 1);
    kept.release(index);
    CHECK(kept.at(index) == set);
    kept.release(index);
    CHECK(kept.size() == 0);
    const auto other = kept.intern(sequence_set(seq(1)));
    kept.refer(other);
    CHECK(other == index);  // free again
    CHECK(kept.at(other) == sequence_set(seq(1)));
    CHECK(kept.intern(set) != other);
}

TEST_CASE("a log of changes keeps whole steps, a bounded number of them") {
    fg::reuse::change_log<int> log(100, 4);
    int dropped = 0;
    const auto drop = [&](int) { ++dropped; };
    const auto step = [&](std::uint64_t version, std::vector<int> changes) {
        for (const int change : changes) log.add(change, drop);
        log.close(version, drop);
    };
    const auto since = [&](std::uint64_t version) {
        const auto found = log.since(version);
        return found ? std::vector<int>(found->begin(), found->end()) : std::vector<int>{-1};
    };
    step(101, {1, 2});
    step(105, {3, 4, 5});
    CHECK(since(100) == std::vector<int>{1, 2, 3, 4, 5});
    CHECK(since(101) == std::vector<int>{3, 4, 5});
    CHECK(since(105).empty());
    for (const std::uint64_t unknown : {0u, 99u, 102u, 106u}) CHECK(since(unknown) == std::vector<int>{-1});
    step(106, {6, 7, 8, 9});  // nine are too many: the last step stays
    CHECK(dropped == 5);
    CHECK(since(101) == std::vector<int>{-1});
    CHECK(since(105) == std::vector<int>{6, 7, 8, 9});
    step(107, {10, 11, 12, 13, 14});  // more than are kept of one step
    CHECK(dropped == 14);
    CHECK(since(106) == std::vector<int>{-1});
    CHECK(since(107).empty());
    step(108, {15});
    CHECK(since(107) == std::vector<int>{15});
}

TEST_CASE("changes replayed on a copy give the cells, and sequence changes where sequences became others") {
    std::size_t replays = 0, unknown = 0;
    for (unsigned seed = 1; seed <= 12; ++seed) {
        editor edits(seed, seed % 2 == 0 ? 1 : 3, 24, 3);
        const std::size_t streams = edits.tested.streams();
        struct copied_cell {
            rope_position position;
            sequence_set set;
            std::uint64_t order = 0;
            bool operator==(const copied_cell&) const = default;
        };
        const auto as_copied = [&](const fg::reuse::cell& c) {
            return copied_cell{c.position, edits.tested.set(c.set), c.order};
        };
        std::vector<std::vector<copied_cell>> copy(streams, std::vector<copied_cell>(24));
        std::vector<std::vector<cell_index>> lists(3);
        std::vector<std::uint64_t> at = versions(edits.tested);
        for (int step = 0; step < 2000; ++step) {
            bool agreed = true;
            const std::string what = edits.step(agreed);
            INFO("seed " << seed << " step " << step << ": " << what);
            if (edits.below(4) != 0) continue;
            for (std::size_t r = 0; r < streams; ++r) {
                const auto changes = edits.tested.changes_since(row(r), at[r]);
                const auto seen = edits.tested.sequence_changes_since(row(r), at[r]);
                bool same = true;
                if (changes) {
                    ++replays;
                    for (const auto& change : *changes) {
                        same = same && copy[r][change.at.value] == as_copied(change.before);
                        copy[r][change.at.value] = as_copied(change.after);
                    }
                } else {
                    ++unknown;
                    for (std::size_t i = 0; i < 24; ++i) copy[r][i] = as_copied(edits.tested.at(row(r), cell_index(i)));
                }
                for (std::size_t i = 0; i < 24; ++i)
                    same = same && copy[r][i] == as_copied(edits.tested.at(row(r), cell_index(i)));
                REQUIRE(same);
                for (std::size_t s = 0; s < 3; ++s) {
                    if (edits.tested.stream_of(seq(s)) != row(r)) continue;
                    const auto tokens = edits.tested.tokens(seq(s));
                    std::size_t first = tokens.size() + lists[s].size();
                    if (seen)
                        for (const auto& change : *seen)
                            if (change.sequence == seq(s)) first = std::min(first, change.first.value);
                    if (seen) {  // ranks below it are what they were; an untouched sequence is all it was
                        if (first > tokens.size()) REQUIRE(tokens.size() == lists[s].size());
                        const auto kept = static_cast<std::ptrdiff_t>(std::min(first, tokens.size()));
                        REQUIRE(static_cast<std::size_t>(kept) <= lists[s].size());
                        REQUIRE(std::equal(tokens.begin(), tokens.begin() + kept, lists[s].begin()));
                    }
                    lists[s].assign(tokens.begin(), tokens.end());
                }
                at[r] = edits.tested.version(row(r));
            }
        }
    }
    CHECK(replays > 5000);
    CHECK(unknown > 100);
}

TEST_CASE("K09 every edit renews the version if and only if it changes the content, and of no other stream") {
    struct edit {
        std::string name;
        std::function<fg::status(cells&)> make;
        bool changes;
    };
    const auto text_token = [](std::size_t stream, std::size_t cell, std::int64_t position, std::size_t s) {
        return [=](cells& c) {
            const placed_cell placed = token(stream, cell, text(position), s);
            return c.place({&placed, 1});
        };
    };
    const auto done = [](auto&& make) {
        return [make](cells& c) -> fg::status {
            make(c);
            return {};
        };
    };
    for (const std::size_t streams : {1u, 2u}) {
        // Sequence 0: tokens 0 … 5 in cells 0 … 5. With one stream, sequence 1 has tokens 0 … 2 with it; else it has none.
        cells start = cells_of(streams, 8, 2);
        fill(start, 0, 6);
        if (streams == 1) REQUIRE(start.copy(seq(0), seq(1), {0, 3}));
        const bool unified = streams == 1;
        const std::vector<edit> edits = {
            {"place", text_token(0, 6, 6, 0), true},
            {"place none", [](cells& c) { return c.place({}); }, false},
            {"place on a token", text_token(0, 5, 6, 0), false},
            {"place in no cell", text_token(0, 8, 6, 0), false},
            {"place in no stream", text_token(streams, 6, 6, 0), false},
            {"place for nobody", text_token(0, 6, 6, 2), false},
            {"place before 0", text_token(0, 6, -1, 0), false},
            {"rollback", [](cells& c) { return c.rollback(seq(0), 1); }, true},
            {"rollback none", [](cells& c) { return c.rollback(seq(0), 0); }, false},
            {"rollback too many", [](cells& c) { return c.rollback(seq(0), 7); }, false},
            {"remove",
             [](cells& c) {
                 return c.remove(seq(0), {2, 4});
             },
             true},
            {"remove nothing there",
             [](cells& c) {
                 return c.remove(seq(0), {6, -1});
             },
             false},
            {"remove an empty range",
             [](cells& c) {
                 return c.remove(seq(0), {3, 3});
             },
             false},
            {"remove from nobody", [](cells& c) { return c.remove(seq(2), {}); }, false},
            {"remove from all", done([](cells& c) {
                 c.remove(position_range{5, -1});
             }),
             true},
            {"remove nothing from all", done([](cells& c) {
                 c.remove(position_range{6, -1});
             }),
             false},
            {"remove a cell", [](cells& c) { return c.remove(row(0), cell_index(1)); }, true},
            {"remove an empty cell", [](cells& c) { return c.remove(row(0), cell_index(7)); }, false},
            {"remove no cell", [](cells& c) { return c.remove(row(0), cell_index(8)); }, false},
            {"keep", [](cells& c) { return c.keep(seq(1)); }, true},
            {"keep the only one", [](cells& c) { return c.keep(seq(0)); }, unified},
            {"copy", [](cells& c) { return c.copy(seq(0), seq(1)); }, true},
            {"copy what is there",
             [](cells& c) {
                 return c.copy(seq(0), seq(1), {0, 3});
             },
             !unified},
            {"copy to itself", [](cells& c) { return c.copy(seq(0), seq(0)); }, false},
            {"copy to nobody", [](cells& c) { return c.copy(seq(0), seq(2)); }, false},
            {"shift",
             [](cells& c) {
                 return c.shift(seq(0), {2, -1}, 1);
             },
             true},
            {"shift by 0", [](cells& c) { return c.shift(seq(0), {}, 0); }, false},
            {"shift too far", [](cells& c) { return c.shift(seq(0), {}, 0x7FFFFFFF); }, false},
            {"divide", [](cells& c) { return c.divide(seq(0), {}, 2); }, true},
            {"divide 0 alone",
             [](cells& c) {
                 return c.divide(seq(0), {0, 1}, 2);
             },
             false},
            {"divide by 0", [](cells& c) { return c.divide(seq(0), {}, 0); }, false},
            {"set_extent", [](cells& c) { return c.set_extent(row(0), cell_index(5), 5, 6); }, true},
            {"set_extent as it was", [](cells& c) { return c.set_extent(row(0), cell_index(5), 5, 5); }, false},
            {"set_extent of an empty cell", [](cells& c) { return c.set_extent(row(0), cell_index(6), 0, 0); }, false},
            {"move", [](cells& c) { return c.move(row(0), cell_index(0), cell_index(7)); }, true},
            {"move nowhere", [](cells& c) { return c.move(row(0), cell_index(0), cell_index(0)); }, false},
            {"move onto a token", [](cells& c) { return c.move(row(0), cell_index(0), cell_index(1)); }, false},
            {"move an empty cell", [](cells& c) { return c.move(row(0), cell_index(6), cell_index(7)); }, false},
            {"clear", done([](cells& c) { c.clear(); }), true},
        };
        for (const edit& one : edits) {
            INFO(one.name << ", streams: " << streams);
            cells cache = start;
            const auto before = saved(cache);
            const auto old = versions(cache);
            (void)one.make(cache).has_value();
            CHECK((saved(cache) != before) == one.changes);
            const auto now = versions(cache);
            CHECK((now != old) == one.changes);
            CHECK(*std::max_element(now.begin(), now.end()) >= *std::max_element(old.begin(), old.end()));
            if (!unified && one.name != "copy" && one.name != "copy what is there") CHECK(now[1] == old[1]);
            if (one.changes) {
                cells again = start;
                (void)one.make(again).has_value();
                CHECK(saved(again) == saved(cache));  // the same content, but of another object that was edited
                CHECK(versions(again) != now);
            }
        }
        cells empty = start;
        empty.clear();
        const auto cleared = versions(empty);
        empty.clear();  // nothing left to change
        CHECK(versions(empty) == cleared);
        // What is read back gets new versions in any case.
        cells cache = start;
        const auto bytes = saved(cache);
        fg::byte_reader in(bytes);
        REQUIRE(cache.load(in));
        CHECK(saved(cache) == bytes);
        for (std::size_t r = 0; r < streams; ++r) CHECK(cache.version(row(r)) != start.version(row(r)));
    }
}

TEST_CASE("K03 a version that a checkpoint brought back never names another content") {
    cells cache = cells_of(1, 8, 1);
    fill(cache, 0, 4);
    const cells checkpoint = cache;
    CHECK(checkpoint.version(row(0)) == cache.version(row(0)));  // unedited: a hit would be right
    REQUIRE(cache.rollback(seq(0), 1));
    const auto first = cache.version(row(0));
    cache = checkpoint;
    CHECK(cache.version(row(0)) == checkpoint.version(row(0)));
    REQUIRE(cache.rollback(seq(0), 2));  // the first edit since the checkpoint, again
    CHECK(cache.version(row(0)) != first);
    CHECK_FALSE(cache.changes_since(row(0), first));
    CHECK(cache.changes_since(row(0), checkpoint.version(row(0)))->size() == 2);
}

TEST_CASE("K07 equal contents of two streams have different versions") {
    cells cache = cells_of(2, 8, 2);
    fill(cache, 0, 4);
    REQUIRE(cache.copy(seq(0), seq(1)));
    CHECK(cache.tokens(seq(0)).size() == cache.tokens(seq(1)).size());
    CHECK(cache.version(row(0)) != cache.version(row(1)));
    CHECK_FALSE(cache.changes_since(row(1), cache.version(row(0))));
}

TEST_CASE("K15 tokens that find no cell leave everything as it was") {
    cells cache = cells_of(1, 8, 1);
    fill(cache, 0, 6);
    const auto before = saved(cache);
    const auto version = cache.version(row(0));
    const std::vector<placed_cell> too_many = {token(0, 6, text(6), 0), token(0, 7, text(7), 0), token(0, 5, text(8), 0)};
    const std::vector<placed_cell> twice = {token(0, 6, text(6), 0), token(0, 6, text(7), 0)};
    for (const auto& tokens : {too_many, twice}) {
        CHECK(code(cache.place(tokens)) == fg::errc::invalid_argument);
        CHECK(saved(cache) == before);
        CHECK(cache.version(row(0)) == version);
        CHECK(cache.empty(row(0), cell_index(6)));
    }
}

TEST_CASE("shifting: shared cells move for all, what leaves the front is removed, images refuse") {
    cells cache = cells_of(1, 16, 2);
    fill(cache, 0, 6);
    REQUIRE(cache.copy(seq(0), seq(1), {0, 4}));
    REQUIRE(cache.shift(seq(0), {2, -1}, -3));  // 2 leaves, 3 … 5 become 0 … 2, behind the 0 and 1 placed before
    CHECK(cache.tokens(seq(1)).size() == 3);
    CHECK(cache.empty(row(0), cell_index(2)));
    std::vector<std::size_t> order;
    for (const cell_index i : cache.tokens(seq(0))) order.push_back(i.value);
    CHECK(order == std::vector<std::size_t>{0, 3, 1, 4, 5});
    CHECK(cache.at(row(0), cell_index(5)).position == text(2));
    REQUIRE(cache.set_extent(row(0), cell_index(5), 7, 2));
    const auto before = saved(cache);
    CHECK(code(cache.shift(seq(0), {}, 1)) == fg::errc::unsupported);
    CHECK(code(cache.divide(seq(0), {}, 2)) == fg::errc::unsupported);
    CHECK(code(cache.divide(seq(0), {}, 0)) == fg::errc::invalid_argument);
    CHECK(saved(cache) == before);
    CHECK(cache.shift(seq(0), {0, 2}, 1));  // the image is not in the range
    CHECK(code(cache.rollback(seq(0), 6)) == fg::errc::cannot_rollback);
}

TEST_CASE("a copy onto nothing is reported as one, from which rank on and how many; a copy onto tokens is not") {
    cells cache = cells_of(1, 16, 3);
    fill(cache, 0, 6);
    const placed_cell own = token(0, 9, text(1), 2);
    REQUIRE(cache.place({&own, 1}));
    const auto version = cache.version(row(0));
    REQUIRE(cache.copy(seq(0), seq(1), {2, 5}));
    REQUIRE(cache.copy(seq(0), seq(2), {2, 5}));
    const auto changes = cache.sequence_changes_since(row(0), version).value();
    REQUIRE(changes.size() == 2);
    CHECK(changes[0].sequence == seq(1));
    CHECK(changes[0].first == token_rank(0));
    CHECK(changes[0].copied_from == seq(0));
    CHECK(changes[0].copied_first == token_rank(2));
    CHECK(changes[0].copied == 3);
    CHECK(changes[1].sequence == seq(2));
    CHECK(changes[1].first == token_rank(1));
    CHECK(changes[1].copied_from == sequence_id::padding);
}

TEST_CASE("copies across streams replace a range; they refuse to overwrite what lies outside it") {
    cells cache = cells_of(2, 16, 2);
    fill(cache, 0, 6);
    const std::vector<placed_cell> others = {token(1, 2, text(9), 1), token(1, 8, text(3), 1), token(1, 9, text(4), 1)};
    REQUIRE(cache.place(others));
    const auto before = saved(cache);
    CHECK(code(cache.copy(seq(0), seq(1), {0, 4})) == fg::errc::invalid_argument);  // cell 2 holds token 9
    CHECK(saved(cache) == before);
    REQUIRE(cache.copy(seq(0), seq(1), {3, 5}));  // tokens 3 and 4, in cells 3 and 4
    std::vector<std::size_t> order;
    for (const cell_index i : cache.tokens(seq(1))) order.push_back(i.value);
    CHECK(order == std::vector<std::size_t>{3, 4, 2});
    CHECK(cache.empty(row(1), cell_index(8)));
    REQUIRE(cache.copy(seq(0), seq(1)));
    CHECK(cache.tokens(seq(1)).size() == 6);
    CHECK(cache.at(row(1), cell_index(2)).position == text(2));
    const auto version = cache.version(row(1));
    REQUIRE(cache.copy(seq(0), seq(1)));  // once more changes nothing
    CHECK(cache.version(row(1)) == version);
}

TEST_CASE("saved cells come back; broken bytes and other shapes change nothing") {
    cells cache = cells_of(1, 8, 3);
    fill(cache, 0, 5);
    REQUIRE(cache.copy(seq(0), seq(2), {1, 4}));
    REQUIRE(cache.set_extent(row(0), cell_index(4), 2, 3));
    const auto bytes = saved(cache);
    cells other = cells_of(1, 8, 3);
    fill(other, 1, 3);
    const auto before = saved(other);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
        fg::byte_reader in(std::span<const std::byte>(bytes).first(cut));
        CHECK(code(other.load(in)) == fg::errc::malformed_file);
    }
    // Every byte spoilt: refused, or cells that hold together.
    std::size_t refused = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        auto spoilt = bytes;
        spoilt[i] ^= std::byte{0x81};
        fg::byte_reader in(spoilt);
        cells target = other;
        if (!target.load(in)) {
            ++refused;
            CHECK(saved(target) == before);
            continue;
        }
        for (std::size_t s = 0; s < 3; ++s)
            for (std::size_t r = 0; r < target.tokens(seq(s)).size(); ++r)
                CHECK(target.rank(seq(s), target.tokens(seq(s))[r]) == token_rank(r));
    }
    CHECK(refused > bytes.size() / 2);
    CHECK(saved(other) == before);
    fg::byte_reader in(bytes);
    REQUIRE(other.load(in));
    CHECK(saved(other) == bytes);
    for (cells wrong : {cells_of(1, 9, 3), cells_of(1, 8, 2), cells_of(3, 8, 3)}) {
        fg::byte_reader again(bytes);
        CHECK(code(wrong.load(again)) == fg::errc::shape_mismatch);
    }
}

TEST_CASE("K18 two threads with a cache each share nothing but the source of versions") {
    struct outcome {
        std::vector<std::uint64_t> versions;
        std::string wrong;
    };
    std::vector<outcome> outcomes(2);
    const auto run = [&](unsigned index) {
        editor edits(index + 100, 1, 24, 2);
        outcome& out = outcomes[index];
        for (int step = 0; step < 1500 && out.wrong.empty(); ++step) {
            bool agreed = true;
            if (edits.step(agreed) != "restore") out.versions.push_back(edits.tested.version(row(0)));
            out.wrong = agreed ? compare_cells(edits.tested, edits.model) : "refused";
        }
    };
    std::thread first(run, 0), second(run, 1);
    first.join();
    second.join();
    for (outcome& out : outcomes) {
        CHECK(out.wrong == "");
        CHECK(out.versions.size() > 1000);
        std::sort(out.versions.begin(), out.versions.end());
    }
    std::vector<std::uint64_t> common;
    std::set_intersection(outcomes[0].versions.begin(), outcomes[0].versions.end(), outcomes[1].versions.begin(),
                          outcomes[1].versions.end(), std::back_inserter(common));
    CHECK(common.empty());
}

TEST_CASE("N34: no order comes again for other tokens, whatever number of tokens placed the bytes name") {
    cells cache = cells_of(1, 8, 2);
    fill(cache, 0, 4);
    auto bytes = saved(cache);
    constexpr std::size_t counter = 4 + 3 * 8;
    std::uint64_t next = 0;
    std::memcpy(&next, &bytes[counter], sizeof(next));
    REQUIRE(next == 5);
    const std::vector<placed_cell> others = {token(0, 5, text(5), 1), token(0, 6, text(6), 1), token(0, 7, text(7), 1)};
    std::size_t refused = 0;
    for (const std::uint64_t spoilt :
         {~std::uint64_t{0}, ~std::uint64_t{0} - 1, std::uint64_t{1} << 63, std::uint64_t{1} << 48, std::uint64_t{5}}) {
        std::memcpy(&bytes[counter], &spoilt, sizeof(spoilt));
        fg::byte_reader in(bytes);
        cells loaded = cells_of(1, 8, 2);
        if (const auto done = loaded.load(in); !done) {
            CHECK(done.error().code == fg::errc::malformed_file);
            ++refused;
            continue;
        }
        const std::uint64_t order = loaded.at(row(0), cell_index(0)).order;
        // As many tokens as bring a counter that wraps to where the first four had theirs; then others in the first cells.
        REQUIRE(loaded.place(std::span(others).first(~spoilt == 0 ? 2 : 3)));
        REQUIRE(loaded.remove(seq(0), {}));
        fill(loaded, 0, 4);
        CHECK(loaded.at(row(0), cell_index(0)).order != order);
    }
    CHECK(refused == 3);
}
