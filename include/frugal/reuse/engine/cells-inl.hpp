#pragma once
/// Definitions of reuse/engine/cells.hpp: the edits.
#include "frugal/reuse/engine/cells.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

inline void cells::write(row& to, cell_index index, const cell& after) {
    cell& held = to.held[index.value];
    if (held == after) return;
    // One reference for the cell and one for the log, which inherits the cell's reference to the set before.
    sets_.refer(after.set);
    sets_.refer(after.set);
    const cell_change change{index, held, after};
    held = after;
    to.changed = true;
    if (after.set != set_index::empty) {
        to.used_end = (std::max)(to.used_end, index.value + 1);
    } else if (index.value + 1 == to.used_end) {
        while (to.used_end != 0 && to.held[to.used_end - 1].set == set_index::empty) --to.used_end;
    }
    to.cell_changes.add(change, [&](const cell_change& old) { sets_.release(old.before.set), sets_.release(old.after.set); });
}

inline void cells::commit(const sequence_change& copied) {
    for (const sequence_id s : touched_) {
        std::size_t& first = first_changed_[static_cast<std::size_t>(s)];
        sequence_change change = copied;
        if (s != copied.sequence) change = {s, token_rank(first), sequence_id::padding, {}, 0};
        if (row_of(s).changed) row_of(s).sequence_changes.add(change, [](const sequence_change&) {});
        first = untouched;
    }
    for (const sequence_id s : touched_) {
        row& of = row_of(s);
        if (!std::exchange(of.changed, false)) continue;
        of.version = next_content_version();
        of.cell_changes.close(of.version,
                              [&](const cell_change& old) { sets_.release(old.before.set), sets_.release(old.after.set); });
        of.sequence_changes.close(of.version, [](const sequence_change&) {});
    }
    touched_.clear();
}

inline cell cells::without(const cell& held, sequence_id s) {
    sequence_set left = set(held.set);
    left.remove(s);
    return left.empty() ? cell{} : cell{held.position, sets_.intern(left), held.order};
}

inline cell cells::with(const cell& held, sequence_id s) {
    sequence_set more = set(held.set);
    more.add(s);
    return {held.position, sets_.intern(more), held.order};
}

inline void cells::take(sequence_id s, std::size_t first, std::size_t last) {
    if (first == last) return;
    std::vector<cell_index>& from = list(s);
    row& in = row_of(s);
    for (std::size_t rank = first; rank < last; ++rank) write(in, from[rank], without(in.held[from[rank].value], s));
    from.erase(from.begin() + offset(first), from.begin() + offset(last));
    touch(s, first);
}

inline void cells::settle(sequence_id s, std::size_t sorted) {
    std::vector<cell_index>& tokens = list(s);
    const earlier_in less{row_of(s)};
    const auto middle = tokens.begin() + offset(sorted);
    if (middle == tokens.end()) return;
    if (!std::is_sorted(middle, tokens.end(), less)) std::sort(middle, tokens.end(), less);
    if (sorted == 0 || less(*(middle - 1), *middle)) return touch(s, sorted);
    const auto place = std::lower_bound(tokens.begin(), middle, *middle, less);
    touch(s, static_cast<std::size_t>(place - tokens.begin()));
    std::inplace_merge(place, middle, tokens.end(), less);
}

inline void cells::reorder(sequence_id s, std::size_t first) {
    std::vector<cell_index>& tokens = list(s);
    const row& in = row_of(s);
    const auto from = tokens.begin() + offset(first);
    tokens.erase(std::remove_if(from, tokens.end(), [&](cell_index i) { return !belongs(in.held[i.value], s); }), tokens.end());
    const auto changed = tokens.begin() + offset(first);
    if (!std::is_sorted(changed, tokens.end(), earlier_in{in})) std::sort(changed, tokens.end(), earlier_in{in});
    touch(s, first);
}

