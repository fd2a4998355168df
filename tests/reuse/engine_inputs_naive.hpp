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
#include <utility>
#include <vector>

#include "frugal/reuse/engine_input_sets.hpp"

namespace test {

namespace reuse = frugal::reuse;
using reuse::bias_form;
using reuse::causality;
using reuse::cell_index;
using reuse::cells;
using reuse::rope_position;
using reuse::sequence_id;
using reuse::stream_id;

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
    bool outside = false;  // a token past the window: a bias for blocks must be refused
    bool any_ranked = false;
};

/// The definition: llama.cpp's table for everything but `views`, which are the reference implementation's.
inline naive_inputs naive(const cells& held, const owned_batch& batch, std::int64_t r, causality sees, bias_form form) {
    struct token {
        std::size_t cell;
        std::vector<std::size_t> sequences;
        rope_position at;
        std::uint64_t order;
        std::int64_t index;  // what blocks are cut by
    };
    const float hidden = -std::numeric_limits<float>::infinity();
    const bool causal = sees == causality::causal;
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
            out.outside = false;
            for (const token& t : tokens) {
                if (t.index / r >= static_cast<std::int64_t>(n_blocks)) {
                    out.outside = true;
                    continue;
                }
                auto& members = groups[{t.index / r, t.sequences}];
                for (const token& other : members) shared_slot = shared_slot || other.index == t.index;
                members.push_back(t);
            }
            return shared_slot;
        };
        const bool outside_before = out.outside;
        bool ranked = group() && batch.components >= 3 && std::count(live.begin(), live.end(), true) == 1;
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
        out.outside = out.outside || outside_before;

        struct block {
            std::int64_t start;
            std::size_t first_cell;
            std::vector<std::size_t> sequences;
            std::vector<token> members;
        };
        std::vector<block> blocks;
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
            rope_position first{static_cast<std::int32_t>(it.start), static_cast<std::int32_t>(it.start),
                                static_cast<std::int32_t>(it.start)};
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

        for (std::size_t i = row * each; i < (row + 1) * each; ++i) {
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
            } else {
                // Tokens of its sequence up to and with its own, by the order of the positions.
                std::vector<std::tuple<rope_position, std::uint64_t, std::size_t>> order;
                for (const token& t : tokens)
                    if (mine(t.sequences)) order.emplace_back(t.at, t.order, t.cell);
                std::sort(order.begin(), order.end());
                std::size_t seen = order.size();
                for (std::size_t k = 0; causal && k < order.size(); ++k)
                    if (std::get<2>(order[k]) == batch.places[i].value) seen = k + 1;
                out.views.push_back({static_cast<std::int32_t>(seen / ratio), static_cast<std::int32_t>(seen % ratio)});
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
