// The load skip, exhaustively: every residency state, path, host mode, failure, eviction and change of a layer of four images and
// eight buffers, against a model written from the invariant. The driver that finds nothing in the library must find every rule
// that is wrong on purpose.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frugal/core/type_list.hpp"
#include "frugal/reuse/weights/host_buffers.hpp"
#include "frugal/reuse/weights/reader_table.hpp"
#include "frugal/reuse/weights/residency.hpp"
#include "load_skip_model.hpp"
#include "sanitizer.hpp"

namespace reuse = frugal::reuse;
using namespace load_skip;

namespace {

// The library.

template <image Image, buffer... Buffer>
using pack = reuse::packs<Image, Buffer...>;
using pack_qkv = pack<image::qkv, buffer::signs, buffer::q, buffer::k, buffer::v>;
using pack_o = pack<image::o, buffer::o>;
using pack_gate_up = pack<image::gate_up, buffer::signs, buffer::gate, buffer::up>;
using pack_down = pack<image::down, buffer::down>;
using on_host = reuse::reads_on_host<mode::host_matmul, buffer::signs, buffer::q, buffer::k, buffer::v, buffer::o, buffer::gate,
                                     buffer::up, buffer::down>;
using dumps = reuse::reads_on_host<mode::dump, buffer::q, buffer::k, buffer::v>;
using declared =
    reuse::buffers<buffer::signs, buffer::q, buffer::k, buffer::v, buffer::o, buffer::gate, buffer::up, buffer::down>;
using table = reuse::reader_table<declared, pack_qkv, pack_o, pack_gate_up, pack_down, on_host, dumps>;

template <class Loading, class Poisoning>
class library {
public:
    library() = default;
    library(const library&) = delete;

    fg::status begin(stamp now, std::uint64_t generation, bit_set on) {
        where_ = {&images_, generation};
        auto began = reuse::lease<fake_image>::begin({&where_, 1}, now, on);
        if (!began) return std::move(began).release_error();
        step_.emplace(std::move(*began));
        return {};
    }
    void end() { step_.reset(); }
    void turn_on(bit_set on) { step_->turn_on(on); }
    void refuse(unsigned which) { step_->refuse(which); }
    [[nodiscard]] bit_set given_up() const { return step_->settled() & ~step_->resident(); }
    template <class F>
    fg::status load(F f) {
        return host_.load(*step_, [&]<auto Which>(reuse::constant<Which>, payload& to) -> fg::result<std::size_t> {
            FRUGAL_TRY(f(static_cast<unsigned>(Which), to));
            return sizeof(payload);
        });
    }
    template <class F>
    fg::status pack(unsigned which, F f) {
        const auto make = [&](const auto&... part) { return f({&part...}); };
        switch (image{which}) {
            case image::qkv: return host_.template run<pack_qkv>(*step_, make);
            case image::o: return host_.template run<pack_o>(*step_, make);
            case image::gate_up: return host_.template run<pack_gate_up>(*step_, make);
            case image::down: return host_.template run<pack_down>(*step_, make);
        }
        return {};
    }
    template <class F>
    fg::status read(unsigned which, F f) {
        const auto look = [&](const auto&... part) -> fg::status {
            f({&part...});
            return {};
        };
        return mode{which} == mode::dump ? host_.template run<dumps>(*step_, look) : host_.template run<on_host>(*step_, look);
    }
    [[nodiscard]] const fake_image* find(unsigned which) const { return step_->find(0, which); }
    void evict(std::size_t layer, unsigned which) { images_.evict(layer, which); }
    [[nodiscard]] bit_set resident(std::size_t layer) const { return images_.resident(layer); }
    void clear() { images_.clear(); }

private:
    reuse::residency<fake_image> images_ =
        reuse::residency<fake_image>::create({.layers = layers, .images = load_skip::images, .byte_budget = byte_budget}).value();
    reuse::host_buffers<table, payload, Loading, fg::counters_off, Poisoning> host_;
    reuse::resident_device<fake_image> where_;
    std::optional<reuse::lease<fake_image>> step_;
};

// The same by hand, as an engine without the library would write it, with a place for every mistake.

/// Whether a buffer need not be filled: settled images, modes that are on.
using skip_rule = std::function<bool(unsigned which, bit_set settled, bit_set on)>;

struct flaws {
    bool images_without_version = false;    ///< residency that does not compare the weights' version
    bool images_without_generation = false; ///< … nor the device's
    bool buffers_without_version = false;   ///< stamps of host buffers that do not compare it
    bool buffers_without_layer = false;
    bool stamp_before_load = false;         ///< a load that fails leaves the buffer stamped as if it had succeeded
    bool decide_early = false;              ///< the skip is decided by what the last step of the layer left, evicted or not
    bool enter_before_packing = false;      ///< a packing that fails leaves an entry
    bool no_second_load = false;            ///< a mode turned on within a step reads what is there
    bool guarded_assembly = false;          ///< assembly of any image skipped if QKV's is there; what is assembled last is packed
};

class by_hand {
public:
    by_hand(skip_rule skip, flaws wrong) : skip_(std::move(skip)), wrong_(wrong) {}

