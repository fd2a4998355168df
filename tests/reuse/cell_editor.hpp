#pragma once
/// Random edits of a cache, made to reuse/engine/cells.hpp and to its model alike.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cell_model.hpp"

namespace cell_test {

/// Random edits of a cache and of its model.
class editor {
public:
    editor(unsigned seed, std::size_t streams, std::size_t size, std::size_t sequences)
        : tested(cells::create(streams, size, sequences).value()), model(streams, size, sequences), generator_(seed) {}

    cells tested;
    cell_model model;

    std::size_t below(std::size_t n) { return static_cast<std::size_t>(generator_() % n); }
    /// One edit. Returns what was done, and `agreed` is whether both took or refused it.
    std::string step(bool& agreed) {
        const std::size_t s = below(model.sequences), other = below(model.sequences);
        const std::size_t stream = model.stream_of(s), size = model.rows[0].size();
        agreed = true;
        const auto both = [&](const frugal::status& done, bool expected) { agreed = done.has_value() == expected; };
        switch (below(40)) {
            default: {
                const auto placed = tokens();
                both(tested.place(placed), model.place(placed));
                return "place";
            }
            case 20:
            case 21:
            case 22: {
                const std::size_t n = below(5);
                both(tested.rollback(seq(s), n), model.rollback(s, n));
                return "rollback";
            }
            case 23:
            case 24: {
                const auto range = any_range(s);
                both(tested.remove(seq(s), range), true);
                model.remove(s, range);
                return "remove";
            }
            case 25: {  // a prefix
                const position_range range{-1, static_cast<std::int32_t>(first_position(s) + below(9))};
                both(tested.remove(seq(s), range), true);
                model.remove(s, range);
                return "remove a prefix";
            }
            case 26:
                both(tested.remove(seq(s), {}), true);
                model.remove(s, {});
                return "clear a sequence";
            case 27: {
                const std::size_t i = below(size);
                both(tested.remove(row(stream), cell_index(i)), true);
                if (model.rows[stream][i]) model.rows[stream][i].reset();
                return "remove a cell";
            }
            case 28: {
                if (below(3) != 0) return "nothing";
                const auto range = any_range(s);
                tested.remove(range);
                for (std::size_t q = 0; q < model.sequences; ++q) model.remove(q, range);
                return "remove from all";
            }
            case 29:
                if (below(4) != 0) return "nothing";
                both(tested.keep(seq(s)), true);
                model.keep(s);
                return "keep";
            case 30:
            case 31: {
                const position_range range = below(3) == 0 ? any_range(s) : position_range{};
                both(tested.copy(seq(s), seq(other), range), model.copy(s, other, range));
                return "copy";
            }
            case 32: {  // fork: the other sequence begins anew with this one's first tokens
                if (s == other) return "nothing";
                const position_range range{below(2) == 0 ? -1 : static_cast<std::int32_t>(first_position(s) + below(9)),
                                           static_cast<std::int32_t>(first_position(s) + below(size))};
                both(tested.remove(seq(other), {}), true);
                model.remove(other, {});
                const bool copied = model.copy(s, other, range);
                agreed = agreed && tested.copy(seq(s), seq(other), range).has_value() == copied;
                return "fork";
            }
            case 33: {
                const auto range = any_range(s);
                const auto delta = static_cast<std::int32_t>(below(9)) - 4;
                both(tested.shift(seq(s), range, delta), model.renumber(s, range, [&](std::int64_t p) { return p + delta; }));
                return "shift";
            }
            case 34: {
                if (below(3) != 0) return "nothing";
                const auto range = any_range(s);
                const auto divisor = static_cast<std::int32_t>(1 + below(3));
                both(tested.divide(seq(s), range, divisor),
                     model.renumber(s, range, [&](std::int64_t p) { return p / divisor; }));
                return "divide";
            }
            case 35: {
                const std::size_t i = below(size);
                const auto height = static_cast<std::int32_t>(below(3)), width = static_cast<std::int32_t>(below(3));
                both(tested.set_extent(row(stream), cell_index(i), height, width), model.set_extent(stream, i, height, width));
                return "set_extent";
            }
            case 36: {
                const std::size_t from = below(size), to = below(size);
                both(tested.move(row(stream), cell_index(from), cell_index(to)), model.move(stream, from, to));
                return "move";
            }
            case 37:
                if (below(8) != 0) return "nothing";
                tested.clear();
                for (std::size_t q = 0; q < model.sequences; ++q) model.remove(q, {});
                return "clear";
            case 38: {
                if (checkpoints_.empty() || below(2) == 0) {
                    if (checkpoints_.size() > 3) checkpoints_.erase(checkpoints_.begin());
                    checkpoints_.emplace_back(tested, model);
                    return "checkpoint";
                }
                const auto& [saved_cells, saved_model] = checkpoints_[below(checkpoints_.size())];
                tested = saved_cells;
                model = saved_model;
                return "restore";
            }
            case 39: {
                if (below(2) == 0) return "nothing";
                frugal::byte_writer out;
                tested.save(out);
                frugal::byte_reader in(out.bytes());
                both(tested.load(in), true);
                return "save and load";
            }
        }
    }

private:
    std::size_t first_position(std::size_t s) {
        const auto tokens = model.visible(s);
        return tokens.empty() ? 0 : static_cast<std::size_t>(model.rows[model.stream_of(s)][tokens[0]]->position.temporal);
    }
    position_range any_range(std::size_t s) {
        const std::size_t base = first_position(s);
        const auto bound = [&] { return below(4) == 0 ? -1 : static_cast<std::int32_t>(base + below(model.rows[0].size() + 2)); };
        return {bound(), bound()};
    }
    /// Tokens for free cells (rarely for others): mostly the next of a sequence, sometimes of several, anywhere, of an image.
    std::vector<placed_cell> tokens() {
        const std::size_t s = below(model.sequences), stream = model.stream_of(s), kind = below(12);
        std::int32_t next = 0;
        for (const std::size_t i : model.visible(s)) next = std::max(next, model.rows[stream][i]->position.temporal + 1);
        if (next == 0 && below(2) == 0) next = static_cast<std::int32_t>(below(10));
        std::vector<std::size_t> free;
        for (std::size_t i = 0; i < model.rows[stream].size(); ++i)
            if (!model.rows[stream][i]) free.push_back(i);
        if (below(2) == 0) std::shuffle(free.begin(), free.end(), generator_);
        std::vector<placed_cell> out;
        for (std::size_t n = below(2) == 0 ? 1 : below(7); n != 0 && !free.empty(); --n) {
            placed_cell placed = token(stream, free.front(), text(next++), s);
            free.erase(free.begin());
            if (kind == 0) placed.position = text(static_cast<std::int64_t>(below(20)));
            if (kind == 1 || kind == 2)
                placed.position = {next, static_cast<std::int32_t>(below(3)), static_cast<std::int32_t>(below(3))};
            if (kind == 1) --next;  // an image: one time, several places
            if ((kind == 3 || kind == 4) && model.rows.size() == 1) placed.sequences.add(seq(below(model.sequences)));
            if (kind == 5 && below(6) == 0) placed.cell = cell_index(below(model.rows[stream].size() + 1));
            if (kind == 6 && below(6) == 0) placed.position.temporal = -1;
            if (kind == 7 && below(6) == 0) placed.sequences = {};
            if (kind == 8 && below(6) == 0) placed.sequences.add(seq(model.sequences));
            out.push_back(placed);
        }
        return out;
    }
    std::mt19937 generator_;
    std::vector<std::pair<cells, cell_model>> checkpoints_;
};

}  // namespace cell_test
