#include "frugal/reuse/shared_inputs.hpp"

#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "frugal/reuse/qsa_layout.hpp"

namespace fg = frugal;
namespace reuse = frugal::reuse;
using reuse::per_layer;
using reuse::shared;

namespace {
constexpr std::array<std::size_t, 7> mixed = {4, 8, 4, 4, 8, 16, 4};

struct not_a_policy {
    static constexpr std::string_view name = "nothing";
};
}  // namespace

// Which layers share is known before anything runs.
static_assert(reuse::count_sets<shared>(mixed) == 3 && reuse::count_sets<per_layer>(mixed) == 7);
static_assert(reuse::count_sets<shared>(std::span<const std::size_t>{}) == 0);
static_assert(std::is_same_v<reuse::default_shared_inputs, shared>);
static_assert(!reuse::shared_input_policy<not_a_policy> && !reuse::shared_input_policy<int>);

TEST_CASE("C36 layers of one ratio share a set, other ratios do not") {
    const std::array<std::size_t, 7> want = {0, 1, 0, 0, 1, 2, 0};
    for (std::size_t layer = 0; layer < mixed.size(); ++layer) {
        CHECK(shared::set_of(mixed, layer) == want[layer]);
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

TEST_CASE("C36 builds are counted, one for each set of a batch") {
    const std::vector<reuse::rope_position> positions(5);
    const reuse::segment part{reuse::sequence_id{0}, 0, 5};
    fg::counters_on counters;
    auto few = reuse::qsa_layouts<shared>::create(mixed, 1).value();
    auto many = reuse::qsa_layouts<per_layer>::create(mixed, 1).value();
    REQUIRE(few.append({{&part, 1}, positions}, counters));
    CHECK(counters.read(fg::counter::layout_builds) == 3);
    REQUIRE(many.append({{&part, 1}, positions}, counters));
    CHECK(counters.read(fg::counter::layout_builds) == 3 + 7);
    REQUIRE(few.append({}, counters));  // no rows, nothing to build
    CHECK(counters.read(fg::counter::layout_builds) == 3 + 7);
    CHECK(few.length(reuse::sequence_id{0}) == 5);
}

TEST_CASE("the sets of a model are edited together") {
    const std::vector<reuse::rope_position> positions(9);
    const reuse::segment part{reuse::sequence_id{0}, 0, 9};
    fg::counters_off none;
    auto layouts = reuse::qsa_layouts<shared>::create(mixed, 2).value();
    REQUIRE(layouts.append({{&part, 1}, positions}, none));
    const auto snapshot = layouts.snapshot(reuse::sequence_id{0}).value();
    REQUIRE(layouts.copy(reuse::sequence_id{0}, reuse::sequence_id{1}));
    CHECK_FALSE(layouts.can_rollback(reuse::sequence_id{0}, 10));
    CHECK(layouts.rollback(reuse::sequence_id{0}, 10).error().code == fg::errc::cannot_rollback);
    REQUIRE(layouts.rollback(reuse::sequence_id{0}, 2));
    for (const std::size_t layer : {0u, 1u, 5u}) {
        CHECK(layouts.of_layer(layer).length(reuse::sequence_id{0}) == 7);
        CHECK(layouts.of_layer(layer).length(reuse::sequence_id{1}) == 9);
    }
    fg::byte_writer out;
    layouts.save(reuse::sequence_id{1}, out);
    layouts.clear(reuse::sequence_id{1});
    CHECK(layouts.length(reuse::sequence_id{1}) == 0);
    fg::byte_reader cut(out.bytes().first(out.bytes().size() - 1));
    CHECK_FALSE(layouts.load(reuse::sequence_id{1}, cut));  // the last set fails: none changes
    for (const std::size_t layer : {0u, 1u, 5u}) CHECK(layouts.of_layer(layer).length(reuse::sequence_id{1}) == 0);
    fg::byte_reader in(out.bytes());
    REQUIRE(layouts.load(reuse::sequence_id{1}, in));
    CHECK(layouts.length(reuse::sequence_id{1}) == 9);
    REQUIRE(layouts.restore(reuse::sequence_id{0}, snapshot));
    CHECK(layouts.length(reuse::sequence_id{0}) == 9);
    CHECK(layouts.restore(reuse::sequence_id{0}, {}).error().code == fg::errc::shape_mismatch);
    CHECK(layouts.reserve(reuse::sequence_id{5}, 1).error().code == fg::errc::invalid_argument);
}
