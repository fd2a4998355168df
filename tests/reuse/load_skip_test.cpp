// The cases that break a hand-written load skip, one by one, against reader tables, residencies and host buffers. A06 and A21
// are refused by the compiler: tests/compile_fail/load_skip.cpp.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "paper_engine.hpp"

using namespace paper;

static_assert(table::size == 4 && table::images == (qkv_bit | o_bit));
static_assert(table::index_of<buffer::q>() == 0 && table::index_of<buffer::o>() == 3);
static_assert(table::images_of<buffer::k> == qkv_bit && table::modes_of<buffer::k> == host_mode);
static_assert(table::modes_of<buffer::q> == (host_mode | dump_mode));
static_assert(table::has_reader<pack_o> && !table::has_reader<reuse::packs<image::o, buffer::q>>);
static_assert(table::skip<buffer::o>(o_bit, 0) && table::skip<buffer::o>(o_bit, dump_mode));
static_assert(!table::skip<buffer::o>(qkv_bit, 0) && !table::skip<buffer::o>(o_bit, host_mode));
static_assert(sizeof(stamp) == 16);

TEST_CASE("A01 nothing resident: everything loads and is packed, once") {
    images on = make_images(3);
    engine<> run({&on});
    check_output(run, 1);
    CHECK(run.loaded == every_buffer);
    CHECK(run.packed_for == std::vector<std::pair<std::size_t, image>>{{0, image::qkv}, {0, image::o}});
    CHECK(on.resident(1) == (qkv_bit | o_bit));
    CHECK(on.resident(0) == 0);
    const std::size_t bytes = run.expected(1).size() * sizeof(float);
    CHECK(on.bytes() == bytes);
    CHECK(run.alive == 2);
    CHECK(run.count(fg::counter::dequantize_calls) == 4);
    CHECK(run.count(fg::counter::dequantized_bytes) == bytes);
    CHECK(run.count(fg::counter::images_packed) == 2);
    CHECK(run.count(fg::counter::image_bytes_uploaded) == bytes);
    CHECK(run.count(fg::counter::loads_skipped) == 0);
}

TEST_CASE("A02 everything resident: no load, no packing, the same bytes") {
    constexpr std::size_t layers = 5;
    images on = make_images(layers);
    engine<> run({&on});
    engine<reuse::reload_always, reuse::unpoisoned> reload({&on});
    reload.version = run.version;
    std::vector<values> first;
    for (std::size_t layer = 0; layer < layers; ++layer) first.push_back(run.step(layer).value());
    const std::uint64_t loads = run.count(fg::counter::dequantize_calls);
    for (int token = 0; token < 10; ++token) {
        for (std::size_t layer = 0; layer < layers; ++layer) {
            run.batch = token % 2 != 0;
            const values y = run.step(layer).value();
            CHECK(y == first[layer]);
            CHECK(reload.step(layer).value() == y);
            CHECK(run.loaded.empty());
            CHECK(run.packed_for.empty());
            CHECK(reload.loaded == every_buffer);
            CHECK(reload.packed_for.empty());
        }
    }
    CHECK(run.count(fg::counter::dequantize_calls) == loads);
    CHECK(run.count(fg::counter::loads_skipped) == 4 * layers * 10);
    CHECK(reload.count(fg::counter::dequantize_calls) == 4 * layers * 10);
    CHECK(reload.count(fg::counter::loads_skipped) == 0);
    CHECK(reload.count(fg::counter::images_packed) == 0);
}

TEST_CASE("A03 every partial state: exactly what the missing images are packed from is loaded") {
    for (bit_set resident = 0; resident < 4; ++resident) {
        CAPTURE(resident);
        images on = make_images(2);
        engine<> run({&on});
        run.arrange(0, resident);
        check_output(run, 1);  // the buffers hold another layer's weights
        check_output(run, 0);
        CHECK(run.loaded == buffers_of(~resident));
        CHECK(on.resident(0) == (qkv_bit | o_bit));
        check_output(run, 0);
        CHECK(run.loaded.empty());
    }
}

