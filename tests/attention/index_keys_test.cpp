// What a QSA cache keeps for the indexer: block keys in every precision, and raw keys only as far back as asked.
#include <algorithm>
#include <string>
#include <type_traits>

#include "heads_support.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
namespace attention = frugal::attention;
namespace reuse = frugal::reuse;
template <class IndexScalar>
using qsa = attention::qsa<4, test::zero_centred, float, IndexScalar>;
using brains = test::laws<qsa<fg::bfloat16>>;
using bytes = test::laws<qsa<std::int8_t>>;

static_assert([]<class... Scalar>(fg::type_list<Scalar...>) {
    return (attention::sequence_state<attention::qsa_cache<fg::half, Scalar>> && ...);
}(attention::index_precisions{}));

TEST_CASE("C23 bf16 and 8-bit indexer keys: the same bits for any split of the tokens") {
    brains{}.any_split();
    bytes{}.any_split();
}
TEST_CASE("8-bit indexer keys: the same bits for any number of threads") { bytes{}.any_threads(); }
TEST_CASE("C19 C20 C25 bf16 and 8-bit indexer keys: tokens taken back re-open their block") {
    brains{}.rollback();
    bytes{}.rollback();
}
TEST_CASE("C21 8-bit indexer keys: a snapshot stays what it was") { bytes{}.snapshots(); }
TEST_CASE("C30 8-bit indexer keys: a copy equals its source, over a used destination") { bytes{}.copies(); }
TEST_CASE("C24 bf16 and 8-bit indexer keys: saved bytes restore the sequence, broken ones change nothing") {
    brains{}.saving();
    bytes{}.saving();
}
TEST_CASE("C17 8-bit indexer keys: a cleared slot is as new") { bytes{}.cleared(); }
TEST_CASE("8-bit indexer keys: a failed pass changes nothing") { bytes{}.failure(); }

namespace {

const auto s0 = test::seq(0), s1 = test::seq(1);

/// A layer whose cache keeps raw keys as far back as `raw_history`.
template <class IndexScalar>
test::arm<qsa<IndexScalar>> limited(const test::layer_weights& layer, std::size_t sequences, std::size_t raw_history) {
    test::arm<qsa<IndexScalar>> out(layer, sequences);
    out.state = qsa<IndexScalar>::create_state(layer.sizes(), sequences, 4096, raw_history).value();
    return out;
}

std::vector<std::byte> saved(const auto& from, fg::attention::sequence_id s) {
    fg::byte_writer out;
    from.state.save(s, out);
    return std::move(out).take();
}

/// Which part of what each token attends to by f32 indexer keys it attends to by others.
template <class IndexScalar>
double layer_recall() {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(32);
    const auto a = test::random_stream(layer.dims.hidden, 160, 2);
    const auto chosen = [&]<class Scalar>(fg::type_tag<Scalar>) {
        test::arm<qsa<Scalar>> cache(layer, 1);
        cache.feed(dev, s0, a, 0, 160);
        // Any queries will do: random ones.
        const auto q = test::random_stream(layer.dims.index_heads * layer.dims.index_dim, 64, 7).x;
        const auto view = cache.state.block_view(s0);
        const std::vector<ops::block_row<Scalar>> rows(64, {&view, 40});
        std::vector<std::uint32_t> out(64 * 8);
        std::vector<std::size_t> counts(64);
        REQUIRE(ops::select_blocks(dev, cache.scratch, fg::matrix_view<const float>(q.data(), 64, q.size() / 64),
                                   std::span<const ops::block_row<Scalar>>(rows), layer.dims.index_heads, 8, out, counts));
        return out;
    };
    const auto want = chosen(fg::type_tag<float>{}), got = chosen(fg::type_tag<IndexScalar>{});
    double sum = 0;
    for (std::size_t r = 0; r < 64; ++r)
        sum += ops::selection_recall(std::span(want).subspan(r * 8, 8), std::span(got).subspan(r * 8, 8)) / 64;
    return sum;
}

}  // namespace