    fg::status begin(stamp now, std::uint64_t generation, bit_set on) {
        layer_state& layer = layers_[now.layer];
        if (!wrong_.images_without_generation && generation != generation_)
            for (layer_state& each : layers_) each.forget();
        generation_ = generation;
        if (!wrong_.images_without_version && layer.version != now.version) layer.forget();
        layer.version = now.version;
        now_ = now;
        on_ = on;
        filled_ = false;
        guarded_ = wrong_.guarded_assembly && layer.made[0] && on == 0;
        return {};
    }
    void end() { layers_[now_.layer].before = here().settled(); }
    void turn_on(bit_set on) { on_ |= on; }
    void refuse(unsigned which) { here().refused |= bit_set{1} << which; }
    [[nodiscard]] bit_set given_up() const { return layers_[now_.layer].refused; }
    template <class F>
    fg::status load(F f) {
        if (wrong_.no_second_load && filled_) return {};
        filled_ = true;
        const bit_set settled = wrong_.decide_early ? here().before | here().settled() : here().settled();
        for (unsigned b = 0; b < buffers; ++b) {
            cell& to = cells_[b];
            if (skip_(b, settled, on_)) continue;
            if (to.holds && (wrong_.buffers_without_version || to.holds->version == now_.version) &&
                (wrong_.buffers_without_layer || to.holds->layer == now_.layer))
                continue;
            if (wrong_.stamp_before_load)
                to.holds = now_;
            else
                to.holds.reset();
            FRUGAL_TRY(f(b, to.data));
            to.holds = now_;
        }
        return {};
    }
    template <class F>
    fg::status pack(unsigned which, F f) {
        if ((here().settled() >> which & 1u) != 0) return {};
        if (!guarded_) {
            assembled_.clear();
            for (unsigned b : readers()[which].reads) assembled_.push_back(cells_[b].data);
        }
        if (wrong_.enter_before_packing) here().entered |= bit_set{1} << which;
        std::vector<const payload*> parts;
        for (const payload& part : assembled_) parts.push_back(&part);
        FRUGAL_TRY_ASSIGN(fake_image made, f(parts));
        if (made.bytes() > byte_budget) return fg::fail(fg::errc::out_of_memory, "over the budget");
        here().made[which].emplace(std::move(made));
        return {};
    }
    template <class F>
    fg::status read(unsigned which, F f) {
        if ((on_ >> which & 1u) == 0) return {};
        std::vector<const payload*> parts;
        for (unsigned b : readers()[images + which].reads) parts.push_back(&cells_[b].data);
        f(parts);
        return {};
    }
    [[nodiscard]] const fake_image* find(unsigned which) const {
        const auto& found = layers_[now_.layer].made[which];
        return found ? &*found : nullptr;
    }
    void evict(std::size_t layer, unsigned which) {
        layers_[layer].made[which].reset();
        layers_[layer].entered &= ~(bit_set{1} << which);
    }
    [[nodiscard]] bit_set resident(std::size_t layer) const { return layers_[layer].resident(); }
    void clear() {
        for (layer_state& each : layers_) each.forget();
    }

private:
    struct layer_state {
        std::array<std::optional<fake_image>, images> made;
        bit_set refused = 0, before = 0, entered = 0;
        reuse::weight_version version{};
        [[nodiscard]] bit_set resident() const {
            bit_set out = entered;
            for (unsigned i = 0; i < images; ++i) out |= made[i] ? bit_set{1} << i : 0;
            return out;
        }
        [[nodiscard]] bit_set settled() const { return resident() | refused; }
        void forget() {
            for (auto& each : made) each.reset();
            refused = before = entered = 0;
        }
    };
    struct cell {
        std::optional<stamp> holds;
        payload data;
    };
    layer_state& here() { return layers_[now_.layer]; }

