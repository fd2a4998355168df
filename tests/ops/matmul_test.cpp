// ops::matmul with activations as they are, in 8 bits and in bfloat16: against sums in double over the decoded weights, within derived bounds;
// the same bits for any split and any number of threads; every format, every instruction set.
#include "frugal/ops/matmul/matmul.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/quant/activation.hpp"
#include "isa.hpp"
#include "sanitizer.hpp"
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

enum class product { f32, q8, bf16 };
constexpr product every_product[] = {product::f32, product::q8, product::bf16};

/// A device whose products take their activations as `which` says.
template <class Isa, class F, class... Argument>
void with_device(product which, F&& f, Argument&... argument) {
    if (which == product::f32) {
        device::cpu<Isa, frugal::counters_on, device::f32_activations> dev(argument...);
        f(dev);
    } else if (which == product::q8) {
        device::cpu<Isa, frugal::counters_on, device::q8_activations> dev(argument...);
        f(dev);
    } else {
        device::cpu<Isa, frugal::counters_on, device::bf16_activations> dev(argument...);
        f(dev);
    }
}

template <class Device>
status multiply(Device& dev, const quant::weight_view& w, const std::vector<float>& x, std::size_t first, std::size_t tokens,
                std::vector<float>& y) {
    workspace scratch;
    const matrix_view<const float> in(x.data() + first * w.cols, tokens, w.cols);
    const matrix_view<float> out(y.data() + first * w.rows, tokens, w.rows);
    return ops::matmul<quant::all>(dev, scratch, w, in, out);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Checks y against sums in double.
template <class Format>
void check_against_double(product which, const quant::weight_view& w, const std::vector<float>& x, std::size_t tokens,
                          const std::vector<float>& y) {
    const auto weights = quant::dequantize<quant::all>(w);
    REQUIRE(weights.has_value());
    constexpr double unit = 0x1p-24;
    constexpr bool coded = quant::coded_layout<quant::panel_of<Format>>;
    std::size_t bad = 0;
    double worst = 0;
    for (std::size_t r = 0; r < w.rows; ++r) {
        std::vector<double> terms(w.cols);
        if constexpr (coded)
            terms = test::term_magnitudes<Format>(w.row(r), w.cols);
        else
            for (std::size_t c = 0; c < w.cols; ++c) terms[c] = std::abs(static_cast<double>((*weights)[r * w.cols + c]));
        for (std::size_t t = 0; t < tokens; ++t) {
            double sum = 0, quantization = 0, magnitudes = 0;
            for (std::size_t c = 0; c < w.cols; ++c) {
                const double weight = static_cast<double>((*weights)[r * w.cols + c]);
                const double value = static_cast<double>(x[t * w.cols + c]);
                sum += weight * value;
                double rounding = 0;
                if (coded && which == product::q8) {
                    // Half a step of the activation code, and the roundings of scale and inverse.
                    float largest = 0;
                    const std::size_t block = c / 32 * 32;
                    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[t * w.cols + block + i]));
                    rounding = static_cast<double>(largest) / 254;
                    quantization += (1 + 127 * 8 * unit) * rounding * std::abs(weight);
                }
                if (which == product::bf16 && ops::reads_rounded<device::bf16_activations, quant::panel_of<Format>>) {
                    rounding = std::abs(value) / 256;
                    quantization += rounding * std::abs(weight);
                }
                magnitudes += terms[c] * (std::abs(value) + rounding);
            }
            // A sum of n terms in any order, each rounded: n units. Here n is the length of a group's sum (exact in integers),
            // that of the sum over groups, where a group may add two parts and an offset, and the roundings of one term: its
            // scale's two factors, the product, and the decoded weight that this is compared with.
            const double additions = (which == product::q8 ? 0.0 : 32.0) + 3 * static_cast<double>(w.cols / 32 + 1) + 6;
            const double bound = quantization + unit * 1.01 * additions * magnitudes;
            const double off = std::abs(static_cast<double>(y[t * w.rows + r]) - sum);
            if (!(off <= bound)) ++bad;
            worst = std::max(worst, off / (bound + std::numeric_limits<double>::min()));
        }
    }
    CHECK_MESSAGE(bad == 0, bad, " elements beyond the bound; worst ", worst, " times it");
}

}  // namespace

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("C48 products agree with sums in double for every tail of rows and tokens, format and instruction set") {
    constexpr std::size_t most_tokens = 17;
    for (const product which : every_product)
        test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
            for (const std::size_t rows : {3u, 16u, 17u, 31u})
                for (const std::size_t cols : {256u, 512u, 768u}) {
                    CAPTURE(static_cast<int>(which));
                    CAPTURE(rows);
                    CAPTURE(cols);
                    const auto bytes = test::random_weights<Format>(rows, cols, static_cast<std::uint32_t>(31 * rows + cols));
                    const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
                    REQUIRE(w.has_value());
                    const auto x = test::random_floats(most_tokens * cols, static_cast<std::uint32_t>(7 * rows + cols));
                    test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                        with_device<Isa>(which, [&](auto& dev) {
                            std::vector<float> all(most_tokens * rows);
                            REQUIRE(multiply(dev, *w, x, 0, most_tokens, all));
                            check_against_double<Format>(which, *w, x, most_tokens, all);
                            // M = 1 … 17: the same bits as within the largest batch.
                            for (std::size_t tokens = 1; tokens < most_tokens; ++tokens) {
                                std::vector<float> y(tokens * rows);
                                REQUIRE(multiply(dev, *w, x, 0, tokens, y));
                                REQUIRE(std::memcmp(y.data(), all.data(), y.size() * sizeof(float)) == 0);
                            }
                        });
                    });
                }
        });
}

