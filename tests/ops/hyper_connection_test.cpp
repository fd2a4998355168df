#include "frugal/ops/hyper_connection/hyper_connection.hpp"

#include <cmath>

#include "golden.hpp"
#include "isa.hpp"
#include "layer_data.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using test::as_rows;

TEST_CASE("stream operators equal their formulas for any width and thread count") {
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    test::for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        for (const std::size_t hidden : {1u, 7u, 256u, 300u, 2100u})
            for (const std::size_t streams : {1u, 2u, 3u, 4u}) {
                const std::size_t rows = 2, all = streams * hidden;
                CAPTURE(hidden);
                CAPTURE(streams);
                const auto gate = test::normal_numbers(rows * all, 1, 3.0f), x = test::normal_numbers(rows * all, 2);
                const auto block = test::normal_numbers(rows * hidden, 3), scale = test::normal_numbers(rows * streams, 4);
                std::vector<float> want_mean(rows * hidden), want_streams(x.size()), want_silu(gate.size()),
                    want_double(gate.size());
                for (std::size_t r = 0; r < rows; ++r)
                    for (std::size_t i = 0; i < hidden; ++i) {
                        double sum = 0;
                        for (std::size_t s = 0; s < streams; ++s) {
                            const std::size_t at = r * all + s * hidden + i;
                            sum += sigmoid(gate[at]) * static_cast<double>(x[at]);
                            want_streams[at] =
                                static_cast<float>(static_cast<double>(x[at]) + static_cast<double>(scale[r * streams + s]) *
                                                                                    static_cast<double>(block[r * hidden + i]));
                        }
                        want_mean[r * hidden + i] = static_cast<float>(sum / static_cast<double>(streams));
                    }
                for (std::size_t i = 0; i < gate.size(); ++i) {
                    const double divided = static_cast<double>(gate[i]) / static_cast<double>(streams);
                    want_silu[i] = static_cast<float>(divided * sigmoid(divided));
                    want_double[i] = static_cast<float>(2 * sigmoid(divided));
                }
                for (const std::size_t count : {1u, 3u}) {
                    test::threads threads(count);
                    fg::device::cpu<Isa> dev(threads);
                    std::vector<float> mean(rows * hidden);
                    REQUIRE(ops::gated_stream_mean(dev, as_rows(gate, all), as_rows(x, all), streams, as_rows(mean, hidden)));
                    test::check_close(mean, want_mean, {3e-7, 1e-6}, "mean");
                    auto fed = x;
                    REQUIRE(ops::add_to_streams(dev, as_rows(scale, streams), as_rows(block, hidden), as_rows(fed, all)));
                    test::check_close(fed, want_streams, {5e-7, 3e-7}, "streams");
                    auto low = gate;
                    REQUIRE(ops::divided_silu(dev, static_cast<float>(streams), as_rows(low, all)));
                    test::check_close(low, want_silu, {1e-7, 1e-6}, "silu");
                    auto injection = gate;
                    REQUIRE(ops::divided_double_sigmoid(dev, static_cast<float>(streams), as_rows(injection, all)));
                    test::check_close(injection, want_double, {1e-7, 1e-6}, "double sigmoid");
                }
            }
    });
}

TEST_CASE("stream operators refuse shapes that do not fit") {
    fg::device::cpu<fg::isa::baseline> dev;
    std::vector<float> six(6), four(4), two(2), three(3);
    CHECK(ops::gated_stream_mean(dev, as_rows(six, 6), as_rows(six, 6), 4, as_rows(two, 2)).error().code ==
          fg::errc::shape_mismatch);
    CHECK(ops::gated_stream_mean(dev, as_rows(six, 6), as_rows(six, 6), 0, as_rows(two, 2)).error().code ==
          fg::errc::shape_mismatch);
    CHECK(ops::gated_stream_mean(dev, as_rows(four, 4), as_rows(six, 6), 3, as_rows(two, 2)).error().code ==
          fg::errc::shape_mismatch);
    CHECK(ops::add_to_streams(dev, as_rows(two, 2), as_rows(two, 2), as_rows(six, 6)).error().code == fg::errc::shape_mismatch);
    CHECK(ops::add_to_streams(dev, as_rows(six, 3), as_rows(two, 2), as_rows(six, 6)).error().code == fg::errc::shape_mismatch);
    CHECK(ops::add_to_streams(dev, as_rows(three, 3), as_rows(two, 2), as_rows(six, 6)));
}
