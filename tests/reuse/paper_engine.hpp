#pragma once
/// An attention layer on a device of paper, for the tests of the load skip.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "frugal/core/counters.hpp"
#include "frugal/reuse/weights/host_buffers.hpp"
#include "frugal/reuse/weights/reader_table.hpp"
#include "frugal/reuse/weights/residency.hpp"

namespace paper {

namespace fg = frugal;
namespace reuse = frugal::reuse;
using reuse::bit_set;
using reuse::stamp;
using reuse::weight_version;

enum class image { qkv, o };
enum class buffer { q, k, v, o };
enum class mode { host_matmul, dump };

using pack_qkv = reuse::packs<image::qkv, buffer::q, buffer::k, buffer::v>;
using pack_o = reuse::packs<image::o, buffer::o>;
using on_host = reuse::reads_on_host<mode::host_matmul, buffer::q, buffer::k, buffer::v, buffer::o>;
using dump_q = reuse::reads_on_host<mode::dump, buffer::q>;
using table = reuse::reader_table<reuse::buffers<buffer::q, buffer::k, buffer::v, buffer::o>, pack_qkv, pack_o, on_host, dump_q>;

inline constexpr bit_set qkv_bit = reuse::bit_of<image::qkv>(), o_bit = reuse::bit_of<image::o>();
inline constexpr bit_set host_mode = reuse::bit_of<mode::host_matmul>(), dump_mode = reuse::bit_of<mode::dump>();

// Sizes of a layer's matrices; the q projection carries the gate's rows too.
struct plan {
    std::size_t heads = 2, kv_heads = 1, head_dim = 3, hidden = 4;
    bool gated = false;
    [[nodiscard]] std::size_t size(buffer which) const {
        switch (which) {
            case buffer::q: return heads * head_dim * (gated ? 2 : 1) * hidden;
            case buffer::k:
            case buffer::v: return kv_heads * head_dim * hidden;
            case buffer::o: return hidden * heads * head_dim;
        }
        return 0;
    }
};

// Every weight tells whose it is.
inline float weight(stamp whose, std::size_t which, std::size_t at) {
    return static_cast<float>(whose.layer * 1000003 + static_cast<std::uint64_t>(whose.version) * 7919 + which * 101 + at);
}
using values = std::vector<float>;

struct matrix {
    values data;
    void poison() {
        for (float& value : data) value = std::numeric_limits<float>::quiet_NaN();
    }
};

// How many images exist. The images keep the count: they may outlive the one who asks.
struct living {
    std::shared_ptr<std::atomic<int>> count = std::make_shared<std::atomic<int>>(0);
    operator int() const { return *count; }
};

class packed {
public:
    packed(const living& alive, values data) : alive_(alive.count), data_(std::move(data)) { ++*alive_; }
    packed(packed&& other) noexcept = default;
    packed& operator=(packed&& other) noexcept {
        std::swap(alive_, other.alive_);
        std::swap(data_, other.data_);
        return *this;
    }
    ~packed() {
        if (alive_ != nullptr) --*alive_;
    }
    [[nodiscard]] std::size_t bytes() const { return data_.size() * sizeof(float); }
    [[nodiscard]] const values& data() const { return data_; }

private:
    std::shared_ptr<std::atomic<int>> alive_;
    values data_;
};

using images = reuse::residency<packed>;
using lease = reuse::lease<packed>;
using device = reuse::resident_device<packed>;

inline images make_images(std::size_t layers, std::size_t count = 2, bool keep = true) {
    return images::create({.layers = layers, .images = count, .keep = keep}).value();
}

template <class... Matrix>
values stack(const Matrix&... part) {
    values out;
    (out.insert(out.end(), part.data.begin(), part.data.end()), ...);
    return out;
}

// An attention layer's four products on a device of paper: an image's "product" is its content, so that outputs show every value
// that was read.
template <class Loading = reuse::skip_resident, class Poisoning = reuse::poisoned>
struct engine {
    explicit engine(std::vector<images*> where) {
        for (images* each : where) devices.push_back({each, 1});
    }

    plan sizes;
    std::vector<device> devices;
    weight_version version = reuse::next_weight_version();
    bit_set modes = 0;
    bool batch = false;  // assemble all images, then launch, as prefill does
    std::set<buffer> broken_load;
    std::set<image> broken_pack;
    bool throws = false;
    living alive;

    // What the last step did.
    std::vector<buffer> loaded;
    std::vector<std::pair<std::size_t, image>> packed_for;
    values dumped;
    reuse::host_buffers<table, matrix, Loading, fg::counters_on, Poisoning> host;

