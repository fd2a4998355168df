#pragma once
/// What the exhaustive proof of the load skip consists of: a layer's readers as plain data, an independent model of what a step
/// must do, and the driver that compares a system with it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/reuse/weights/residency.hpp"

namespace load_skip {

namespace fg = frugal;
using fg::reuse::bit_set;
using fg::reuse::stamp;

enum class image : unsigned { qkv, o, gate_up, down };
/// `signs`: those of a rotation that is folded into what it feeds; packed into two images.
enum class buffer : unsigned { signs, q, k, v, o, gate, up, down };
enum class mode : unsigned { host_matmul, dump };

inline constexpr std::size_t images = 4, buffers = 8, modes = 2, layers = 2;
inline constexpr bit_set every_image = 15, host_matmul = 1, dump = 2;

/// The declaration as data. A packing reader has an image, a host reader a mode.
struct reader {
    bool packs;
    unsigned id;
    std::vector<unsigned> reads;
};
inline const std::vector<reader>& readers() {
    static const std::vector<reader> all = {{true, 0, {0, 1, 2, 3}},  {true, 1, {4}}, {true, 2, {0, 5, 6}}, {true, 3, {7}},
                                            {false, 0, {0, 1, 2, 3, 4, 5, 6, 7}}, {false, 1, {1, 2, 3}}};
    return all;
}

/// What is in a buffer: whose weights, of which buffer. Poison is nobody's.
struct payload {
    stamp whose;
    unsigned which = buffers;
    bool poisoned = true;
    void poison() { poisoned = true; }
    friend bool operator==(const payload&, const payload&) = default;
};

/// A packed image: the payloads that were read. `alive` counts those that exist.
class fake_image {
public:
    fake_image(long& alive, std::uint64_t generation, const std::vector<const payload*>& parts, std::size_t bytes)
        : alive_(&alive), generation_(generation), bytes_(bytes) {
        for (const payload* part : parts) parts_[size_++] = *part;
        ++alive;
    }
    fake_image(fake_image&& other) noexcept
        : alive_(std::exchange(other.alive_, nullptr)), generation_(other.generation_), parts_(other.parts_), size_(other.size_),
          bytes_(other.bytes_) {}
    fake_image& operator=(fake_image&& other) noexcept {
        std::swap(alive_, other.alive_);
        std::swap(generation_, other.generation_);
        std::swap(parts_, other.parts_);
        std::swap(size_, other.size_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~fake_image() {
        if (alive_ != nullptr) --*alive_;
    }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }
    [[nodiscard]] bool holds_exactly(const reader& packer, stamp now, std::uint64_t generation) const {
        bool same = size_ == packer.reads.size() && generation_ == generation;
        for (std::size_t i = 0; same && i < size_; ++i) same = parts_[i] == payload{now, packer.reads[i], false};
        return same;
    }

private:
    long* alive_;
    std::uint64_t generation_;  // of the device that it was made on
    std::array<payload, 4> parts_;
    std::size_t size_ = 0, bytes_;
};
inline constexpr std::size_t image_bytes = 1, too_many_bytes = 1000, byte_budget = 100;

/// One thing that a step did. Steps are compared event by event.
enum class what : unsigned char { begin_failed, load, load_failed, pack, pack_failed, put_refused, host_read, launch, gave_up };
struct event {
    what kind;
    unsigned id = 0;
    friend bool operator==(const event&, const event&) = default;
};
using events = std::vector<event>;

struct failure {
    enum class at : unsigned char { nowhere, load, pack, put } where = at::nowhere;
    unsigned id = 0;
    bool fall_back = false;  ///< the host takes over for what could not be packed; else the step ends

    /// How many there are, and the n-th.
    static constexpr std::size_t count = 1 + buffers + 2 * images * 2;
    static constexpr failure nth(std::size_t n) {
        if (n == 0) return {};
        if (n <= buffers) return {at::load, static_cast<unsigned>(n - 1), false};
        n -= 1 + buffers;
        return {n % 2 == 0 ? at::pack : at::put, static_cast<unsigned>(n / 4), n / 2 % 2 != 0};
    }
};

struct step_request {
    stamp now;
    std::uint64_t generation = 0;
    bit_set modes = 0;
    bool batch = false;  ///< assemble all, then launch; else one product after the other
    failure broken;
};

/// What must happen, from the invariant alone: a buffer is filled in a step if and only if a reader of it can run in the step; a
/// packing reader runs if and only if its image is absent (and not given up), a host reader if and only if its mode is on.
/// A buffer that already holds these weights is left alone. `reload`: every buffer is filled, always.
class model {
public:
    /// `poisons`: the system forgets what is in a skipped buffer; the invariant allows either.
    model(bool reload, bool poisons) : reload_(reload), poisons_(poisons) {}

