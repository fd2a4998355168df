#pragma once
/// Layers of full attention and QSA with random or golden weights, and the laws that the states of both must obey.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "frugal/attention/full/full.hpp"
#include "frugal/attention/qsa/qsa.hpp"
#include "frugal/quant/formats/f16.hpp"
#include "frugal/quant/formats/f32.hpp"
#include "frugal/reuse/inputs/qsa_layout.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace test {

namespace fg = frugal;
namespace attention = frugal::attention;
using attention::rope_position;
using attention::segment;
using attention::sequence_id;
using fg::matrix_view;
using formats = fg::quant::list<fg::quant::f32>;
using zero_centred = fg::ops::norm_weight::zero_centred;

inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

inline sequence_id seq(int index) { return static_cast<sequence_id>(index); }

inline fg::quant::weight_view view_of(const std::vector<float>& data, std::size_t rows, std::size_t cols) {
    auto view = fg::quant::make_weight_view<formats>(fg::quant::f32::type, std::as_bytes(std::span(data)), rows, cols);
    REQUIRE(view);
    return *view;
}

/// Tokens of one sequence as a layer sees them.
struct stream {
    std::size_t hidden = 0;
    std::vector<float> x;
    std::vector<rope_position> positions;

    [[nodiscard]] std::size_t size() const { return positions.size(); }
};

inline stream random_stream(std::size_t hidden, std::size_t tokens, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    stream out{hidden, std::vector<float>(tokens * hidden), {}};
    for (float& value : out.x) value = normal(generator);
    for (std::size_t t = 0; t < tokens; ++t) {
        const auto at = static_cast<std::int32_t>(t);
        out.positions.push_back(t % 11 < 4 ? rope_position{at, at / 2, at + 3} : rope_position{at, at, at});
    }
    return out;
}

/// Weights of a QSA layer, and so of a full one as well.
struct layer_weights {
    attention::qsa_dims dims;
    fg::ops::rope_table rope;
    std::vector<float> q, k, v, o, q_norm, k_norm, indexer_q, indexer_k, indexer_q_norm, indexer_k_norm;

    [[nodiscard]] attention::qsa_weights view() const {
        const std::size_t heads = dims.heads * dims.head_dim, kv = dims.kv_heads * dims.head_dim;
        attention::qsa_weights out;
        static_cast<attention::full_weights&>(out) = {view_of(q, 2 * heads, dims.hidden),
                                                      view_of(k, kv, dims.hidden),
                                                      view_of(v, kv, dims.hidden),
                                                      view_of(o, dims.hidden, heads),
                                                      q_norm,
                                                      k_norm};
        if (dims.index_heads != 0) {
            out.indexer_q = view_of(indexer_q, dims.index_heads * dims.index_dim, dims.hidden);
            out.indexer_k = view_of(indexer_k, dims.index_dim, dims.hidden);
            out.indexer_q_norm = indexer_q_norm;
            out.indexer_k_norm = indexer_k_norm;
        }
        return out;
    }
    [[nodiscard]] attention::qsa_dims sizes() const {
        auto out = dims;
        out.rope = &rope;
        return out;
    }
};

inline layer_weights random_layer(std::size_t budget, std::size_t index_heads = 2, unsigned seed = 1, std::size_t head_dim = 19) {
    layer_weights out;
    out.dims.hidden = 21;
    out.dims.heads = 4;
    out.dims.kv_heads = 2;
    out.dims.head_dim = head_dim;
    out.dims.eps = 1e-6f;
    out.dims.index_heads = index_heads;
    out.dims.index_dim = 11;
    out.dims.budget = budget;
    out.rope = fg::ops::rope_table::make(1e4, 10, {2, 2, 1});
    std::mt19937 generator(seed);
    const auto fill = [&](std::vector<float>& to, std::size_t size, float deviation) {
        std::normal_distribution<float> normal(0, deviation);
        to.resize(size);
        for (float& value : to) value = normal(generator);
    };
    fill(out.q, 2 * 4 * head_dim * 21, 0.3f);
    fill(out.k, 2 * head_dim * 21, 0.3f);
    fill(out.v, 2 * head_dim * 21, 0.3f);
    fill(out.o, 21 * 4 * head_dim, 0.2f);
    fill(out.q_norm, head_dim, 0.3f);
    fill(out.k_norm, head_dim, 0.3f);
    fill(out.indexer_q, index_heads * 11 * 21, 0.3f);
    fill(out.indexer_k, 11 * 21, 0.3f);
    fill(out.indexer_q_norm, 11, 0.3f);
    fill(out.indexer_k_norm, 11, 0.3f);
    return out;
}