TEST_CASE("A04 a step that fails between two images: the next one loads the rest, from its own layer") {
    images on = make_images(2);
    engine<> run({&on});
    run.broken_pack = {image::o};
    for (std::size_t layer : {0u, 1u}) CHECK(run.step(layer).error().code == fg::errc::device_failed);
    CHECK(on.resident(0) == qkv_bit);
    run.broken_pack.clear();
    check_output(run, 0);  // o's buffer held layer 1
    CHECK(run.loaded == std::vector{buffer::o});
    check_output(run, 1);
    CHECK(run.loaded == std::vector{buffer::o});

    for (buffer which : every_buffer) {
        check_output(run, 1);
        on.clear();
        run.broken_load = {which};
        CHECK(run.step(0).error().code == fg::errc::io);
        CHECK(on.resident(0) == 0);
        run.broken_load.clear();
        check_output(run, 0);  // what had been loaded before the failure is not loaded again
        CHECK(run.loaded == std::vector<buffer>(every_buffer.begin() + static_cast<std::ptrdiff_t>(which), every_buffer.end()));
    }
}

TEST_CASE("A05 a half-cached layer on the batch path: the missing image is packed from its own weights") {
    const auto check = [](auto poisoning) {
        for (bit_set resident : {qkv_bit, o_bit}) {
            images on = make_images(2);
            engine<reuse::skip_resident, decltype(poisoning)> run({&on});
            run.batch = true;
            run.arrange(0, resident);
            check_output(run, 1);
            check_output(run, 0);
            CHECK(run.loaded == buffers_of(~resident));
            check_output(run, 1);
            check_output(run, 0);
        }
    };
    check(reuse::poisoned{});
    check(reuse::unpoisoned{});
}

namespace {

// A dense hybrid's layer, whose out projection and gate/up would share an image number if both were counted from their own part.
enum class gdn_image { qkv, z, out, gate_up, down };
enum class gdn_buffer { qkv, z, out, gate, up, down };
template <gdn_image Image, gdn_buffer... Buffer>
using gdn_pack = reuse::packs<Image, Buffer...>;
using gdn_table = reuse::reader_table<
    reuse::buffers<gdn_buffer::qkv, gdn_buffer::z, gdn_buffer::out, gdn_buffer::gate, gdn_buffer::up, gdn_buffer::down>,
    gdn_pack<gdn_image::qkv, gdn_buffer::qkv>, gdn_pack<gdn_image::z, gdn_buffer::z>, gdn_pack<gdn_image::out, gdn_buffer::out>,
    gdn_pack<gdn_image::gate_up, gdn_buffer::gate, gdn_buffer::up>, gdn_pack<gdn_image::down, gdn_buffer::down>>;

}  // namespace

TEST_CASE("A06 all images of a layer have numbers of their own, whichever part of it packs them") {
    static_assert(gdn_table::images == 31);
    images on = make_images(1, 5);
    reuse::host_buffers<gdn_table, matrix> host;
    living alive;
    const device where{&on, 0};
    const stamp now{0, reuse::next_weight_version()};
    lease step = lease::begin({&where, 1}, now, 0).value();
    std::vector<std::size_t> loaded;
    REQUIRE(load_numbers<gdn_table>(host, step, loaded));
    const auto pack = [&](const auto&... part) -> fg::result<packed> { return packed(alive, stack(part...)); };
    REQUIRE(host.run<gdn_pack<gdn_image::out, gdn_buffer::out>>(step, pack));
    REQUIRE(host.run<gdn_pack<gdn_image::gate_up, gdn_buffer::gate, gdn_buffer::up>>(step, pack));
    CHECK(step.find(0, 2)->data() == values{weight(now, 2, 0)});
    CHECK(step.find(0, 3)->data() == values{weight(now, 3, 0), weight(now, 4, 0)});
    CHECK(on.resident(0) == 0b01100);
    CHECK(step.settled() == 0b01100);
}