    [[nodiscard]] events step(const step_request& ask) {
        events out;
        layer_state& layer = layers_[ask.now.layer];
        if (generation_ != ask.generation) {  // a reset takes everything
            for (layer_state& each : layers_) each.present = each.given_up = {};
            generation_ = ask.generation;
        }
        if (layer.version != ask.now.version) {
            layer.present = layer.given_up = {};
            layer.version = ask.now.version;
        }
        bool host = (ask.modes & host_matmul) != 0;
        const bool dumps = (ask.modes & dump) != 0;
        for (bool each : layer.given_up) host = host || each;
        if (!load(ask, layer, host, dumps, out)) return out;
        if (dumps) out.push_back({what::host_read, 1});
        const auto pack = [&](unsigned i) {
            if (layer.present[i] || layer.given_up[i]) return true;
            const failure::at where = ask.broken.where;
            const bool broken = ask.broken.id == i && (where == failure::at::pack || where == failure::at::put);
            if (!broken) {
                out.push_back({what::pack, i});
                layer.present[i] = true;
                return true;
            }
            out.push_back({ask.broken.where == failure::at::pack ? what::pack_failed : what::put_refused, i});
            if (!ask.broken.fall_back) return false;
            out.push_back({what::gave_up, i});
            layer.given_up[i] = true;
            host = true;
            return load(ask, layer, host, dumps, out);
        };
        for (unsigned i = 0; i < images; ++i) {
            if (!pack(i)) return out;
            if (!ask.batch && layer.present[i]) out.push_back({what::launch, i});
        }
        for (unsigned i = 0; ask.batch && i < images; ++i)
            if (layer.present[i]) out.push_back({what::launch, i});
        if (host) out.push_back({what::host_read, 0});
        return out;
    }
    void evict(std::size_t layer, unsigned which) { layers_[layer].present[which] = false; }
    [[nodiscard]] bit_set present(std::size_t layer) const { return bits(layers_[layer].present); }
    [[nodiscard]] bit_set given_up(std::size_t layer) const { return bits(layers_[layer].given_up); }

private:
    struct layer_state {
        std::array<bool, images> present{}, given_up{};
        fg::reuse::weight_version version{};
    };
    static bit_set bits(const std::array<bool, images>& of) {
        bit_set out = 0;
        for (unsigned i = 0; i < images; ++i) out |= of[i] ? bit_set{1} << i : 0;
        return out;
    }
    bool load(const step_request& ask, const layer_state& layer, bool host, bool dumps, events& out) {
        std::array<bool, buffers> wanted{};
        for (const reader& each : readers()) {
            const bool runs = each.packs ? !layer.present[each.id] && !layer.given_up[each.id] : each.id == 0 ? host : dumps;
            for (unsigned b : each.reads) wanted[b] = wanted[b] || runs;
        }
        for (unsigned b = 0; b < buffers; ++b) {
            if (!reload_ && !wanted[b]) {
                if (poisons_) holds_[b].reset();
                continue;
            }
            if (!reload_ && holds_[b] == ask.now) continue;
            holds_[b].reset();
            if (ask.broken.where == failure::at::load && ask.broken.id == b) {
                out.push_back({what::load_failed, b});
                return false;
            }
            out.push_back({what::load, b});
            holds_[b] = ask.now;
        }
        return true;
    }

    bool reload_, poisons_;
    std::uint64_t generation_ = 0;
    std::array<layer_state, layers> layers_;
    std::array<std::optional<stamp>, buffers> holds_;
};

/// What went wrong, counted.
struct tally {
    std::uint64_t steps = 0;
    std::uint64_t unloaded_reads = 0;  ///< of poison, or of another layer's weights
    std::uint64_t stale_reads = 0;     ///< of this layer's weights of another version
    std::uint64_t wrong_launches = 0;  ///< of images that are lost, or hold other than their own layer's and version's weights
    std::uint64_t needless_loads = 0;  ///< with every image resident: of what no reader of the step reads
    std::uint64_t differences = 0;     ///< steps in which something else than the model's events happened, or remained
    std::uint64_t leaks = 0;
    std::uint64_t full_steps = 0;      ///< with every image resident, no host mode on and no failure to come
    std::uint64_t loaded = 0, loaded_when_full = 0;  ///< buffers; the latter in such steps