inline status cells::check(const placed_cell& token) const {
    FRUGAL_TRY(check(token.stream, token.cell));
    if (!empty(token.stream, token.cell))
        return fail(errc::invalid_argument, "cell ", token.cell.value, " of stream ", static_cast<std::uint32_t>(token.stream),
                    " is not empty, or is named twice");
    if (token.position.temporal < 0)
        return fail(errc::invalid_argument, "a token cannot stand at position ", token.position.temporal);
    bool all_live_here = !token.sequences.empty();
    token.sequences.for_each(
        [&](sequence_id s) { all_live_here = all_live_here && is_one_of(s, sequences()) && stream_of(s) == token.stream; });
    if (all_live_here) return {};
    return fail(errc::invalid_argument, "a token for no sequence, or for one that does not live in stream ",
                static_cast<std::uint32_t>(token.stream));
}

inline status cells::place(std::span<const placed_cell> placed) {
    // Checked cells are marked until all are, so that one named twice is found.
    std::size_t checked = 0;
    status outcome;
    for (; checked < placed.size(); ++checked) {
        outcome = check(placed[checked]);
        if (!outcome) break;
        row_at(placed[checked].stream).held[placed[checked].cell.value].set = reserved;
    }
    for (std::size_t i = 0; i < checked; ++i) row_at(placed[i].stream).held[placed[i].cell.value].set = set_index::empty;
    FRUGAL_TRY(std::move(outcome));

    sequence_set grown;
    for (const placed_cell& token : placed) grown.add(token.sequences);
    grown_.clear();
    grown.for_each([&](sequence_id s) { grown_.emplace_back(s, list(s).size()); });
    for (const placed_cell& token : placed) {
        write(row_at(token.stream), token.cell, {token.position, sets_.intern(token.sequences), next_order_++});
        token.sequences.for_each([&](sequence_id s) { list(s).push_back(token.cell); });
    }
    for (const auto& [s, length] : grown_) settle(s, length);
    commit();
    return {};
}

inline status cells::rollback(sequence_id s, std::size_t tokens) {
    FRUGAL_TRY(check(s));
    const std::size_t length = list(s).size();
    if (tokens > length) return fail(errc::cannot_rollback, "cannot take back ", tokens, " of ", length, " tokens");
    take(s, length - tokens, length);
    commit();
    return {};
}

inline status cells::remove(sequence_id s, position_range range) {
    FRUGAL_TRY(check(s));
    const auto [first, last] = ranks(s, range);
    take(s, first, last);
    commit();
    return {};
}

inline void cells::remove(position_range range) {
    for (std::size_t i = 0; i < sequences(); ++i) {
        const auto s = static_cast<sequence_id>(i);
        const auto [first, last] = ranks(s, range);
        take(s, first, last);
    }
    commit();
}

inline status cells::remove(stream_id stream, cell_index index) {
    FRUGAL_TRY(check(stream, index));
    const sequence_set holders = set(at(stream, index).set);
    holders.for_each([&](sequence_id s) {
        const std::size_t at_rank = rank(s, index)->value;
        take(s, at_rank, at_rank + 1);
    });
    commit();
    return {};
}

inline status cells::keep(sequence_id s) {
    FRUGAL_TRY(check(s));
    for (std::size_t i = 0; i < sequences(); ++i)
        if (const auto other = static_cast<sequence_id>(i); other != s) take(other, 0, list(other).size());
    commit();
    return {};
}

inline status cells::copy(sequence_id from, sequence_id to, position_range range) {
    FRUGAL_TRY(check(from));
    FRUGAL_TRY(check(to));
    if (from == to) return {};
    const auto copied = ranks(from, range);
    const auto [first, last] = copied;
    if (stream_of(from) != stream_of(to)) {
        const auto replaced = ranks(to, range);
        for (std::size_t rank = first; rank < last; ++rank) {
            const cell_index index = list(from)[rank];
            const auto held = this->rank(to, index);
            if (held && (held->value < replaced.first || held->value >= replaced.second))
                return fail(errc::invalid_argument, "cell ", index.value, " of stream ",
                            static_cast<std::uint32_t>(stream_of(to)), " holds another token");
        }
        copy_across(from, to, copied, range);
        return {};
    }
    row& in = row_of(to);
    const std::size_t length = list(to).size();
    for (std::size_t rank = first; rank < last; ++rank) {
        const cell_index index = list(from)[rank];
        const cell& held = in.held[index.value];
        if (belongs(held, to)) continue;
        write(in, index, with(held, to));
        list(to).push_back(index);
    }
    settle(to, length);
    if (length == 0) {
        commit({to, token_rank(0), from, token_rank(first), last - first});
    } else {
        commit();
    }
    return {};
}