TEST_SUITE_END();

TEST_CASE("the same bits for any split of the tokens and any number of threads") {
    constexpr std::size_t rows = 53, cols = 768, tokens = 11;
    for (const product which : every_product)
        test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
            const auto bytes = test::random_weights<Format>(rows, cols, 5);
            const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
            REQUIRE(w.has_value());
            const auto x = test::random_floats(tokens * cols, 6);
            test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                std::vector<float> want(tokens * rows), got(tokens * rows);
                with_device<Isa>(which, [&](auto& serial) {
                    REQUIRE(multiply(serial, *w, x, 0, tokens, want));
                    for (const std::size_t first : {1u, 2u, 5u, 10u}) {
                        REQUIRE(multiply(serial, *w, x, 0, first, got));
                        REQUIRE(multiply(serial, *w, x, first, tokens - first, got));
                        CHECK(same_bits(got, want));
                    }
                });
                // Once with more threads than rows: starting 64 is slow where every memory access is watched.
                for (const std::size_t count : {2u, 3u, 7u, std::is_same_v<Format, quant::q8_0> ? 64u : 4u}) {
                    test::threads threads(count);
                    std::fill(got.begin(), got.end(), -1.0f);
                    with_device<Isa>(
                        which, [&](auto& dev) { REQUIRE(multiply(dev, *w, x, 0, tokens, got)); }, threads);
                    CHECK(same_bits(got, want));
                }
            });
        });
}

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("more activations than a kernel keeps sums for: the same bits as in smaller batches") {
    constexpr std::size_t rows = 18, cols = 256, tokens = 1100;
    for (const product which : every_product) {
        const auto bytes = test::random_weights<quant::q6_k>(rows, cols, 5);
        const auto w = quant::make_weight_view<quant::all>(quant::q6_k::type, bytes, rows, cols);
        REQUIRE(w.has_value());
        const auto x = test::random_floats(tokens * cols, 6);
        test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
            with_device<Isa>(which, [&](auto& dev) {
                std::vector<float> want(tokens * rows), got(tokens * rows);
                REQUIRE(multiply(dev, *w, x, 0, tokens, want));
                for (std::size_t first = 0; first < tokens; first += 100) REQUIRE(multiply(dev, *w, x, first, 100, got));
                CHECK(same_bits(got, want));
            });
        });
    }
}