    [[nodiscard]] std::uint64_t faults() const {
        return unloaded_reads + stale_reads + wrong_launches + needless_loads + differences + leaks;
    }
};

/// A system under test:
/// - `begin(stamp, generation, modes) -> status`, `end()`; between them:
/// - `turn_on(modes)`, `refuse(image)`, `given_up() -> bit_set` (refused and not resident);
/// - `load(f(unsigned, payload&) -> status) -> status`; `pack(i, f(parts) -> result<fake_image>) -> status`;
/// - `read(mode, f(parts)) -> status`; `find(i) -> const fake_image*`;
/// - outside of steps: `evict(layer, i)`, `resident(layer) -> bit_set`.
template <class System>
class driver {
public:
    /// `alive` counts the images that exist; outlives the system.
    driver(System& system, model plain, tally& counts, long& alive)
        : system_(system), model_(std::move(plain)), counts_(counts), alive_(alive) {}

    /// One step of the system and of the model.
    void step(const step_request& ask) {
        ++counts_.steps;
        const events wanted = model_.step(ask);
        seen_.clear();
        fully_resident_ = false;
        run(ask);
        system_.end();
        std::uint64_t loads = 0;
        for (const event& each : seen_) {
            if (each.kind != what::load) continue;
            ++loads;
            if (fully_resident_ && std::find(wanted.begin(), wanted.end(), each) == wanted.end()) ++counts_.needless_loads;
        }
        counts_.loaded += loads;
        if (fully_resident_ && ask.modes == 0 && ask.broken.where == failure::at::nowhere) {
            ++counts_.full_steps;
            counts_.loaded_when_full += loads;
        }
        bool same = seen_ == wanted;
        for (std::size_t layer = 0; layer < layers; ++layer) same = same && system_.resident(layer) == model_.present(layer);
        if (!same) ++counts_.differences;
    }
    void evict(std::size_t layer, bit_set which) {
        for (unsigned i = 0; i < images; ++i) {
            if ((which >> i & 1u) == 0) continue;
            system_.evict(layer, i);
            model_.evict(layer, i);
        }
        if (system_.resident(layer) != model_.present(layer)) ++counts_.differences;
    }
    [[nodiscard]] bit_set given_up(std::size_t layer) const { return model_.given_up(layer); }
    [[nodiscard]] bit_set present(std::size_t layer) const { return model_.present(layer); }

private:
    void run(const step_request& ask) {
        const stamp now = ask.now;
        if (!system_.begin(now, ask.generation, ask.modes)) return seen_.push_back({what::begin_failed});
        const bool host_takes_over = system_.given_up() != 0;
        if (host_takes_over) system_.turn_on(host_matmul);
        fully_resident_ = system_.resident(now.layer) == every_image;
        const auto fill = [&]() -> bool {
            return system_
                .load([&](unsigned b, payload& to) -> fg::status {
                    if (ask.broken.where == failure::at::load && ask.broken.id == b) {
                        to = {};  // what was there is lost
                        seen_.push_back({what::load_failed, b});
                        return fg::fail(fg::errc::io, "cannot read");
                    }
                    to = {now, b, false};
                    seen_.push_back({what::load, b});
                    return {};
                })
                .has_value();
        };
        const auto look = [&](const std::vector<const payload*>& parts) {
            for (const payload* part : parts) {
                if (part->poisoned || part->whose.layer != now.layer)
                    ++counts_.unloaded_reads;
                else if (part->whose.version != now.version)
                    ++counts_.stale_reads;
            }
        };
        const auto read = [&](unsigned which) -> bool {
            return system_
                .read(which,
                      [&](const std::vector<const payload*>& parts) {
                          look(parts);
                          seen_.push_back({what::host_read, which});
                      })
                .has_value();
        };
        const auto pack = [&](unsigned i) -> bool {
            const bool broken = ask.broken.id == i;
            const bool refused = broken && ask.broken.where == failure::at::put;
            const fg::status done = system_.pack(i, [&](const std::vector<const payload*>& parts) -> fg::result<fake_image> {
                look(parts);
                if (broken && ask.broken.where == failure::at::pack) {
                    seen_.push_back({what::pack_failed, i});
                    return fg::fail(fg::errc::out_of_memory, "device full");
                }
                seen_.push_back({refused ? what::put_refused : what::pack, i});
                return fake_image(alive_, ask.generation, parts, refused ? too_many_bytes : image_bytes);
            });
            if (done) return true;
            if (done.error().code != fg::errc::out_of_memory || !ask.broken.fall_back) return false;
            seen_.push_back({what::gave_up, i});
            system_.refuse(i);
            system_.turn_on(host_matmul);
            return fill();
        };
        const auto launch = [&](unsigned i) {
            const fake_image* found = system_.find(i);
            if (found == nullptr) return;
            seen_.push_back({what::launch, i});
            if (!found->holds_exactly(readers()[i], now, ask.generation)) ++counts_.wrong_launches;
        };
        if (!fill() || !read(1)) return;
        for (unsigned i = 0; i < images; ++i) {
            if (!pack(i)) return;
            if (!ask.batch) launch(i);
        }
        for (unsigned i = 0; ask.batch && i < images; ++i) launch(i);
        static_cast<void>(read(0));
    }

