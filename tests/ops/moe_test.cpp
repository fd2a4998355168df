#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "frugal/ops/matmul/grouped_matmul.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/ops/moe/router.hpp"
#include "frugal/quant/formats.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "layer_data.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
namespace quant = frugal::quant;
using test::as_rows;

namespace {

struct routing {
    std::vector<std::int32_t> index;
    std::vector<float> weight;
};

template <class Device>
fg::result<routing> route(Device& dev, std::vector<float> logits, std::size_t experts, std::size_t top_k, bool renormalise) {
    const std::size_t rows = logits.size() / experts;
    routing out{std::vector<std::int32_t>(rows * top_k), std::vector<float>(rows * top_k)};
    FRUGAL_TRY(ops::route(dev, as_rows(logits, experts), renormalise, {out.index.data(), rows, top_k},
                          {out.weight.data(), rows, top_k}));
    return out;
}

}  // namespace

TEST_CASE("the router equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : {"parts/moe_qwen3_5_moe", "parts/moe_qwen4_exp_norm", "parts/moe_qwen4_exp_nonorm"}) {
            const test::golden file(name);
            const auto logits = file.f32("router_logits"), margin = file.f32("margin"), weights = file.f32("topk_weight");
            const auto index = file.i64("topk_index");
            const std::size_t experts = file.params().at("num_experts"), top_k = file.params().at("top_k");
            const bool renormalise = file.params().at("norm_topk_prob");
            for (const std::size_t count : {1u, 4u}) {
                test::threads threads(count);
                fg::device::cpu<Isa> dev(threads);
                const auto got = route(dev, logits, experts, top_k, renormalise);
                REQUIRE(got);
                test::check_close(got->weight, weights, file.tol("topk_weight"), name);
                std::size_t compared = 0;
                for (std::size_t r = 0; r < margin.size(); ++r) {
                    if (margin[r] < 1e-5f) continue;
                    ++compared;
                    for (std::size_t k = 0; k < top_k; ++k) CHECK(got->index[r * top_k + k] == index[r * top_k + k]);
                }
                CHECK(compared == 17);
            }
        }
    });
}

TEST_CASE("equal probabilities go to the lower expert") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto chosen = [&](std::vector<float> logits, std::size_t top_k) {
            const std::size_t experts = logits.size();
            return route(dev, std::move(logits), experts, top_k, true).value().index;
        };
        CHECK(chosen(std::vector<float>(12, 0.0f), 4) == std::vector<std::int32_t>{0, 1, 2, 3});
        CHECK(chosen({0, 1, 0, 1, 2, 1}, 3) == std::vector<std::int32_t>{4, 1, 3});
        CHECK(chosen({0, 1, 0, 1, 2, 1}, 6) == std::vector<std::int32_t>{4, 1, 3, 5, 0, 2});
        CHECK(chosen({-1, 0, 1, 2}, 1) == std::vector<std::int32_t>{3});
        // Logits far below underflow to probability 0 and tie there.
        CHECK(chosen({-900, 5, -800, -1000}, 3) == std::vector<std::int32_t>{1, 0, 2});
    });
}

TEST_CASE("router weights: softmax over all experts first, then the cut") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::vector<float> logits = {std::log(0.5f), std::log(0.25f), std::log(0.125f), std::log(0.125f)};
        const auto plain = route(dev, logits, 4, 2, false), normed = route(dev, logits, 4, 2, true);
        REQUIRE(plain);
        REQUIRE(normed);
        test::check_close(plain->weight, {0.5f, 0.25f}, {1e-6, 0}, "plain");
        test::check_close(normed->weight, {2.0f / 3, 1.0f / 3}, {1e-6, 0}, "renormalised");
        // Huge logits do not overflow.
        const auto huge = route(dev, {3e38f, 3e38f, -3e38f}, 3, 2, false);
        REQUIRE(huge);
        test::check_close(huge->weight, {0.5f, 0.5f}, {0, 0}, "huge");
    });
}