    skip_rule skip_;
    flaws wrong_;
    std::array<layer_state, layers> layers_;
    std::array<cell, buffers> cells_;
    std::vector<payload> assembled_;
    stamp now_;
    bit_set on_ = 0;
    std::uint64_t generation_ = 0;
    bool filled_ = false, guarded_ = false;
};

/// The rule that follows from a list of readers.
skip_rule derived_from(std::vector<reader> all) {
    return [all = std::move(all)](unsigned which, bit_set settled, bit_set on) {
        for (const reader& each : all)
            for (unsigned b : each.reads)
                if (b == which && (each.packs ? (settled >> each.id & 1u) == 0 : (on >> each.id & 1u) != 0)) return false;
        return true;
    };
}
/// One condition for the whole layer: these images are there and none of these modes is on.
skip_rule one_for_all(bit_set keys, bit_set forbidden) {
    return [=](unsigned, bit_set settled, bit_set on) { return (settled & keys) == keys && (on & forbidden) == 0; };
}

/// Explores an engine by hand until there is a fault of the given kind; whether there was one.
template <class Kind>
bool shows(const skip_rule& rule, flaws wrong, Kind kind) {
    const auto found = [&](const tally& counts) { return kind(counts) != 0; };
    return found(explore([&] { return by_hand(rule, wrong); }, false, false, found));
}
constexpr auto wrong_reads = [](const tally& of) { return of.unloaded_reads + of.stale_reads; };
constexpr auto unloaded_reads = [](const tally& of) { return of.unloaded_reads; };
constexpr auto stale_reads = [](const tally& of) { return of.stale_reads; };
constexpr auto wrong_launches = [](const tally& of) { return of.wrong_launches; };
constexpr auto needless_loads = [](const tally& of) { return of.needless_loads; };
constexpr auto differences = [](const tally& of) { return of.differences; };

void check_proved(const tally& found) {
    CHECK(found.steps == explored_steps);
    CHECK(found.unloaded_reads == 0);
    CHECK(found.stale_reads == 0);
    CHECK(found.wrong_launches == 0);
    CHECK(found.needless_loads == 0);
    CHECK(found.differences == 0);
    CHECK(found.leaks == 0);
    CHECK(found.full_steps > 1000);
}

// A rule written by hand for one attention layer's two images, as engines have them; the rest of the layer is right.
skip_rule attention_only(skip_rule attention) {
    return [attention = std::move(attention), rest = derived_from(readers())](unsigned which, bit_set settled, bit_set on) {
        const bool of_attention = which >= static_cast<unsigned>(buffer::q) && which <= static_cast<unsigned>(buffer::o);
        return of_attention ? attention(which, settled, on) : rest(which, settled, on);
    };
}

struct of_16_states {
    std::uint64_t unloaded = 0, needless = 0;
    std::uint64_t wrong_for_ever = 0;  ///< states after which a later, sound step still launches a wrong image
};
/// The 4 residency states of QKV and O x the 4 mode sets, one step each, after a step of another layer.
of_16_states count_states(const skip_rule& attention, flaws wrong) {
    of_16_states out;
    for (bit_set resident = 0; resident < 4; ++resident) {
        for (bit_set on = 0; on < 4; ++on) {
            long alive = 0;
            tally counts;
            by_hand system(attention_only(attention), wrong);
            driver run(system, model(false, false), counts, alive);
            const reuse::weight_version version = reuse::next_weight_version();
            run.step({{0, version}, 1, 0, true, {}});
            run.evict(0, 3 & ~resident);
            run.step({{1, version}, 1, 0, true, {}});
            counts = {};
            run.step({{0, version}, 1, on, true, {}});
            out.unloaded += counts.unloaded_reads;
            out.needless += counts.needless_loads;
            counts = {};
            run.step({{1, version}, 1, 0, true, {}});
            run.step({{0, version}, 1, 0, true, {}});
            out.wrong_for_ever += counts.wrong_launches != 0 ? 1 : 0;
            system.clear();
        }
    }
    return out;
}

constexpr bit_set qkv = 1, o = 2;

}  // namespace

