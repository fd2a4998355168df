#pragma once
/// The cells of a cache and the blocks cut from them, written the slow and obvious way: what reuse/engine/cells.hpp and
/// reuse/engine/cell_blocks.hpp are compared with. A check returns what is wrong, or an empty text.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "frugal/reuse/engine/cell_blocks.hpp"
#include "frugal/reuse/engine/cells.hpp"

namespace cell_test {

namespace reuse = frugal::reuse;
using reuse::block_id;
using reuse::block_index;
using reuse::cell_blocks;
using reuse::cell_index;
using reuse::cells;
using reuse::placed_cell;
using reuse::position_range;
using reuse::rope_position;
using reuse::sequence_id;
using reuse::sequence_set;
using reuse::stream_id;
using reuse::token_rank;

inline sequence_id seq(std::size_t index) { return static_cast<sequence_id>(index); }
inline stream_id row(std::size_t index) { return static_cast<stream_id>(index); }
inline rope_position text(std::int64_t index) {
    const auto i = static_cast<std::int32_t>(index);
    return {i, i, i};
}
inline placed_cell token(std::size_t stream, std::size_t cell, rope_position position, std::size_t sequence) {
    return {row(stream), cell_index(cell), position, sequence_set(seq(sequence))};
}

struct model_token {
    rope_position position;
    std::set<std::size_t> sequences;
    std::size_t order = 0;     // of placing; restored with a checkpoint
    std::size_t identity = 0;  // one for every token ever placed
    bool operator==(const model_token&) const = default;
};
using model_stream = std::vector<std::optional<model_token>>;

class cell_model {
public:
    cell_model(std::size_t streams, std::size_t size, std::size_t sequence_count)
        : rows(streams, model_stream(size)), sequences(sequence_count) {}

    std::vector<model_stream> rows;
    std::size_t sequences;
    std::size_t orders = 0;

