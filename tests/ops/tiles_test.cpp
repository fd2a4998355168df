// Products by a unit of 16 x 16 dot products, of integers or bfloat16, give the bits of those by rows: with a unit in plain C++
// everywhere, and with AMX where the machine has it.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/matmul/activations_cpu-inl.hpp"
#include "frugal/ops/matmul/matmul_cpu-inl.hpp"
#include "frugal/quant/formats.hpp"
#include "sanitizer.hpp"
#include "weights.hpp"

namespace device = frugal::device;
namespace ops = frugal::ops;
namespace quant = frugal::quant;
namespace simd = frugal::simd;
using frugal::matrix_view;
using frugal::workspace;

namespace {

struct plain_tiles {
    template <bool Signed, std::size_t Quads>
    void dots(const std::uint8_t* codes, const std::int8_t* x, std::size_t stride, std::int32_t (&out)[16][16]) const {
        for (std::size_t t = 0; t < 16; ++t)
            for (std::size_t r = 0; r < 16; ++r) {
                std::int32_t sum = 0;
                for (std::size_t k = 0; k < 4 * Quads; ++k) {
                    const std::uint8_t code = codes[k / 4 * 64 + r * 4 + k % 4];
                    sum += (Signed ? static_cast<std::int8_t>(code) : code) * x[t * stride + k];
                }
                out[t][r] = sum;
            }
    }
};

struct plain_bf16_tiles {
    template <std::size_t Pairs>
    void products(const std::byte* weights, const frugal::bfloat16* x, std::size_t stride, float (&out)[16][16]) const {
        for (std::size_t t = 0; t < 16; ++t)
            for (std::size_t r = 0; r < 16; ++r) {
                float sums[2] = {0.0f, 0.0f};
                for (std::size_t k = 0; k < 2 * Pairs; ++k) {
                    frugal::bfloat16 weight, value;
                    std::memcpy(&weight, weights + (k / 2 * 32 + 2 * r + k % 2) * 2, 2);
                    std::memcpy(&value, reinterpret_cast<const std::byte*>(x) + t * stride + 2 * k, 2);
                    sums[k % 2] = std::fma(to_float(weight), to_float(value), sums[k % 2]);
                }
                out[t][r] = sums[0] + sums[1];
            }
    }
    void add_products(const std::byte* const* weights, std::size_t groups, const frugal::bfloat16* x, std::size_t stride,
                      float* sums) const {
        for (std::size_t g = 0; g < groups; ++g) {
            float group[16][16];
            products<16>(weights[g], x + 32 * g, stride, group);
            for (std::size_t i = 0; i < 256; ++i) sums[i] += group[i / 16][i % 16];
        }
    }
};

/// One panel of a format against `rows` rows of activations.
template <class Format, class Activations, class Tiles>
std::vector<float> multiply(const Tiles& tiles, std::size_t rows) {
    using isa = frugal::isa::baseline;
    using layout = quant::panel_of<Format>;
    constexpr std::size_t cols = 768;
    const auto bytes = test::random_weights<Format>(quant::panel_rows, cols, 4);
    const auto w = quant::make_weight_view<quant::all>(Format::type, std::as_bytes(std::span(bytes)), quant::panel_rows, cols);
    REQUIRE(w.has_value());
    std::vector<std::byte> panel(quant::panel_bytes<Format>(cols) + 4096);
    quant::pack_panel<Format>(*w, 0, panel.data());
    const auto values = test::random_floats(rows * cols, 5);
    device::cpu<isa, frugal::counters_off, Activations> dev;
    workspace scratch;
    const auto x = ops::prepare_activations(dev, scratch, matrix_view<const float>(values.data(), rows, cols));
    REQUIRE(x.has_value());
    std::vector<float> sums(rows * quant::panel_rows);
    if constexpr (Activations::quantized)
        ops::cpu::detail::multiply_codes<isa, layout>(tiles, panel.data(), *x, 0, rows, sums.data());
    else
        ops::cpu::detail::multiply_pairs<isa, layout>(tiles, panel.data(), *x, 0, rows, sums.data());
    return sums;
}

template <class Activations, class Tiles>
void check_products(const Tiles& tiles) {
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        using layout = quant::panel_of<Format>;
        if constexpr (ops::reads_codes<Activations, layout> || ops::reads_rounded<Activations, layout>)
            for (const std::size_t rows : {1u, 15u, 16u, 17u, 33u, 48u}) {
                CAPTURE(Format::name);
                CAPTURE(rows);
                const auto got = multiply<Format, Activations>(tiles, rows);
                const auto want = multiply<Format, Activations>(ops::cpu::detail::no_tiles(), rows);
                CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
            }
    });
}

}  // namespace

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("products by tiles: the bits of products by rows, for every format with codes") {
    check_products<device::q8_activations>(plain_tiles());
}
TEST_CASE("products by bfloat16 tiles: the bits of products by rows, for bfloat16 and every format with codes") {
    check_products<device::bf16_activations>(plain_bf16_tiles());
}

