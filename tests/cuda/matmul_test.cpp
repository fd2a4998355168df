// Products of the GPU kernels on the emulator: every format against sums in double, the same bits whatever the batch, the cut
// of the work, the order of threads; those with f32 activations the bits of the same weights in f32.
#if defined(FRUGAL_CUDA_EMULATOR)
#include "frugal/device/cuda/panels/multiply.cuh"
#else  // on a GPU they are linked
#include "frugal/device/cuda/products.hpp"
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/quant/activation.hpp"
#include "frugal/quant/panels.hpp"
#include "mutation.hpp"
#include "weights.hpp"

namespace device = frugal::device;
namespace quant = frugal::quant;

namespace {

struct problem {
    std::size_t rows, cols, tokens;
    [[nodiscard]] std::size_t groups() const { return (cols + 31) / 32; }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Rows of x with zeros up to whole groups.
std::vector<float> padded(const std::vector<float>& x, const problem& p) {
    std::vector<float> out(p.tokens * p.groups() * 32);
    for (std::size_t t = 0; t < p.tokens; ++t) std::copy_n(x.data() + t * p.cols, p.cols, out.data() + t * p.groups() * 32);
    return out;
}

template <class Activations>
std::vector<float> multiply(const quant::weight_view& w, const std::vector<float>& x, std::size_t tokens,
                            int multiprocessors = 1000) {
    const problem p{w.rows, w.cols, tokens};
    auto packed = quant::panel_weights::pack<quant::all>(std::span(&w, 1));
    REQUIRE(packed.has_value());
    const quant::panel_view part = packed->parts()[0];
    const auto* bytes = reinterpret_cast<const unsigned char*>(part.data);
    simt::device_array<unsigned char> weights(std::vector<unsigned char>(bytes, bytes + part.bytes()));
    simt::device_array<float> values(padded(x, p)), y(tokens * w.rows);
    simt::device_array<std::int8_t> codes(tokens * p.groups() * 32);
    simt::device_array<std::int16_t> sums(tokens * p.groups() * 2);
    simt::device_array<float> scales(tokens * p.groups());
    device::gpu::panel_product product;
    product.weights = reinterpret_cast<const std::byte*>(weights.data());
    product.rows = w.rows;
    product.panel_bytes = part.panel_bytes;
    product.x = {values.data(), codes.data(), sums.data(), scales.data(), tokens, p.groups()};
    product.y = y.data();
    product.y_stride = w.rows;
    product.multiprocessors = multiprocessors;
    cudaError_t started = cudaSuccess;
    if constexpr (Activations::quantized) {
        started = device::gpu::quantize_activations<Activations>(values.data(), tokens, p.groups(), codes.data(), sums.data(),
                                                                 scales.data(), nullptr);
        REQUIRE(started == cudaSuccess);
    }
    // Not within REQUIRE: it would swallow a simt::kernel_fault.
    const auto visited = quant::visit<quant::all>(
        w.type, [&]<class F>(frugal::type_tag<F>) { started = device::gpu::multiply_panels<F, Activations>(product, nullptr); });
    REQUIRE(visited);
    REQUIRE(started == cudaSuccess);
    return y.to_host();
}

/// Checks y against sums in double of the decoded weights and, where they are quantised, the activations' own error.
template <class Format, class Activations>
void check_against_double(const quant::weight_view& w, const std::vector<float>& x, std::size_t tokens,
                          const std::vector<float>& y) {
    const auto weights = quant::dequantize<quant::all>(w);
    REQUIRE(weights.has_value());
    constexpr double unit = 0x1p-24;
    constexpr bool coded = quant::coded_layout<quant::panel_of<Format>>;
    constexpr bool rounded = coded && Activations::quantized;
    std::size_t bad = 0;
    double worst = 0;
    for (std::size_t r = 0; r < w.rows; ++r) {
        std::vector<double> terms(w.cols);
        for (std::size_t c = 0; c < w.cols; ++c) terms[c] = std::abs(static_cast<double>((*weights)[r * w.cols + c]));
        if constexpr (coded) terms = test::term_magnitudes<Format>(w.row(r), w.cols);
        for (std::size_t t = 0; t < tokens; ++t) {
            double sum = 0, quantization = 0, magnitudes = 0;
            for (std::size_t c = 0; c < w.cols; ++c) {
                const double weight = static_cast<double>((*weights)[r * w.cols + c]),
                             value = static_cast<double>(x[t * w.cols + c]);
                sum += weight * value;
                double rounding = 0;
                if (rounded) {
                    float largest = 0;
                    for (std::size_t i = c / 32 * 32; i < std::min(w.cols, c / 32 * 32 + 32); ++i)
                        largest = std::max(largest, std::abs(x[t * w.cols + i]));
                    rounding = static_cast<double>(largest) / 254;
                    quantization += (1 + 127 * 8 * unit) * rounding * std::abs(weight);
                }
                magnitudes += terms[c] * (std::abs(value) + rounding);
            }
            // Roundings on the way of one term: its own few, the additions of its lane (8 columns of every 16th pair of
            // groups), of lanes and of warps.
            const double additions = 8.0 * static_cast<double>(w.cols / 512 + 1) + 3 + 8 + 6;
            const double bound = quantization + unit * 1.01 * additions * magnitudes;
            const double off = std::abs(static_cast<double>(y[t * w.rows + r]) - sum);
            if (!(off <= bound)) ++bad;
            worst = std::max(worst, off / (bound + std::numeric_limits<double>::min()));
        }
    }
    CHECK_MESSAGE(bad == 0, bad, " elements beyond the bound; worst ", worst, " times it");
}

template <class F>
void for_each_policy(F&& f) {
    f(frugal::type_tag<device::f32_activations>{});
    f(frugal::type_tag<device::q8_activations>{});
}

}  // namespace

TEST_CASE("C48 products agree with sums in double for every tail of rows, columns and tokens, and every format") {
    constexpr std::size_t most_tokens = 37;  // more than a tile of the matrix units has
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        for (const std::size_t rows : {3u, 18u})
            for (const std::size_t cols : {std::size_t{Format::block_size == 1 ? 37 : Format::block_size}, std::size_t{768}}) {
                CAPTURE(rows);
                CAPTURE(cols);
                const auto bytes = test::random_weights<Format>(rows, cols, static_cast<std::uint32_t>(31 * rows + cols));
                const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
                REQUIRE(w.has_value());
                const auto x = test::random_floats(most_tokens * cols, static_cast<std::uint32_t>(7 * rows + cols));
                for_each_policy([&]<class Activations>(frugal::type_tag<Activations>) {
                    CAPTURE(Activations::quantized);
                    const auto all = multiply<Activations>(*w, x, most_tokens);
                    check_against_double<Format, Activations>(*w, x, most_tokens, all);
                    for (const std::size_t tokens : {1u, 2u, 5u, 17u}) {  // the same bits as within the largest batch
                        const auto y = multiply<Activations>(*w, x, tokens);
                        CHECK(std::memcmp(y.data(), all.data(), y.size() * sizeof(float)) == 0);
                    }
                    CHECK(same_bits(multiply<Activations>(*w, x, 1, 0), multiply<Activations>(*w, x, 1)));  // two panels a block
                });
            }
    });
}