TEST_CASE("C35 recall of a layer's selection by precision of its indexer keys") {
    const double f16 = layer_recall<fg::half>(), bf16 = layer_recall<fg::bfloat16>(), int8 = layer_recall<std::int8_t>();
    MESSAGE("8 of 40 blocks: f16 ", f16, ", bf16 ", bf16, ", 8 bits ", int8);
    // About twice the blocks missed when this was written: 0, 2 and 4 of 512.
    CHECK(f16 >= 0.995);
    CHECK(bf16 >= 0.99);
    CHECK(int8 >= 0.98);
}

TEST_CASE("C35 the precisions of saved indexer keys are told apart, those of equal size too") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(8);
    const auto a = test::random_stream(layer.dims.hidden, 20, 2);
    test::arm<qsa<fg::half>> halves(layer, 1);
    test::arm<qsa<fg::bfloat16>> brain(layer, 1);
    halves.feed(dev, s0, a, 0, 20);
    const auto state = saved(halves, s0);
    fg::byte_reader in(state);
    const auto done = brain.state.load(s0, in);
    REQUIRE_FALSE(done);
    CHECK(done.error().code == fg::errc::shape_mismatch);
    CHECK(brain.state.length(s0) == 0);
}

TEST_CASE("a block's 8-bit key is its key encoded; the bytes held are a quarter of f32's and the scales") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(8);
    const auto a = test::random_stream(layer.dims.hidden, 600, 2);
    test::arm<qsa<std::int8_t>> coarse(layer, 1);
    test::arm<qsa<fg::bfloat16>> brain(layer, 1);
    coarse.feed(dev, s0, a, 0, 600);
    brain.feed(dev, s0, a, 0, 600);
    const auto& keys = coarse.state.block_keys(s0);
    const std::size_t dim = layer.dims.index_dim;
    REQUIRE(keys.size() == 150);
    for (std::size_t block = 0; block < 150; ++block) {
        // Made from the same bf16 raw keys, so the bf16 key differs by its own rounding alone.
        const float scale = *keys.scales().row(block);
        for (std::size_t i = 0; i < dim; ++i) {
            const float fine = fg::to_float(brain.state.block_keys(s0).row(block)[i]);
            CHECK(std::fabs(scale * fg::to_float(keys.codes().row(block)[i]) - fine) <= 0.51f * scale + std::fabs(fine) / 256);
        }
    }
    CHECK(keys.bytes() == 2 * 128 * (dim + sizeof(float)));
    static_assert(std::is_same_v<qsa<std::int8_t>::state::raw_key_store, attention::token_store<fg::bfloat16>>);
}

TEST_CASE("raw keys of a limited history: each permitted rollback as if the tokens had never been, others refused") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto layer = test::random_layer(8);
        const auto a = test::random_stream(layer.dims.hidden, 300, 2), b = test::random_stream(layer.dims.hidden, 30, 3);
        for (const std::size_t history : {0u, 1u, 5u, 8u}) {
            CAPTURE(history);
            auto source = limited<float>(layer, 2, history);
            for (std::size_t t = 0; t < 298; t += 149) source.feed(dev, s0, a, t, 149);
            const std::size_t kept = (298 - history) / 4 * 4;
            CHECK(source.state.raw_keys(s0).first() == kept);
            const auto before = saved(source, s0);
            for (const std::size_t back :
                 {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 10u, 11u, 12u, 13u, 14u, 43u, 170u, 171u, 198u, 298u}) {
                CAPTURE(back);
                const std::size_t left = 298 - back;
                const bool possible = back <= history || left % 4 == 0 || left / 4 * 4 >= kept;
                source.copy(s0, s1);
                CHECK(source.state.can_rollback(s1, back) == possible);
                const auto done = source.rollback(s1, back);
                CHECK(done.has_value() == possible);
                if (!done) {
                    CHECK(done.error().code == fg::errc::cannot_rollback);
                    CHECK(saved(source, s1) == before);
                    continue;
                }
                CHECK(source.state.length(s1) == left);
                CHECK(source.state.raw_keys(s1).first() == std::min(kept, left));
                test::arm<qsa<float>> plain(layer, 1);
                if (left != 0) plain.feed(dev, s0, a, 0, left);
                CHECK(test::same_bits(source.feed(dev, s1, b, 0, 30), plain.feed(dev, s0, b, 0, 30)));
                CHECK(saved(source, s0) == before);  // the copy let go of chunks, not its source
            }
        }
    });
}

