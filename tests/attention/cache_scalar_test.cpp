// Keys and values in bf16 and q8_0: everything that holds of f32 caches, and how far the results are apart.
#include <string>

#include "heads_support.hpp"

namespace fg = frugal;
namespace attention = frugal::attention;
template <class Scalar>
using full = attention::full<test::zero_centred, Scalar>;
template <class Scalar>
using qsa = attention::qsa<4, test::zero_centred, Scalar, float>;

namespace {

const auto s0 = test::seq(0);

/// Laws of a variant, on heads that blocks of 32 fill.
template <class Variant>
test::laws<Variant> of() {
    return {.layer = test::random_layer(8, 2, 1, 32)};
}

}  // namespace

TEST_CASE("C23 bf16 and q8_0 caches: the same bits for any split of the tokens") {
    of<full<fg::bfloat16>>().any_split();
    of<full<fg::quant::q8_0>>().any_split();
    of<qsa<fg::bfloat16>>().any_split();
    of<qsa<fg::quant::q8_0>>().any_split();
}
TEST_CASE("q8_0 caches: the same bits for any number of threads") {
    of<full<fg::quant::q8_0>>().any_threads();
    of<qsa<fg::quant::q8_0>>().any_threads();
}
TEST_CASE("C19 C20 C25 q8_0 caches: tokens taken back leave no trace") {
    of<full<fg::quant::q8_0>>().rollback();
    of<qsa<fg::quant::q8_0>>().rollback();
}
TEST_CASE("C21 C30 q8_0 caches: snapshots stay what they were, copies equal their source") {
    of<qsa<fg::quant::q8_0>>().snapshots();
    of<qsa<fg::quant::q8_0>>().copies();
}
TEST_CASE("C24 bf16 and q8_0 caches: saved bytes restore the sequence, broken ones change nothing") {
    of<full<fg::bfloat16>>().saving();
    of<full<fg::quant::q8_0>>().saving();
    of<qsa<fg::quant::q8_0>>().saving();
}
TEST_CASE("C17 q8_0 caches: a cleared slot is as new") { of<qsa<fg::quant::q8_0>>().cleared(); }
TEST_CASE("q8_0 caches: a failed pass changes nothing") { of<qsa<fg::quant::q8_0>>().failure(); }

TEST_CASE("bf16 and q8_0 caches: a token that is NaN shows in all that see it") {
    of<full<fg::bfloat16>>().not_a_number_shows();
    of<full<fg::quant::q8_0>>().not_a_number_shows();
    of<qsa<fg::quant::q8_0>>().not_a_number_shows();
}

TEST_CASE("N14: values beyond the range of a cache's type leave every output finite") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        auto layer = test::random_layer(16, 2, 1, 32);
        for (float& weight : layer.v) weight *= 1e8f;
        const auto a = test::random_stream(layer.dims.hidden, 40, 2);
        const auto check = [&]<class Variant>(fg::type_tag<Variant>) {
            test::arm<Variant> cache(layer, 1);
            auto y = cache.feed(dev, s0, a, 0, 39);
            y = test::joined(y, cache.feed(dev, s0, a, 39, 1));
            std::size_t lost = 0;
            for (const float value : y) lost += std::isfinite(value) ? 0 : 1;
            CHECK(lost == 0);
        };
        check(fg::type_tag<full<float>>{});
        check(fg::type_tag<full<fg::half>>{});
        check(fg::type_tag<full<fg::bfloat16>>{});
        check(fg::type_tag<full<fg::quant::q8_0>>{});
        check(fg::type_tag<qsa<fg::half>>{});
    });
}

TEST_CASE("C35 caches of every type stay as close to one of floats as their rounding, and refuse each other's bytes") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto layer = test::random_layer(16, 2, 1, 32);
        const auto a = test::random_stream(layer.dims.hidden, 64, 2);
        test::arm<qsa<float>> floats(layer, 1);
        const auto want = floats.feed(dev, s0, a, 0, 64);
        fg::byte_writer saved;
        floats.state.save(s0, saved);
        const auto check = [&]<class Scalar>(fg::type_tag<Scalar>, float tolerance, std::size_t bytes, std::size_t of_bytes) {
            test::arm<qsa<Scalar>> other(layer, 1);
            const auto got = other.feed(dev, s0, a, 0, 64);
            // f16 rounds to one part in 2^12; bf16 and q8_0 to eight times as much, and are allowed as much more.
            test::check_close(got, want, {tolerance, tolerance}, std::string(attention::scalar_name<Scalar>));
            CHECK_FALSE(test::same_bits(got, want));
            CHECK(other.state.tokens().bytes() * of_bytes == floats.state.tokens().bytes() * bytes);
            fg::byte_reader in(saved.bytes());
            CHECK(other.state.load(s0, in).error().code == fg::errc::shape_mismatch);
            CHECK(other.state.length(s0) == 64);
        };
        check(fg::type_tag<fg::half>{}, 5e-3f, 1, 2);
        check(fg::type_tag<fg::bfloat16>{}, 4e-2f, 1, 2);
        check(fg::type_tag<fg::quant::q8_0>{}, 4e-2f, 34, 128);
    });
    // bf16 and f16 take the same room; they are not each other's.
    test::arm<full<fg::half>> halves(test::random_layer(8), 1);
    test::arm<full<fg::bfloat16>> brains(test::random_layer(8), 1);
    fg::byte_writer out;
    halves.state.save(s0, out);
    fg::byte_reader in(out.bytes());
    CHECK(brains.state.load(s0, in).error().code == fg::errc::shape_mismatch);
}

TEST_CASE("C45 heads that q8_0's blocks do not fill are an error") {
    CHECK(attention::basic_kv_cache<fg::quant::q8_0>::create(2, 19, 1, 10).error().code == fg::errc::invalid_argument);
    CHECK(attention::basic_kv_cache<fg::quant::q8_0>::create(2, 96, 1, 10));
}