TEST_CASE("C62 a router row without a finite answer is a returned error, not NaN") {
    const float nan_value = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    test::for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        test::threads threads(4);
        fg::device::cpu<Isa> dev(threads);
        for (const float bad : {nan_value, infinity, -infinity})
            for (std::size_t at = 0; at < 5; ++at) {
                std::vector<float> logits(5 * 6, 0.5f);
                logits[2 * 5 + at] = bad;
                logits[4 * 5] = bad;
                const auto got = route(dev, logits, 5, 2, true);
                REQUIRE(!got);
                CHECK(got.error().code == fg::errc::not_finite);
                CHECK(got.error().message.find("row 2 ") != std::string::npos);
            }
        CHECK(route(dev, std::vector<float>(5, -infinity), 5, 2, true).error().code == fg::errc::not_finite);
    });
}

TEST_CASE("a router call that cannot be right is refused") {
    fg::device::cpu<fg::isa::baseline> dev;
    CHECK(route(dev, std::vector<float>(6), 3, 0, true).error().code == fg::errc::invalid_argument);
    CHECK(route(dev, std::vector<float>(6), 3, 4, true).error().code == fg::errc::invalid_argument);
    std::vector<float> logits(6), weight(4);
    std::vector<std::int32_t> index(2);
    CHECK(ops::route(dev, as_rows(logits, 3), true, {index.data(), 2, 1}, as_rows(weight, 2)).error().code ==
          fg::errc::shape_mismatch);
    CHECK(ops::route(dev, fg::matrix_view<float>(nullptr, 0, 3), true, {nullptr, 0, 1}, {nullptr, 0, 1}));
}

TEST_CASE("grouped products have the bits of single ones, for mixed formats and any number of threads") {
    using formats = quant::list<quant::f32, quant::q8_0>;
    const auto data = test::normal_numbers(64 * 33, 1);
    const auto f32 = test::f32_weights(data, 64);
    const test::encoded_weights<quant::q8_0> q8(data, 64);
    test::for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        std::vector<quant::weight_view> weights;
        for (const std::size_t rows : {1u, 4u, 5u, 33u, 0u, 7u, 30u})
            weights.push_back((rows % 2 == 0 ? q8.view : f32).rows_range(0, rows));
        const std::vector<std::size_t> tokens = {3, 0, 1, 2, 2, 5, 1};
        std::vector<std::vector<float>> x, want;
        fg::workspace scratch;
        fg::device::cpu<Isa> alone;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            x.push_back(test::normal_numbers(tokens[i] * 64, 10 + static_cast<unsigned>(i)));
            want.emplace_back(tokens[i] * weights[i].rows);
            REQUIRE(ops::matmul<formats>(alone, scratch, weights[i], {x[i].data(), tokens[i], 64},
                                         {want[i].data(), tokens[i], weights[i].rows}));
        }
        for (const std::size_t count : {1u, 2u, 7u}) {
            test::threads threads(count);
            fg::device::cpu<Isa, fg::counters_on> dev(threads);
            std::vector<std::vector<float>> got;
            std::vector<ops::matmul_product> products;
            std::size_t bytes = 0;
            for (std::size_t i = 0; i < weights.size(); ++i) got.emplace_back(want[i].size(), -7.0f);
            const fg::workspace::scope scope(scratch);
            for (std::size_t i = 0; i < weights.size(); ++i) {
                const auto ready = ops::prepare_activations(dev, scratch, {x[i].data(), tokens[i], 64});
                REQUIRE(ready.has_value());
                products.push_back({weights[i], *ready, {got[i].data(), tokens[i], weights[i].rows}});
                if (tokens[i] != 0) bytes += weights[i].bytes();
            }
            REQUIRE(ops::grouped_matmul<formats>(dev, scratch, products));
            for (std::size_t i = 0; i < weights.size(); ++i) CHECK(test::equal_bits(got[i], want[i]));
            CHECK(dev.counters().read(fg::counter::weight_bytes_read) == bytes);
            // One product that cannot be done leaves all outputs alone.
            for (auto& y : got) std::fill(y.begin(), y.end(), -7.0f);
            products[5].y = {got[5].data(), 1, 7};
            CHECK(ops::grouped_matmul<formats>(dev, scratch, products).error().code == fg::errc::shape_mismatch);
            products.resize(5);
            CHECK(ops::grouped_matmul<quant::list<quant::f32>>(dev, scratch, products).error().code ==
                  fg::errc::unsupported_format);
            for (const auto& y : got) CHECK(std::all_of(y.begin(), y.end(), [](float v) { return v == -7.0f; }));
        }
        CHECK(ops::grouped_matmul<formats>(alone, scratch, {}));
    });
}