inline layer_weights golden_layer(const golden& file) {
    const auto& p = file.params();
    layer_weights out;
    out.dims.hidden = p.at("hidden_size");
    out.dims.heads = p.at("num_heads");
    out.dims.kv_heads = p.at("num_kv_heads");
    out.dims.head_dim = p.at("head_dim");
    out.dims.eps = p.at("rms_eps");
    out.rope = fg::ops::rope_table::make(p.at("theta"), p.at("rotary_dim"), p.at("mrope_section").get<std::array<int, 3>>());
    out.q = file.f32("w.q_proj.weight");
    out.k = file.f32("w.k_proj.weight");
    out.v = file.f32("w.v_proj.weight");
    out.o = file.f32("w.o_proj.weight");
    out.q_norm = file.f32("w.q_norm.weight");
    out.k_norm = file.f32("w.k_norm.weight");
    if (!p.contains("index_heads")) return out;
    out.dims.index_heads = p.at("index_heads");
    out.dims.index_dim = p.at("index_head_dim");
    out.dims.budget = p.at("budget");
    const auto both = file.f32("w.indexer.index_qk_proj.weight");  // query rows, then key rows
    const auto cut = both.begin() + static_cast<std::ptrdiff_t>(out.dims.index_heads * out.dims.index_dim * out.dims.hidden);
    out.indexer_q.assign(both.begin(), cut);
    out.indexer_k.assign(cut, both.end());
    out.indexer_q_norm = file.f32("w.indexer.q_layernorm.weight");
    out.indexer_k_norm = file.f32("w.indexer.k_layernorm.weight");
    return out;
}

/// The visible tokens of every row of a golden case; `padding[b]` tokens on the left are not fed.
struct golden_rows {
    std::size_t total = 0;
    std::vector<stream> streams;
    std::vector<std::size_t> padding;

    golden_rows(const golden& file, std::size_t hidden) {
        const auto shape = file.shape("x");
        total = shape[1];
        const auto x = file.f32("x");
        const auto positions = file.i64("positions"), valid = file.i64("valid");
        for (std::size_t b = 0; b < shape[0]; ++b) {
            std::size_t pad = 0;
            while (valid[b * total + pad] == 0) ++pad;
            padding.push_back(pad);
            stream one{hidden, {}, {}};
            for (std::size_t t = pad; t < total; ++t) {
                REQUIRE(valid[b * total + t] == 1);
                const auto* row = &x[(b * total + t) * hidden];
                one.x.insert(one.x.end(), row, row + hidden);
                const auto at = [&](std::size_t c) {
                    return static_cast<std::int32_t>(positions[(c * shape[0] + b) * total + t]);
                };
                one.positions.push_back({at(0), at(1), at(2)});
            }
            streams.push_back(std::move(one));
        }
    }
};

/// A layer with its state. `feed` runs one batch and returns its output rows.
template <class Variant>
struct arm {
    static constexpr bool sparse = requires { Variant::ratio; };

    const layer_weights* layer;
    typename Variant::state state;
    fg::reuse::qsa_layout layout;
    fg::workspace scratch;

    arm(const layer_weights& weights, std::size_t sequences, std::size_t max_tokens = 4096)
        : layer(&weights),
          state(Variant::create_state(weights.sizes(), sequences, max_tokens).value()),
          layout(fg::reuse::qsa_layout::create(ratio(), sequences).value()) {}
    static constexpr std::size_t ratio() {
        if constexpr (sparse)
            return Variant::ratio;
        else
            return 4;
    }

    struct piece {
        sequence_id sequence;
        const stream* from;
        std::size_t first, count;
    };

