#include "frugal/reuse/inputs/qsa_layouts.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fg = frugal;
namespace reuse = frugal::reuse;
using fg::counter;
using reuse::incremental;
using reuse::memoised;
using reuse::per_layer;
using reuse::rope_position;
using reuse::segment;
using reuse::sequence_id;
using reuse::shared;

namespace {

constexpr std::array<std::size_t, 4> ratios = {4, 3, 4, 1};

sequence_id seq(std::size_t index) { return static_cast<sequence_id>(index); }

template <class Policy>
reuse::qsa_layouts<Policy> make(std::size_t sequences) {
    return reuse::qsa_layouts<Policy>::create(ratios, sequences).value();
}

/// All that a layer can read, as numbers.
std::vector<std::uint64_t> read_by(const reuse::qsa_layout& layout) {
    std::vector<std::uint64_t> out = {layout.rows().size()};
    for (const reuse::qsa_row& row : layout.rows()) {
        out.push_back(row.padding ? 1 : 0);
        if (!row.padding) out.insert(out.end(), {row.rank.value, row.open_block.value, row.tail_start.value});
    }
    for (std::size_t s = 0; s < layout.sequences(); ++s) {
        out.push_back(layout.length(seq(s)));
        for (std::size_t b = 0; b < layout.ratio().begun_blocks(layout.length(seq(s))); ++b) {
            const rope_position& at = layout.first_position(seq(s), reuse::block_index(b));
            for (const std::int32_t part : {at.temporal, at.height, at.width}) out.push_back(static_cast<std::uint32_t>(part));
        }
    }
    return out;
}

/// A batch of several segments that owns its positions.
struct made_batch {
    std::vector<segment> segments;
    std::vector<rope_position> positions;
    [[nodiscard]] reuse::batch view() const { return {segments, positions}; }
};

template <class Policy>
struct arm {
    reuse::qsa_layouts<Policy> layouts = make<Policy>(3);
    std::vector<typename reuse::qsa_layouts<Policy>::snapshot_type> snapshots;
    fg::counters_on counters;
};

}  // namespace

