#include "frugal/attention/full/full.hpp"

#include "heads_support.hpp"

namespace fg = frugal;
namespace attention = frugal::attention;
using full = attention::full<test::zero_centred>;
using laws = test::laws<full>;

static_assert(attention::sequence_state<full::state>);

TEST_CASE("C14 full attention equals the reference, left padding not fed") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const std::string name : {"attention/full_hd64_text", "attention/full_hd64_mrope", "attention/full_hd64_leftpad"}) {
            const test::golden file(name);
            const auto layer = test::golden_layer(file);
            const test::golden_rows rows(file, layer.dims.hidden);
            const std::size_t hidden = layer.dims.hidden;
            const auto y = file.f32("y"), keys = file.f32("k_cache"), values = file.f32("v");
            const auto calls = file.params().at("calls").template get<std::vector<std::size_t>>();
            test::arm<full> at_once(layer, 2), in_calls(layer, 2);
            for (std::size_t b = 0; b < 2; ++b) {
                const std::size_t pad = rows.padding[b], count = rows.total - pad;
                const auto want = test::slice(y, (b * rows.total + pad) * hidden, count * hidden);
                const auto s = test::seq(static_cast<int>(b));
                const auto got = at_once.feed(dev, s, rows.streams[b], 0, count);
                test::check_close(got, want, file.tol("y"), name + " y");
                std::vector<float> parts;
                std::size_t end = 0;
                for (const std::size_t call : calls) {
                    const std::size_t begin = std::max(end, pad);
                    end += call;
                    parts =
                        test::joined(parts, in_calls.feed(dev, s, rows.streams[b], begin - pad, end > begin ? end - begin : 0));
                }
                CHECK(test::same_bits(parts, got));
                // The cache: [kv head][token] in the file.
                for (std::size_t h = 0; h < layer.dims.kv_heads; ++h)
                    for (std::size_t t = 0; t < count; ++t) {
                        const std::size_t dim = layer.dims.head_dim,
                                          from = ((b * layer.dims.kv_heads + h) * rows.total + pad + t) * dim;
                        const float* key = at_once.state.keys(s).row(t) + h * dim;
                        const float* value = at_once.state.values(s).row(t) + h * dim;
                        test::check_close({key, key + dim}, test::slice(keys, from, dim), file.tol("k_cache"), name + " key");
                        test::check_close({value, value + dim}, test::slice(values, from, dim), file.tol("v"), name + " value");
                    }
            }
        }
    });
}

TEST_CASE("C23 the same bits for any split of the tokens") { laws{}.any_split(); }
TEST_CASE("the same bits for any number of threads") { laws{}.any_threads(); }
TEST_CASE("C29 two sequences in one cache answer as if alone") { laws{}.two_sequences(); }
TEST_CASE("C18 equal sequences answer alike") { laws{}.equal_sequences(); }
TEST_CASE("C15 C16 padding and empty segments touch nothing") { laws{}.padding(); }
TEST_CASE("C17 a cleared slot is as new") { laws{}.cleared(); }
TEST_CASE("C19 C20 C25 the newest tokens can be taken back, any number of them") { laws{}.rollback(); }
TEST_CASE("C21 a snapshot stays what it was") { laws{}.snapshots(); }
TEST_CASE("C30 a copy equals its source over a used destination") { laws{}.copies(); }
TEST_CASE("C24 saved bytes restore the sequence, broken ones change nothing") { laws{}.saving(); }
TEST_CASE("context overflow changes nothing") { laws{}.overflow(); }
TEST_CASE("a failed pass changes nothing") { laws{}.failure(); }
TEST_CASE("a token that is NaN shows in all that see it") { laws{}.not_a_number_shows(); }

TEST_CASE("y may be the memory of x") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto layer = test::random_layer(8);
        const auto a = test::random_stream(layer.dims.hidden, 12, 1);
        test::arm<full> apart(layer, 1), together(layer, 1);
        const auto want = apart.feed(dev, test::seq(0), a, 0, 12);
        auto xy = a.x;
        const test::segment all{test::seq(0), 0, 12};
        const attention::batch tokens{{&all, 1}, a.positions};
        const fg::matrix_view<float> view(xy.data(), 12, layer.dims.hidden);
        REQUIRE(
            full::forward<test::formats>(dev, together.scratch, layer.sizes(), layer.view(), together.state, tokens, view, view));
        CHECK(test::same_bits(xy, want));
    });
}

