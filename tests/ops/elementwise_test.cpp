#include "frugal/ops/elementwise/elementwise.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "golden.hpp"
#include "isa.hpp"
#include "layer_data.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using test::as_rows;

TEST_CASE("elementwise operators equal their formulas for any width and thread count") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const std::size_t cols : {1u, 3u, 31u, 64u, 2048u, 2049u, 5000u}) {
            CAPTURE(cols);
            const std::size_t rows = 3;
            const auto a = test::normal_numbers(rows * cols, 1, 4.0f), b = test::normal_numbers(rows * cols, 2);
            const std::vector<float> scale = {0.5f, -2.0f, 1e-3f};
            std::vector<float> want_swiglu(a.size()), want_add(a.size()), want_scaled(a.size());
            for (std::size_t i = 0; i < a.size(); ++i) {
                const double x = a[i], y = b[i];
                want_swiglu[i] = static_cast<float>(x / (1 + std::exp(-x)) * y);
                want_add[i] = b[i] + a[i];
                want_scaled[i] = static_cast<float>(y + static_cast<double>(scale[i / cols]) * x);
            }
            for (const std::size_t count : {1u, 5u}) {
                test::threads threads(count);
                fg::device::cpu<Isa> dev(threads);
                std::vector<float> y(a.size());
                REQUIRE(ops::swiglu(dev, as_rows(a, cols), as_rows(b, cols), as_rows(y, cols)));
                test::check_close(y, want_swiglu, {1e-7, 5e-7}, "swiglu");
                auto in_place = a;
                REQUIRE(ops::swiglu(dev, as_rows(in_place, cols), as_rows(b, cols), as_rows(in_place, cols)));
                CHECK(test::equal_bits(in_place, y));
                auto sum = b;
                REQUIRE(ops::add(dev, as_rows(a, cols), as_rows(sum, cols)));
                CHECK(test::equal_bits(sum, want_add));
                auto scaled = b;
                REQUIRE(ops::add_scaled(dev, scale, as_rows(a, cols), as_rows(scaled, cols)));
                test::check_close(scaled, want_scaled, {1e-6, 2e-7}, "add_scaled");
                // Each row alone gives the same bits.
                for (std::size_t r = 0; r < rows; ++r) {
                    std::vector<float> row(b.begin() + static_cast<std::ptrdiff_t>(r * cols),
                                           b.begin() + static_cast<std::ptrdiff_t>((r + 1) * cols));
                    REQUIRE(ops::add_scaled(dev, std::span(scale).subspan(r, 1), as_rows(a, cols).rows_range(r, 1),
                                            as_rows(row, cols)));
                    CHECK(
                        test::equal_bits(row, std::vector<float>(scaled.begin() + static_cast<std::ptrdiff_t>(r * cols),
                                                                 scaled.begin() + static_cast<std::ptrdiff_t>((r + 1) * cols))));
                }
            }
        }
    });
}

TEST_CASE("swiglu has no overflow in its tails") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::vector<float> gate = {200, -200, 1e4f, -1e4f, 0}, up = {2, 2, 2, 2, 2};
        std::vector<float> y(5);
        REQUIRE(ops::swiglu(dev, as_rows(gate, 5), as_rows(up, 5), as_rows(y, 5)));
        CHECK(y[0] == 400);
        CHECK(std::abs(y[1]) < 1e-30f);
        CHECK(y[2] == 2e4f);
        CHECK(y[3] == 0);
        CHECK(y[4] == 0);
    });
}

TEST_CASE("elementwise operators refuse shapes that differ, and accept nothing at all") {
    fg::device::cpu<fg::isa::baseline> dev;
    std::vector<float> a(6), b(4);
    const std::vector<float> scale(3);
    CHECK(ops::swiglu(dev, as_rows(a, 3), as_rows(b, 2), as_rows(a, 3)).error().code == fg::errc::shape_mismatch);
    CHECK(ops::add(dev, as_rows(b, 2), as_rows(a, 3)).error().code == fg::errc::shape_mismatch);
    CHECK(ops::add_scaled(dev, scale, as_rows(a, 3), as_rows(a, 3)).error().code == fg::errc::shape_mismatch);
    CHECK(ops::add(dev, fg::matrix_view<const float>(nullptr, 0, 3), fg::matrix_view<float>(nullptr, 0, 3)));
    CHECK(ops::add(dev, fg::matrix_view<const float>(nullptr, 3, 0), fg::matrix_view<float>(nullptr, 3, 0)));
}
