#include "frugal/ops/ngram/ngram.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "frugal/quant/formats.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "layer_data.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
namespace quant = frugal::quant;

namespace {

ops::ngram_hash_parameters parameters(const test::golden& file, std::size_t module) {
    const auto& p = file.params();
    return {p.at("ngram_size"),
            p.at("heads_per_ngram"),
            p.at("vocab_size"),
            p.at("eos_token_id"),
            p.contains("base") ? p.at("base") : p.at("ngram_vocab_size_base"),
            p.at("seed"),
            module};
}

std::vector<std::int32_t> ids_of(const test::golden& file, const char* name) {
    std::vector<std::int32_t> out;
    for (const std::int64_t id : file.i64(name)) out.push_back(static_cast<std::int32_t>(id));
    return out;
}

std::vector<std::int64_t> as_signed(const std::vector<std::uint64_t>& values) { return {values.begin(), values.end()}; }

}  // namespace

TEST_CASE("n-gram constants equal the reference") {
    for (const char* name : {"tiny", "ngram4", "model_size"}) {
        CAPTURE(name);
        const test::golden file(std::string("parts/ple_constants_") + name);
        for (std::size_t module = 0; module < 3; ++module) {
            const auto hash = ops::ngram_hash::derive(parameters(file, module));
            REQUIRE(hash);
            const std::string suffix = fg::concat("_", module);
            CHECK(as_signed(hash->multipliers) == file.i64("multipliers" + suffix));
            CHECK(as_signed(hash->head_sizes) == file.i64("head_sizes" + suffix));
            CHECK(as_signed(hash->head_offsets) == file.i64("head_offsets" + suffix));
            CHECK(static_cast<std::int64_t>(hash->table_rows()) == file.i64("table_rows" + suffix)[0]);
            const auto again =
                ops::ngram_hash::from_constants(hash->ngram_size, hash->heads_per_ngram, hash->vocabulary, hash->eos,
                                                hash->multipliers, hash->head_offsets, hash->head_sizes);
            REQUIRE(again);
            CHECK(*again == *hash);
        }
    }
}

TEST_CASE("the released model's n-gram constants come out") {
    const auto hash = ops::ngram_hash::derive({3, 8, 248320, 248044, 20'000'000, 1234, 0});
    REQUIRE(hash);
    CHECK(hash->multipliers == std::vector<std::uint64_t>{23703573157769, 20109073645365, 8052911324071});
    CHECK(hash->head_sizes.front() == 20'000'003);
    CHECK(hash->head_sizes.back() == 20'000'171);
    CHECK(hash->table_rows() == 320'001'446);
}

TEST_CASE("n-gram rows equal the reference, in one call and in any split") {
    for (const char* name : {"tiny", "ngram4", "model_size"})
        for (const std::size_t module : {0u, 1u}) {
            const test::golden file(fg::concat("parts/ple_ids_", name, "_p", module));
            CAPTURE(file.name());
            const auto hash = ops::ngram_hash::derive(parameters(file, module));
            REQUIRE(hash);
            const auto tokens = ids_of(file, "tokens"), context_after = ids_of(file, "context_after");
            const auto want = file.i64("ids");
            const std::size_t total = file.shape("tokens")[1], heads = hash->heads(), context = hash->context();
            for (std::size_t s = 0; s < 3; ++s) {
                const auto own = std::span(tokens).subspan(s * total, total);
                for (const auto& calls : {std::vector<std::size_t>{total}, std::vector<std::size_t>{1, 1, 9, 1, 1, 1, 7, 2},
                                          std::vector<std::size_t>(total, 1)}) {
                    std::vector<std::int32_t> before(context, static_cast<std::int32_t>(hash->eos));
                    std::vector<std::int64_t> got(total * heads);
                    std::size_t at = 0;
                    for (const std::size_t n : calls) {
                        REQUIRE(hash->rows(before, own.subspan(at, n), std::span(got).subspan(at * heads, n * heads)));
                        before.insert(before.end(), own.begin() + static_cast<std::ptrdiff_t>(at),
                                      own.begin() + static_cast<std::ptrdiff_t>(at + n));
                        before.erase(before.begin(), before.end() - static_cast<std::ptrdiff_t>(context));
                        at += n;
                    }
                    CHECK(std::equal(got.begin(), got.end(), want.begin() + static_cast<std::ptrdiff_t>(s * total * heads)));
                    CHECK(std::equal(before.begin(), before.end(),
                                     context_after.begin() + static_cast<std::ptrdiff_t>(s * context)));
                }
            }
        }
}