TEST_CASE("A07 nothing is evicted between a step's decision and its last read") {
    images on = make_images(2);
    engine<> run({&on});
    check_output(run, 0);
    check_output(run, 1);
    {
        lease held = run.begin(0).value();
        REQUIRE(run.load(held));
        const packed* before = held.find(0, 0);
        CHECK_FALSE(on.evict(0, 0));
        on.clear();
        CHECK(on.resident(0) == 3);  // held
        CHECK(on.resident(1) == 0);
        CHECK(held.find(0, 0) == before);
        CHECK(held.resident() == 3);
        // Neither new weights nor a reset device take them away: the step that wants that must wait.
        const stamp other{0, reuse::next_weight_version()};
        CHECK(lease::begin(run.devices, other, 0).error().code == fg::errc::invalid_argument);
        const device reset{&on, 2};
        CHECK(lease::begin({&reset, 1}, held.now(), 0).error().code == fg::errc::invalid_argument);
        CHECK(held.find(0, 1) != nullptr);
        // A second step of the same layer holds it too.
        lease second = run.begin(0).value();
        lease moved = std::move(held);
        held = std::move(moved);
        { const lease ended = std::move(held); }
        CHECK_FALSE(on.evict(0, 0));
        CHECK(second.find(0, 0) == before);
    }
    CHECK(on.evict(0, 0));
    CHECK_FALSE(on.evict(0, 0));  // not there any more
    CHECK(run.alive == 1);
}

TEST_CASE("A08 eviction between two steps: exactly what is missing is loaded again") {
    images on = make_images(2);
    engine<> run({&on});
    for (bit_set evicted = 0; evicted < 4; ++evicted) {
        CAPTURE(evicted);
        check_output(run, 0);
        check_output(run, 1);
        for (std::size_t i = 0; i < 2; ++i)
            if ((evicted >> i & 1u) != 0) CHECK(on.evict(0, i));
        check_output(run, 0);
        CHECK(run.loaded == buffers_of(evicted));
        check_output(run, 1);
        CHECK(run.loaded.empty());
    }
}

TEST_CASE("A09 products on the host with everything resident: all weights load and are read") {
    images on = make_images(1);
    engine<> run({&on});
    check_output(run, 0);
    on.clear();
    run.arrange(0, 3);
    check_output(run, 0);
    run.modes = host_mode;
    check_output(run, 0);
    CHECK(run.loaded == every_buffer);
    CHECK(run.packed_for.empty());
    CHECK(on.resident(0) == 3);
    check_output(run, 0);
    CHECK(run.loaded.empty());  // they hold these weights already
}

TEST_CASE("A10 a host mode that is switched in mid-run is obeyed by the next step") {
    images on = make_images(2);
    engine<> run({&on});
    check_output(run, 0);
    for (int round = 0; round < 3; ++round) {
        check_output(run, 1);
        run.modes = dump_mode;
        check_output(run, 0);
        CHECK(run.loaded == std::vector{buffer::q});
        CHECK(run.dumped.size() == run.sizes.size(buffer::q));
        CHECK(run.dumped.front() == weight({0, run.version}, 0, 0));
        run.modes = 0;
        check_output(run, 0);
        CHECK(run.loaded.empty());
        CHECK(run.dumped.empty());
        run.modes = host_mode | dump_mode;
        check_output(run, 1);
        CHECK(run.loaded == every_buffer);
        run.modes = 0;
    }
}

TEST_CASE("A10 a mode turned on within a step is a hard error until what it reads is loaded") {
    images on = make_images(2);
    engine<> run({&on});
    check_output(run, 0);
    check_output(run, 1);
    lease held = run.begin(0).value();
    REQUIRE(run.load(held));
    held.turn_on(host_mode);
    bool called = false;
    const auto read = [&](const auto&...) -> fg::status {
        called = true;
        return {};
    };
    CHECK(run.host.run<on_host>(held, read).error().code == fg::errc::invalid_argument);
    CHECK_FALSE(called);
    CHECK(run.host.run<dump_q>(held, read).has_value());  // its mode is off: it does not run
    CHECK_FALSE(called);
    run.loaded.clear();
    REQUIRE(run.load(held));
    CHECK(run.loaded == every_buffer);
    REQUIRE(run.host.run<on_host>(held, read));
    CHECK(called);
}

