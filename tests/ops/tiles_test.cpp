// Products by a unit of 16 x 16 dot products give the bits of those by rows: with a unit in plain C++ everywhere, and with AMX
// where the machine has it.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/matmul/activations_cpu-inl.hpp"
#include "frugal/ops/matmul/matmul_cpu-inl.hpp"
#include "frugal/quant/formats.hpp"
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

/// One panel of a format against `rows` rows of activations.
template <class Format, class Tiles>
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
    device::cpu<isa, frugal::counters_off, device::q8_activations> dev;
    workspace scratch;
    const auto x = ops::prepare_activations(dev, scratch, matrix_view<const float>(values.data(), rows, cols));
    REQUIRE(x.has_value());
    std::vector<float> sums(rows * quant::panel_rows);
    ops::cpu::detail::multiply_codes<isa, layout>(tiles, panel.data(), *x, 0, rows, sums.data());
    return sums;
}

template <class Tiles>
void check_products(const Tiles& tiles) {
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        if constexpr (quant::coded_layout<quant::panel_of<Format>>)
            for (const std::size_t rows : {1u, 15u, 16u, 17u, 33u, 48u}) {
                CAPTURE(Format::name);
                CAPTURE(rows);
                const auto got = multiply<Format>(tiles, rows), want = multiply<Format>(ops::cpu::detail::no_tiles(), rows);
                CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
            }
    });
}

}  // namespace

TEST_CASE("products by tiles: the bits of products by rows, for every format with codes") { check_products(plain_tiles()); }

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
    check_products(amx);
}
#endif