    System& system_;
    model model_;
    tally& counts_;
    long& alive_;
    bool fully_resident_ = false;
    events seen_;
};

/// Every residency state x path x mode set x failure x eviction x change between the steps x another layer between them or not.
/// Ends early where `enough(tally)`: of a mutant, one fault of the expected kind will do.
template <class MakeSystem, class Enough>
tally explore(MakeSystem make, bool reload, bool poisons, Enough enough) {
    enum change : unsigned { none, new_weights, reset, changes };
    tally counts;
    fg::reuse::weight_version version = fg::reuse::next_weight_version();
    for (bit_set resident = 0; resident <= every_image; ++resident)
        for (const bool batch : {false, true})
            for (bit_set on = 0; on < 4; ++on)
                for (std::size_t broken = 0; broken < failure::count; ++broken)
                    for (bit_set evicted = 0; evicted <= every_image; ++evicted)
                        for (unsigned between = none; between < changes; ++between)
                            for (const bool other_layer : {false, true}) {
                                long alive = 0;
                                auto system = make();
                                driver run(system, model(reload, poisons), counts, alive);
                                std::uint64_t generation = 1;
                                step_request ask{{0, version}, generation, 0, false, {}};
                                const step_request other{{1, version}, generation, 0, !batch, {}};
                                run.step(ask);  // the way to the state: all images, then only the wanted ones
                                run.evict(0, ~resident);
                                if (other_layer) run.step(other);  // the buffers hold another layer's weights
                                ask.modes = on;
                                ask.batch = batch;
                                ask.broken = failure::nth(broken);
                                run.step(ask);
                                run.evict(0, evicted);
                                if (between == new_weights) ask.now.version = version = fg::reuse::next_weight_version();
                                if (between == reset) ask.generation = ++generation;
                                if (other_layer) {
                                    run.evict(1, evicted);  // so that it loads what will be missing here
                                    run.step({{1, ask.now.version}, ask.generation, on, batch, {}});
                                }
                                ask.broken = {};
                                run.step(ask);
                                // Whatever has happened: everything that was not given up is there.
                                const bit_set there = system.resident(0);
                                if (there != (every_image & ~run.given_up(0)) || there != run.present(0)) ++counts.differences;
                                std::uint64_t held = 0;
                                for (std::size_t layer = 0; layer < layers; ++layer)
                                    for (unsigned i = 0; i < images; ++i) held += system.resident(layer) >> i & 1u;
                                if (alive != static_cast<long>(held)) ++counts.leaks;
                                system.clear();
                                if (alive != 0) ++counts.leaks;
                                if (enough(counts)) return counts;
                            }
    return counts;
}

template <class MakeSystem>
tally explore(MakeSystem make, bool reload, bool poisons) {
    return explore(make, reload, poisons, [](const tally&) { return false; });
}

/// How many steps that is: three of a scenario without another layer in between, five of one with.
inline constexpr std::uint64_t explored_steps = std::uint64_t{16} * 2 * 4 * failure::count * 16 * 3 * (3 + 5);

}  // namespace load_skip
