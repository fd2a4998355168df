#include "frugal/reuse/inputs/qsa_layout.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace fg = frugal;
namespace reuse = frugal::reuse;
using reuse::qsa_layout;
using reuse::rope_position;
using reuse::segment;
using reuse::sequence_id;

namespace {

sequence_id seq(int index) { return static_cast<sequence_id>(index); }

/// The layout of one sequence, rebuilt from the positions of all its tokens.
void check_against_rebuild(const qsa_layout& layout, sequence_id s, const std::vector<rope_position>& tokens) {
    const std::size_t ratio = layout.ratio().tokens();
    REQUIRE(layout.length(s) == tokens.size());
    for (std::size_t block = 0; block * ratio < tokens.size(); ++block)
        REQUIRE(layout.first_position(s, reuse::block_index(block)) == tokens[block * ratio]);
}

std::vector<std::byte> saved(const qsa_layout& layout, sequence_id s) {
    fg::byte_writer out;
    layout.save(s, out);
    return std::move(out).take();
}

}  // namespace

TEST_CASE("rows of a batch: rank, complete blocks and tail of every token, over several sequences") {
    auto layout = qsa_layout::create(4, 2).value();
    std::vector<rope_position> positions(12);
    for (std::size_t i = 0; i < 12; ++i) positions[i] = {static_cast<int>(i), 0, 0};
    const std::vector<segment> segments = {{seq(1), 0, 6}, {sequence_id::padding, 6, 2}, {seq(0), 8, 4}};
    REQUIRE(layout.append({segments, positions}));
    REQUIRE(layout.rows().size() == 12);
    for (std::size_t r = 0; r < 12; ++r) {
        const auto& row = layout.rows()[r];
        CHECK(row.padding == (r == 6 || r == 7));
        if (row.padding) continue;
        const std::size_t rank = r < 6 ? r : r - 8;
        CHECK(row.rank.value == rank);
        CHECK(row.open_block.value == (rank + 1) / 4);
        CHECK(row.tail_start.value == (rank + 1) / 4 * 4);
    }
    CHECK(layout.first_position(seq(1), reuse::block_index(1)).temporal == 4);
    CHECK(layout.first_position(seq(0), reuse::block_index(0)).temporal == 8);
    // The next batch goes on where this one ended.
    const segment more{seq(1), 0, 3};
    REQUIRE(layout.append({{&more, 1}, std::span(positions).first(3)}));
    CHECK(layout.rows()[0].rank.value == 6);
    CHECK(layout.rows()[2].open_block.value == 2);
}

TEST_CASE("random edits give what a rebuild from all tokens gives") {
    std::mt19937 generator(1);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(generator() % n); };
    for (const std::size_t ratio : {1u, 2u, 3u, 4u, 8u}) {
        auto layout = qsa_layout::create(ratio, 3).value();
        std::vector<std::vector<rope_position>> tokens(3);
        std::vector<qsa_layout::snapshot_type> snapshots;
        std::vector<std::vector<rope_position>> snapshot_tokens;
        int next = 0;
        for (int step = 0; step < 5000; ++step) {
            const std::size_t s = below(3);
            const sequence_id id = seq(static_cast<int>(s));
            switch (below(10)) {
                default: {
                    std::vector<rope_position> positions(below(12));
                    for (auto& position : positions) position = {++next, next * 7 % 11, next % 5};
                    const std::vector<segment> segments = {{id, 0, positions.size()}};
                    REQUIRE(layout.append({segments, positions}));
                    for (std::size_t r = 0; r < positions.size(); ++r)
                        REQUIRE(layout.rows()[r].rank.value == tokens[s].size() + r);
                    tokens[s].insert(tokens[s].end(), positions.begin(), positions.end());
                    break;
                }
                case 5: {
                    const std::size_t n = below(tokens[s].size() + 3);
                    const bool possible = n <= tokens[s].size();
                    REQUIRE(layout.can_rollback(id, n) == possible);
                    REQUIRE(layout.rollback(id, n).has_value() == possible);
                    if (possible) tokens[s].resize(tokens[s].size() - n);
                    break;
                }
                case 6: {
                    const std::size_t to = below(3);
                    REQUIRE(layout.copy(id, seq(static_cast<int>(to))));
                    tokens[to] = std::vector<rope_position>(tokens[s]);
                    break;
                }
                case 7:
                    if (below(4) == 0) layout.clear(id), tokens[s].clear();
                    break;
                case 8: {
                    if (snapshots.empty() || below(2) == 0) {
                        snapshots.push_back(layout.snapshot(id).value());
                        snapshot_tokens.push_back(tokens[s]);
                    } else {
                        const std::size_t which = below(snapshots.size());
                        REQUIRE(layout.restore(id, snapshots[which]));
                        tokens[s] = snapshot_tokens[which];
                    }
                    break;
                }
                case 9: {
                    const auto bytes = saved(layout, id);
                    const std::size_t to = below(3);
                    fg::byte_reader in(bytes);
                    REQUIRE(layout.load(seq(static_cast<int>(to)), in));
                    tokens[to] = std::vector<rope_position>(tokens[s]);
                    break;
                }
            }
            if (step % 16 == 0)
                for (std::size_t i = 0; i < 3; ++i) check_against_rebuild(layout, seq(static_cast<int>(i)), tokens[i]);
        }
    }
}

