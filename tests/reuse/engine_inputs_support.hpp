#pragma once
// What the tests of engine inputs do in every case: place tokens, fill inputs, count the work and compare with the definition.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine_inputs_naive.hpp"
#include "frugal/core/counters.hpp"
#include "frugal/reuse/engine/inputs.hpp"

namespace test {

namespace fg = frugal;
using reuse::engine_inputs;

inline constexpr auto causal = causality::causal, non_causal = causality::non_causal;

inline rope_position text(std::size_t index) {
    const auto at = static_cast<std::int32_t>(index);
    return {at, at, at};
}

/// Appends tokens of a sequence to the first empty cells; the batch is these.
inline owned_batch append(cells& held, sequence_id s, std::size_t count, std::size_t padding = 16) {
    owned_batch out;
    std::vector<reuse::placed_cell> placed;
    const std::size_t length = held.tokens(s).size();
    for (std::size_t j = 0; placed.size() < count; ++j) {
        if (!held.empty(held.stream_of(s), cell_index(j))) continue;
        const rope_position at = text(length + placed.size());
        placed.push_back({held.stream_of(s), cell_index(j), at, reuse::sequence_set(s)});
        out.add(s, cell_index(j), at);
    }
    REQUIRE(held.place(placed));
    out.window = reuse::padded_window(held, out.sequences, padding);
    return out;
}

template <class Inputs>
Inputs make(const cells& like, std::size_t tokens = 8) {
    return Inputs::create(like, tokens).value();
}

/// Builds, updates and hits of one fill.
struct work {
    std::uint64_t builds = 0, updates = 0, hits = 0;
    friend bool operator==(const work&, const work&) = default;
};
inline constexpr work built{1, 0, 0}, updated{0, 1, 0}, hit{0, 0, 1};

template <class Inputs>
work fill(Inputs& inputs, const cells& held, const owned_batch& batch) {
    fg::counters_on counters;
    REQUIRE(inputs.fill(held, batch.view(), counters));
    return {counters.read(fg::counter::layout_builds), counters.read(fg::counter::layout_updates),
            counters.read(fg::counter::layout_hits)};
}

template <std::size_t Ratio, class Shared, causality Sees, class Bias, class Grouping>
void check_definition(engine_inputs<Ratio, Shared, Sees, Bias, Grouping>& inputs, const cells& held, const owned_batch& batch) {
    const auto want = test::naive(held, batch, Ratio, Sees, Bias::form, Grouping::cut_by);
    CHECK_FALSE(want.refused);
    CHECK(test::equals(inputs, held, want));
    CHECK(test::sees_by_rank(inputs, held, batch, Sees, Bias::form));
}

/// The error of a fill that must fail.
template <class Inputs>
fg::error refused(Inputs& inputs, const cells& held, const owned_batch& batch) {
    fg::counters_off none;
    const fg::status done = inputs.fill(held, batch.view(), none);
    REQUIRE_FALSE(done);
    return done.error();
}

}  // namespace test
