#pragma once
/// Definitions of reuse/engine/cell_blocks.hpp: keeping the chains up to date.
#include "frugal/reuse/engine/cell_blocks.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

inline block_id cell_blocks::allocate(stream_id stream) {
    block_id id(blocks_.size());
    if (free_.empty()) {
        blocks_.emplace_back();
        members_.resize(members_.size() + ratio_.tokens());
        orders_.resize(members_.size());
    } else {
        id = free_.back();
        free_.pop_back();
        at(id) = {};
    }
    at(id).stream = stream;
    return id;
}

inline void cell_blocks::release(block_id id) {
    if (--at(id).references != 0) return;
    unlist(id);
    free_.push_back(id);
}

inline void cell_blocks::list(block_id id) {
    std::size_t& head = streams_[static_cast<std::size_t>(at(id).stream)].full_from[members(id).front().value];
    at(id).next = std::exchange(head, id.value);
    at(id).listed = true;
}

inline void cell_blocks::unlist(block_id id) {
    if (!std::exchange(at(id).listed, false)) return;
    std::size_t* link = &streams_[static_cast<std::size_t>(at(id).stream)].full_from[members(id).front().value];
    while (*link != id.value) link = &blocks_[*link].next;
    *link = at(id).next;
}

inline std::size_t cell_blocks::find_full(const cells& from, stream_id stream,
                                          std::span<const cell_index> tokens) const noexcept {
    std::size_t found = streams_[static_cast<std::size_t>(stream)].full_from[tokens.front().value];
    for (; found != none; found = blocks_[found].next) {
        bool same = blocks_[found].first_position == from.at(stream, tokens.front()).position;
        for (std::size_t slot = 0; same && slot < tokens.size(); ++slot)
            same = holds(block_id(found), slot, tokens[slot], from.at(stream, tokens[slot]).order);
        if (same) break;
    }
    return found;
}

inline bool cell_blocks::link(sequence_id s, std::size_t index, block_id id) {
    std::vector<block_id>& blocks = chain_of(s).blocks;
    if (index == blocks.size()) {
        blocks.push_back(id);
    } else {
        if (blocks[index] == id) return false;
        retired_.push_back(std::exchange(blocks[index], id));
    }
    ++at(id).references;
    return true;
}

inline void cell_blocks::fill(const cells& from, sequence_id s, std::size_t index, block_id id,
                              std::span<const cell_index> tokens, bool linked) {
    stored_block& to = at(id);
    const auto order = [&](std::size_t slot) { return from.at(to.stream, tokens[slot]).order; };
    const rope_position& position = from.at(to.stream, tokens.front()).position;
    const std::size_t known = (std::min)(to.count, tokens.size());
    std::size_t same = 0;
    while (same < known && holds(id, same, tokens[same], order(same))) ++same;
    const bool moved = to.count == 0 || to.first_position != position;
    if (same == tokens.size() && same == to.count && !moved) return;

    unlist(id);
    for (std::size_t slot = same; slot < tokens.size(); ++slot) {
        members_[id.value * ratio_.tokens() + slot] = tokens[slot];
        orders_[id.value * ratio_.tokens() + slot] = order(slot);
    }
    to.count = tokens.size();
    to.first_position = position;
    to.stamp = next_content_version();
    if (to.count == ratio_.tokens()) list(id);
    const bool text = position.height == position.temporal && position.width == position.temporal;
    const std::size_t position_words = text ? 1 : 3;
    changed_.push_back({s, block_index(index), id, same, tokens.size(), linked, moved ? position_words : 0});
}