TEST_CASE("tokens outside the vocabulary and constants that do not fit are refused") {
    const auto hash = *ops::ngram_hash::derive({3, 2, 97, 5, 50, 1234, 0});
    std::vector<std::int64_t> rows(2 * hash.heads());
    const std::vector<std::int32_t> before = {5, 5};
    for (const std::int32_t bad : {97, -1, INT32_MIN, INT32_MAX}) {
        const auto got = hash.rows(before, std::vector<std::int32_t>{3, bad}, rows);
        REQUIRE(!got);
        CHECK(got.error().code == fg::errc::invalid_argument);
        CHECK(hash.rows(std::vector<std::int32_t>{bad, 5}, std::vector<std::int32_t>{3, 3}, rows).error().code ==
              fg::errc::invalid_argument);
    }
    CHECK(hash.rows(std::vector<std::int32_t>{5}, std::vector<std::int32_t>{3, 3}, rows).error().code ==
          fg::errc::shape_mismatch);
    CHECK(hash.rows(before, std::vector<std::int32_t>{3}, rows).error().code == fg::errc::shape_mismatch);
    CHECK(hash.rows(before, {}, {}));

    const auto refused = [&](auto change) {
        auto changed = hash;
        change(changed);
        const auto got =
            ops::ngram_hash::from_constants(changed.ngram_size, changed.heads_per_ngram, changed.vocabulary, changed.eos,
                                            changed.multipliers, changed.head_offsets, changed.head_sizes);
        REQUIRE(!got);
        CHECK(got.error().code == fg::errc::invalid_argument);
    };
    refused([](auto& h) { h.ngram_size = 1; });
    refused([](auto& h) { h.ngram_size = 4; });
    refused([](auto& h) { h.heads_per_ngram = 0; });
    refused([](auto& h) { h.eos = 97; });
    refused([](auto& h) { h.eos = -1; });
    refused([](auto& h) { h.vocabulary = 0; });
    refused([](auto& h) {  // ids beyond 31 bits
        h.vocabulary = std::int64_t{1} << 31;
        h.multipliers.assign(h.multipliers.size(), 1);
    });
    refused([](auto& h) { h.multipliers.pop_back(); });
    refused([](auto& h) { h.head_sizes[1] = 0; });
    refused([](auto& h) { h.head_offsets[1] = ~std::uint64_t{0}; });
    refused([](auto& h) { h.multipliers[2] = std::uint64_t{1} << 62; });  // times 96 is beyond 63 bits
    CHECK(!ops::ngram_hash::derive({1, 2, 97, 5, 50, 0, 0}));
    CHECK(!ops::ngram_hash::derive({3, 2, 97, 97, 50, 0, 0}));
    CHECK(!ops::ngram_hash::derive({3, 2, 97, 5, std::uint64_t{1} << 50, 0, 0}));
}

