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
                check(frugal::type_tag<device::bf16_activations>{});
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

TEST_CASE("packed_cpu: an image is packed on all threads, with the bytes of one") {
    // Large enough that each thread gets a range, and that ranges end within parts.
    const part a = random_part<quant::q4_k>(1000, 1), b = random_part<quant::q6_k>(7, 2), c = random_part<quant::bf16>(501, 3);
    const std::array views = {a.view, b.view, c.view};
    using device_type = device::packed_cpu<frugal::isa::baseline>;
    device_type serial;
    const auto want = serial.pack(views);
    REQUIRE(want.has_value());
    struct counting_executor {
        std::size_t tasks = 0;
        [[nodiscard]] static std::size_t concurrency() { return 5; }
        void run(std::size_t n, device::task_ref f) {
            tasks += n;
            test::threads(3).run(n, f);
        }
    } executor;
    device_type parallel(executor);
    const auto got = parallel.pack(views);
    REQUIRE(got.has_value());
    CHECK(executor.tasks == 5);
    REQUIRE(got->parts().size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        const quant::panel_view &one = got->parts()[i], &other = want->parts()[i];
        REQUIRE(one.bytes() == other.bytes());
        CHECK(std::memcmp(one.data, other.data, one.bytes()) == 0);
    }
    executor.tasks = 0;
    CHECK(parallel.pack({&b.view, 1}).has_value());
    CHECK(executor.tasks == 0);  // one panel: not worth a second thread
}

TEST_CASE("grouped_image_matmul: each product as alone, whatever its number of rows, tokens and threads") {
    const part a = random_part<quant::q4_k>(37, 1), b = random_part<quant::q8_0>(16, 2), c = random_part<quant::bf16>(3, 3);
    test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
        using device_type = device::packed_cpu<Isa, frugal::counters_off, quant::all, device::q8_activations>;
        test::threads threads(3);
        device_type serial, parallel(threads);
        std::vector<quant::panel_weights> images;
        for (const quant::weight_view* w : {&a.view, &b.view, &c.view}) images.push_back(serial.pack({w, 1}).value());
        constexpr std::size_t tokens[] = {1, 0, 4};
        const auto x = test::random_floats(5 * cols, 3);
        workspace scratch;
        const auto ready = ops::prepare_activations(serial, scratch, matrix_view<const float>(x.data(), 5, cols)).value();
        const auto multiply = [&](device_type& dev) {
            std::vector<std::vector<float>> y;
            std::vector<ops::image_product> products;
            for (std::size_t i = 0, first = 0; i < images.size(); first += tokens[i++]) {
                const quant::panel_view w = images[i].parts()[0];
                y.emplace_back(tokens[i] * w.rows, -1.0f);
                products.push_back({w, ready.rows_range(first, tokens[i]), {y.back().data(), tokens[i], w.rows}});
            }
            REQUIRE(ops::grouped_image_matmul(dev, scratch, std::span<const ops::image_product>(products)));
            return y;
        };
        const auto got = multiply(serial);
        CHECK(got == multiply(parallel));
        for (std::size_t i = 0, first = 0; i < images.size(); first += tokens[i++]) {
            std::vector<float> want(got[i].size());
            const matrix_view<float> y(want.data(), tokens[i], images[i].parts()[0].rows);
            REQUIRE(ops::image_matmul(serial, scratch, images[i],
                                      matrix_view<const float>(x.data() + first * cols, tokens[i], cols), {&y, 1}));
            CHECK(got[i] == want);
        }
        ops::image_product wrong{images[0].parts()[0], ready, {nullptr, 5, 36}};
        CHECK(ops::grouped_image_matmul(serial, scratch, {&wrong, 1}).error().code == errc::shape_mismatch);
    });
}

TEST_CASE("gather_activations: rows as they were prepared, in any order and more than once") {
    constexpr std::size_t odd = 70;  // not whole groups
    const std::array<std::size_t, 5> rows = {3, 0, 3, 1, 2};
    const auto x = test::random_floats(4 * odd, 9);
    std::vector<float> copied;
    for (const std::size_t r : rows)
        copied.insert(copied.end(), x.begin() + static_cast<std::ptrdiff_t>(r * odd),
                      x.begin() + static_cast<std::ptrdiff_t>((r + 1) * odd));
    const auto check = [&]<class Activations>(frugal::type_tag<Activations>, bool values) {
        device::cpu<frugal::isa::baseline, frugal::counters_off, Activations> dev;
        workspace scratch;
        const auto all = ops::prepare_activations(dev, scratch, matrix_view<const float>(x.data(), 4, odd)).value();
        const auto want = ops::prepare_activations(dev, scratch, matrix_view<const float>(copied.data(), 5, odd)).value();
        const auto got = ops::gather_activations(dev, scratch, all, rows, values).value();
        CHECK(got.rows == 5);
        CHECK(got.cols == odd);
        CHECK((got.values != nullptr) == (values || !(Activations::quantized || Activations::rounded)));
        const auto same = [&](const auto* a, const auto* b, std::size_t n) { return std::memcmp(a, b, n * sizeof(*a)) == 0; };
        if (got.values != nullptr) CHECK(same(got.values, want.values, 5 * 96));
        if constexpr (Activations::quantized) {
            CHECK(same(got.codes, want.codes, 5 * 96));
            CHECK(same(got.scales, want.scales, 5 * 3));
            CHECK(same(got.code_sums, want.code_sums, 5 * 6));
        }
        if constexpr (Activations::rounded) {
            CHECK(same(got.rounded, want.rounded, 5 * 96));
            CHECK(same(got.sums, want.sums, 5 * 3));
        }
    };
    for (const bool values : {false, true}) {
        check(frugal::type_tag<device::f32_activations>{}, values);
        check(frugal::type_tag<device::q8_activations>{}, values);
        check(frugal::type_tag<device::bf16_activations>{}, values);
    }
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