TEST_CASE("A11 changed weights: old images and old host copies are never used again") {
    images on = make_images(2);
    engine<> run({&on});
    for (bit_set modes : {bit_set{0}, host_mode, dump_mode}) {
        run.modes = modes;
        check_output(run, 0);
        const values before = run.expected(0);
        run.version = reuse::next_weight_version();
        CHECK(run.expected(0) != before);
        check_output(run, 0);  // no other layer in between: the buffers hold this layer's old weights
        CHECK(run.loaded == every_buffer);
        if (modes != host_mode) CHECK(run.packed_for.size() == 2);
    }
    CHECK(run.alive == 2);
}

TEST_CASE("A12 a model loaded again in the same process gets nothing from the first") {
    images on = make_images(2);
    engine<> first({&on});
    check_output(first, 0);
    engine<> second({&on});
    CHECK(first.version != second.version);
    check_output(second, 0);
    CHECK(second.loaded == every_buffer);
    CHECK(first.alive == 0);
    // Not even through host buffers that both use.
    second.version = first.version;
    check_output(second, 0);
    CHECK(second.loaded == every_buffer);
    check_output(second, 0);
    CHECK(second.loaded.empty());
}

TEST_CASE("A13 a device that was reset: the whole residency is cleared before the next decision") {
    images on = make_images(3);
    engine<> run({&on});
    for (std::size_t layer = 0; layer < 3; ++layer) check_output(run, layer);
    lease held = run.begin(2).value();
    run.devices[0].generation = 2;
    {
        const device after{&on, 2};
        const lease next = lease::begin({&after, 1}, {0, run.version}, 0).value();
        CHECK(next.resident() == 0);
        CHECK(next.settled() == 0);
        CHECK(on.resident(0) == 0);
        CHECK(on.resident(1) == 0);  // nobody asked for it yet, but it is gone
        CHECK(on.resident(2) == 3);  // a step of before still holds it
    }
    { const lease ended = std::move(held); }
    for (std::size_t layer = 0; layer < 3; ++layer) {
        check_output(run, layer);
        CHECK(run.loaded == every_buffer);
    }
    check_output(run, 1);
    CHECK(run.loaded.empty());
    CHECK(run.alive == 6);
}

TEST_CASE("A13 what a reset has lost does not count against the budget, and what was refused is tried again") {
    plan sizes;
    const std::size_t whole = 4 * (sizes.size(buffer::q) + sizes.size(buffer::k) + sizes.size(buffer::v) + sizes.size(buffer::o));
    images on = images::create({.layers = 2, .images = 2, .byte_budget = whole}).value();
    engine<> run({&on});
    check_output(run, 0);
    CHECK(run.step(1).error().code == fg::errc::out_of_memory);
    {
        lease held = run.begin(1).value();
        held.refuse(0);
        CHECK(held.settled() == qkv_bit);
        CHECK(held.resident() == 0);
    }
    CHECK(on.refused(1) == qkv_bit);
    run.devices[0].generation = 7;
    check_output(run, 1);  // layer 0's images are gone with the others
    CHECK(on.refused(1) == 0);
    CHECK(on.bytes() == whole);
}