TEST_CASE("every order of threads gives the same bits, of few tokens and of many") {
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        const auto bytes = test::random_weights<Format>(17, 256, 3);
        const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, 17, 256);
        REQUIRE(w.has_value());
        const auto x = test::random_floats(20 * 256, 4);
        for_each_policy([&]<class Activations>(frugal::type_tag<Activations>) {
            for (const std::size_t tokens : {2u, 20u})
                CHECK(simt::same_under_all_schedules([&] { return multiply<Activations>(*w, x, tokens); }));
        });
    });
}

TEST_CASE("products with f32 activations have the bits of the decoded weights") {
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        constexpr std::size_t rows = 20, cols = 1280, tokens = 2;
        const auto bytes = test::random_weights<Format>(rows, cols, 8);
        const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
        REQUIRE(w.has_value());
        const auto decoded = quant::dequantize<quant::all>(*w);
        REQUIRE(decoded.has_value());
        const auto floats = quant::make_weight_view<quant::all>(quant::f32::type, std::as_bytes(std::span(*decoded)), rows, cols);
        REQUIRE(floats.has_value());
        const auto x = test::random_floats(tokens * cols, 9);
        CHECK(same_bits(multiply<device::f32_activations>(*w, x, tokens), multiply<device::f32_activations>(*floats, x, tokens)));
    });
}