TEST_CASE("activations in 8 bits are those of quant::q8_activation<32>, once for all rows of weights") {
    // Weights with a single column that is not zero give each activation's code times its scale.
    constexpr std::size_t cols = 64, tokens = 3;
    const auto x = test::random_floats(tokens * cols, 9, 3.0f);
    std::vector<float> ones(cols * cols);
    for (std::size_t c = 0; c < cols; ++c) ones[c * cols + c] = 127.0f;
    std::vector<std::byte> bytes(cols * cols / 32 * quant::q8_0::block_bytes);
    REQUIRE(quant::encode_row<quant::q8_0>(ones, bytes));
    const auto w = quant::make_weight_view<quant::all>(quant::q8_0::type, bytes, cols, cols);
    REQUIRE(w.has_value());
    test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
        with_device<Isa>(product::q8, [&](auto& dev) {
            std::vector<float> y(tokens * cols);
            REQUIRE(multiply(dev, *w, x, 0, tokens, y));
            CHECK(dev.counters().read(frugal::counter::activation_quantize_calls) == 1);
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t c = 0; c < cols; ++c) {
                    quant::q8_activation<32>::block block;
                    quant::q8_activation<32>::quantize(x.data() + t * cols + c / 32 * 32, block);
                    CHECK(y[t * cols + c] == 127.0f * static_cast<float>(block.codes[c % 32]) * block.scale);
                }
        });
    });
}

TEST_CASE("activations in bfloat16: to nearest, ties to even, once for all rows of weights; none below 2^-126") {
    constexpr std::size_t cols = 64, tokens = 3;
    auto x = test::random_floats(tokens * cols, 9, 3.0f);
    x[0] = 0x1.01p0f;       // halfway: down to even
    x[1] = 0x1.03p0f;       // halfway: up to even
    x[2] = -0x1.010002p0f;  // above halfway
    x[3] = -0x1.fcp-127f;
    x[4] = 0x1p-149f;
    x[5] = 0x1.ffp127f;  // beyond the largest bfloat16
    std::vector<float> want(x.size());
    std::transform(x.begin(), x.end(), want.begin(), [](float v) { return frugal::to_float(frugal::to_bfloat16(v)); });
    CHECK(want[0] == 1.0f);
    CHECK(want[1] == 0x1.04p0f);
    CHECK(want[2] == -0x1.02p0f);
    CHECK(std::isinf(want[5]));
    want[3] = want[4] = 0.0f;
    const auto check = [&]<class Format>(frugal::type_tag<Format>) {
        std::vector<float> ones(cols * cols);
        for (std::size_t c = 0; c < cols; ++c) ones[c * cols + c] = 127.0f;
        std::vector<std::byte> bytes(cols * cols / Format::block_size * Format::block_bytes);
        REQUIRE(quant::encode_row<Format>(ones, bytes));
        const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, cols, cols);
        REQUIRE(w.has_value());
        test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
            with_device<Isa>(product::bf16, [&](auto& dev) {
                std::vector<float> y(tokens * cols);
                REQUIRE(multiply(dev, *w, x, 0, tokens, y));
                CHECK(dev.counters().read(frugal::counter::activation_quantize_calls) == 1);
                // An infinite activation times a weight of 0 is NaN: the first row is looked at without it.
                for (std::size_t c = 0; c < cols; ++c) CHECK(!std::isfinite(y[c]));
                x[5] = 0.0f;
                REQUIRE(multiply(dev, *w, x, 0, tokens, y));
                x[5] = 0x1.ffp127f;
                for (std::size_t i = 0; i < y.size(); ++i)
                    if (i != 5) CHECK(y[i] == 127.0f * want[i]);
            });
        });
    };
    check(frugal::type_tag<quant::bf16>{});
    check(frugal::type_tag<quant::q8_0>{});
}

TEST_CASE("activations in bfloat16 with bfloat16 weights: even columns, then odd ones, with the same bits everywhere") {
    constexpr std::size_t rows = 19, cols = 352, tokens = 17;
    auto values = test::random_floats(rows * cols, 3), x = test::random_floats(tokens * cols, 4);
    for (std::size_t i = 0; i < values.size(); i += 37) values[i] *= 0x1p-130f;
    for (std::size_t i = 0; i < x.size(); i += 41) x[i] *= 0x1p-130f;
    for (std::size_t i = 5; i < x.size(); i += 43) x[i] *= 0x1p100f;
    std::vector<std::byte> bytes(rows * cols * quant::bf16::block_bytes);
    REQUIRE(quant::encode_row<quant::bf16>(values, bytes));
    const auto w = quant::make_weight_view<quant::all>(quant::bf16::type, bytes, rows, cols);
    REQUIRE(w.has_value());
    const auto rounded = [](float v) {
        const float out = frugal::to_float(frugal::to_bfloat16(v));
        return std::abs(v) < 0x1p-126f || std::abs(out) < 0x1p-126f ? 0.0f : out;
    };
    std::vector<float> want(tokens * rows);
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t group = 0; group < cols; group += 32) {
                float sums[2] = {0.0f, 0.0f};
                for (std::size_t k = 0; k < 32; ++k)
                    sums[k % 2] = std::fma(rounded(x[t * cols + group + k]), rounded(values[r * cols + group + k]), sums[k % 2]);
                want[t * rows + r] += sums[0] + sums[1];
            }
    test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
        with_device<Isa>(product::bf16, [&](auto& dev) {
            std::vector<float> y(tokens * rows);
            REQUIRE(multiply(dev, *w, x, 0, tokens, y));
            CHECK(same_bits(y, want));
        });
    });
}