    template <class Device>
    fg::status run(Device& dev, const std::vector<piece>& pieces, std::vector<float>& y, const attention::qsa_weights& weights) {
        std::vector<segment> segments;
        std::vector<rope_position> positions;
        std::vector<float> x;
        const std::size_t hidden = layer->dims.hidden;
        for (const piece& p : pieces) {
            segments.push_back({p.sequence, positions.size(), p.count});
            for (std::size_t t = p.first; t < p.first + p.count; ++t) {
                positions.push_back(p.from->positions[t]);
                x.insert(x.end(), &p.from->x[t * hidden], &p.from->x[t * hidden] + hidden);
            }
        }
        y.assign(positions.size() * hidden, not_a_number);
        const attention::batch tokens{segments, positions};
        const matrix_view<const float> in(x.data(), positions.size(), hidden);
        const matrix_view<float> out(y.data(), positions.size(), hidden);
        {  // What the workspace hands out may hold anything.
            fg::workspace::scope scope(scratch);
            float* junk = scratch.floats(50000).value();
            std::fill(junk, junk + 50000, not_a_number);
        }
        if constexpr (sparse) {
            REQUIRE(layout.append(tokens));
            return Variant::template forward<formats>(dev, scratch, layer->sizes(), weights, state, tokens, layout, in, out);
        } else {
            return Variant::template forward<formats>(dev, scratch, layer->sizes(), weights, state, tokens, in, out);
        }
    }
    template <class Device>
    std::vector<float> feed(Device& dev, const std::vector<piece>& pieces) {
        std::vector<float> y;
        const auto done = run(dev, pieces, y, layer->view());
        REQUIRE_MESSAGE(done, done.error().message);
        return y;
    }
    template <class Device>
    std::vector<float> feed(Device& dev, sequence_id s, const stream& from, std::size_t first, std::size_t count) {
        return feed(dev, {piece{s, &from, first, count}});
    }
    // Edits go to the layout alike.
    fg::status rollback(sequence_id s, std::size_t n) {
        FRUGAL_TRY(state.rollback(s, n));
        if constexpr (sparse) return layout.rollback(s, n);
        return {};
    }
    void copy(sequence_id from, sequence_id to) {
        REQUIRE(state.copy(from, to));
        REQUIRE(layout.copy(from, to));
    }
    void clear(sequence_id s) {
        state.clear(s);
        layout.clear(s);
    }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline std::vector<float> slice(const std::vector<float>& all, std::size_t first, std::size_t count) {
    return {all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

inline std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

/// Laws that every variant with a cache obeys, over every instruction set.
template <class Variant>
struct laws {
    using tested = arm<Variant>;
    using piece = typename tested::piece;
    layer_weights layer = random_layer(8);
    std::size_t hidden = layer.dims.hidden;
    stream a = random_stream(hidden, 60, 2), b = random_stream(hidden, 60, 3);

    template <class Body>
    static void everywhere(Body&& body) {
        for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
            fg::device::cpu<Isa> dev;
            body(dev);
        });
    }
    template <class Device>
    std::vector<float> alone(Device& dev, const stream& from, std::size_t count) {
        tested fresh(layer, 1);
        return fresh.feed(dev, seq(0), from, 0, count);
    }

    void any_split() {
        everywhere([&](auto& dev) {
            const auto whole = alone(dev, a, 60);
            for (const std::vector<std::size_t>& cuts :
                 {std::vector<std::size_t>(60, 1), {7, 1, 20, 32}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 5}, {59, 1}}) {
                tested split(layer, 1);
                std::vector<float> y;
                std::size_t at = 0;
                for (const std::size_t count : cuts) y = joined(y, split.feed(dev, seq(0), a, at, count)), at += count;
                CHECK(same_bits(y, whole));
            }
        });
    }
    void any_threads() {
        for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
            fg::device::cpu<Isa> serial;
            const auto whole = alone(serial, a, 60);
            for (const std::size_t count : {2u, 3u, 9u}) {
                threads pool(count);
                fg::device::cpu<Isa> many{pool};
                CHECK(same_bits(alone(many, a, 60), whole));
                tested split(layer, 1);
                auto y = split.feed(many, seq(0), a, 0, 50);
                for (std::size_t t = 50; t < 60; ++t) y = joined(y, split.feed(many, seq(0), a, t, 1));
                CHECK(same_bits(y, whole));
            }
        });
    }
    /// Two sequences, both from position 0, interleaved: each equals its run alone.
    void two_sequences() {
        everywhere([&](auto& dev) {
            tested both(layer, 2);
            std::vector<float> of_a, of_b;
            std::size_t i = 0;
            for (std::size_t t = 0; t < 36; t += i % 4 + 1, ++i) {
                const std::size_t n = std::min<std::size_t>(i % 4 + 1, 36 - t);
                const bool a_first = i % 2 == 0;
                const piece pa{seq(1), &a, t, n}, pb{seq(0), &b, t, n};
                const auto y = both.feed(dev, a_first ? std::vector{pa, pb} : std::vector{pb, pa});
                of_a = joined(of_a, slice(y, a_first ? 0 : n * hidden, n * hidden));
                of_b = joined(of_b, slice(y, a_first ? n * hidden : 0, n * hidden));
            }
            CHECK(same_bits(of_a, alone(dev, a, 36)));
            CHECK(same_bits(of_b, alone(dev, b, 36)));
        });
    }
    /// Four equal sequences and another, in turn and together: the four answer alike.
    void equal_sequences() {
        everywhere([&](auto& dev) {
            const auto want_a = alone(dev, a, 20), want_b = alone(dev, b, 20);
            tested five(layer, 5);
            for (int s = 0; s < 5; ++s)
                CHECK(same_bits(five.feed(dev, seq(s), s == 2 ? b : a, 0, 17), slice(s == 2 ? want_b : want_a, 0, 17 * hidden)));
            for (std::size_t t = 17; t < 20; ++t) {
                std::vector<piece> pieces;
                for (int s = 0; s < 5; ++s) pieces.push_back({seq(s), s == 2 ? &b : &a, t, 1});
                const auto y = five.feed(dev, pieces);
                for (std::size_t s = 0; s < 5; ++s)
                    CHECK(same_bits(slice(y, s * hidden, hidden), slice(s == 2 ? want_b : want_a, t * hidden, hidden)));
            }
        });
    }
    /// Padding is neither read nor written and gives zeros; segments of no tokens and batches of no rows change nothing.
    void padding() {
        everywhere([&](auto& dev) {
            stream junk = random_stream(hidden, 3, 4);
            for (float& value : junk.x) value = not_a_number;
            tested padded(layer, 3);
            padded.feed(dev, seq(1), b, 0, 9);
            const auto y = padded.feed(dev, {piece{sequence_id::padding, &junk, 0, 2}, piece{seq(2), &a, 0, 30},
                                             piece{seq(1), &b, 9, 0}, piece{sequence_id::padding, &junk, 0, 3},
                                             piece{seq(0), &a, 0, 5}, piece{sequence_id::padding, &junk, 0, 0}});
            CHECK(same_bits(slice(y, 2 * hidden, 30 * hidden), alone(dev, a, 30)));
            CHECK(same_bits(slice(y, 35 * hidden, 5 * hidden), alone(dev, a, 5)));
            for (std::size_t i = 0; i < 2 * hidden; ++i) CHECK(y[i] == 0.0f);
            for (std::size_t i = 32 * hidden; i < 35 * hidden; ++i) CHECK(y[i] == 0.0f);
            CHECK(padded.state.length(seq(1)) == 9);
            CHECK(padded.feed(dev, {}).empty());
            CHECK(padded.feed(dev, {piece{seq(1), &b, 9, 0}}).empty());
            CHECK(same_bits(padded.feed(dev, seq(1), b, 9, 3), slice(alone(dev, b, 12), 9 * hidden, 3 * hidden)));
        });
    }
    /// A slot that held NaN, once cleared, is as never used.
    void cleared() {
        everywhere([&](auto& dev) {
            stream poison = random_stream(hidden, 40, 5);
            for (float& value : poison.x) value = not_a_number;
            tested used(layer, 2);
            used.feed(dev, seq(0), poison, 0, 40);
            used.clear(seq(0));
            CHECK(used.state.length(seq(0)) == 0);
            CHECK(same_bits(used.feed(dev, seq(0), a, 0, 25), alone(dev, a, 25)));
            // Taken back instead of cleared: the same.
            used.feed(dev, seq(1), poison, 0, 40);
            REQUIRE(used.rollback(seq(1), 40));
            CHECK(same_bits(used.feed(dev, seq(1), a, 0, 25), alone(dev, a, 25)));
        });
    }
    /// Back by n of 8 tokens, then other tokens: as if the last n had never been. More than there are is refused.
    void rollback() {
        everywhere([&](auto& dev) {
            for (const std::size_t back : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u}) {
                tested edited(layer, 1), plain(layer, 1);
                edited.feed(dev, seq(0), a, 0, 8);
                CHECK(edited.state.can_rollback(seq(0), back) == (back <= 8));
                const auto done = edited.rollback(seq(0), back);
                const std::size_t kept = back <= 8 ? 8 - back : 8;
                CHECK(done.has_value() == (back <= 8));
                if (!done) CHECK(done.error().code == fg::errc::cannot_rollback);
                CHECK(edited.state.length(seq(0)) == kept);
                plain.feed(dev, seq(0), a, 0, kept);
                CHECK(same_bits(edited.feed(dev, seq(0), b, 0, 30), plain.feed(dev, seq(0), b, 0, 30)));
                CHECK(saved(edited) == saved(plain));
            }
            // Drafts: three tokens, accept 0 … 3, again and again, at every phase of a block.
            tested drafted(layer, 1);
            std::vector<float> y;
            std::size_t at = 0;
            for (std::size_t round = 0; at + 3 <= 60; ++round) {
                const std::size_t accept = round % 4;
                stream draft = b;
                std::copy_n(&a.x[at * hidden], accept * hidden, draft.x.begin());
                std::copy_n(&a.positions[at], accept, draft.positions.begin());
                const auto part = drafted.feed(dev, seq(0), draft, 0, 3);
                REQUIRE(drafted.rollback(seq(0), 3 - accept));
                y = joined(y, slice(part, 0, accept * hidden));
                at += accept;
            }
            CHECK(same_bits(y, slice(alone(dev, a, 60), 0, at * hidden)));
        });
    }
    /// A snapshot holds the sequence as it was, whatever is done to the sequence later.
    void snapshots() {
        everywhere([&](auto& dev) {
            const auto want = alone(dev, a, 60);
            tested kept(layer, 2);
            kept.feed(dev, seq(0), a, 0, 14);
            const auto state = kept.state.snapshot(seq(0));
            const auto layout = kept.layout.snapshot(seq(0));
            REQUIRE(state);
            REQUIRE(layout);
            kept.feed(dev, seq(0), b, 0, 33);
            REQUIRE(kept.rollback(seq(0), 40));
            kept.feed(dev, seq(0), b, 0, 20);
            kept.clear(seq(0));
            for (const int to : {0, 1}) {  // the same slot, and one that holds something else
                kept.feed(dev, seq(to), b, 0, 3);
                REQUIRE(kept.state.restore(seq(to), *state));
                REQUIRE(kept.layout.restore(seq(to), *layout));
                CHECK(kept.state.length(seq(to)) == 14);
                CHECK(same_bits(kept.feed(dev, seq(to), a, 14, 46), slice(want, 14 * hidden, 46 * hidden)));
            }
        });
    }
    /// A copy equals its source, over whatever the destination held; from then on the two are independent.
    void copies() {
        everywhere([&](auto& dev) {
            const auto want = alone(dev, a, 60);
            tested two(layer, 2);
            two.feed(dev, seq(0), a, 0, 9);
            two.feed(dev, seq(1), b, 0, 31);
            two.copy(seq(0), seq(1));
            CHECK(saved(two, 0) == saved(two, 1));
            two.feed(dev, seq(0), b, 9, 20);  // the source goes elsewhere
            CHECK(same_bits(two.feed(dev, seq(1), a, 9, 51), slice(want, 9 * hidden, 51 * hidden)));
            tested source(layer, 1);
            source.feed(dev, seq(0), a, 0, 9);
            source.feed(dev, seq(0), b, 9, 20);
            CHECK(saved(two, 0) == saved(source));
            two.copy(seq(1), seq(1));
            CHECK(two.state.length(seq(1)) == 60);
            CHECK(two.state.copy(seq(0), seq(7)).error().code == fg::errc::invalid_argument);
            CHECK(two.state.copy(sequence_id::padding, seq(0)).error().code == fg::errc::invalid_argument);
        });
    }
    static std::vector<std::byte> saved(const tested& from, int s = 0) {
        fg::byte_writer out;
        from.state.save(seq(s), out);
        return std::move(out).take();
    }
    /// Bytes and back; a load that fails changes nothing.
    void saving() {
        fg::device::cpu<fg::isa::baseline> dev;
        const auto want = alone(dev, a, 40);
        tested one(layer, 1), other(layer, 2);
        one.feed(dev, seq(0), a, 0, 13);
        const auto bytes = saved(one);
        fg::byte_writer layout;
        one.layout.save(seq(0), layout);
        other.feed(dev, seq(1), b, 0, 21);
        const auto before = saved(other, 1);
        for (std::size_t cut = 0; cut < bytes.size(); cut += cut < 100 ? 1 : 97) {
            fg::byte_reader in(std::span<const std::byte>(bytes).first(cut));
            CHECK_FALSE(other.state.load(seq(1), in));
        }
        auto broken = bytes;
        for (const std::size_t at : {0u, 4u, 8u, 16u}) {  // tag and sizes
            broken = bytes;
            broken[at] ^= std::byte{1};
            fg::byte_reader in(broken);
            CHECK_FALSE(other.state.load(seq(1), in));
        }
        CHECK(saved(other, 1) == before);
        fg::byte_reader in(bytes), layout_in(layout.bytes());
        REQUIRE(other.state.load(seq(1), in));
        REQUIRE(other.layout.load(seq(1), layout_in));
        CHECK(in.remaining() == 0);
        CHECK(layout_in.remaining() == 0);
        CHECK(saved(other, 1) == bytes);
        CHECK(same_bits(other.feed(dev, seq(1), a, 13, 27), slice(want, 13 * hidden, 27 * hidden)));
        tested small(layer, 1, 12);
        fg::byte_reader again(bytes);
        CHECK(small.state.load(seq(0), again).error().code == fg::errc::context_overflow);
        const auto snapshot = other.state.snapshot(seq(1));
        CHECK(small.state.restore(seq(0), *snapshot).error().code == fg::errc::context_overflow);
    }
    /// More tokens than a sequence may hold are an error that changes nothing, in any sequence of the batch.
    void overflow() {
        everywhere([&](auto& dev) {
            tested tight(layer, 2, 20);
            tight.feed(dev, {piece{seq(0), &a, 0, 12}, piece{seq(1), &b, 0, 18}});
            const auto first = saved(tight, 0), second = saved(tight, 1);
            std::vector<float> y;
            const auto done = tight.run(dev, {piece{seq(0), &a, 12, 5}, piece{seq(1), &b, 18, 3}}, y, layer.view());
            REQUIRE_FALSE(done);
            CHECK(done.error().code == fg::errc::context_overflow);
            CHECK(saved(tight, 0) == first);
            CHECK(saved(tight, 1) == second);
            REQUIRE(tight.layout.rollback(seq(0), tested::sparse ? 5 : 0));
            REQUIRE(tight.layout.rollback(seq(1), tested::sparse ? 3 : 0));
            CHECK(tight.state.reserve(seq(0), 9).error().code == fg::errc::context_overflow);
            CHECK(tight.state.reserve(seq(0), 8));
            CHECK(tight.state.length(seq(0)) == 12);
            CHECK(same_bits(tight.feed(dev, seq(0), a, 12, 8), slice(alone(dev, a, 20), 12 * hidden, 8 * hidden)));
        });
    }
    /// A pass that fails late, here for the format of the last product, leaves every sequence as it was.
    void failure() {
        everywhere([&](auto& dev) {
            tested careful(layer, 1);
            careful.feed(dev, seq(0), a, 0, 10);
            const auto before = saved(careful);
            auto weights = layer.view();
            weights.o.type = fg::quant::f16::type;
            std::vector<float> y;
            const auto done = careful.run(dev, {piece{seq(0), &b, 0, 7}}, y, weights);
            REQUIRE_FALSE(done);
            CHECK(done.error().code == fg::errc::unsupported_format);
            CHECK(saved(careful) == before);
            REQUIRE(careful.layout.rollback(seq(0), tested::sparse ? 7 : 0));
            CHECK(same_bits(careful.feed(dev, seq(0), a, 10, 10), slice(alone(dev, a, 20), 10 * hidden, 10 * hidden)));
        });
    }
    /// A token that is NaN, the first or a later one, shows in its own output and in those of the tokens that see it (of QSA here:
    /// those before its block is complete and ranks last), at once and token by token; tokens before it keep their bits.
    void not_a_number_shows() {
        everywhere([&](auto& dev) {
            const auto want = alone(dev, a, 20);
            for (const std::size_t at : {std::size_t{0}, std::size_t{9}}) {
                stream spoilt = a;
                spoilt.x[at * hidden + 3] = not_a_number;
                const auto got = alone(dev, spoilt, 20);
                CHECK(same_bits(slice(got, 0, at * hidden), slice(want, 0, at * hidden)));
                const std::size_t end = tested::sparse ? at / 4 * 4 + 3 : 20;
                for (std::size_t i = at * hidden; i < end * hidden; ++i) CHECK(std::isnan(got[i]));
                tested one(layer, 1);
                std::vector<float> stepwise;
                for (std::size_t t = 0; t < 20; ++t) stepwise = joined(stepwise, one.feed(dev, seq(0), spoilt, t, 1));
                CHECK(same_bits(stepwise, got));
            }
        });
    }
};

}  // namespace test