TEST_CASE("A14 two devices: a buffer is skipped if and only if both hold every image packed from it") {
    images a = make_images(2), b = make_images(2);
    engine<> run({&a, &b});
    using packings = std::vector<std::pair<std::size_t, image>>;
    check_output(run, 0);
    CHECK(run.loaded == every_buffer);  // once, for both
    CHECK(run.packed_for == packings{{0, image::qkv}, {1, image::qkv}, {0, image::o}, {1, image::o}});
    for (bit_set on_a = 0; on_a < 4; ++on_a) {
        for (bit_set on_b = 0; on_b < 4; ++on_b) {
            CAPTURE(on_a);
            CAPTURE(on_b);
            check_output(run, 0);
            check_output(run, 1);
            packings want;
            for (std::size_t i = 0; i < 2; ++i) {
                const image which{static_cast<int>(i)};
                if ((on_a >> i & 1u) == 0) want.emplace_back(0, which);
                if ((on_b >> i & 1u) == 0) want.emplace_back(1, which);
                CHECK(((on_a >> i & 1u) != 0 || a.evict(0, i)));
                CHECK(((on_b >> i & 1u) != 0 || b.evict(0, i)));
            }
            check_output(run, 0);
            CHECK(run.loaded == buffers_of(~(on_a & on_b)));
            CHECK(run.packed_for == want);
        }
    }
    run.devices[1].generation = 2;  // one of them was reset
    check_output(run, 0);
    CHECK(run.loaded == every_buffer);
    CHECK(run.packed_for == packings{{1, image::qkv}, {1, image::o}});
    // An image that one device refuses is not made for the other either: the host does that work.
    b.clear();
    a.clear();
    {
        lease held = run.begin(1).value();
        held.refuse(1);
        REQUIRE(run.load(held));
        REQUIRE(run.pack<pack_o>(held));
        CHECK(held.find(0, 1) == nullptr);
        CHECK(held.settled() == o_bit);
    }
    // A lease of which one device does not take part holds none.
    images small = make_images(1);
    engine<> uneven({&a, &small});
    CHECK(uneven.begin(1).error().code == fg::errc::invalid_argument);
    CHECK(lease::begin({}, {0, run.version}, 0).error().code == fg::errc::invalid_argument);
    a.retry();
    b.retry();
    check_output(run, 1);
    CHECK(a.evict(1, 0));  // the lease that could not begin holds nothing
}

TEST_CASE("A15 two threads, each with buffers of its own, on two layers and on one") {
    constexpr int rounds = 50;
    for (const bool same_layer : {false, true}) {
        images on = make_images(2);
        engine<> one({&on}), two({&on});
        two.version = one.version;
        std::atomic<int> wrong{0};
        const auto work = [&](engine<>& run, std::size_t layer) {
            for (int round = 0; round < rounds; ++round) {
                run.batch = round % 3 == 0;
                run.modes = round % 5 == 0 ? dump_mode : 0;
                const auto y = run.step(layer);
                if (!y || *y != run.expected(layer)) ++wrong;
                if (round % 7 == 0) on.evict(layer, static_cast<std::size_t>(round) % 2);
                if (round % 11 == 0) on.clear();
                if (on.bytes() > 8 * run.expected(layer).size()) ++wrong;
            }
        };
        std::thread other([&] { work(two, same_layer ? 0 : 1); });
        work(one, 0);
        other.join();
        CHECK(wrong == 0);
        on.clear();
        CHECK(on.bytes() == 0);
        CHECK(one.alive == 0);
        CHECK(two.alive == 0);
    }
}

TEST_CASE("A15 buffers that another layer has filled are refused, not read") {
    images on = make_images(2);
    engine<reuse::skip_resident, reuse::unpoisoned> run({&on});
    lease first = run.begin(0).value(), second = run.begin(1).value();
    REQUIRE(run.load(first));
    REQUIRE(run.load(second));
    CHECK(run.pack<pack_qkv>(first).error().code == fg::errc::invalid_argument);
    CHECK(run.packed_for.empty());
    CHECK(on.resident(0) == 0);
    REQUIRE(run.pack<pack_qkv>(second));
    CHECK(second.find(0, 0)->data().front() == weight(second.now(), 0, 0));
}

TEST_CASE("A15 versions are unique, whichever threads ask for them") {
    std::array<std::vector<weight_version>, 4> got;
    std::vector<std::thread> threads;
    for (auto& mine : got)
        threads.emplace_back([&mine] {
            for (int i = 0; i < 1000; ++i) mine.push_back(reuse::next_weight_version());
        });
    for (std::thread& each : threads) each.join();
    std::set<weight_version> all;
    for (const auto& mine : got) all.insert(mine.begin(), mine.end());
    CHECK(all.size() == 4000);
    CHECK_FALSE(all.contains(weight_version::none));
}

namespace {

// A layer that takes keys and values from another one: a table of its own, in which wk and wv do not occur.
enum class shared_image { q, q_for_index, o };
using pack_shared_q = reuse::packs<shared_image::q, buffer::q>;
using pack_index_q = reuse::packs<shared_image::q_for_index, buffer::q>;
using pack_shared_o = reuse::packs<shared_image::o, buffer::o>;
using shared_kv_table = reuse::reader_table<reuse::buffers<buffer::q, buffer::o>, pack_shared_q, pack_index_q, pack_shared_o>;

}  // namespace