TEST_CASE("random edits: the four policies give the same tables and rows, and every hit gives what a fill would") {
    std::tuple<arm<incremental>, arm<memoised>, arm<shared>, arm<per_layer>> arms;
    const auto each = [&](const auto& body) { std::apply([&](auto&... one) { (body(one), ...); }, arms); };
    std::mt19937 generator(3);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(generator() % n); };
    std::vector<std::vector<rope_position>> tokens(3);
    std::vector<std::vector<rope_position>> snapshot_tokens;
    made_batch last;
    bool undone = false;
    int next = 0;
    std::size_t batches = 0;
    for (int step = 0; step < 6000; ++step) {
        const std::size_t s = below(3), other = below(3);
        bool appended = false;
        const auto append = [&] {
            each([&](auto& one) { REQUIRE(one.layouts.append(last.view(), one.counters)); });
            for (const segment& part : last.segments)
                if (part.sequence != sequence_id::padding)
                    for (std::size_t i = 0; i < part.count; ++i)
                        tokens[static_cast<std::size_t>(part.sequence)].push_back(last.positions[part.first + i]);
            appended = true;
        };
        switch (below(14)) {
            default: {  // some sequences in any order, with padding between them
                last = {};
                std::array<std::size_t, 4> order = {0, 1, 2, 3};
                std::shuffle(order.begin(), order.end(), generator);
                for (const std::size_t part : order) {
                    const std::size_t count = below(2) == 0 ? below(7) : 0;
                    last.segments.push_back({part == 3 ? sequence_id::padding : seq(part), last.positions.size(), count});
                    for (std::size_t i = 0; i < count; ++i) last.positions.push_back({++next, next * 7 % 11, next % 5});
                }
                append();
                break;
            }
            case 6: {
                const std::size_t n = below(tokens[s].size() + 3);
                each([&](auto& one) { REQUIRE(one.layouts.rollback(seq(s), n).has_value() == (n <= tokens[s].size())); });
                if (n <= tokens[s].size()) tokens[s].resize(tokens[s].size() - n);
                break;
            }
            case 7:
                each([&](auto& one) { REQUIRE(one.layouts.copy(seq(s), seq(other))); });
                tokens[other] = std::vector<rope_position>(tokens[s]);
                break;
            case 8:
                if (below(4) != 0) break;
                each([&](auto& one) { one.layouts.clear(seq(s)); });
                tokens[s].clear();
                break;
            case 9:
                each([&](auto& one) { one.snapshots.push_back(one.layouts.snapshot(seq(s)).value()); });
                snapshot_tokens.push_back(tokens[s]);
                break;
            case 10: {
                if (snapshot_tokens.empty()) break;
                const std::size_t which = below(2) == 0 ? snapshot_tokens.size() - 1 : below(snapshot_tokens.size());
                each([&](auto& one) { REQUIRE(one.layouts.restore(seq(s), one.snapshots[which])); });
                tokens[s] = snapshot_tokens[which];
                break;
            }
            case 11:
                each([&](auto& one) {
                    fg::byte_writer out;
                    one.layouts.save(seq(s), out);
                    fg::byte_reader in(out.bytes());
                    REQUIRE(one.layouts.load(seq(other), in));
                });
                tokens[other] = std::vector<rope_position>(tokens[s]);
                break;
            case 12:  // the latest batch taken back whole, or but for a token, and given again
            case 13:
                undone = below(3) != 0;
                for (const segment& part : last.segments) {
                    if (part.sequence == sequence_id::padding) continue;
                    auto& of = tokens[static_cast<std::size_t>(part.sequence)];
                    const std::size_t n = std::min(of.size(), undone || part.count == 0 ? part.count : part.count - 1);
                    each([&](auto& one) { REQUIRE(one.layouts.rollback(part.sequence, n)); });
                    of.resize(of.size() - n);
                }
                append();
                break;
        }
        each([&](auto& one) {
            for (std::size_t i = 0; i < 3; ++i) REQUIRE(one.layouts.length(seq(i)) == tokens[i].size());
        });
        if (!appended) {  // rows stay where nothing changed, else there are none
            const std::size_t rows = std::get<0>(arms).layouts.of_layer(0).rows().size();
            each([&](auto& one) { REQUIRE(one.layouts.of_layer(0).rows().size() == rows); });
            continue;
        }
        if (last.positions.empty()) continue;
        ++batches;
        auto& [kept, remembered, filled, apart] = arms;
        for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
            const auto want = read_by(kept.layouts.of_layer(layer));
            REQUIRE(read_by(remembered.layouts.of_layer(layer)) == want);
            REQUIRE(read_by(filled.layouts.of_layer(layer)) == want);
            REQUIRE(read_by(apart.layouts.of_layer(layer)) == want);
        }
        for (std::size_t i = 0; i < 3; ++i)
            for (std::size_t t = 0; t < tokens[i].size(); ++t)
                REQUIRE(kept.layouts.of_layer(3).first_position(seq(i), reuse::block_index(t)) == tokens[i][t]);
    }
    auto& [kept, remembered, filled, apart] = arms;
    CHECK(kept.counters.read(counter::layout_updates) == 3 * batches);
    CHECK(filled.counters.read(counter::layout_builds) == 3 * batches);
    CHECK(apart.counters.read(counter::layout_builds) == 4 * batches);
    const auto hits = remembered.counters.read(counter::layout_hits);
    CHECK(hits > 3 * 200);
    CHECK(remembered.counters.read(counter::layout_builds) == 3 * batches - hits);
}

TEST_CASE("K12 a decode loop never hits: every token is new") {
    auto layouts = make<memoised>(1);
    auto kept = make<incremental>(1);
    fg::counters_on counters, kept_counters;
    for (int t = 0; t < 1000; ++t) {
        const rope_position position{t, t, t};
        const segment part{seq(0), 0, 1};
        REQUIRE(layouts.append({{&part, 1}, {&position, 1}}, counters));
        REQUIRE(kept.append({{&part, 1}, {&position, 1}}, kept_counters));
    }
    CHECK(counters.read(counter::layout_builds) == 3000);  // three ratios
    CHECK(counters.read(counter::layout_hits) == 0);
    CHECK(kept_counters.read(counter::layout_updates) == 3000);
    CHECK(kept_counters.read(counter::layout_builds) == 0);
}

