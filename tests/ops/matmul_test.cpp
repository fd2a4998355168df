// ops::matmul and ops::matmul_q8: against sums in double over the decoded weights, within derived bounds; the same bits for
// any split and any number of threads; every format, every instruction set.
#include "frugal/ops/matmul/matmul.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/device/cpu/simd.hpp"
#include "isa.hpp"
#include "threads.hpp"
#include "weights.hpp"

namespace device = frugal::device;
namespace ops = frugal::ops;
namespace quant = frugal::quant;
using frugal::errc;
using frugal::matrix_view;
using frugal::status;
using frugal::workspace;

namespace {

enum class product { f32, q8 };

template <class Device>
status multiply(product which, Device& dev, const quant::weight_view& w, const std::vector<float>& x, std::size_t first,
                std::size_t tokens, std::vector<float>& y) {
    workspace scratch;
    const matrix_view<const float> in(x.data() + first * w.cols, tokens, w.cols);
    const matrix_view<float> out(y.data() + first * w.rows, tokens, w.rows);
    return which == product::f32 ? ops::matmul<quant::all>(dev, scratch, w, in, out)
                                 : ops::matmul_q8<quant::all>(dev, scratch, w, in, out);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Checks y against sums in double.
template <class Format>
void check_against_double(product which, std::size_t width, const quant::weight_view& w, const std::vector<float>& x,
                          std::size_t tokens, const std::vector<float>& y) {
    const auto weights = quant::dequantize<quant::all>(w);
    REQUIRE(weights.has_value());
    constexpr double unit = 0x1p-24;
    std::size_t bad = 0;
    double worst = 0;
    for (std::size_t r = 0; r < w.rows; ++r) {
        std::vector<double> terms(w.cols);
        if constexpr (quant::integer_dot_format<Format>) terms = test::term_magnitudes<Format>(w.row(r), w.cols);
        for (std::size_t t = 0; t < tokens; ++t) {
            double sum = 0, bound = 0, magnitudes = 0;
            for (std::size_t c = 0; c < w.cols; ++c) {
                const double weight = static_cast<double>((*weights)[r * w.cols + c]);
                const double value = static_cast<double>(x[t * w.cols + c]);
                sum += weight * value;
                magnitudes += std::abs(weight * value);
                if (which == product::q8 && quant::integer_dot_format<Format>) {
                    // Half a step of the activation code (and the roundings of scale and inverse), then one rounding of
                    // each scale product and one of the decoded weight that this is compared with.
                    float largest = 0;
                    const std::size_t block = c / Format::block_size * Format::block_size;
                    for (std::size_t i = 0; i < Format::block_size; ++i)
                        largest = std::max(largest, std::abs(x[t * w.cols + block + i]));
                    bound += (0.5 + 127 * 4 * unit) * static_cast<double>(largest) / 127 * std::abs(weight);
                    bound += 3 * unit * terms[c] * (std::abs(value) + static_cast<double>(largest) / 254);
                }
            }
            if (which == product::q8 && quant::integer_dot_format<Format>) {
                bound += unit * magnitudes;  // the result, rounded once
            } else {
                // A sum of n terms in any order, each product rounded: n units; here n is the length of one lane, the
                // folding of the lanes and the product.
                bound = unit * 1.01 * (static_cast<double>(w.cols / width + width) + 2) * magnitudes;
            }
            const double off = std::abs(static_cast<double>(y[t * w.rows + r]) - sum);
            if (!(off <= bound)) ++bad;
            worst = std::max(worst, off / (bound + std::numeric_limits<double>::min()));
        }
    }
    CHECK_MESSAGE(bad == 0, bad, " elements beyond the bound; worst ", worst, " times it");
}

}  // namespace

TEST_CASE("C48 products agree with sums in double for every tail of rows and tokens, format and instruction set") {
    constexpr std::size_t most_tokens = 17;
    for (const product which : {product::f32, product::q8})
        test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
            for (const std::size_t rows : {3u, 4u, 7u, 8u, 9u})
                for (const std::size_t cols : {256u, 512u, 768u}) {
                    CAPTURE(static_cast<int>(which));
                    CAPTURE(rows);
                    CAPTURE(cols);
                    const auto bytes = test::random_weights<Format>(rows, cols, static_cast<std::uint32_t>(31 * rows + cols));
                    const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
                    REQUIRE(w.has_value());
                    const auto x = test::random_floats(most_tokens * cols, static_cast<std::uint32_t>(7 * rows + cols));
                    std::vector<std::vector<float>> results;
                    test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                        device::cpu<Isa> dev;
                        std::vector<float> all(most_tokens * rows);
                        REQUIRE(multiply(which, dev, *w, x, 0, most_tokens, all));
                        check_against_double<Format>(which, frugal::simd::width<Isa>, *w, x, most_tokens, all);
                        // M = 1 … 17: the same bits as within the largest batch.
                        for (std::size_t tokens = 1; tokens < most_tokens; ++tokens) {
                            std::vector<float> y(tokens * rows);
                            REQUIRE(multiply(which, dev, *w, x, 0, tokens, y));
                            REQUIRE(std::memcmp(y.data(), all.data(), y.size() * sizeof(float)) == 0);
                        }
                        results.push_back(std::move(all));
                    });
                    if (which == product::q8 && quant::integer_dot_format<Format>)
                        for (const auto& result : results) CHECK(same_bits(result, results.front()));
                }
        });
}

