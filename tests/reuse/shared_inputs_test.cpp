#include "frugal/reuse/inputs/shared_inputs.hpp"

#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "frugal/reuse/inputs/qsa_layouts.hpp"

namespace fg = frugal;
namespace reuse = frugal::reuse;
using fg::counter;
using reuse::incremental;
using reuse::memoised;
using reuse::per_layer;
using reuse::shared;

namespace {
constexpr std::array<std::size_t, 7> mixed = {4, 8, 4, 4, 8, 16, 4};

struct not_a_policy {
    static constexpr std::string_view name = "nothing";
};
struct no_upkeep {
    static constexpr std::string_view name = "no upkeep";
    static constexpr std::size_t set_of(std::span<const std::size_t>, std::size_t) noexcept { return 0; }
};
struct upkeep_at_run_time : no_upkeep {
    static reuse::upkeep kept_by;
};
reuse::upkeep upkeep_at_run_time::kept_by = reuse::upkeep::memo;
struct my_policy : no_upkeep {
    static constexpr reuse::upkeep kept_by = reuse::upkeep::memo;
};
}  // namespace

// Which layers share is known before anything runs.
static_assert(reuse::count_sets<shared>(mixed) == 3 && reuse::count_sets<per_layer>(mixed) == 7);
static_assert(reuse::count_sets<shared>(std::span<const std::size_t>{}) == 0);
static_assert(reuse::count_sets<memoised>(mixed) == 3 && reuse::count_sets<incremental>(mixed) == 3);
static_assert(reuse::map_layers<incremental>(mixed) == std::array<std::size_t, 7>{0, 1, 0, 0, 1, 2, 0});
static_assert(reuse::map_layers<per_layer>(mixed) == std::array<std::size_t, 7>{0, 1, 2, 3, 4, 5, 6});
static_assert(reuse::map_layers<shared>(std::array<std::size_t, 0>{}).empty());
static_assert(std::is_same_v<reuse::default_shared_inputs, incremental>);
static_assert(!reuse::shared_input_policy<not_a_policy> && !reuse::shared_input_policy<int>);
static_assert(!reuse::shared_input_policy<no_upkeep> && !reuse::shared_input_policy<upkeep_at_run_time>);
static_assert(reuse::shared_input_policy<my_policy> && reuse::sequence_state<reuse::qsa_layouts<my_policy>>);

TEST_CASE("C36 K05 layers of one ratio share a set, other ratios do not") {
    const std::array<std::size_t, 7> want = {0, 1, 0, 0, 1, 2, 0};
    for (std::size_t layer = 0; layer < mixed.size(); ++layer) {
        CHECK(shared::set_of(mixed, layer) == want[layer]);
        CHECK(memoised::set_of(mixed, layer) == want[layer]);
        CHECK(incremental::set_of(mixed, layer) == want[layer]);
        CHECK(per_layer::set_of(mixed, layer) == layer);
    }
    const auto layouts = reuse::qsa_layouts<shared>::create(mixed, 1).value();
    CHECK(layouts.sets() == 3);
    for (std::size_t layer = 0; layer < mixed.size(); ++layer) CHECK(layouts.of_layer(layer).ratio().tokens() == mixed[layer]);
    CHECK(&layouts.of_layer(0) == &layouts.of_layer(6));
    CHECK(&layouts.of_layer(0) != &layouts.of_layer(1));
    const std::array<std::size_t, 2> broken = {4, 0};
    CHECK(reuse::qsa_layouts<shared>::create(broken, 1).error().code == fg::errc::invalid_argument);
}