namespace {

/// Fills once, lets `change` do something, appends `again` and says how many sets were found unchanged.
template <class Change>
std::uint64_t hits_after(Change&& change, const made_batch& again, std::size_t sequences = 2) {
    auto layouts = make<memoised>(sequences);
    auto filled = make<shared>(sequences);
    fg::counters_on counters;
    fg::counters_off none;
    const made_batch start{{{seq(0), 0, 5}, {seq(1), 5, 5}}, std::vector<rope_position>(10)};
    const made_batch first{{{seq(0), 0, 2}}, {{5, 5, 5}, {6, 6, 6}}};
    REQUIRE(layouts.append(start.view(), none));
    REQUIRE(filled.append(start.view(), none));
    const auto before = layouts.snapshot(seq(0)).value();
    const auto before_filled = filled.snapshot(seq(0)).value();
    REQUIRE(layouts.append(first.view(), none));
    REQUIRE(filled.append(first.view(), none));
    change(layouts, before);
    change(filled, before_filled);
    REQUIRE(layouts.append(again.view(), counters));
    REQUIRE(filled.append(again.view(), none));
    for (std::size_t layer = 0; layer < ratios.size(); ++layer)
        CHECK(read_by(layouts.of_layer(layer)) == read_by(filled.of_layer(layer)));
    CHECK(counters.read(counter::layout_hits) + counters.read(counter::layout_builds) == 3);
    return counters.read(counter::layout_hits);
}

}  // namespace

TEST_CASE("K01 K02 K03 K13 C37 a layout is used again only where a fill would make the same") {
    const made_batch same{{{seq(0), 0, 2}}, {{5, 5, 5}, {6, 6, 6}}};
    const auto undo = [](auto& layouts, const auto&) { REQUIRE(layouts.rollback(seq(0), 2)); };
    CHECK(hits_after(undo, same) == 3);
    CHECK(hits_after([](auto& layouts, const auto& before) { REQUIRE(layouts.restore(seq(0), before)); }, same) == 3);
    CHECK(hits_after([](auto&, const auto&) {}, same) == 0);  // two tokens further on
    CHECK(hits_after([](auto& layouts, const auto&) { REQUIRE(layouts.rollback(seq(0), 1)); }, same) == 0);
    CHECK(hits_after(
              [](auto& layouts, const auto&) {
                  REQUIRE(layouts.rollback(seq(0), 1));
                  REQUIRE(layouts.rollback(seq(0), 1));
              },
              same) == 0);  // the same tokens, but nobody can know from the number
    for (const auto& [label, again] : std::initializer_list<std::pair<std::string, made_batch>>{
             {"position", {{{seq(0), 0, 2}}, {{5, 5, 5}, {7, 6, 6}}}},
             {"height", {{{seq(0), 0, 2}}, {{5, 5, 5}, {6, 7, 6}}}},
             {"width", {{{seq(0), 0, 2}}, {{5, 5, 5}, {6, 6, 7}}}},
             {"sequence", {{{seq(1), 0, 2}}, {{5, 5, 5}, {6, 6, 6}}}},
             {"padding", {{{sequence_id::padding, 0, 2}}, {{5, 5, 5}, {6, 6, 6}}}},
             {"fewer", {{{seq(0), 0, 1}}, {{5, 5, 5}}}},
             {"more", {{{seq(0), 0, 3}}, {{5, 5, 5}, {6, 6, 6}, {7, 7, 7}}}},
             {"split", {{{seq(0), 0, 1}, {seq(1), 1, 1}}, {{5, 5, 5}, {6, 6, 6}}}}}) {
        const std::string name = label;
        CAPTURE(name);
        CHECK(hits_after(undo, again) == 0);
    }
    // Another sequence's edit counts too: its table is part of the set.
    CHECK(hits_after(
              [](auto& layouts, const auto&) {
                  REQUIRE(layouts.rollback(seq(0), 2));
                  REQUIRE(layouts.rollback(seq(1), 1));
              },
              same) == 0);
    CHECK(hits_after(
              [](auto& layouts, const auto&) {
                  REQUIRE(layouts.rollback(seq(0), 2));
                  layouts.clear(seq(1));
              },
              same) == 0);
    // A checkpoint, another edit after it, and as many tokens as before.
    CHECK(hits_after(
              [](auto& layouts, const auto& before) {
                  REQUIRE(layouts.restore(seq(0), before));
                  REQUIRE(layouts.rollback(seq(0), 1));
                  const made_batch other{{{seq(0), 0, 1}}, {{9, 9, 9}}};
                  fg::counters_off none;
                  REQUIRE(layouts.append(other.view(), none));
              },
              same) == 0);
}