TEST_CASE("the same bits for any split of the tokens and any number of threads") {
    constexpr std::size_t rows = 53, cols = 768, tokens = 11;
    for (const product which : {product::f32, product::q8})
        test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
            const auto bytes = test::random_weights<Format>(rows, cols, 5);
            const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
            REQUIRE(w.has_value());
            const auto x = test::random_floats(tokens * cols, 6);
            test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                device::cpu<Isa> serial;
                std::vector<float> want(tokens * rows), got(tokens * rows);
                REQUIRE(multiply(which, serial, *w, x, 0, tokens, want));
                for (const std::size_t first : {1u, 2u, 5u, 10u}) {
                    REQUIRE(multiply(which, serial, *w, x, 0, first, got));
                    REQUIRE(multiply(which, serial, *w, x, first, tokens - first, got));
                    CHECK(same_bits(got, want));
                }
                // Once with more threads than rows: starting 64 is slow where every memory access is watched.
                for (const std::size_t count : {2u, 3u, 7u, std::is_same_v<Format, quant::q8_0> ? 64u : 4u}) {
                    test::threads threads(count);
                    device::cpu<Isa> dev(threads);
                    std::fill(got.begin(), got.end(), -1.0f);
                    REQUIRE(multiply(which, dev, *w, x, 0, tokens, got));
                    CHECK(same_bits(got, want));
                }
            });
        });
}

TEST_CASE("matmul_q8 is the sum of the formats' own dot products, block after block") {
    constexpr std::size_t rows = 9, cols = 1280, tokens = 3;
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        if constexpr (quant::integer_dot_format<Format>) {
            using activation = quant::activation_of<Format>;
            const auto bytes = test::random_weights<Format>(rows, cols, 8);
            const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
            REQUIRE(w.has_value());
            const auto x = test::random_floats(tokens * cols, 9, 3.0f);
            std::vector<float> want(tokens * rows);
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t r = 0; r < rows; ++r) {
                    double sum = 0;
                    for (std::size_t b = 0; b < cols / Format::block_size; ++b) {
                        typename activation::block block;
                        activation::quantize(x.data() + t * cols + b * Format::block_size, block);
                        sum += Format::dot(w->row(r) + b * Format::block_bytes, block);
                    }
                    want[t * rows + r] = static_cast<float>(sum);
                }
            test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                device::cpu<Isa, frugal::counters_on> dev;
                std::vector<float> y(tokens * rows);
                REQUIRE(multiply(product::q8, dev, *w, x, 0, tokens, y));
                CHECK(same_bits(y, want));
                CHECK(dev.counters().read(frugal::counter::activation_quantize_calls) == 1);
                CHECK(dev.counters().read(frugal::counter::dequantize_calls) == 0);
            });
        }
    });
}

