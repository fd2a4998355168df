#pragma once
/// The QSA inputs of an engine as their definition reads, one value after another, and what tests of them share.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "frugal/reuse/engine/input_sets.hpp"

namespace test {

namespace reuse = frugal::reuse;
using reuse::bias_form;
using reuse::causality;
using reuse::cell_index;
using reuse::cells;
using reuse::rope_position;
using reuse::sequence_id;
using reuse::stream_id;
using reuse::token_grouping;

inline sequence_id seq(std::size_t index) { return static_cast<sequence_id>(index); }

/// A batch that owns its tokens.
struct owned_batch {
    std::vector<rope_position> positions;
    std::vector<sequence_id> sequences;
    std::vector<cell_index> places;
    std::size_t streams = 1, window = 0, components = 1;

    [[nodiscard]] reuse::ubatch view() const { return {positions, sequences, places, streams, window, components}; }
    void add(sequence_id s, cell_index at, const rope_position& position) {
        positions.push_back(position);
        sequences.push_back(s);
        places.push_back(at);
    }
};

struct naive_inputs {
    std::vector<std::int64_t> k_idxs;
    std::vector<std::int32_t> cell_blk, blk_cells, blk_pos;
    std::vector<float> bias;
    std::vector<reuse::query_view> views;
    bool refused = false;  // no tensors can say what the queries see
    bool any_ranked = false;
};

/// The definition. By rank: the reference implementation's blocks. By position: llama.cpp's table, refused where it says
/// something else. `views` are by rank.
inline naive_inputs naive(const cells& held, const owned_batch& batch, std::int64_t r, causality sees, bias_form form,
                          token_grouping by = token_grouping::rank) {
    struct token {
        std::size_t cell;
        std::vector<std::size_t> sequences;
        rope_position at;
        std::uint64_t order;
        std::int64_t index;  // what blocks are cut by
    };
    const float hidden = -std::numeric_limits<float>::infinity();
    const bool causal = sees == causality::causal, by_rank = by == token_grouping::rank, spatial = batch.components >= 3;
    bool outside = false;
    const std::size_t total = batch.positions.size(), n_kv = batch.window, ns = batch.streams, each = total / ns;
    const auto n_blocks = static_cast<std::size_t>((static_cast<std::int64_t>(n_kv) + r - 1) / r);
    const auto ratio = static_cast<std::size_t>(r);
    naive_inputs out;
    for (std::size_t i = 0; i < total; ++i) {
        const auto stream = static_cast<std::size_t>(held.stream_of(batch.sequences[i]));
        out.k_idxs.push_back(static_cast<std::int64_t>(stream * held.size() + batch.places[i].value));
    }
    out.cell_blk.assign(n_kv * ns, 0);
    out.blk_cells.assign(ratio * n_blocks * ns, 0);
    out.blk_pos.assign(4 * n_blocks * ns, 0);
    for (std::size_t row = 0; row < ns; ++row) {
        const stream_id stream = held.stream_of(batch.sequences[row * each]);
        std::vector<token> tokens;
        std::vector<bool> live(held.sequences(), false);
        for (std::size_t j = 0; j < n_kv; ++j) {
            if (held.empty(stream, cell_index(j))) continue;
            const reuse::cell& c = held.at(stream, cell_index(j));
            token one{j, {}, c.position, c.order, c.position.temporal};
            for (std::size_t s = 0; s < held.sequences(); ++s)
                if (held.belongs(c, seq(s))) one.sequences.push_back(s), live[s] = true;
            tokens.push_back(one);
        }
        using group_key = std::pair<std::int64_t, std::vector<std::size_t>>;
        std::map<group_key, std::vector<token>> groups;
        const auto group = [&] {
            groups.clear();
            bool shared_slot = false;
            outside = false;
            for (const token& t : tokens) {
                if (t.index / r >= static_cast<std::int64_t>(n_blocks)) {
                    outside = true;
                    continue;
                }
                auto& members = groups[{t.index / r, t.sequences}];
                for (const token& other : members) shared_slot = shared_slot || other.index == t.index;
                members.push_back(t);
            }
            return shared_slot;
        };
        bool ranked = !by_rank && group() && spatial && std::count(live.begin(), live.end(), true) == 1;
        if (ranked) {
            auto order = tokens;
            std::stable_sort(order.begin(), order.end(),
                             [](const token& a, const token& b) { return std::tie(a.at, a.order) < std::tie(b.at, b.order); });
            for (std::size_t k = 0; k < order.size(); ++k)
                for (token& t : tokens)
                    if (t.cell == order[k].cell) t.index = static_cast<std::int64_t>(k);
            group();
            out.any_ranked = true;
        }
        if (form == bias_form::block && outside) out.refused = true;

        // The tokens of a sequence by rank, and the sequences that the row asks for.
        const auto chain_of = [&](std::size_t s) {
            std::vector<token> chain;
            for (const token& t : tokens)
                if (std::count(t.sequences.begin(), t.sequences.end(), s) != 0) chain.push_back(t);
            std::sort(chain.begin(), chain.end(), [](const token& a, const token& b) {
                return std::tie(a.at, a.order, a.cell) < std::tie(b.at, b.order, b.cell);
            });
            return chain;
        };
        std::vector<bool> asked(held.sequences(), false);
        for (std::size_t i = row * each; i < (row + 1) * each; ++i) asked[static_cast<std::size_t>(batch.sequences[i])] = true;

        struct block {
            std::int64_t start;
            std::size_t first_cell;
            std::vector<std::size_t> sequences;
            std::vector<token> members;
        };
        std::vector<block> blocks;
        if (by_rank) {
            using members_key = std::vector<std::size_t>;  // cells
            std::map<members_key, block> found;
            const auto cut = [&](const std::vector<bool>& wanted) {
                found.clear();
                for (std::size_t s = 0; s < held.sequences(); ++s) {
                    const auto chain = wanted[s] ? chain_of(s) : std::vector<token>();
                    for (std::size_t b = 0; (b + 1) * ratio <= chain.size(); ++b) {
                        std::vector<token> members(chain.begin() + static_cast<std::ptrdiff_t>(b * ratio),
                                                   chain.begin() + static_cast<std::ptrdiff_t>((b + 1) * ratio));
                        members_key key;
                        for (std::size_t k = 0; k < ratio; ++k)
                            members[k].index = static_cast<std::int64_t>(b * ratio + k), key.push_back(members[k].cell);
                        const block fresh{members[0].index, *std::min_element(key.begin(), key.end()), {}, members};
                        const auto known = found.emplace(key, fresh).first;
                        if (fresh.start < known->second.start) known->second = fresh;
                    }
                }
                std::vector<int> uses(n_kv, 0);
                for (const auto& [key, it] : found)
                    for (const std::size_t c : key) ++uses[c];
                return std::all_of(uses.begin(), uses.end(), [](int n) { return n <= 1; });
            };
            if (!cut(live) && !cut(asked)) out.refused = true;
            if (out.refused) return out;
            for (const auto& [key, it] : found) blocks.push_back(it);
            groups.clear();
        }
        for (const auto& [key, members] : groups) {
            std::vector<bool> taken(ratio, false);
            for (const token& t : members) taken[static_cast<std::size_t>(t.index % r)] = true;
            if (std::count(taken.begin(), taken.end(), true) == r)
                blocks.push_back({key.first * r, members.front().cell, key.second, members});
        }
        std::sort(blocks.begin(), blocks.end(), [](const block& a, const block& b) {
            return a.start != b.start ? a.start < b.start : a.first_cell > b.first_cell;
        });
        const std::size_t n_full = blocks.size(), spare = n_full < n_blocks ? n_full : n_blocks - 1;
        std::vector<std::ptrdiff_t> block_of(n_kv, -1);
        for (std::size_t b = 0; b < n_full; ++b) {
            const block& it = blocks[b];
            auto at = static_cast<std::int32_t>(it.start);
            if (by_rank) at = it.members.front().at.temporal;
            rope_position first{at, at, at};
            if (by_rank && spatial) first = it.members.front().at;
            for (const token& t : it.members) {
                block_of[t.cell] = static_cast<std::ptrdiff_t>(b);
                out.blk_cells[row * ratio * n_blocks + b * ratio + static_cast<std::size_t>(t.index % r)] =
                    static_cast<std::int32_t>(t.cell);
                if (ranked && t.index % r == 0) first = t.at;
            }
            const std::int32_t sections[4] = {first.temporal, first.height, first.width, first.temporal};
            for (std::size_t section = 0; section < 4; ++section)
                out.blk_pos[section * n_blocks * ns + row * n_blocks + b] = sections[section];
        }
        for (std::size_t j = 0; j < n_kv; ++j)
            out.cell_blk[row * n_kv + j] =
                static_cast<std::int32_t>(block_of[j] < 0 ? static_cast<std::ptrdiff_t>(spare) : block_of[j]);

        // By position: whether that is what ranks say, for each sequence that is asked for.
        for (std::size_t s = 0; s < held.sequences() && !by_rank; ++s) {
            if (!asked[s]) continue;
            const auto chain = chain_of(s);
            const std::size_t in_blocks = chain.size() / ratio * ratio;
            for (std::size_t k = 0; k < chain.size(); ++k) {
                const std::size_t first = k / ratio * ratio;
                bool fits =
                    chain[k].index % r == static_cast<std::int64_t>(k % ratio) && chain[k].index / r == chain[first].index / r;
                if (k != 0) fits = fits && (ranked ? chain[k].at != chain[k - 1].at : chain[k].index != chain[k - 1].index);
                const std::ptrdiff_t b = block_of[chain[k].cell];
                if (k < in_blocks) {
                    fits = fits && b >= 0 && b == block_of[chain[first].cell] &&
                           blocks[static_cast<std::size_t>(b)].members.size() == ratio;
                    const rope_position text{chain[k].at.temporal, chain[k].at.temporal, chain[k].at.temporal};
                    if (k == first && spatial && !ranked) fits = fits && chain[k].at == text;
                } else {
                    fits = fits && b < 0;
                }
                out.refused = out.refused || !fits;
            }
        }

        for (std::size_t i = row * each; i < (row + 1) * each; ++i) {
            const auto chain = chain_of(static_cast<std::size_t>(batch.sequences[i]));
            std::size_t own = 0;  // the query's rank
            while (chain[own].cell != batch.places[i].value) ++own;
            const std::size_t seen = causal ? own + 1 : chain.size();
            out.views.push_back({static_cast<std::int32_t>(seen / ratio), static_cast<std::int32_t>(seen % ratio)});
            const auto rank_of = [&](std::size_t cell) {
                return static_cast<std::size_t>(
                    std::find_if(chain.begin(), chain.end(), [&](const token& t) { return t.cell == cell; }) - chain.begin());
            };
            if (by_rank && form == bias_form::cell) {
                std::vector<float> values(n_kv, hidden);
                for (std::size_t k = 0; k < seen; ++k) values[chain[k].cell] = k < seen / ratio * ratio ? 0.0f : 1e9f;
                out.bias.insert(out.bias.end(), values.begin(), values.end());
            }
            if (by_rank && form == bias_form::block) {
                std::vector<float> values(n_blocks, hidden);
                for (std::size_t b = 0; b < n_full; ++b)
                    for (const token& t : blocks[b].members)
                        if (const std::size_t k = rank_of(t.cell); k < chain.size())
                            values[b] = k < seen / ratio * ratio ? 0.0f : 1e9f;
                if (n_full < n_blocks) values[n_full] = 1e9f;
                out.bias.insert(out.bias.end(), values.begin(), values.end());
            }
            if (by_rank) continue;
            const auto mine = [&](const std::vector<std::size_t>& set) {
                return std::find(set.begin(), set.end(), static_cast<std::size_t>(batch.sequences[i])) != set.end();
            };
            std::int64_t q = batch.positions[i].temporal;
            if (ranked)
                q = std::count_if(tokens.begin(), tokens.end(), [&](const token& t) { return t.at <= batch.positions[i]; }) - 1;
            const std::int64_t tail_start = (q + 1) / r * r;
            if (form == bias_form::cell) {
                std::vector<float> values(n_kv, hidden);
                for (const token& t : tokens) {
                    if (!mine(t.sequences) || (causal && t.index > q)) continue;
                    const bool pooled = block_of[t.cell] >= 0;
                    values[t.cell] = causal ? (t.index >= tail_start ? 1e9f : pooled ? 0.0f : hidden) : (pooled ? 0.0f : 1e9f);
                }
                out.bias.insert(out.bias.end(), values.begin(), values.end());
            } else if (form == bias_form::block) {
                std::vector<float> values(n_blocks, hidden);
                for (std::size_t b = 0; b < n_full; ++b)
                    if (mine(blocks[b].sequences)) values[b] = causal && blocks[b].start >= tail_start ? 1e9f : 0.0f;
                if (n_full < n_blocks) values[n_full] = 1e9f;
                out.bias.insert(out.bias.end(), values.begin(), values.end());
            }
        }
    }
    return out;
}

template <class T, class U>
bool same_bytes(std::span<T> a, const std::vector<U>& b) {
    return a.size() == b.size() && (b.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// All pieces of a bias, one after the other.
template <class Inputs>
std::vector<float> whole_bias(Inputs& inputs, const cells& held) {
    std::vector<float> out;
    for (std::size_t slice = 0; slice < inputs.bias_slices(); ++slice) {
        const auto rows = inputs.bias(held, slice).value();
        REQUIRE(rows.first * inputs.bias_width() == out.size());
        out.insert(out.end(), rows.values.begin(), rows.values.end());
    }
    return out;
}

/// Whether each query sees by the tensors what it sees by rank: which cells never, which always, and with which block, standing
/// where, each of the others competes.
template <class Inputs>
bool sees_by_rank(Inputs& inputs, const cells& held, const owned_batch& batch, causality sees, bias_form form) {
    struct sight {
        float how = -std::numeric_limits<float>::infinity();
        std::vector<std::int32_t> block, stands;
        bool operator==(const sight&) const = default;
    };
    constexpr std::size_t r = Inputs::ratio;
    const std::size_t total = batch.positions.size(), n_kv = batch.window, n_blocks = (n_kv + r - 1) / r;
    std::vector<float> bias;
    std::size_t width = 0;
    if constexpr (Inputs::has_bias) bias = whole_bias(inputs, held), width = inputs.bias_width();
    for (std::size_t i = 0; i < total; ++i) {
        const std::size_t row = i / (total / batch.streams);
        const sequence_id s = batch.sequences[i];
        const auto at = [&](std::size_t cell) -> const reuse::cell& { return held.at(held.stream_of(s), cell_index(cell)); };
        std::vector<std::size_t> chain;
        for (std::size_t j = 0; j < n_kv; ++j)
            if (held.belongs(at(j), s)) chain.push_back(j);
        std::sort(chain.begin(), chain.end(), [&](std::size_t a, std::size_t b) {
            return std::tie(at(a).position, at(a).order) < std::tie(at(b).position, at(b).order);
        });
        const auto own = std::find(chain.begin(), chain.end(), batch.places[i].value) - chain.begin();
        const std::size_t seen = sees == causality::causal ? static_cast<std::size_t>(own) + 1 : chain.size();
        std::vector<sight> want(n_kv), got(n_kv);
        for (std::size_t k = 0; k < seen; ++k) {
            sight& to = want[chain[k]];
            to.how = k < seen / r * r ? 0.0f : 1e9f;
            if (to.how != 0.0f) continue;
            for (std::size_t slot = 0; slot < r; ++slot) to.block.push_back(static_cast<std::int32_t>(chain[k / r * r + slot]));
            const rope_position& first = at(chain[k / r * r]).position;
            to.stands = batch.components >= 3 ? std::vector{first.temporal, first.height, first.width, first.temporal}
                                              : std::vector(4, first.temporal);
        }
        const auto competes = [&](std::size_t cell, std::size_t through) {
            const auto block = static_cast<std::size_t>(inputs.cell_blk()[row * n_kv + through]);
            sight& to = got[cell];
            to.how = 0.0f;
            if (block >= n_blocks) return;
            for (std::size_t slot = 0; slot < r; ++slot)
                to.block.push_back(inputs.blk_cells()[(row * n_blocks + block) * r + slot]);
            for (std::size_t part = 0; part < 4; ++part)
                to.stands.push_back(inputs.blk_pos()[(part * batch.streams + row) * n_blocks + block]);
        };
        if constexpr (!Inputs::has_bias) {
            const auto view = inputs.views()[i];
            const auto in_blocks = static_cast<std::size_t>(view.blocks) * r;
            for (std::size_t k = 0; k < in_blocks + static_cast<std::size_t>(view.tail) && k < chain.size(); ++k)
                k < in_blocks ? competes(chain[k], chain[k / r * r]) : static_cast<void>(got[chain[k]].how = 1e9f);
        } else {
            for (std::size_t j = 0; j < n_kv; ++j) {
                float how = 0;
                if (form == bias_form::cell) {
                    how = bias[i * width + j];
                } else {  // of blocks: the engine's own mask hides other sequences and what is behind the query
                    const auto end = chain.begin() + static_cast<std::ptrdiff_t>(seen);
                    if (std::find(chain.begin(), end, j) == end) continue;
                    const auto block = static_cast<std::size_t>(inputs.cell_blk()[row * n_kv + j]);
                    how = block < width ? bias[i * width + block] : -std::numeric_limits<float>::infinity();
                }
                if (how == 0.0f)
                    competes(j, j);
                else
                    got[j].how = how;
            }
        }
        if (got != want) return false;
    }
    return true;
}

/// Whether inputs are what the definition says.
template <class Inputs>
bool equals(Inputs& inputs, const cells& held, const naive_inputs& want) {
    bool same = same_bytes(inputs.k_idxs(), want.k_idxs) && same_bytes(inputs.cell_blk(), want.cell_blk) &&
                same_bytes(inputs.blk_cells(), want.blk_cells) && same_bytes(inputs.blk_pos(), want.blk_pos);
    if constexpr (Inputs::has_bias) {
        const auto got = whole_bias(inputs, held);
        same = same && same_bytes(std::span(got), want.bias);
    } else {
        same = same && same_bytes(inputs.views(), want.views);
    }
    return same;
}

}  // namespace test