#if defined(__x86_64__)
TEST_CASE("AMX tiles: the sums of plain C++, and products with the same bits") {
    if (!simd::amx_tiles::available()) {
        MESSAGE("this machine has no AMX int8: not run");
        return;
    }
    const simd::amx_tiles amx;
    alignas(64) std::uint8_t codes[8 * 64];
    std::int8_t x[16 * 96];
    for (std::size_t i = 0; i < sizeof(codes); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 + i / 7);
    for (std::size_t i = 0; i < sizeof(x); ++i) x[i] = static_cast<std::int8_t>(i * 53 % 255 - 127);
    const auto check = [&]<bool Signed, std::size_t Quads>() {
        alignas(64) std::int32_t got[16][16], want[16][16];
        amx.template dots<Signed, Quads>(codes, x, 96, got);
        plain_tiles().template dots<Signed, Quads>(codes, x, 96, want);
        CHECK(std::memcmp(got, want, sizeof(got)) == 0);
    };
    check.template operator()<true, 8>();
    check.template operator()<false, 8>();
    check.template operator()<true, 4>();
    check.template operator()<false, 4>();
    check_products<device::q8_activations>(amx);
}

TEST_CASE("AMX bfloat16 tiles: the sums of plain C++, and products with the same bits") {
    if (!simd::amx_bf16_tiles::available()) {
        MESSAGE("this machine has no AMX bfloat16: not run");
        return;
    }
    const simd::amx_bf16_tiles amx;
    constexpr std::size_t groups = 3, stride = 40 + 32 * groups;
    alignas(64) std::byte weights[groups][1024];
    std::vector<frugal::bfloat16> x(16 * stride);
    const auto w = test::random_floats(groups * 512, 1), values = test::random_floats(x.size(), 2);
    for (std::size_t i = 0; i < w.size(); ++i) {
        const frugal::bfloat16 weight = frugal::to_bfloat16(w[i]);
        std::memcpy(&weights[i / 512][i % 512 * 2], &weight, 2);
    }
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = frugal::to_bfloat16(values[i]);
    const auto check = [&]<std::size_t Pairs>() {
        alignas(64) float got[16][16], want[16][16];
        amx.template products<Pairs>(weights[1], x.data(), 2 * stride, got);
        plain_bf16_tiles().template products<Pairs>(weights[1], x.data(), 2 * stride, want);
        CHECK(std::memcmp(got, want, sizeof(got)) == 0);
    };
    check.template operator()<16>();
    check.template operator()<8>();
    const std::byte* const each[groups] = {weights[0], weights[1], weights[2]};
    auto got = test::random_floats(256, 3), want = got;
    amx.add_products(each, groups, x.data(), 2 * stride, got.data());
    plain_bf16_tiles().add_products(each, groups, x.data(), 2 * stride, want.data());
    CHECK(std::memcmp(got.data(), want.data(), 256 * sizeof(float)) == 0);
    check_products<device::bf16_activations>(amx);
}
#endif

TEST_SUITE_END();