static_assert(table::size == buffers && table::images == every_image);

TEST_CASE("the model's readers are those of the table") {
    const auto same = []<class Reader>(const reader& plain, fg::type_tag<Reader>) {
        bit_set reads = 0;
        for (unsigned b : plain.reads) reads |= bit_set{1} << b;
        bit_set declared = 0;
        table::for_each_buffer([&]<auto Which>(reuse::constant<Which>) {
            if (Reader::reads::template count<Which> != 0) declared |= bit_set{1} << static_cast<unsigned>(Which);
        });
        return reads == declared && (plain.packs ? Reader::image : Reader::mode) == bit_set{1} << plain.id;
    };
    CHECK(readers().size() == 6);
    CHECK(same(readers()[0], fg::type_tag<pack_qkv>{}));
    CHECK(same(readers()[1], fg::type_tag<pack_o>{}));
    CHECK(same(readers()[2], fg::type_tag<pack_gate_up>{}));
    CHECK(same(readers()[3], fg::type_tag<pack_down>{}));
    CHECK(same(readers()[4], fg::type_tag<on_host>{}));
    CHECK(same(readers()[5], fg::type_tag<dumps>{}));
}

TEST_CASE("skip_resident, poisoned: nothing unloaded or stale is read, nothing is loaded needlessly, every image is its own") {
    const tally found = explore([] { return library<reuse::skip_resident, reuse::poisoned>(); }, false, true);
    check_proved(found);
    CHECK(found.loaded_when_full == 0);
}

TEST_CASE("skip_resident, not poisoned: the same") {
    const tally found = explore([] { return library<reuse::skip_resident, reuse::unpoisoned>(); }, false, false);
    check_proved(found);
    CHECK(found.loaded_when_full == 0);
}

TEST_CASE("reload_always: the same, and everything is loaded in every step") {
    const tally found = explore([] { return library<reuse::reload_always, reuse::unpoisoned>(); }, true, false);
    check_proved(found);
    CHECK(found.loaded_when_full == buffers * found.full_steps);
}

TEST_CASE("the engine by hand is right without a flaw: what kills a mutant is its flaw") {
    check_proved(explore([] { return by_hand(derived_from(readers()), {}); }, false, false));
}

TEST_CASE("mutants: a reader dropped from the table" * doctest::skip(test::under_sanitizer)) {
    for (std::size_t i = 0; i < readers().size(); ++i) {
        CAPTURE(i);
        std::vector<reader> fewer = readers();
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
        CHECK(shows(derived_from(fewer), {}, wrong_reads));
    }
}