TEST_CASE("activations in 8 bits are those of quant::q8_activation<32>, ties and values that are not finite included") {
    auto x = test::random_floats(64 * 32, 5, 3.0f);
    for (std::size_t i = 0; i < 32; ++i) {
        x[i] = 0.0f;                                       // nothing
        x[32 + i] = 0x1p-121f;                             // below what a scale can be the inverse of
        x[64 + i] = static_cast<float>(i) * 0.5f - 7.75f;  // many halves: the largest magnitude is 127 / 16
        x[96 + i] = (static_cast<float>(i) - 15.5f) * (127.0f / 15.5f / 2);
        x[128 + i] = static_cast<float>(i) + 0.5f;
    }
    x[96] = 127.0f, x[128] = -127.0f;
    x[64] = 127.0f / 16;
    x[160 + 3] = std::numeric_limits<float>::quiet_NaN();
    x[192 + 30] = -std::numeric_limits<float>::infinity();
    // Products that come close to a half without being one.
    for (std::size_t g = 7; g < 39; ++g) {
        x[g * 32] = 1.0f + static_cast<float>(g) / 64;
        for (std::size_t i = 1; i < 32; ++i)
            x[g * 32 + i] = std::nextafter((static_cast<float>(i) + 0.5f) / 127.0f * x[g * 32], i % 2 == 0 ? 0.0f : 2.0f);
    }
    simt::for_each_schedule([&] {
        simt::device_array<float> values(x), scales(x.size() / 32);
        simt::device_array<std::int8_t> codes(x.size());
        simt::device_array<std::int16_t> sums(x.size() / 16);
        REQUIRE(device::gpu::quantize_activations<device::q8_activations>(values.data(), 1, x.size() / 32, codes.data(),
                                                                          sums.data(), scales.data(), nullptr) == cudaSuccess);
        const auto got = codes.to_host();
        const auto got_scales = scales.to_host();
        const auto got_sums = sums.to_host();
        for (std::size_t g = 0; g < x.size() / 32; ++g) {
            quant::q8_activation<32>::block want;
            quant::q8_activation<32>::quantize(x.data() + g * 32, want);
            CHECK(std::memcmp(&got_scales[g], &want.scale, sizeof(float)) == 0);
            CHECK(std::memcmp(got.data() + g * 32, want.codes, 32) == 0);
            CHECK(got_sums[2 * g] == want.sums[0]);
            CHECK(got_sums[2 * g + 1] == want.sums[1]);
        }
    });
}

TEST_CASE("activations in 8 bits: a NaN row of a NaN or infinite activation, and only that row") {
    constexpr std::size_t rows = 4, cols = 512;
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        const auto bytes = test::random_weights<Format>(rows, cols, 3);
        const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
        REQUIRE(w.has_value());
        auto x = test::random_floats(3 * cols, 4);
        x[cols + 300] = std::numeric_limits<float>::quiet_NaN();
        x[2 * cols + 3] = std::numeric_limits<float>::quiet_NaN();
        const auto y = multiply<device::q8_activations>(*w, x, 3);
        for (std::size_t r = 0; r < rows; ++r) {
            CHECK(std::isfinite(y[r]));
            CHECK(std::isnan(y[rows + r]));
            CHECK(std::isnan(y[2 * rows + r]));
        }
    });
}

TEST_CASE("a removed __syncthreads is noticed") {
    const auto bytes = test::random_weights<quant::q4_0>(17, 1024, 3);
    const auto w = quant::make_weight_view<quant::all>(quant::q4_0::type, bytes, 17, 1024);
    REQUIRE(w.has_value());
    const auto x = test::random_floats(1024, 4);
    CHECK(test::unnoticed_barriers([&] { return multiply<device::f32_activations>(*w, x, 1); }) == std::vector<std::string>{});
    CHECK(test::unnoticed_barriers([&] { return multiply<device::q8_activations>(*w, x, 1); }) == std::vector<std::string>{});
}