    [[nodiscard]] values expected(std::size_t layer) const {
        values out;
        for (buffer which : {buffer::q, buffer::k, buffer::v, buffer::o})
            for (std::size_t i = 0; i < sizes.size(which); ++i)
                out.push_back(weight({layer, version}, static_cast<std::size_t>(which), i));
        return out;
    }
    [[nodiscard]] fg::result<lease> begin(std::size_t layer) { return lease::begin(devices, {layer, version}, modes); }
    [[nodiscard]] fg::status load(const lease& step) {
        return host.load(
            step, [&]<auto Which>(reuse::constant<Which>, matrix & to)->fg::result<std::size_t> {
                if (broken_load.contains(Which)) {
                    to.data.assign(3, -1.0f);  // half-written
                    return fg::fail(fg::errc::io, "cannot read");
                }
                to.data.resize(sizes.size(Which));
                for (std::size_t i = 0; i < to.data.size(); ++i)
                    to.data[i] = weight(step.now(), static_cast<std::size_t>(Which), i);
                loaded.push_back(Which);
                return to.data.size() * sizeof(float);
            });
    }
    template <class Reader>
    [[nodiscard]] fg::status pack(lease& step) {
        return host.template run<Reader>(step, [&](std::size_t which, const auto&... matrices) -> fg::result<packed> {
            if (broken_pack.contains(Reader::id)) {
                if (throws) throw std::runtime_error("packing failed");
                return fg::fail(fg::errc::device_failed, "cannot pack");
            }
            packed_for.emplace_back(which, Reader::id);
            return packed(alive, stack(matrices...));
        });
    }
    // The last device computes.
    [[nodiscard]] fg::status launch(const lease& step, image which, values& y) const {
        const packed* found = step.find(step.devices() - 1, static_cast<std::size_t>(which));
        if (found == nullptr) return fg::fail(fg::errc::not_found, "launched without an image");
        y.insert(y.end(), found->data().begin(), found->data().end());
        return {};
    }
    [[nodiscard]] fg::result<values> step(std::size_t layer) {
        loaded.clear();
        packed_for.clear();
        dumped.clear();
        FRUGAL_TRY_ASSIGN(lease held, begin(layer));
        FRUGAL_TRY(load(held));
        FRUGAL_TRY(host.template run<dump_q>(held, [&](const matrix& q) -> fg::status {
            dumped = q.data;
            return {};
        }));
        values y;
        if ((held.modes() & host_mode) != 0) {
            FRUGAL_TRY(host.template run<on_host>(held, [&](const auto&... all) -> fg::status {
                y = stack(all...);
                return {};
            }));
            return y;
        }
        FRUGAL_TRY(pack<pack_qkv>(held));
        if (batch) FRUGAL_TRY(pack<pack_o>(held));
        FRUGAL_TRY(launch(held, image::qkv, y));
        if (!batch) FRUGAL_TRY(pack<pack_o>(held));
        FRUGAL_TRY(launch(held, image::o, y));
        return y;
    }
    // Brings a layer's images into a state: `resident` and no other.
    void arrange(std::size_t layer, bit_set resident) {
        REQUIRE(step(layer));
        for (device& each : devices)
            for (std::size_t i = 0; i < 2; ++i)
                if ((resident >> i & 1u) == 0) each.images->evict(layer, i);
        REQUIRE(devices.front().images->resident(layer) == resident);
    }
    [[nodiscard]] std::uint64_t count(fg::counter which) const { return host.counters().read(which); }
};

template <class Engine>
void check_output(Engine& from, std::size_t layer) {
    const auto y = from.step(layer);
    REQUIRE(y);
    CHECK(*y == from.expected(layer));
}

inline std::vector<buffer> buffers_of(bit_set absent) {
    std::vector<buffer> out;
    if ((absent & qkv_bit) != 0) out = {buffer::q, buffer::k, buffer::v};
    if ((absent & o_bit) != 0) out.push_back(buffer::o);
    return out;
}
inline const std::vector<buffer> every_buffer = buffers_of(qkv_bit | o_bit);

// Loads every buffer and tells which, by their numbers in `Table`.
template <class Table, class Host>
fg::status load_numbers(Host& host, const lease& step, std::vector<std::size_t>& loaded) {
    return host.load(
        step, [&]<auto Which>(reuse::constant<Which>, matrix & to)->fg::result<std::size_t> {
            loaded.push_back(Table::template index_of<Which>());
            to.data = {weight(step.now(), Table::template index_of<Which>(), 0)};
            return sizeof(float);
        });
}

}  // namespace paper