TEST_CASE("A16 a layer with another's keys and values: wq is read twice and loaded once, wk and wv never") {
    static_assert(shared_kv_table::size == 2 && shared_kv_table::declared::count<buffer::k> == 0);
    static_assert(shared_kv_table::images_of<buffer::q> == 0b011);
    static_assert(!shared_kv_table::skip<buffer::q>(0b001, 0) && !shared_kv_table::skip<buffer::q>(0b010, 0));
    static_assert(shared_kv_table::skip<buffer::q>(0b011, 0));
    for (bit_set resident = 0; resident < 8; ++resident) {
        CAPTURE(resident);
        images on = make_images(1, 3);
        reuse::host_buffers<shared_kv_table, matrix, reuse::skip_resident, fg::counters_on, reuse::poisoned> host;
        living alive;
        const device where{&on, 0};
        const stamp now{0, reuse::next_weight_version()};
        const auto run_step = [&]() -> std::vector<std::size_t> {
            lease step = lease::begin({&where, 1}, now, 0).value();
            std::vector<std::size_t> loaded;
            REQUIRE(load_numbers<shared_kv_table>(host, step, loaded));
            const auto pack = [&](const matrix& part) -> fg::result<packed> { return packed(alive, part.data); };
            REQUIRE(host.run<pack_shared_q>(step, pack));
            REQUIRE(host.run<pack_index_q>(step, pack));
            REQUIRE(host.run<pack_shared_o>(step, pack));
            for (std::size_t i = 0; i < 3; ++i) CHECK(step.find(0, i)->data().front() == weight(now, i == 2 ? 1 : 0, 0));
            return loaded;
        };
        CHECK(run_step() == std::vector<std::size_t>{0, 1});
        CHECK(run_step().empty());
        for (std::size_t i = 0; i < 3; ++i)
            if ((resident >> i & 1u) == 0) CHECK(on.evict(0, i));
        std::vector<std::size_t> want;
        if ((resident & 0b011) != 0b011) want.push_back(0);
        if ((resident & 0b100) == 0) want.push_back(1);
        CHECK(run_step() == want);
    }
}

TEST_CASE("A17 a q projection that carries the gate's rows: its size is the plan's, image and host hold the same bytes") {
    for (const bool gated : {false, true}) {
        CAPTURE(gated);
        images on = make_images(1);
        engine<> run({&on});
        run.sizes.gated = gated;
        check_output(run, 0);
        const std::size_t q = 2 * 3 * 4 * (gated ? 2 : 1), kv = 3 * 4, o = 4 * 2 * 3;
        CHECK(on.bytes() == 4 * (q + 2 * kv + o));
        CHECK(run.count(fg::counter::dequantized_bytes) == on.bytes());
        const values by_device = run.step(0).value();
        CHECK(run.loaded.empty());
        run.modes = host_mode;
        CHECK(run.step(0).value() == by_device);
        CHECK(run.loaded == every_buffer);
    }
}

TEST_CASE("A18 buffers that change size from layer to layer: a reader sees what was loaded last, whole") {
    images on = make_images(3);
    engine<> run({&on});
    for (const std::size_t heads : {2u, 5000u, 1u, 3u}) {  // grows, so that memory moves; shrinks
        for (std::size_t layer = 0; layer < 3; ++layer) {
            run.sizes.heads = heads + layer;
            run.version = reuse::next_weight_version();
            check_output(run, layer);
            check_output(run, layer);  // skipped and poisoned, at the new size
            CHECK(run.loaded.empty());
            run.modes = host_mode;
            check_output(run, layer);
            CHECK(run.loaded == every_buffer);
            run.modes = 0;
        }
    }
}

