#include "frugal/reuse/engine/input_sets.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "engine_inputs_naive.hpp"

namespace fg = frugal;
namespace reuse = frugal::reuse;
using fg::counter;
using reuse::bias_block;
using reuse::bias_cell;
using reuse::causality;
using reuse::cell_index;
using reuse::cells;
using reuse::engine_input_sets;
using reuse::engine_inputs;
using test::owned_batch;
using test::seq;

// Counts what this program allocates.
namespace {
std::atomic<std::size_t> allocations{0};
}
void* operator new(std::size_t size) {
    ++allocations;
    if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
    std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

constexpr auto causal = causality::causal;

// 48 layers, every fourth with QSA; two ratios among them.
constexpr std::array<std::size_t, 12> ratios = {4, 4, 8, 4, 4, 4, 4, 8, 4, 4, 4, 4};
using kept = engine_input_sets<ratios>;
using apart = engine_input_sets<ratios, reuse::per_layer>;
static_assert(kept::sets == 2 && kept::set_of == std::array<std::size_t, 12>{0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0});
static_assert(engine_input_sets<ratios, reuse::memoised>::sets == 2 && engine_input_sets<ratios, reuse::shared>::sets == 2);
static_assert(apart::sets == 12 && apart::set_of[11] == 11);

/// A dense sequence in the first cells; a batch of its newest tokens.
owned_batch grow(cells& held, std::size_t count, std::size_t in_batch) {
    std::vector<reuse::placed_cell> placed(count);
    const std::size_t length = held.tokens(seq(0)).size();
    for (std::size_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::int32_t>(length + i);
        placed[i] = {reuse::stream_id{}, cell_index(length + i), {at, at, at}, reuse::sequence_set(seq(0))};
    }
    REQUIRE(held.place(placed));
    owned_batch out;
    for (std::size_t i = count - in_batch; i < count; ++i) out.add(seq(0), placed[i].cell, placed[i].position);
    out.window = reuse::padded_window(held, out.sequences, 256);
    return out;
}

struct work {
    std::uint64_t builds = 0, updates = 0, hits = 0;
    friend bool operator==(const work&, const work&) = default;
};
template <class Inputs>
work fill(Inputs& inputs, const cells& held, const owned_batch& batch) {
    fg::counters_on counters;
    REQUIRE(inputs.fill(held, batch.view(), counters));
    return {counters.read(counter::layout_builds), counters.read(counter::layout_updates), counters.read(counter::layout_hits)};
}

}  // namespace

TEST_CASE("C36 K05 one fill a ratio, or one a layer, or none; two ratios never share") {
    auto held = cells::create(1, 512, 1).value();
    auto a = kept::create(held, 8).value();
    auto b = engine_input_sets<ratios, reuse::memoised>::create(held, 8).value();
    auto c = engine_input_sets<ratios, reuse::shared>::create(held, 8).value();
    auto d = apart::create(held, 8).value();
    owned_batch batch = grow(held, 5, 5);
    CHECK(fill(a, held, batch) == work{2, 0, 0});
    CHECK(fill(b, held, batch) == work{2, 0, 0});
    CHECK(fill(c, held, batch) == work{2, 0, 0});
    CHECK(fill(d, held, batch) == work{12, 0, 0});
    CHECK(fill(a, held, batch) == work{0, 2, 0});
    CHECK(fill(b, held, batch) == work{0, 0, 2});
    CHECK(fill(c, held, batch) == work{2, 0, 0});
    CHECK(fill(d, held, batch) == work{12, 0, 0});
    batch = grow(held, 1, 1);
    CHECK(fill(a, held, batch) == work{0, 2, 0});
    CHECK(fill(b, held, batch) == work{2, 0, 0});
    CHECK(&a.of_layer<0>() == &a.of_layer<11>());
    static_assert(std::remove_reference_t<decltype(a.of_layer<2>())>::ratio == 8);
    static_assert(std::remove_reference_t<decltype(d.of_layer<7>())>::ratio == 8);
    REQUIRE(fill(c, held, batch) == work{2, 0, 0});
    REQUIRE(fill(d, held, batch) == work{12, 0, 0});
    const auto want4 = test::naive(held, batch, 4, causal, reuse::bias_form::none),
               want8 = test::naive(held, batch, 8, causal, reuse::bias_form::none);
    CHECK(test::equals(a.of_layer<3>(), held, want4));
    CHECK(test::equals(a.of_layer<7>(), held, want8));
    CHECK(test::equals(b.of_layer<3>(), held, want4));
    CHECK(test::equals(c.of_layer<7>(), held, want8));
    CHECK(test::equals(d.of_layer<2>(), held, want8));
    CHECK(test::equals(d.of_layer<11>(), held, want4));
    CHECK(d.bytes() > 5 * a.bytes());
    fg::counters_off none;
    CHECK(a.fill(held, {}, none).error().code == fg::errc::invalid_argument);
    CHECK(kept::create(held, 0).error().code == fg::errc::invalid_argument);
}