TEST_CASE("plain norm weights are 1 + w of zero-centred ones") {
    fg::device::cpu<fg::isa::baseline> dev;
    auto layer = test::random_layer(8);
    const auto a = test::random_stream(layer.dims.hidden, 12, 1);
    test::arm<full> centred(layer, 1);
    const auto want = centred.feed(dev, test::seq(0), a, 0, 12);
    for (float& w : layer.q_norm) w += 1.0f;
    for (float& w : layer.k_norm) w += 1.0f;
    test::arm<attention::full<fg::ops::norm_weight::plain>> plain(layer, 1);
    CHECK(test::same_bits(plain.feed(dev, test::seq(0), a, 0, 12), want));
}

TEST_CASE("a cache of halves stays close to one of floats, and refuses its bytes") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto layer = test::random_layer(8);
        const auto a = test::random_stream(layer.dims.hidden, 60, 1);
        test::arm<full> floats(layer, 1);
        test::arm<attention::full<test::zero_centred, fg::half>> halves(layer, 1);
        const auto want = floats.feed(dev, test::seq(0), a, 0, 60);
        const auto got = halves.feed(dev, test::seq(0), a, 0, 60);
        test::check_close(got, want, {5e-3, 5e-3}, "half cache");
        CHECK_FALSE(test::same_bits(got, want));
        CHECK(halves.state.bytes() * 2 == floats.state.bytes());
        fg::byte_writer out;
        halves.state.save(test::seq(0), out);
        fg::byte_reader in(out.bytes());
        CHECK(floats.state.load(test::seq(0), in).error().code == fg::errc::shape_mismatch);
    });
}

TEST_CASE("memory grows with the tokens, copies share it until they write") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(8);
    const auto a = test::random_stream(layer.dims.hidden, 300, 1);
    test::arm<full> cache(layer, 3, 1u << 30);
    CHECK(cache.state.bytes() == 0);
    cache.feed(dev, test::seq(0), a, 0, 1);
    const std::size_t chunk = cache.state.bytes();
    CHECK(chunk > 0);
    CHECK(chunk < 200000);
    cache.feed(dev, test::seq(0), a, 1, 299);
    CHECK(cache.state.bytes() == 3 * chunk);
    cache.copy(test::seq(0), test::seq(1));
    for (const std::size_t t : {0u, 128u, 299u})
        CHECK(cache.state.keys(test::seq(0)).row(t) == cache.state.keys(test::seq(1)).row(t));
    cache.feed(dev, test::seq(1), a, 0, 1);
    CHECK(cache.state.keys(test::seq(0)).row(128) == cache.state.keys(test::seq(1)).row(128));
    CHECK(cache.state.keys(test::seq(0)).row(299) != cache.state.keys(test::seq(1)).row(299));
    cache.clear(test::seq(0));
    cache.clear(test::seq(1));
    CHECK(cache.state.bytes() == 0);
}

TEST_CASE("wrong shapes and batches are errors that change nothing") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(8);
    const auto a = test::random_stream(layer.dims.hidden, 4, 1);
    test::arm<full> cache(layer, 2);
    std::vector<float> y(a.x.size());
    const auto code = [&](std::vector<test::segment> segments, attention::full_dims dims, std::size_t cols) {
        const attention::batch tokens{segments, a.positions};
        const auto done = full::forward<test::formats>(dev, cache.scratch, dims, layer.view(), cache.state, tokens,
                                                       fg::matrix_view<const float>(a.x.data(), 4, cols),
                                                       fg::matrix_view<float>(y.data(), 4, cols));
        CHECK(cache.state.length(test::seq(0)) + cache.state.length(test::seq(1)) == 0);
        return done ? fg::errc::io : done.error().code;
    };
    const attention::full_dims good = layer.sizes();
    const std::size_t hidden = good.hidden;
    auto dims = good;
    dims.rope = nullptr;
    CHECK(code({{test::seq(0), 0, 4}}, dims, hidden) == fg::errc::invalid_argument);
    dims = good, dims.kv_heads = 3;
    CHECK(code({{test::seq(0), 0, 4}}, dims, hidden) == fg::errc::invalid_argument);
    dims = good, dims.head_dim = 18;
    CHECK(code({{test::seq(0), 0, 4}}, dims, hidden) == fg::errc::shape_mismatch);
    CHECK(code({{test::seq(0), 0, 4}}, good, hidden - 1) == fg::errc::shape_mismatch);
    CHECK(code({{test::seq(0), 0, 3}}, good, hidden) == fg::errc::invalid_argument);
    CHECK(code({{test::seq(2), 0, 4}}, good, hidden) == fg::errc::invalid_argument);
    CHECK(code({{test::seq(0), 0, 2}, {test::seq(0), 2, 2}}, good, hidden) == fg::errc::invalid_argument);
    CHECK(full::state::create(0, 4, 1, 1).error().code == fg::errc::invalid_argument);
    CHECK(full::state::create(1, 4, 1, std::size_t{1} << 40).error().code == fg::errc::invalid_argument);
}
