#pragma once
/// The cells of a cache, written the slow and obvious way: what reuse/engine/cells.hpp is compared with. A check returns what is
/// wrong, or an empty text.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "frugal/reuse/engine/cells.hpp"

namespace cell_test {

namespace reuse = frugal::reuse;
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

}  // namespace cell_test