TEST_CASE_TEMPLATE("C36 builds are counted, one for each set of a batch", Policy, per_layer, shared, memoised, incremental) {
    const std::vector<reuse::rope_position> positions(5);
    const reuse::segment part{reuse::sequence_id{0}, 0, 5}, wrong{reuse::sequence_id{1}, 0, 5};
    fg::counters_on counters;
    auto layouts = reuse::qsa_layouts<Policy>::create(mixed, 1).value();
    constexpr std::size_t sets = reuse::count_sets<Policy>(mixed);
    constexpr bool builds = Policy::kept_by != reuse::upkeep::increment;
    CHECK(layouts.sets() == sets);
    for (std::size_t batch = 1; batch <= 3; ++batch) {
        REQUIRE(layouts.append({{&part, 1}, positions}, counters));
        REQUIRE(layouts.append({}, counters));  // no rows, nothing to build
        CHECK(layouts.of_layer(0).rows().empty());
        CHECK(layouts.append({{&wrong, 1}, positions}, counters).error().code == fg::errc::invalid_argument);
        CHECK(counters.read(counter::layout_builds) == (builds ? batch * sets : 0));
        CHECK(counters.read(counter::layout_updates) == (builds ? 0 : batch * sets));
        CHECK(counters.read(counter::layout_hits) == 0);
        CHECK(layouts.length(reuse::sequence_id{0}) == 5 * batch);
    }
}

TEST_CASE_TEMPLATE("the sets of a model are edited together", Policy, per_layer, shared, memoised, incremental) {
    const std::vector<reuse::rope_position> positions(9);
    const reuse::segment part{reuse::sequence_id{0}, 0, 9};
    fg::counters_off none;
    auto layouts = reuse::qsa_layouts<Policy>::create(mixed, 2).value();
    const reuse::segment nobody{reuse::sequence_id::padding, 0, 1};
    const auto lengths = [&](std::size_t first, std::size_t second) {
        CHECK(layouts.length(reuse::sequence_id{0}) == first);
        CHECK(layouts.length(reuse::sequence_id{1}) == second);
        CHECK(layouts.of_layer(0).rows().empty());  // of an edit, there are none
        REQUIRE(layouts.append({{&nobody, 1}, std::span(positions).first(1)}, none));
        for (const std::size_t layer : {0u, 1u, 5u}) {
            CHECK(layouts.of_layer(layer).length(reuse::sequence_id{0}) == first);
            CHECK(layouts.of_layer(layer).length(reuse::sequence_id{1}) == second);
        }
    };
    REQUIRE(layouts.append({{&part, 1}, positions}, none));
    const auto snapshot = layouts.snapshot(reuse::sequence_id{0}).value();
    REQUIRE(layouts.copy(reuse::sequence_id{0}, reuse::sequence_id{1}));
    CHECK_FALSE(layouts.can_rollback(reuse::sequence_id{0}, 10));
    CHECK(layouts.rollback(reuse::sequence_id{0}, 10).error().code == fg::errc::cannot_rollback);
    REQUIRE(layouts.rollback(reuse::sequence_id{0}, 2));
    lengths(7, 9);
    fg::byte_writer out;
    layouts.save(reuse::sequence_id{1}, out);
    layouts.clear(reuse::sequence_id{1});
    lengths(7, 0);
    fg::byte_reader cut(out.bytes().first(out.bytes().size() - 1));
    CHECK_FALSE(layouts.load(reuse::sequence_id{1}, cut));  // the last set fails: none changes
    CHECK(layouts.length(reuse::sequence_id{1}) == 0);
    for (const std::size_t layer : {0u, 1u, 5u}) CHECK(layouts.of_layer(layer).length(reuse::sequence_id{1}) == 0);
    fg::byte_reader in(out.bytes());
    REQUIRE(layouts.load(reuse::sequence_id{1}, in));
    lengths(7, 9);
    REQUIRE(layouts.restore(reuse::sequence_id{0}, snapshot));
    lengths(9, 9);
    CHECK(layouts.restore(reuse::sequence_id{0}, {}).error().code == fg::errc::shape_mismatch);
    CHECK(layouts.reserve(reuse::sequence_id{5}, 1).error().code == fg::errc::invalid_argument);
}