TEST_CASE("activations in 8 bits or bfloat16: what NaN or infinite activations make of their row, and only that row") {
    constexpr std::size_t rows = 4, cols = 512;
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        if constexpr (ops::reads_rounded<device::bf16_activations, quant::panel_of<Format>>) {
            const auto bytes = test::random_weights<Format>(rows, cols, 3);
            const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
            REQUIRE(w.has_value());
            auto x = test::random_floats(3 * cols, 4);
            x[cols + 300] = std::numeric_limits<float>::quiet_NaN();
            x[2 * cols + 3] = -std::numeric_limits<float>::infinity();
            test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                for (const product which : {product::q8, product::bf16})
                    with_device<Isa>(which, [&](auto& dev) {
                        std::vector<float> y(3 * rows);
                        REQUIRE(multiply(dev, *w, x, 0, 3, y));
                        for (std::size_t r = 0; r < rows; ++r) {
                            CHECK(std::isfinite(y[r]));
                            CHECK(std::isnan(y[rows + r]));
                            CHECK(!std::isfinite(y[2 * rows + r]));
                            if (which == product::q8 && quant::coded_layout<quant::panel_of<Format>>)
                                CHECK(std::isnan(y[2 * rows + r]));
                        }
                    });
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
            for (const product which : every_product)
                test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                    with_device<Isa>(which, [&](auto& dev) {
                        std::vector<float> y(tokens * rows, -7.0f);
                        const status done = multiply(dev, w, x, 0, tokens, y);
                        CHECK(done.has_value() == fits);
                        if (fits) {
                            check_against_double<Format>(which, w, x, tokens, y);
                            if (cols == 0) CHECK(y == std::vector<float>(tokens * rows, 0.0f));
                        } else {
                            CHECK(done.error().code == errc::shape_mismatch);
                            CHECK(y == std::vector<float>(tokens * rows, -7.0f));
                        }
                    });
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
    const auto tried = [&](const quant::weight_view& weights, std::size_t xr, std::size_t xc, std::size_t yr, std::size_t yc) {
        const matrix_view<const float> in(x.data(), xr, xc);
        const matrix_view<float> out(y.data(), yr, yc);
        return ops::matmul<quant::all>(dev, scratch, weights, in, out);
    };
    CHECK(tried(*w, 2, 96, 2, 4).error().code == errc::shape_mismatch);
    CHECK(tried(*w, 2, 64, 2, 5).error().code == errc::shape_mismatch);
    CHECK(tried(*w, 2, 64, 1, 4).error().code == errc::shape_mismatch);
    CHECK(tried(*w, 2, 64, 2, 4));
    CHECK(tried(*w, 0, 64, 0, 4));
    CHECK(tried(w->rows_range(1, 0), 2, 64, 2, 0));
    quant::weight_view strange = *w;
    strange.type = quant::type_id{77};
    const status outside = tried(strange, 2, 64, 2, 4);
    CHECK(outside.error().code == errc::unsupported_format);
    CHECK(outside.error().message.find("77") != std::string::npos);
    CHECK(outside.error().message.find("q4_k") != std::string::npos);
    quant::weight_view overlapping = *w;
    overlapping.row_bytes -= 1;
    CHECK(tried(overlapping, 2, 64, 2, 4).error().code == errc::shape_mismatch);
    quant::weight_view nothing = *w;
    nothing.data = nullptr;
    CHECK(tried(nothing, 2, 64, 2, 4).error().code == errc::invalid_argument);
}

TEST_SUITE_END();