TEST_CASE("rows of a sharded table equal those of the whole, for equal and unequal shards of any format") {
    constexpr std::size_t cols = 64, rows = 30;
    const auto data = test::normal_numbers(rows * cols, 3);
    const auto f32 = test::f32_weights(data, cols);
    const test::encoded_weights<quant::q8_0> q8(data, cols);
    using formats = quant::list<quant::f32, quant::q8_0>;
    std::vector<std::int64_t> wanted = {0, 29, 10, 9, 9, -1, 20, 19, 1};
    test::for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        for (const std::size_t count : {1u, 4u}) {
            test::threads threads(count);
            fg::device::cpu<Isa, fg::counters_on> dev(threads);
            for (const auto& lengths :
                 {std::vector<std::size_t>{30}, {10, 10, 10}, {1, 0, 8, 21}, std::vector<std::size_t>(30, 1)}) {
                std::vector<quant::weight_view> shards;
                std::size_t first = 0;
                for (const std::size_t n : lengths) {
                    shards.push_back((shards.size() % 2 == 0 ? f32 : q8.view).rows_range(first, n));
                    first += n;
                }
                const auto table = ops::row_table::make(shards);
                REQUIRE(table);
                CHECK(table->rows() == rows);
                CHECK(table->cols() == cols);
                std::vector<float> y(wanted.size() * cols, -7);
                REQUIRE(ops::table_rows<formats>(dev, *table, wanted, test::as_rows(y, cols)));
                for (std::size_t i = 0; i < wanted.size(); ++i) {
                    if (wanted[i] < 0) {
                        for (std::size_t c = 0; c < cols; ++c) CHECK(y[i * cols + c] == 0);
                        continue;
                    }
                    const auto row = static_cast<std::size_t>(wanted[i]);
                    std::size_t shard = 0, end = lengths[0];
                    while (row >= end) end += lengths[++shard];
                    std::vector<float> want(cols);
                    if (shard % 2 == 0) {
                        std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(row * cols), cols, want.begin());
                    } else {
                        for (std::size_t b = 0; b < cols / 32; ++b)
                            quant::q8_0::decode(q8.view.row(row) + b * quant::q8_0::block_bytes, want.data() + b * 32);
                    }
                    CHECK(std::equal(want.begin(), want.end(), y.begin() + static_cast<std::ptrdiff_t>(i * cols)));
                }
            }
        }
    });
    fg::device::cpu<fg::isa::baseline> dev;
    const ops::row_table table(f32);
    std::vector<float> y(cols, -7);
    CHECK(ops::table_rows<formats>(dev, table, std::vector<std::int64_t>{30}, test::as_rows(y, cols)).error().code ==
          fg::errc::invalid_argument);
    CHECK(ops::table_rows<formats>(dev, table, std::vector<std::int64_t>{1, 2}, test::as_rows(y, cols)).error().code ==
          fg::errc::shape_mismatch);
    CHECK(ops::table_rows<quant::list<quant::q8_0>>(dev, table, std::vector<std::int64_t>{1}, test::as_rows(y, cols))
              .error()
              .code == fg::errc::unsupported_format);
    CHECK(std::all_of(y.begin(), y.end(), [](float v) { return v == -7; }));
    CHECK(!ops::row_table::make({}));
    CHECK(!ops::row_table::make({f32, test::f32_weights(data, 32)}));
}

TEST_CASE("the n-gram gate takes the signed root, and is one half at zero") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        // One stream of 4: dot / sqrt(4).
        const auto gate = [&](std::vector<float> key, std::vector<float> query) {
            const std::vector<float> value = {1, 2, 3, 4};
            REQUIRE(ops::ngram_gate(dev, test::as_rows(key, 4), test::as_rows(query, 4), test::as_rows(value, 4),
                                    test::as_rows(key, 4)));
            for (std::size_t i = 0; i < 4 && !std::isnan(key[0]); ++i) CHECK(key[i] == doctest::Approx(key[0] * value[i]));
            return static_cast<double>(key[0]);
        };
        const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
        CHECK(gate({1, 1, 1, 1}, {2, 2, 2, 2}) == doctest::Approx(sigmoid(2)));
        CHECK(gate({1, 1, 1, 1}, {-2, -2, -2, -2}) == doctest::Approx(sigmoid(-2)));
        CHECK(gate({0, 0, 0, 0}, {1, 1, 1, 1}) == 0.5);
        CHECK(gate({0, 0, 0, 0}, {-1, -1, -1, -1}) == 0.5);
        CHECK(gate({1e-8f, 0, 0, 0}, {1, 0, 0, 0}) == doctest::Approx(sigmoid(1e-3)).epsilon(1e-7));
        CHECK(gate({-1e-8f, 0, 0, 0}, {1, 0, 0, 0}) == doctest::Approx(sigmoid(-1e-3)).epsilon(1e-7));
        CHECK(std::isnan(gate({std::numeric_limits<float>::quiet_NaN(), 0, 0, 0}, {1, 0, 0, 0})));
        std::vector<float> three(3), eight(8);
        CHECK(ops::ngram_gate(dev, test::as_rows(eight, 8), test::as_rows(eight, 8), test::as_rows(three, 3),
                              test::as_rows(eight, 8))
                  .error()
                  .code == fg::errc::shape_mismatch);
    });
}
