// What users of engines that skip loads have reported, against residencies and host buffers, and the residency itself.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "frugal/reuse/weights/products.hpp"
#include "paper_engine.hpp"

using namespace paper;

TEST_CASE("C55 what is resident and what the host does decide together what is loaded; poisoned and full loads agree") {
    for (bit_set resident = 0; resident < 4; ++resident) {
        for (bit_set modes : {bit_set{0}, host_mode, dump_mode, host_mode | dump_mode}) {
            for (const bool batch : {false, true}) {
                CAPTURE(resident);
                CAPTURE(modes);
                images on = make_images(2), on_full = make_images(2);
                engine<reuse::skip_resident, reuse::poisoned> run({&on});
                engine<reuse::reload_always, reuse::unpoisoned> full({&on_full});
                full.version = run.version;
                run.arrange(0, resident);
                full.arrange(0, resident);
                check_output(run, 1);
                check_output(full, 1);
                run.modes = full.modes = modes;
                run.batch = full.batch = batch;
                const values y = run.step(0).value();
                for (float value : y) CHECK_FALSE(std::isnan(value));
                CHECK(y == full.step(0).value());
                CHECK(run.dumped == full.dumped);
                std::vector<buffer> want = (modes & host_mode) != 0 ? every_buffer : buffers_of(~resident);
                if ((modes & dump_mode) != 0 && (want.empty() || want.front() != buffer::q)) want.insert(want.begin(), buffer::q);
                CHECK(run.loaded == want);
                CHECK(full.loaded == every_buffer);
            }
        }
    }
}

TEST_CASE("C55 a skipped buffer is poisoned in checked builds and left as it is in others") {
    const auto first_q = [](auto poisoning) {
        images on = make_images(2);
        engine<reuse::skip_resident, decltype(poisoning)> run({&on});
        check_output(run, 0);
        check_output(run, 1);
        check_output(run, 0);  // all skipped
        float seen = 0;
        lease held = lease::begin(run.devices, {0, run.version}, dump_mode).value();
        REQUIRE(run.host.load(
            held, [&]<auto Which>(reuse::constant<Which>, matrix & to)->fg::result<std::size_t> {
                if (Which == buffer::q) seen = to.data.front();  // what was there before
                return std::size_t{0};
            }));
        return seen;
    };
    CHECK(std::isnan(first_q(reuse::poisoned{})));
    CHECK_FALSE(std::isnan(first_q(reuse::unpoisoned{})));
}

TEST_CASE("C56 weights change, images are evicted: what is computed equals a fresh packing, and memory stays bounded") {
    images on = make_images(4);
    engine<> run({&on});
    for (std::size_t layer = 0; layer < 4; ++layer) check_output(run, layer);
    const std::size_t bytes = on.bytes();
    for (int update = 0; update < 20; ++update) {
        if (update % 2 != 0) on.evict(static_cast<std::size_t>(update) % 4, static_cast<std::size_t>(update) % 2);
        run.version = reuse::next_weight_version();
        for (std::size_t layer = 0; layer < 4; ++layer) {
            images fresh_images = make_images(4);
            engine<> fresh({&fresh_images});
            fresh.version = run.version;
            CHECK(run.step(layer).value() == fresh.step(layer).value());
            CHECK(run.loaded == every_buffer);
            CHECK(on.bytes() <= bytes);
            CHECK(run.alive <= 8);
        }
    }
    CHECK(on.bytes() == bytes);
    CHECK(run.alive == 8);
    on.clear();
    CHECK(on.bytes() == 0);
    CHECK(run.alive == 0);
}

namespace {

struct ffn_weights {
    fg::quant::weight_view gate, up, down;
};
using gate_up = reuse::product<&ffn_weights::gate, &ffn_weights::up>;
using down = reuse::product<&ffn_weights::down>;
using ffn = reuse::product_list<ffn_weights, gate_up, down>;

}  // namespace

static_assert(ffn::size == 2 && ffn::table::size == 3 && ffn::table::images == 3 && ffn::all_on_host == 3);
static_assert(ffn::contains<gate_up> && !ffn::contains<reuse::product<&ffn_weights::up>>);
static_assert(ffn::index_of<gate_up>() == 0 && ffn::index_of<down>() == 1);
static_assert(ffn::table::index_of<&ffn_weights::down>() == 2);
static_assert(ffn::packer<down>::image == 2 && ffn::host_reader<down>::mode == 2);
static_assert(ffn::table::skip<&ffn_weights::up>(1, 0) && ffn::table::skip<&ffn_weights::up>(1, 2));
static_assert(!ffn::table::skip<&ffn_weights::up>(2, 0) && !ffn::table::skip<&ffn_weights::up>(3, 1));