inline void cell_blocks::cut(const cells& from, sequence_id s, std::size_t first, const shared_ranks* shared) {
    chain& to = chain_of(s);
    const std::span<const cell_index> tokens = from.tokens(s);
    const stream_id stream = from.stream_of(s);
    const std::size_t ratio = ratio_.tokens();
    const std::size_t shared_blocks = shared != nullptr && shared->first % ratio == 0 ? shared->count / ratio : 0;
    for (std::size_t index = first / ratio; index * ratio < tokens.size(); ++index) {
        const auto members = tokens.subspan(index * ratio, (std::min)(ratio, tokens.size() - index * ratio));
        std::size_t full = none;
        if (index < shared_blocks) {
            full = chain_of(shared->from).blocks[shared->first / ratio + index].value;
        } else if (members.size() == ratio) {
            full = find_full(from, stream, members);
        }
        if (full != none) {
            if (link(s, index, block_id(full))) changed_.push_back({s, block_index(index), block_id(full), 0, 0, true, 0});
            continue;
        }
        const bool own = index < to.blocks.size() && at(to.blocks[index]).references == 1;
        const block_id id = own ? to.blocks[index] : allocate(stream);
        fill(from, s, index, id, members, link(s, index, id));
    }
    const std::size_t begun = ratio_.begun_blocks(tokens.size());
    for (std::size_t index = begun; index < to.blocks.size(); ++index) retired_.push_back(to.blocks[index]);
    to.blocks.resize(begun);
    to.tokens = tokens.size();
}

inline void cell_blocks::follow(const cells& from, std::span<const sequence_change> changes) {
    for (const sequence_change& change : changes) {
        std::size_t& first = first_changed(change.sequence);
        if (first == none) touched_.push_back(change.sequence);
        first = (std::min)(first, change.first.value);
        // What two sequences share ends where either of them changes later.
        for (shared_ranks& known : shared_) {
            if (known.to == change.sequence) known.count = (std::min)(known.count, change.first.value);
            if (known.from == change.sequence)
                known.count = (std::min)(known.count, change.first.value - (std::min)(change.first.value, known.first));
        }
        if (change.copied_from != sequence_id::padding)
            shared_.push_back({change.sequence, change.copied_from, change.copied_first.value, change.copied});
    }
    // Copies after their sources, in the order in which they were made.
    const auto finish = [&](sequence_id s, const shared_ranks* shared) {
        cut(from, s, std::exchange(first_changed(s), none), shared);
    };
    for (const sequence_id s : touched_)
        if (std::none_of(shared_.begin(), shared_.end(), [&](const shared_ranks& known) { return known.to == s; }))
            finish(s, nullptr);
    for (const shared_ranks& known : shared_) {
        if (known.count == 0 || first_changed(known.to) == none || first_changed(known.from) != none) continue;
        finish(known.to, &known);
    }
    for (const sequence_id s : touched_)
        if (first_changed(s) != none) finish(s, nullptr);
    touched_.clear();
    shared_.clear();
}

inline void cell_blocks::build(const cells& from, stream_id stream) {
    // Nothing is known of the old blocks' tokens: no block may be taken for one of them.
    std::vector<std::size_t>& full_from = streams_[static_cast<std::size_t>(stream)].full_from;
    full_from.assign(from.size(), none);
    for (stored_block& block : blocks_)
        if (block.stream == stream) block.listed = false;
    for (std::size_t i = 0; i < chains_.size(); ++i) {
        if (from.stream_of(static_cast<sequence_id>(i)) != stream) continue;
        for (const block_id id : chains_[i].blocks) release(id);
        chains_[i] = {};
    }
    for (std::size_t i = 0; i < chains_.size(); ++i)
        if (const auto s = static_cast<sequence_id>(i); from.stream_of(s) == stream) cut(from, s, 0, nullptr);
}

template <counter_policy Counters>
void cell_blocks::refresh(const cells& from, Counters& counters) {
    changed_.clear();
    if (streams_.size() != from.streams() || chains_.size() != from.sequences() ||
        streams_.front().full_from.size() != from.size()) {
        *this = cell_blocks(ratio_.tokens());
        streams_.resize(from.streams());
        for (stream_state& state : streams_) state.full_from.assign(from.size(), none);
        chains_.resize(from.sequences());
        first_changed_.assign(from.sequences(), none);
    }
    counter outcome = counter::layout_hits;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
        const auto stream = static_cast<stream_id>(i);
        if (streams_[i].version == from.version(stream)) continue;
        if (const auto changes = from.sequence_changes_since(stream, streams_[i].version)) {
            follow(from, *changes);
            if (outcome == counter::layout_hits) outcome = counter::layout_updates;
        } else {
            build(from, stream);
            outcome = counter::layout_builds;
        }
        streams_[i].version = from.version(stream);
    }
    for (const block_id id : retired_) release(id);
    retired_.clear();
    counters.add(outcome, 1);
}

}  // namespace reuse

FRUGAL_NAMESPACE_END