TEST_CASE("C29 two interleaved sequences: each has the rows and the table of its run alone") {
    auto both = make<incremental>(2);
    fg::counters_off none;
    std::array<reuse::qsa_layouts<incremental>, 2> alone = {make<incremental>(1), make<incremental>(1)};
    for (int t = 0; t < 9; ++t) {
        const std::array<rope_position, 2> positions = {rope_position{t, t, t}, rope_position{t, 0, 1}};
        const std::array<segment, 2> parts = {segment{seq(0), 0, 1}, segment{seq(1), 1, 1}};
        REQUIRE(both.append({parts, positions}, none));
        for (std::size_t s = 0; s < 2; ++s) {
            const segment part{seq(0), 0, 1};
            REQUIRE(alone[s].append({{&part, 1}, {&positions[s], 1}}, none));
            const auto &mine = both.of_layer(0).rows()[s], &want = alone[s].of_layer(0).rows()[0];
            CHECK(mine.rank == want.rank);
            CHECK(mine.open_block == want.open_block);
            CHECK(mine.tail_start == want.tail_start);
        }
    }
    for (std::size_t s = 0; s < 2; ++s)
        for (std::size_t block = 0; block < 3; ++block)
            CHECK(both.of_layer(0).first_position(seq(s), reuse::block_index(block)) ==
                  alone[s].of_layer(0).first_position(seq(0), reuse::block_index(block)));
}

TEST_CASE("saved layouts belong to one way of upkeep; broken bytes change nothing") {
    fg::counters_off none;
    auto kept = make<incremental>(1);
    auto filled = make<shared>(1);
    const made_batch tokens{{{seq(0), 0, 6}}, std::vector<rope_position>(6)};
    REQUIRE(kept.append(tokens.view(), none));
    REQUIRE(filled.append(tokens.view(), none));
    fg::byte_writer kept_bytes, filled_bytes;
    kept.save(seq(0), kept_bytes);
    filled.save(seq(0), filled_bytes);
    fg::byte_reader of_kept(kept_bytes.bytes()), of_filled(filled_bytes.bytes());
    CHECK(filled.load(seq(0), of_kept).error().code == fg::errc::shape_mismatch);
    CHECK(kept.load(seq(0), of_filled).error().code == fg::errc::malformed_file);
    for (std::size_t cut = 0; cut < filled_bytes.bytes().size(); ++cut) {
        fg::byte_reader in(filled_bytes.bytes().first(cut));
        CHECK_FALSE(filled.load(seq(0), in));
    }
    std::vector<std::byte> huge(filled_bytes.bytes().begin(), filled_bytes.bytes().end());
    huge[3 * 8 + 4 + 7] = std::byte{1};  // 2^56 tokens more than there are bytes for
    fg::byte_reader in(huge);
    CHECK_FALSE(filled.load(seq(0), in));
    CHECK(filled.length(seq(0)) == 6);
    CHECK(filled.rollback(seq(2), 0).error().code == fg::errc::invalid_argument);
    CHECK(filled.copy(seq(0), seq(1)).error().code == fg::errc::invalid_argument);
    CHECK(filled.snapshot(seq(1)).error().code == fg::errc::invalid_argument);
}