inline void cells::copy_across(sequence_id from, sequence_id to, std::pair<std::size_t, std::size_t> copied,
                               position_range range) {
    const row& source = row_of(from);
    row& target = row_of(to);
    std::vector<cell_index>& tokens = list(to);
    const auto [first, last] = ranks(to, range);
    const auto begin = list(from).begin() + offset(copied.first), end = list(from).begin() + offset(copied.second);
    const auto old_begin = tokens.begin() + offset(first), old_end = tokens.begin() + offset(last);
    const sequence_set alone(to);
    for (auto index = old_begin; index != old_end; ++index)
        if (!belongs(source.held[index->value], from) || !range.contains(source.held[index->value].position.temporal))
            write(target, *index, {});
    for (auto index = begin; index != end; ++index) {
        const cell& held = source.held[index->value];
        write(target, *index, {held.position, sets_.intern(alone), held.order});
    }
    if (!target.changed) return;
    tokens.erase(old_begin, old_end);
    tokens.insert(tokens.begin() + offset(first), begin, end);
    touch(to, first);
    commit();
}

template <class NewPosition>
status cells::renumber(sequence_id s, position_range range, NewPosition&& position_of) {
    FRUGAL_TRY(check(s));
    const auto [first, last] = ranks(s, range);
    row& in = row_of(s);
    sequence_set affected;
    std::int64_t lowest = (std::numeric_limits<std::int64_t>::max)();
    for (std::size_t rank = first; rank < last; ++rank) {
        const cell& held = in.held[list(s)[rank].value];
        const std::int64_t old = held.position.temporal, fresh = position_of(old);
        if (held.position.height != old || held.position.width != old)
            return fail(errc::unsupported, "token ", rank, " of sequence ", static_cast<std::int32_t>(s),
                        " is part of an image: its position cannot be changed");
        if (fresh > (std::numeric_limits<std::int32_t>::max)())
            return fail(errc::invalid_argument, "position ", fresh, " has more than 31 bits");
        affected.add(set(held.set));
        lowest = (std::min)({lowest, old, fresh < 0 ? old : fresh});
    }
    // What is earlier than every changed token, before and after, keeps its rank.
    std::vector<std::pair<sequence_id, std::size_t>> from;
    affected.for_each([&](sequence_id q) { from.emplace_back(q, first_from(q, lowest)); });
    for (std::size_t rank = first; rank < last; ++rank) {
        const cell_index index = list(s)[rank];
        const cell held = in.held[index.value];
        const std::int64_t fresh = position_of(held.position.temporal);
        const auto to = static_cast<std::int32_t>(fresh);
        write(in, index, fresh < 0 ? cell{} : cell{{to, to, to}, held.set, held.order});
    }
    if (!in.changed) return {};
    for (const auto& [q, rank] : from) reorder(q, rank);
    commit();
    return {};
}

inline status cells::shift(sequence_id s, position_range range, std::int32_t delta) {
    return renumber(s, range, [delta](std::int64_t old) { return old + delta; });
}

inline status cells::divide(sequence_id s, position_range range, std::int32_t divisor) {
    if (divisor < 1) return fail(errc::invalid_argument, "positions cannot be divided by ", divisor);
    return renumber(s, range, [divisor](std::int64_t old) { return old / divisor; });
}

inline status cells::set_extent(stream_id stream, cell_index index, std::int32_t height, std::int32_t width) {
    FRUGAL_TRY(check(stream, index));
    const cell held = at(stream, index);
    if (held.set == set_index::empty) return fail(errc::invalid_argument, "cell ", index.value, " is empty");
    write(row_at(stream), index, {{held.position.temporal, height, width}, held.set, held.order});
    if (!row_at(stream).changed) return {};
    const sequence_set holders = set(held.set);
    holders.for_each([&](sequence_id s) { reorder(s, first_from(s, held.position.temporal)); });
    commit();
    return {};
}