    [[nodiscard]] std::size_t stream_of(std::size_t s) const { return rows.size() == 1 ? 0 : s; }
    [[nodiscard]] static bool in(position_range range, std::int32_t t) {
        return t >= std::max(range.begin, 0) && (range.end < 0 || t < range.end);
    }
    /// The rule: all cells that the sequence sees, sorted.
    [[nodiscard]] std::vector<std::size_t> visible(std::size_t s) const {
        const model_stream& cells = rows[stream_of(s)];
        std::vector<std::size_t> found;
        for (std::size_t i = 0; i < cells.size(); ++i)
            if (cells[i] && cells[i]->sequences.count(s) != 0) found.push_back(i);
        const auto key = [&](std::size_t i) {
            const rope_position& p = cells[i]->position;
            return std::make_tuple(p.temporal, p.height, p.width, cells[i]->order, i);
        };
        std::sort(found.begin(), found.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
        return found;
    }

    bool place(const std::vector<placed_cell>& tokens) {
        std::set<std::pair<stream_id, std::size_t>> targets;
        for (const placed_cell& t : tokens) {
            if (static_cast<std::size_t>(t.stream) >= rows.size() || t.cell.value >= rows[0].size()) return false;
            if (rows[static_cast<std::size_t>(t.stream)][t.cell.value]) return false;
            if (!targets.insert({t.stream, t.cell.value}).second || t.sequences.empty() || t.position.temporal < 0) return false;
            for (std::size_t s = 0; s < reuse::max_sequences; ++s)
                if (t.sequences.contains(seq(s)) && (s >= sequences || row(stream_of(s)) != t.stream)) return false;
        }
        for (const placed_cell& t : tokens) {
            model_token placed{t.position, {}, ++orders, identities()};
            for (std::size_t s = 0; s < sequences; ++s)
                if (t.sequences.contains(seq(s))) placed.sequences.insert(s);
            rows[static_cast<std::size_t>(t.stream)][t.cell.value] = placed;
        }
        return true;
    }
    bool rollback(std::size_t s, std::size_t n) {
        const auto tokens = visible(s);
        if (n > tokens.size()) return false;
        for (std::size_t i = tokens.size() - n; i < tokens.size(); ++i) drop(stream_of(s), tokens[i], s);
        return true;
    }
    void remove(std::size_t s, position_range range) {
        for (const std::size_t i : visible(s))
            if (in(range, rows[stream_of(s)][i]->position.temporal)) drop(stream_of(s), i, s);
    }
    void keep(std::size_t kept) {
        for (std::size_t s = 0; s < sequences; ++s)
            if (s != kept) remove(s, {});
    }
    bool copy(std::size_t from, std::size_t to, position_range range) {
        if (from == to) return true;
        if (rows.size() == 1) {
            for (auto& cell : rows[0])
                if (cell && cell->sequences.count(from) != 0 && in(range, cell->position.temporal)) cell->sequences.insert(to);
            return true;
        }
        model_stream result = rows[to];
        for (auto& cell : result)
            if (cell && in(range, cell->position.temporal)) cell.reset();
        for (std::size_t i = 0; i < result.size(); ++i) {
            const auto& cell = rows[from][i];
            if (!cell || !in(range, cell->position.temporal)) continue;
            if (result[i]) return false;
            result[i] = cell;
            result[i]->sequences = {to};
        }
        rows[to] = result;
        return true;
    }
    template <class Function>
    bool renumber(std::size_t s, position_range range, Function&& changed) {
        model_stream result = rows[stream_of(s)];
        for (auto& cell : result) {
            if (!cell || cell->sequences.count(s) == 0 || !in(range, cell->position.temporal)) continue;
            const rope_position& p = cell->position;
            if (p.height != p.temporal || p.width != p.temporal) return false;
            const std::int64_t to = changed(p.temporal);
            if (to > 0x7FFFFFFF) return false;
            if (to < 0) {
                cell.reset();
            } else {
                cell->position = text(to);
            }
        }
        rows[stream_of(s)] = result;
        return true;
    }
    bool set_extent(std::size_t stream, std::size_t i, std::int32_t height, std::int32_t width) {
        if (!rows[stream][i]) return false;
        rows[stream][i]->position.height = height;
        rows[stream][i]->position.width = width;
        return true;
    }
    bool move(std::size_t stream, std::size_t from, std::size_t to) {
        if (!rows[stream][from] || (from != to && rows[stream][to])) return false;
        if (from != to) std::swap(rows[stream][from], rows[stream][to]);
        return true;
    }

private:
    static std::size_t identities() {
        static std::atomic<std::size_t> last{0};
        return ++last;
    }
    void drop(std::size_t stream, std::size_t i, std::size_t s) {
        rows[stream][i]->sequences.erase(s);
        if (rows[stream][i]->sequences.empty()) rows[stream][i].reset();
    }
};

/// Whether the cells hold what the model holds.
inline std::string compare_cells(const cells& tested, const cell_model& model) {
    std::map<std::set<std::size_t>, reuse::set_index> indices;
    for (std::size_t r = 0; r < model.rows.size(); ++r) {
        std::size_t used_end = 0;
        for (std::size_t i = 0; i < model.rows[r].size(); ++i) {
            const auto& expected = model.rows[r][i];
            const reuse::cell& cell = tested.at(row(r), cell_index(i));
            if (!expected) {
                if (cell != reuse::cell{} || !tested.empty(row(r), cell_index(i))) return "a cell is not empty";
                continue;
            }
            used_end = i + 1;
            if (tested.empty(row(r), cell_index(i)) || cell.position != expected->position) return "a token is lost or misplaced";
            if (cell.order != expected->order) return "another order of placing";
            for (std::size_t s = 0; s < model.sequences; ++s)
                if (tested.belongs(cell, seq(s)) != (expected->sequences.count(s) != 0)) return "another set of sequences";
            if (tested.set(cell.set).count() != expected->sequences.size()) return "a set with strangers";
            if (indices.emplace(expected->sequences, cell.set).first->second != cell.set) return "equal sets, two indices";
        }
        if (tested.used_end(row(r)) != used_end) return "another end of the used cells";
    }
    for (std::size_t s = 0; s < model.sequences; ++s) {
        const auto expected = model.visible(s);
        const auto tokens = tested.tokens(seq(s));
        if (tokens.size() != expected.size()) return "another number of tokens";
        for (std::size_t i = 0; i < expected.size(); ++i) {
            if (tokens[i].value != expected[i]) return "another order of tokens";
            if (tested.rank(seq(s), tokens[i]) != token_rank(i)) return "another rank";
        }
    }
    return {};
}

/// Watches one layout through its refreshes: against the model, against a layout built anew, as a copy that is sent the
/// deltas alone would see it, and as a cache of block keys would.
class layout_watch {
public:
    [[nodiscard]] std::string compare(const cell_blocks& tested, const cells& from, const cell_model& model, bool updated) {
        for (const reuse::block_delta& delta : tested.changed()) {
            if (members_.size() <= delta.block.value) members_.resize(delta.block.value + 1), firsts_.resize(members_.size());
            members_[delta.block.value].resize(tested.ratio().tokens());
            const auto sent = tested.members(delta.block);
            for (std::size_t i = delta.first_slot; i < delta.end_slot; ++i) members_[delta.block.value][i] = sent[i].value;
            if (delta.position_words != 0) firsts_[delta.block.value] = tested.first_position(delta.block);
            if (delta.linked) chains_[{static_cast<std::size_t>(delta.sequence), delta.index.value}] = delta.block;
        }
        auto fresh = cell_blocks::create(tested.ratio().tokens()).value();
        fresh.refresh(from);
        if (fresh.stored_blocks() != tested.stored_blocks()) return "another number of blocks than a fresh build";

        const std::size_t ratio = tested.ratio().tokens();
        std::map<std::pair<std::size_t, std::vector<std::size_t>>, block_id> full;
        std::map<std::size_t, std::size_t> references;
        std::map<std::size_t, block_key> keys;
        for (std::size_t s = 0; s < model.sequences; ++s) {
            const auto tokens = model.visible(s);
            const std::size_t stream = model.stream_of(s);
            if (tested.length(seq(s)) != tokens.size() || fresh.length(seq(s)) != tokens.size()) return "another length";
            if (tested.complete_blocks(seq(s)) != tokens.size() / ratio) return "another number of complete blocks";
            if (tested.begun_blocks(seq(s)) != (tokens.size() + ratio - 1) / ratio) return "another number of begun blocks";
            for (std::size_t i = 0; i < tokens.size(); ++i)
                if (tested.cell(seq(s), token_rank(i)).value != tokens[i]) return "a rank in another cell";
            for (std::size_t b = 0; b * ratio < tokens.size(); ++b) {
                const std::vector<std::size_t> expected(
                    tokens.begin() + static_cast<std::ptrdiff_t>(b * ratio),
                    tokens.begin() + static_cast<std::ptrdiff_t>(std::min(tokens.size(), (b + 1) * ratio)));
                const block_id id = tested.block(seq(s), block_index(b));
                if (id.value >= tested.id_limit()) return "an id that was never given";
                if (!is(tested.members(id), expected)) return "a block with other members";
                if (!is(fresh.members(fresh.block(seq(s), block_index(b))), expected)) return "a fresh build with other members";
                const auto& first = model.rows[stream][expected[0]]->position;
                if (tested.first_position(id) != first) return "another first position";
                if (tested.stream(id) != row(stream)) return "a block of another stream";
                if (expected.size() == ratio) {
                    if (full.emplace(std::make_pair(stream, expected), id).first->second != id) return "a block stored twice";
                } else if (tested.references(id) != 1) {
                    return "an open block is shared";
                }
                ++references[id.value];
                const auto known = chains_.find({s, b});
                if (known == chains_.end() || known->second != id) return "the deltas do not link a block";
                for (std::size_t i = 0; i < expected.size(); ++i)
                    if (members_[id.value][i] != expected[i]) return "the deltas give other members";
                if (firsts_[id.value] != first) return "the deltas give another first position";

                block_key key{tested.stamp(id), {}, first};
                for (const std::size_t i : expected) key.tokens.emplace_back(i, model.rows[stream][i]->identity);
                if (const auto computed = computed_.find({id.value, key.stamp}); computed == computed_.end()) {
                    computed_.emplace(std::make_pair(id.value, key.stamp), key);
                } else if (computed->second != key) {
                    return "a kept key of other tokens or another first position passes for the block's";
                }
                const auto before = keys_.find(id.value);
                if (updated && before != keys_.end() && before->second.same_content(key) && before->second.stamp != key.stamp)
                    return "a new stamp for what is as it was";
                keys.emplace(id.value, key);
            }
        }
        for (const auto& [id, count] : references)
            if (tested.references(block_id(id)) != count) return "another number of references";
        if (tested.stored_blocks() != references.size()) return "a block that nobody has is kept";
        keys_ = std::move(keys);
        if (computed_.size() > 20000) computed_.clear();
        return {};
    }

private:
    struct block_key {
        std::uint64_t stamp = 0;
        std::vector<std::pair<std::size_t, std::size_t>> tokens;  // cell and identity
        rope_position first;
        bool operator==(const block_key&) const = default;
        [[nodiscard]] bool same_content(const block_key& other) const { return tokens == other.tokens && first == other.first; }
    };
    static bool is(std::span<const cell_index> members, const std::vector<std::size_t>& expected) {
        return std::equal(members.begin(), members.end(), expected.begin(), expected.end(),
                          [](cell_index a, std::size_t b) { return a.value == b; });
    }

    std::map<std::pair<std::size_t, std::size_t>, block_id> chains_;
    std::vector<std::vector<std::size_t>> members_;
    std::vector<rope_position> firsts_;
    std::map<std::size_t, block_key> keys_;                                // at the latest refresh
    std::map<std::pair<std::size_t, std::uint64_t>, block_key> computed_;  // ever, by id and stamp
};

}  // namespace cell_test