TEST_CASE("matmul_q8 makes a NaN row of a NaN or infinite activation, and only that row") {
    constexpr std::size_t rows = 4, cols = 512;
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        if constexpr (quant::integer_dot_format<Format>) {
            const auto bytes = test::random_weights<Format>(rows, cols, 3);
            const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
            REQUIRE(w.has_value());
            auto x = test::random_floats(3 * cols, 4);
            x[cols + 300] = std::numeric_limits<float>::quiet_NaN();
            x[2 * cols + 3] = -std::numeric_limits<float>::infinity();
            test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                device::cpu<Isa> dev;
                std::vector<float> y(3 * rows);
                REQUIRE(multiply(product::q8, dev, *w, x, 0, 3, y));
                for (std::size_t r = 0; r < rows; ++r) {
                    CHECK(std::isfinite(y[r]));
                    CHECK(std::isnan(y[rows + r]));
                    CHECK(std::isnan(y[2 * rows + r]));
                }
            });
        }
    });
}

TEST_CASE("C45 rows that are not whole blocks are refused, never computed in part; other formats take them") {
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        for (const std::size_t cols : {896u, 1408u, 4544u, 32u, 0u}) {
            CAPTURE(cols);
            constexpr std::size_t rows = 3, tokens = 2;
            const std::size_t whole = (cols + Format::block_size - 1) / Format::block_size * Format::block_size;
            const auto bytes = test::random_weights<Format>(rows, whole, 1);
            const auto x = test::random_floats(tokens * whole, 2);
            const bool fits = cols % Format::block_size == 0;
            const auto made = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
            CHECK(made.has_value() == fits);
            if (!fits) CHECK(made.error().code == errc::shape_mismatch);
            // A view made by hand must not get past the products either.
            const quant::weight_view w{Format::type, bytes.data(), rows, cols, whole / Format::block_size * Format::block_bytes};
            for (const product which : {product::f32, product::q8})
                test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                    device::cpu<Isa> dev;
                    std::vector<float> y(tokens * rows, -7.0f);
                    const status done = multiply(which, dev, w, x, 0, tokens, y);
                    CHECK(done.has_value() == fits);
                    if (fits) {
                        check_against_double<Format>(which, frugal::simd::width<Isa>, w, x, tokens, y);
                        if (cols == 0) CHECK(y == std::vector<float>(tokens * rows, 0.0f));
                    } else {
                        CHECK(done.error().code == errc::shape_mismatch);
                        CHECK(y == std::vector<float>(tokens * rows, -7.0f));
                    }
                });
        }
    });
}

TEST_CASE("wrong shapes and formats are errors, empty batches are not") {
    device::cpu<frugal::isa::baseline> dev;
    workspace scratch;
    const auto bytes = test::random_weights<quant::q8_0>(4, 64, 1);
    const auto w = quant::make_weight_view<quant::all>(quant::q8_0::type, bytes, 4, 64);
    REQUIRE(w.has_value());
    std::vector<float> x(2 * 96), y(2 * 8);
    const auto both = [&](const quant::weight_view& weights, std::size_t xr, std::size_t xc, std::size_t yr, std::size_t yc) {
        const matrix_view<const float> in(x.data(), xr, xc);
        const matrix_view<float> out(y.data(), yr, yc);
        status a = ops::matmul<quant::all>(dev, scratch, weights, in, out);
        const status b = ops::matmul_q8<quant::all>(dev, scratch, weights, in, out);
        CHECK(a.has_value() == b.has_value());
        if (!a) CHECK(a.error().code == b.error().code);
        return a;
    };
    CHECK(both(*w, 2, 96, 2, 4).error().code == errc::shape_mismatch);
    CHECK(both(*w, 2, 64, 2, 5).error().code == errc::shape_mismatch);
    CHECK(both(*w, 2, 64, 1, 4).error().code == errc::shape_mismatch);
    CHECK(both(*w, 2, 64, 2, 4));
    CHECK(both(*w, 0, 64, 0, 4));
    CHECK(both(w->rows_range(1, 0), 2, 64, 2, 0));
    quant::weight_view strange = *w;
    strange.type = quant::type_id{77};
    const status outside = both(strange, 2, 64, 2, 4);
    CHECK(outside.error().code == errc::unsupported_format);
    CHECK(outside.error().message.find("77") != std::string::npos);
    CHECK(outside.error().message.find("q4_k") != std::string::npos);
    quant::weight_view overlapping = *w;
    overlapping.row_bytes -= 1;
    CHECK(both(overlapping, 2, 64, 2, 4).error().code == errc::shape_mismatch);
    quant::weight_view nothing = *w;
    nothing.data = nullptr;
    CHECK(both(nothing, 2, 64, 2, 4).error().code == errc::invalid_argument);
}