TEST_CASE("C58 a device that refuses allocation n: the host computes just that product, and nothing leaks") {
    constexpr std::size_t layers = 3, products = 2;
    // What the n-th image made gets: a refusal of the device, or one of the byte budget.
    for (const bool by_budget : {false, true}) {
        for (std::size_t refused = 0; refused <= layers * products; ++refused) {
            CAPTURE(by_budget);
            CAPTURE(refused);
            images on = images::create({.layers = layers,
                                        .images = products,
                                        .byte_budget = by_budget ? 4 * (refused / 2 * 3 + refused % 2 * 2)
                                                                 : std::numeric_limits<std::size_t>::max()})
                            .value();
            reuse::host_buffers<ffn::table, matrix, reuse::skip_resident, fg::counters_on, reuse::poisoned> host;
            living alive;
            std::size_t made = 0;
            bool full = !by_budget;
            const device where{&on, 1};
            const weight_version version = reuse::next_weight_version();
            std::vector<std::size_t> loaded;
            // One product: on the device, or else on the host.
            const auto multiply = [&]<class Product>(fg::type_tag<Product>, lease& step, values& y) -> fg::status {
                constexpr std::size_t index = ffn::index_of<Product>();
                constexpr bit_set bit = bit_set{1} << index;
                if ((step.modes() & bit) == 0) {
                    const fg::status on_device =
                        host.template run<ffn::packer<Product>>(step, [&](const auto&... part) -> fg::result<packed> {
                            if (full && made++ == refused) return fg::fail(fg::errc::out_of_memory, "device full");
                            return packed(alive, stack(part...));
                        });
                    if (on_device) {
                        const values& data = step.find(0, index)->data();
                        y.insert(y.end(), data.begin(), data.end());
                        return {};
                    }
                    if (on_device.error().code != fg::errc::out_of_memory) return fg::fail(fg::errc::io, "another failure");
                    step.refuse(index);
                    step.turn_on(bit);
                    FRUGAL_TRY(load_numbers<ffn::table>(host, step, loaded));
                }
                return host.template run<ffn::host_reader<Product>>(step, [&](const auto&... part) -> fg::status {
                    const values data = stack(part...);
                    y.insert(y.end(), data.begin(), data.end());
                    return {};
                });
            };
            const auto run_step = [&](std::size_t layer) -> fg::status {
                loaded.clear();
                FRUGAL_TRY_ASSIGN(lease step, lease::begin({&where, 1}, {layer, version}, 0));
                step.turn_on(step.settled() & ~step.resident());
                FRUGAL_TRY(load_numbers<ffn::table>(host, step, loaded));
                values y;
                FRUGAL_TRY(multiply(fg::type_tag<gate_up>{}, step, y));
                FRUGAL_TRY(multiply(fg::type_tag<down>{}, step, y));
                const stamp now{layer, version};
                CHECK(y == values{weight(now, 0, 0), weight(now, 1, 0), weight(now, 2, 0)});
                return {};
            };
            for (int token = 0; token < 3; ++token) {
                for (std::size_t layer = 0; layer < layers; ++layer) {
                    REQUIRE(run_step(layer));
                    // From the second token on, only what was refused is loaded.
                    if (token == 0) continue;
                    std::vector<std::size_t> want;
                    const bit_set given_up = ~on.resident(layer) & 3;
                    CHECK(on.refused(layer) == given_up);
                    if ((given_up & 1) != 0) want = {0, 1};
                    if ((given_up & 2) != 0) want.push_back(2);
                    CHECK(loaded == want);
                }
            }
            int resident = 0;
            for (std::size_t layer = 0; layer < layers; ++layer)
                for (std::size_t i = 0; i < products; ++i) resident += static_cast<int>(on.resident(layer) >> i & 1u);
            CHECK(alive == resident);
            if (!by_budget) CHECK(alive == (refused == layers * products ? 6 : 5));
            if (by_budget) CHECK(on.bytes() <= 4 * (refused / 2 * 3 + refused % 2 * 2));
            // Once memory is free again everything is resident.
            if (!by_budget) {
                full = false;
                on.retry();
                for (std::size_t layer = 0; layer < layers; ++layer) REQUIRE(run_step(layer));
                CHECK(alive == 6);
                for (std::size_t layer = 0; layer < layers; ++layer) {
                    REQUIRE(run_step(layer));
                    CHECK(loaded.empty());
                }
            }
            on.clear();
            CHECK(alive == 0);
        }
    }
}

TEST_CASE("a residency refuses what it cannot hold and says so") {
    CHECK(images::create({.layers = 1, .images = 65}).error().code == fg::errc::invalid_argument);
    CHECK(images::create({.layers = 1, .images = 64}).has_value());
    images on = images::create({.layers = 2, .images = 2, .byte_budget = 8}).value();
    CHECK(on.layers() == 2);
    CHECK(on.images() == 2);
    living alive;
    const device where{&on, 0};
    const weight_version version = reuse::next_weight_version();
    CHECK(lease::begin({&where, 1}, {2, version}, 0).error().code == fg::errc::invalid_argument);
    lease step = lease::begin({&where, 1}, {0, version}, 0).value();
    CHECK(step.devices() == 1);
    CHECK(step.put(0, 2, packed(alive, {1})).error().code == fg::errc::invalid_argument);
    CHECK(step.put(0, 0, packed(alive, {1, 2, 3})).error().code == fg::errc::out_of_memory);
    CHECK(alive == 0);
    REQUIRE(step.put(0, 0, packed(alive, {1})));
    REQUIRE(step.put(0, 0, packed(alive, {2})));  // another thread was faster: the first stays
    CHECK(step.find(0, 0)->data() == values{1});
    CHECK(alive == 1);
    REQUIRE(step.put(0, 1, packed(alive, {3})));
    CHECK(on.bytes() == 8);
    lease next = lease::begin({&where, 1}, {1, version}, 0).value();
    CHECK(next.put(0, 0, packed(alive, {4})).error().code == fg::errc::out_of_memory);  // nothing is evicted for it
    CHECK(on.resident(0) == 3);
}

TEST_CASE("a residency can be moved while no lease holds it") {
    images first = make_images(2);
    living alive;
    const weight_version version = reuse::next_weight_version();
    {
        const device where{&first, 0};
        lease step = lease::begin({&where, 1}, {1, version}, 0).value();
        REQUIRE(step.put(0, 1, packed(alive, {1})));
    }
    images second = std::move(first);
    const device where{&second, 0};
    const lease step = lease::begin({&where, 1}, {1, version}, 0).value();
    CHECK(step.resident() == 2);
    CHECK(step.find(0, 1)->data() == values{1});
    CHECK(alive == 1);
}