TEST_CASE("broken batches and bytes change nothing") {
    auto layout = qsa_layout::create(4, 1).value();
    const std::vector<rope_position> positions(6);
    const segment good{seq(0), 0, 6};
    REQUIRE(layout.append({{&good, 1}, positions}));
    const auto before = saved(layout, seq(0));
    for (const segment bad :
         {segment{seq(0), 1, 5}, segment{seq(0), 0, 7}, segment{seq(0), 0, 5}, segment{seq(1), 0, 6}, segment{seq(-2), 0, 6}})
        CHECK(layout.append({{&bad, 1}, positions}).error().code == fg::errc::invalid_argument);
    const std::vector<segment> twice = {{seq(0), 0, 3}, {seq(0), 3, 3}};
    CHECK(layout.append({twice, positions}).error().code == fg::errc::invalid_argument);
    for (std::size_t cut = 0; cut < before.size(); ++cut) {
        fg::byte_reader in(std::span<const std::byte>(before).first(cut));
        CHECK_FALSE(layout.load(seq(0), in));
    }
    auto huge = before;  // 2^56 tokens more than there are bytes for
    huge[19] = std::byte{1};
    fg::byte_reader in(huge);
    CHECK_FALSE(layout.load(seq(0), in));
    auto other = qsa_layout::create(8, 1).value();
    fg::byte_reader wrong_ratio(before);
    CHECK(other.load(seq(0), wrong_ratio).error().code == fg::errc::shape_mismatch);
    CHECK(other.restore(seq(0), layout.snapshot(seq(0)).value()).error().code == fg::errc::shape_mismatch);
    CHECK(saved(layout, seq(0)) == before);
    CHECK(qsa_layout::create(0, 1).error().code == fg::errc::invalid_argument);
    CHECK(layout.rollback(seq(3), 0).error().code == fg::errc::invalid_argument);
    CHECK(layout.length(sequence_id::padding) == 0);
}

TEST_CASE("C40 the required operations are checked when a state is compiled") {
    struct forgetful {  // no copy
        struct snapshot_type {};
        [[nodiscard]] std::size_t sequences() const { return 0; }
        [[nodiscard]] std::size_t length(sequence_id) const { return 0; }
        fg::status reserve(sequence_id, std::size_t) { return {}; }
        [[nodiscard]] fg::result<snapshot_type> snapshot(sequence_id) const { return snapshot_type{}; }
        fg::status restore(sequence_id, const snapshot_type&) { return {}; }
        [[nodiscard]] bool can_rollback(sequence_id, std::size_t) const { return false; }
        fg::status rollback(sequence_id, std::size_t) { return {}; }
        void clear(sequence_id) {}
        void save(sequence_id, fg::byte_writer&) const {}
        fg::status load(sequence_id, fg::byte_reader&) { return {}; }
    };
    struct complete : forgetful {
        fg::status copy(sequence_id, sequence_id) { return {}; }
    };
    static_assert(!reuse::sequence_state<forgetful> && reuse::sequence_state<complete>);
    static_assert(reuse::sequence_state<qsa_layout>);
}