TEST_CASE("mutants: a buffer's image key or mode left out of its rule" * doctest::skip(test::under_sanitizer)) {
    int mutants = 0;
    for (std::size_t i = 0; i < readers().size(); ++i) {
        for (std::size_t b = 0; b < readers()[i].reads.size(); ++b) {
            CAPTURE(i);
            CAPTURE(b);
            std::vector<reader> fewer = readers();
            fewer[i].reads.erase(fewer[i].reads.begin() + static_cast<std::ptrdiff_t>(b));
            CHECK(shows(derived_from(fewer), {}, wrong_reads));
            ++mutants;
        }
    }
    CHECK(mutants == 20);
}

TEST_CASE("mutants: one condition for a whole layer" * doctest::skip(test::under_sanitizer)) {
    const bit_set any = host_matmul | dump;
    for (bit_set keys = 0; keys < every_image; ++keys) {
        CAPTURE(keys);
        CHECK(shows(one_for_all(keys, any), {}, wrong_reads));
    }
    for (bit_set forbidden : {bit_set{0}, host_matmul, dump}) CHECK(shows(one_for_all(every_image, forbidden), {}, wrong_reads));
    // All keys and all modes: safe, but it loads what nobody reads wherever a layer is half-resident.
    const tally found = explore([&] { return by_hand(one_for_all(every_image, any), {}); }, false, false);
    CHECK(found.unloaded_reads + found.stale_reads + found.wrong_launches == 0);
    CHECK(found.differences != 0);
    // Never skipping is safe, too.
    CHECK(shows([](unsigned, bit_set, bit_set) { return false; }, {}, needless_loads));
}

TEST_CASE("mutants: what else an engine can forget" * doctest::skip(test::under_sanitizer)) {
    const skip_rule rule = derived_from(readers());
    CHECK(shows(rule, {.images_without_version = true}, wrong_launches));
    CHECK(shows(rule, {.images_without_generation = true}, wrong_launches));
    CHECK(shows(rule, {.buffers_without_version = true}, stale_reads));
    CHECK(shows(rule, {.buffers_without_layer = true}, unloaded_reads));
    CHECK(shows(rule, {.stamp_before_load = true}, unloaded_reads));
    CHECK(shows(rule, {.decide_early = true}, unloaded_reads));
    CHECK(shows(rule, {.enter_before_packing = true}, differences));
    CHECK(shows(rule, {.no_second_load = true}, unloaded_reads));
    CHECK(shows(rule, {.guarded_assembly = true}, wrong_launches));
}

TEST_CASE("five rules written by hand, and how often each is wrong in 16 states") {
    struct row {
        const char* name;
        skip_rule rule;
        std::uint64_t unloaded, needless;
        std::uint64_t wrong_for_ever;  // with an assembly that is guarded by QKV's key
    };
    const bit_set any = host_matmul | dump;
    const std::array<row, 6> rows = {{
        {"derived", derived_from(readers()), 0, 0, 1},
        {"both keys", one_for_all(qkv | o, any), 0, 1, 1},
        {"QKV only", one_for_all(qkv, any), 1, 1, 1},
        {"O only", one_for_all(o, any), 3, 1, 2},
        {"either", [=](unsigned, bit_set settled, bit_set on) { return (settled & (qkv | o)) != 0 && (on & any) == 0; }, 4, 1, 2},
        {"both keys, host products forgotten", one_for_all(qkv | o, dump), 4, 1, 1},
    }};
    for (const row& each : rows) {
        CAPTURE(std::string(each.name));
        const of_16_states found = count_states(each.rule, {});
        CHECK(found.unloaded == each.unloaded);
        CHECK(found.needless == each.needless);
        // Whatever the rule: where a guard of its own decides what is assembled, an image is packed that stays wrong for ever.
        CHECK(count_states(each.rule, {.guarded_assembly = true}).wrong_for_ever == each.wrong_for_ever);
    }
}