TEST_CASE("C36 176k cells and a batch of 512 tokens take less than 3 MiB without a bias, and no fill allocates") {
    constexpr std::size_t n = 176 * 1024;
    auto held = cells::create(1, n, 1).value();
    auto inputs = engine_inputs<4>::create(held, 512).value();
    auto filled = engine_inputs<4, reuse::shared>::create(held, 512).value();
    auto remembered = engine_inputs<4, reuse::memoised>::create(held, 512).value();
    owned_batch batch = grow(held, n - 1024, 512);
    CHECK(fill(inputs, held, batch) == work{1, 0, 0});
    CHECK(fill(filled, held, batch) == work{1, 0, 0});
    CHECK(fill(remembered, held, batch) == work{1, 0, 0});
    for (const std::size_t count : {std::size_t{512}, std::size_t{1}, std::size_t{1}, std::size_t{1}, std::size_t{1}}) {
        batch = grow(held, count, count);
        fg::counters_on counters;
        const std::size_t before = allocations;
        bool done = inputs.fill(held, batch.view(), counters) && filled.fill(held, batch.view(), counters) &&
                    remembered.fill(held, batch.view(), counters) && remembered.fill(held, batch.view(), counters);
        const std::size_t after = allocations;
        CHECK(done);
        CHECK(after == before);
        CHECK(counters.read(counter::layout_updates) == 1);
        CHECK(counters.read(counter::layout_builds) == 2);
        CHECK(counters.read(counter::layout_hits) == 1);
    }
    CHECK(inputs.bytes() < std::size_t{3} << 20);
    CHECK(filled.bytes() < std::size_t{3} << 20);
    CHECK(remembered.bytes() < std::size_t{3} << 20);
    CHECK(inputs.cell_blk().size() == n - 256);
    CHECK(std::equal(inputs.cell_blk().begin(), inputs.cell_blk().end(), filled.cell_blk().begin()));
    CHECK(std::equal(inputs.blk_cells().begin(), inputs.blk_cells().end(), filled.blk_cells().begin()));
    CHECK(std::equal(inputs.blk_pos().begin(), inputs.blk_pos().end(), filled.blk_pos().begin()));
    CHECK(inputs.blk_cells()[44000 * 4 + 3] == 44000 * 4 + 3);
    CHECK(inputs.views().back() == reuse::query_view{(n - 512 + 4) / 4, 0});
}

namespace {

/// The bias of batches around the cap: the same as without one, in pieces that stay below it.
template <template <std::size_t> class Bias, std::size_t MostBytes>
void check_cap(std::size_t tokens, std::size_t pieces) {
    CAPTURE(tokens);
    auto held = cells::create(1, 1024, 1).value();
    const owned_batch batch = grow(held, 900, tokens);
    auto whole = engine_inputs<4, reuse::shared, causal, Bias<std::size_t{256} << 20>>::create(held, tokens).value();
    auto capped = engine_inputs<4, reuse::memoised, causal, Bias<MostBytes>>::create(held, tokens).value();
    REQUIRE(fill(whole, held, batch) == work{1, 0, 0});
    REQUIRE(fill(capped, held, batch) == work{1, 0, 0});
    CHECK(whole.bias_slices() == 1);
    CHECK(capped.bias_slices() == pieces);
    CHECK(capped.bias().first == 0);
    for (std::size_t i = 0; i < pieces; ++i) CHECK(capped.bias(held, i).value().values.size_bytes() <= MostBytes);
    CHECK(test::same_bytes(whole.bias().values, test::whole_bias(capped, held)));
    CHECK(capped.bias(held, pieces).error().code == fg::errc::invalid_argument);
    REQUIRE(fill(capped, held, batch) == work{0, 0, 1});
    CHECK(capped.bias().first == 0);  // as after any fill
    CHECK(test::same_bytes(whole.bias().values, test::whole_bias(capped, held)));
    REQUIRE(held.rollback(seq(0), 1));
    CHECK(capped.bias(held, 0).error().code == fg::errc::invalid_argument);  // of cells that are no more
}

}  // namespace

TEST_CASE("K16 C36 a bias below, at and above its cap has the same bytes") {
    for (const std::size_t tokens : {511u, 512u, 513u}) {
        check_cap<bias_cell, 512 * 1024 * sizeof(float)>(tokens, tokens <= 512 ? 1 : 2);
        check_cap<bias_block, 512 * 256 * sizeof(float)>(tokens, tokens <= 512 ? 1 : 2);
    }
    check_cap<bias_cell, 100 * 1024 * sizeof(float)>(512, 6);
    check_cap<bias_block, 256 * sizeof(float)>(40, 40);
}
