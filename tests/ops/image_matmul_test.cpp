// Products from images of panels: the bits of ops::matmul from the blocks themselves, for every format and instruction set.
#include "frugal/ops/matmul/image_matmul.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <vector>

#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "isa.hpp"
#include "threads.hpp"
#include "weights.hpp"

namespace device = frugal::device;
namespace ops = frugal::ops;
namespace quant = frugal::quant;
using frugal::errc;
using frugal::matrix_view;
using frugal::workspace;

namespace {

constexpr std::size_t cols = 768;

struct part {
    std::vector<std::byte> bytes;
    quant::weight_view view;
};

template <class Format>
part random_part(std::size_t rows, unsigned seed) {
    part out;
    const auto bytes = test::random_weights<Format>(rows, cols, seed);
    out.bytes.assign(bytes.begin(), bytes.end());
    const auto view = quant::make_weight_view<quant::all>(Format::type, out.bytes, rows, cols);
    REQUIRE(view.has_value());
    out.view = *view;
    return out;
}

template <class Device>
void check_against_matmul(Device& dev, std::span<const quant::weight_view> parts, std::size_t tokens) {
    const auto x = test::random_floats(tokens * cols, 3);
    const matrix_view<const float> in(x.data(), tokens, cols);
    auto image = dev.pack(parts);
    REQUIRE(image.has_value());
    workspace scratch;
    std::vector<std::vector<float>> got, want;
    std::vector<matrix_view<float>> y;
    for (const quant::weight_view& w : parts) {
        want.emplace_back(tokens * w.rows);
        got.emplace_back(tokens * w.rows, -1.0f);
        REQUIRE(ops::matmul<quant::all>(dev, scratch, w, in, {want.back().data(), tokens, w.rows}));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) y.emplace_back(got[i].data(), tokens, parts[i].rows);
    REQUIRE(ops::image_matmul(dev, scratch, *image, in, y));
    for (std::size_t i = 0; i < parts.size(); ++i)
        CHECK(std::memcmp(got[i].data(), want[i].data(), got[i].size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("image_matmul: the bits of matmul, for any number of rows, tokens and threads") {
    test::for_each_format([]<class Format>(frugal::type_tag<Format>) {
        for (const std::size_t rows : {1u, 15u, 16u, 17u, 31u}) {
            const part w = random_part<Format>(rows, 5);
            test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
                const auto check = [&]<class Activations>(frugal::type_tag<Activations>) {
                    using device_type = device::packed_cpu<Isa, frugal::counters_off, quant::all, Activations>;
                    device_type serial;
                    for (const std::size_t tokens : {1u, 2u, 5u}) check_against_matmul(serial, {&w.view, 1}, tokens);
                    test::threads threads(3);
                    device_type parallel(threads);
                    check_against_matmul(parallel, {&w.view, 1}, 2);
                };
                check(frugal::type_tag<device::f32_activations>{});
                check(frugal::type_tag<device::q8_activations>{});
            });
        }
    });
}

TEST_CASE("activations in f32: the bits of the product with the decoded weights") {
    test::for_each_format([]<class Format>(frugal::type_tag<Format>) {
        const part w = random_part<Format>(19, 8);
        const auto decoded = quant::dequantize<quant::all>(w.view);
        REQUIRE(decoded.has_value());
        const auto plain = quant::make_weight_view<quant::all>(quant::f32::type, std::as_bytes(std::span(*decoded)), 19, cols);
        REQUIRE(plain.has_value());
        test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
            device::cpu<Isa> dev;
            workspace scratch;
            for (const std::size_t tokens : {1u, 7u}) {
                const auto x = test::random_floats(tokens * cols, 3);
                std::vector<float> got(tokens * 19), want(tokens * 19);
                REQUIRE(ops::matmul<quant::all>(dev, scratch, w.view, {x.data(), tokens, cols}, {got.data(), tokens, 19}));
                REQUIRE(ops::matmul<quant::all>(dev, scratch, *plain, {x.data(), tokens, cols}, {want.data(), tokens, 19}));
                CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
            }
        });
    });
}

TEST_CASE("image_matmul: parts of several formats in one image") {
    const part a = random_part<quant::q4_k>(7, 1), b = random_part<quant::q6_k>(2, 2), c = random_part<quant::bf16>(9, 3);
    const std::array views = {a.view, b.view, c.view};
    test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
        device::packed_cpu<Isa> dev;
        check_against_matmul(dev, views, 3);
    });
}

TEST_CASE("image_matmul: shapes that do not fit, and formats outside the list, are errors") {
    device::packed_cpu<frugal::isa::baseline> dev;
    const part w = random_part<quant::q8_0>(6, 1);
    auto image = dev.pack({&w.view, 1});
    REQUIRE(image.has_value());
    CHECK(image->bytes() == 16 * w.view.row_bytes);  // a whole panel
    workspace scratch;
    std::vector<float> x(2 * cols), y(2 * 6);
    const matrix_view<const float> in(x.data(), 2, cols);
    const matrix_view<float> out(y.data(), 2, 6), narrow(y.data(), 2, 5);
    CHECK(ops::image_matmul(dev, scratch, *image, in, {&narrow, 1}).error().code == errc::shape_mismatch);
    CHECK(ops::image_matmul(dev, scratch, *image, in, {}).error().code == errc::shape_mismatch);
    CHECK(ops::image_matmul(dev, scratch, *image, in.cols_range(0, 32), {&out, 1}).error().code == errc::shape_mismatch);
    CHECK(ops::image_matmul(dev, scratch, *image, in.rows_range(0, 1), {&out, 1}).error().code == errc::shape_mismatch);
    const matrix_view<float> none(y.data(), 0, 6);
    CHECK(ops::image_matmul(dev, scratch, *image, in.rows_range(0, 0), {&none, 1}).has_value());

    device::packed_cpu<frugal::isa::baseline, frugal::counters_off, quant::list<quant::f32>> only_f32;
    CHECK(only_f32.pack({&w.view, 1}).error().code == errc::unsupported_format);
    quant::weight_view broken = w.view;
    broken.data = nullptr;
    CHECK(dev.pack({&broken, 1}).error().code == errc::invalid_argument);
}

TEST_CASE("dequantize: every row as the codec decodes it, for every format and instruction set") {
    test::for_each_format([]<class Format>(frugal::type_tag<Format>) {
        const part w = random_part<Format>(19, 4);
        const auto want = quant::dequantize<quant::all>(w.view);
        REQUIRE(want.has_value());
        test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
            test::threads threads(3);
            device::cpu<Isa> dev(threads);
            std::vector<float> got(19 * cols);
            REQUIRE(ops::dequantize<quant::all>(dev, w.view, {got.data(), 19, cols}));
            CHECK(std::memcmp(got.data(), want->data(), got.size() * sizeof(float)) == 0);
            CHECK(ops::dequantize<quant::all>(dev, w.view, {got.data(), 18, cols}).error().code == errc::shape_mismatch);
        });
    });
}