TEST_CASE("A19 images that are not kept: nothing is skipped, and what is launched is what was packed") {
    images on = make_images(2, 2, false);
    engine<> run({&on});
    for (int token = 0; token < 3; ++token) {
        for (std::size_t layer = 0; layer < 2; ++layer) {
            check_output(run, layer);
            CHECK(run.loaded == every_buffer);
            CHECK(run.packed_for.size() == 2);
            CHECK(on.resident(layer) == 0);
        }
    }
    CHECK(run.count(fg::counter::loads_skipped) == 0);
    CHECK(run.alive == 0);
    CHECK(on.bytes() == 0);
    // Within a step, what is there is there for every question asked.
    lease held = run.begin(0).value();
    REQUIRE(run.load(held));
    REQUIRE(run.pack<pack_qkv>(held));
    CHECK(on.resident(0) == held.resident());
    CHECK((held.find(0, 0) != nullptr) == ((held.resident() & qkv_bit) != 0));
    CHECK((held.find(0, 1) != nullptr) == ((held.resident() & o_bit) != 0));
}

TEST_CASE("A20 an exception out of the packing function: the image stays absent, the layer free") {
    images on = make_images(2);
    engine<> run({&on});
    run.throws = true;
    for (image which : {image::qkv, image::o}) {
        run.broken_pack = {which};
        CHECK_THROWS_AS(static_cast<void>(run.step(0)), std::runtime_error);
        CHECK(on.resident(0) == (which == image::qkv ? bit_set{0} : qkv_bit));
        CHECK(on.refused(0) == 0);
        CHECK(run.alive == (which == image::qkv ? 0 : 1));
        CHECK(on.bytes() == 4 * (which == image::qkv ? 0 : run.expected(0).size() - run.sizes.size(buffer::o)));
    }
    CHECK(on.evict(0, 0));  // no lease was left behind
    run.broken_pack.clear();
    check_output(run, 1);
    check_output(run, 0);
    CHECK(run.loaded == every_buffer);
}

TEST_CASE("A21 routed experts: an identifier that depends on the token is no number of a resident image") {
    // The declaration itself is refused by the compiler: tests/compile_fail/load_skip.cpp, TOKEN_DEPENDENT.
    static_assert(!std::is_enum_v<reuse::depends_on_token> && !std::is_integral_v<reuse::depends_on_token>);
    static_assert(!std::is_convertible_v<reuse::depends_on_token, unsigned>);
    CHECK(reuse::same_id<reuse::depends_on_token{1}, reuse::depends_on_token{1}>);
    CHECK_FALSE(reuse::same_id<reuse::depends_on_token{1}, reuse::depends_on_token{2}>);
}

TEST_CASE("A22 buffers that were not loaded are refused, in every build") {
    const auto check = [](auto poisoning) {
        images on = make_images(2);
        engine<reuse::skip_resident, decltype(poisoning)> run({&on});
        run.modes = host_mode;
        lease held = run.begin(0).value();
        bool called = false;
        const auto read = [&](const auto&...) -> fg::status {
            called = true;
            return {};
        };
        CHECK(run.template pack<pack_qkv>(held).error().code == fg::errc::invalid_argument);
        CHECK(run.host.template run<on_host>(held, read).error().code == fg::errc::invalid_argument);
        run.broken_load = {buffer::o};  // the last of the four
        CHECK_FALSE(run.load(held));
        REQUIRE(run.template pack<pack_qkv>(held));
        CHECK(run.template pack<pack_o>(held).error().code == fg::errc::invalid_argument);
        CHECK(run.host.template run<on_host>(held, read).error().code == fg::errc::invalid_argument);
        CHECK_FALSE(called);
        CHECK(run.count(fg::counter::images_packed) == 1);
        CHECK(on.resident(0) == qkv_bit);
        // Another layer, and other weights of the same layer.
        run.broken_load.clear();
        REQUIRE(run.load(held));
        REQUIRE(run.host.template run<on_host>(held, read));
        CHECK(called);
        called = false;
        lease other = run.begin(1).value();
        CHECK(run.host.template run<on_host>(other, read).error().code == fg::errc::invalid_argument);
        { const lease ended = std::move(held); }
        run.version = reuse::next_weight_version();
        lease newer = run.begin(0).value();
        CHECK(run.host.template run<on_host>(newer, read).error().code == fg::errc::invalid_argument);
        CHECK(run.template pack<pack_o>(newer).error().code == fg::errc::invalid_argument);
        CHECK_FALSE(called);
    };
    check(reuse::poisoned{});
    check(reuse::unpoisoned{});
}