TEST_CASE("raw keys of a limited history: memory does not grow, draft and verify goes on for ever") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(8);
    const auto a = test::random_stream(layer.dims.hidden, 1200, 2), b = test::random_stream(layer.dims.hidden, 4, 3);
    auto tight = limited<float>(layer, 1, 4);
    test::arm<qsa<float>> all(layer, 1);
    std::size_t most = 0;
    std::vector<float> got, want;
    for (std::size_t t = 0; t < 1200; t += 3) {
        tight.feed(dev, s0, b, 0, 4);  // a draft that is not accepted
        REQUIRE(tight.rollback(s0, 4));
        got = test::joined(got, tight.feed(dev, s0, a, t, 3));
        want = test::joined(want, all.feed(dev, s0, a, t, 3));
        most = std::max(most, tight.state.raw_keys(s0).bytes());
    }
    CHECK(test::same_bits(got, want));
    const std::size_t chunk = 128 * layer.dims.index_dim * sizeof(float);
    CHECK(most <= 2 * chunk);
    CHECK(all.state.raw_keys(s0).bytes() == 10 * chunk);
    CHECK(tight.state.bytes() + 8 * chunk <= all.state.bytes());
    CHECK(tight.state.raw_history() == 4);
    CHECK(all.state.raw_history() == qsa<float>::state::unlimited);
}

TEST_CASE("raw keys of a limited history: snapshots keep theirs, saved bytes say where they begin") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(8);
    const auto a = test::random_stream(layer.dims.hidden, 300, 2);
    auto tight = limited<std::int8_t>(layer, 1, 4);
    test::arm<qsa<std::int8_t>> all(layer, 1);
    tight.feed(dev, s0, a, 0, 22);
    const auto early = tight.state.snapshot(s0);
    const auto early_layout = tight.layout.snapshot(s0);
    REQUIRE(early);
    REQUIRE(early_layout);
    tight.feed(dev, s0, a, 22, 278);
    CHECK(tight.state.raw_keys(s0).first() == 296);

    const auto state = saved(tight, s0);
    fg::byte_reader in(state);
    REQUIRE(all.state.load(s0, in));
    CHECK(in.remaining() == 0);
    CHECK(saved(all, s0) == state);
    CHECK(all.state.can_rollback(s0, 3));
    CHECK_FALSE(all.state.can_rollback(s0, 5));
    CHECK(all.state.can_rollback(s0, 8));
    for (const int first : {1, 2, 295, 297, 304}) {
        auto broken = state;
        broken[24] = static_cast<std::byte>(first & 255);
        broken[25] = static_cast<std::byte>(first >> 8);
        fg::byte_reader hostile(broken);
        const auto done = all.state.load(s0, hostile);
        REQUIRE_FALSE(done);
        CHECK(done.error().code == fg::errc::malformed_file);
    }

    REQUIRE(tight.state.restore(s0, *early));
    REQUIRE(tight.layout.restore(s0, *early_layout));
    CHECK(tight.state.raw_keys(s0).first() == 16);
    REQUIRE(tight.rollback(s0, 3));
    test::arm<qsa<std::int8_t>> plain(layer, 1);
    plain.feed(dev, s0, a, 0, 19);
    CHECK(test::same_bits(tight.feed(dev, s0, a, 100, 20), plain.feed(dev, s0, a, 100, 20)));
}