inline status cells::move(stream_id stream, cell_index from, cell_index to) {
    FRUGAL_TRY(check(stream, from));
    FRUGAL_TRY(check(stream, to));
    if (empty(stream, from)) return fail(errc::invalid_argument, "cell ", from.value, " is empty");
    if (from == to) return {};
    if (!empty(stream, to)) return fail(errc::invalid_argument, "cell ", to.value, " is not empty");
    const cell held = at(stream, from);
    const sequence_set holders = set(held.set);
    write(row_at(stream), to, held);
    holders.for_each([&](sequence_id s) { list(s)[rank(s, from)->value] = to; });
    write(row_at(stream), from, {});
    holders.for_each([&](sequence_id s) { reorder(s, first_from(s, held.position.temporal)); });
    commit();
    return {};
}

inline void cells::save(byte_writer& out) const {
    out.write(save_tag);
    out.write(static_cast<std::uint64_t>(streams()));
    out.write(static_cast<std::uint64_t>(size()));
    out.write(static_cast<std::uint64_t>(sequences()));
    out.write(next_order_);
    for (const row& r : rows_) {
        const auto used = std::count_if(r.held.begin(), r.held.end(), [](const cell& c) { return c.set != set_index::empty; });
        out.write(static_cast<std::uint64_t>(used));
        for (std::size_t i = 0; i < r.used_end; ++i) {
            const cell& held = r.held[i];
            if (held.set == set_index::empty) continue;
            out.write(static_cast<std::uint64_t>(i));
            out.write(held.position);
            out.write(held.order);
            out.write(set(held.set));
        }
    }
}

inline status cells::load(byte_reader& in) {
    std::uint32_t tag = 0;
    std::uint64_t saved_streams = 0, saved_size = 0, saved_sequences = 0;
    FRUGAL_TRY(in.read(tag));
    FRUGAL_TRY(in.read(saved_streams));
    FRUGAL_TRY(in.read(saved_size));
    FRUGAL_TRY(in.read(saved_sequences));
    if (tag != save_tag) return fail(errc::malformed_file, "the saved state is not the cells of a cache");
    if (saved_streams != streams() || saved_size != size() || saved_sequences != sequences())
        return fail(errc::shape_mismatch, "saved cache of ", saved_streams, " streams of ", saved_size, " cells for ",
                    saved_sequences, " sequences, not ", streams(), " of ", size(), " for ", sequences());
    cells fresh(streams(), size(), sequences());
    FRUGAL_TRY(in.read(fresh.next_order_));
    // A counter that wraps would give later tokens the numbers of those that are there.
    if (fresh.next_order_ > most_counted)
        return fail(errc::malformed_file, "saved cells of a cache in which ", fresh.next_order_, " tokens were placed");
    for (std::size_t stream = 0; stream < streams(); ++stream) {
        std::uint64_t used = 0;
        FRUGAL_TRY(in.read(used));
        for (std::uint64_t i = 0; i < used; ++i) {
            std::uint64_t index = 0, order = 0;
            placed_cell token{.stream = static_cast<stream_id>(stream), .cell = {}, .position = {}, .sequences = {}};
            FRUGAL_TRY(in.read(index));
            FRUGAL_TRY(in.read(token.position));
            FRUGAL_TRY(in.read(order));
            FRUGAL_TRY(in.read(token.sequences));
            token.cell = cell_index(static_cast<std::size_t>(index));
            if (order >= fresh.next_order_ || order == 0 || !fresh.check(token))
                return fail(errc::malformed_file, "saved cell ", index, " of stream ", stream, " holds no possible token");
            fresh.write(fresh.rows_[stream], token.cell, {token.position, fresh.sets_.intern(token.sequences), order});
            token.sequences.for_each([&](sequence_id s) { fresh.list(s).push_back(token.cell); });
        }
    }
    for (std::size_t s = 0; s < sequences(); ++s) fresh.settle(static_cast<sequence_id>(s), 0);
    fresh.commit();
    *this = std::move(fresh);
    return {};
}

}  // namespace reuse

FRUGAL_NAMESPACE_END
