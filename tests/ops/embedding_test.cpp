// ops::embedding_rows: the decoded rows, on every instruction set; what must be refused.
#include "frugal/ops/embedding/embedding.hpp"

#include <cstring>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/quant/codec.hpp"
#include "frugal/quant/formats.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace device = frugal::device;
namespace ops = frugal::ops;
namespace quant = frugal::quant;
using frugal::errc;
using frugal::matrix_view;

namespace {

constexpr std::size_t table_rows = 37, cols = 512;

/// Random bytes: whatever they mean, the look-up must agree with the decoder.
template <class F>
std::vector<std::byte> random_table() {
    std::mt19937 random(static_cast<std::uint32_t>(F::type) + 1);
    std::vector<std::byte> out(table_rows * (cols / F::block_size) * F::block_bytes);
    for (std::byte& byte : out) byte = static_cast<std::byte>(random() & 0x7Bu);
    return out;
}

}  // namespace

TEST_CASE("embedding_rows decodes the rows asked for, in every format") {
    const std::vector<std::int32_t> rows = {0, 36, 5, 5, 17, 1, 35, 2, 0, 8, 8, 30, 4, 3, 21, 22, 23, 36, 36};
    const auto check = [&]<class F>(frugal::type_tag<F>) {
        CAPTURE(std::string(F::name));
        const auto bytes = random_table<F>();
        const auto table = quant::make_weight_view<quant::all>(F::type, bytes, table_rows, cols);
        REQUIRE(table.has_value());
        const auto want = quant::dequantize<quant::all>(*table);
        REQUIRE(want.has_value());
        test::for_each_isa([&]<class Isa>(frugal::type_tag<Isa>) {
            for (const std::size_t count : {std::size_t{1}, std::size_t{3}}) {
                test::threads threads(count);
                device::cpu<Isa> dev(threads);
                std::vector<float> y(rows.size() * (cols + 3), -1.0f);
                const matrix_view<float> out(y.data(), rows.size(), cols, cols + 3);
                REQUIRE(ops::embedding_rows<quant::all>(dev, *table, rows, out));
                for (std::size_t i = 0; i < rows.size(); ++i) {
                    CHECK(std::memcmp(y.data() + i * (cols + 3), want->data() + static_cast<std::size_t>(rows[i]) * cols,
                                      cols * sizeof(float)) == 0);
                    CHECK(y[i * (cols + 3) + cols] == -1.0f);  // nothing beyond the row
                }
            }
        });
    };
#define FRUGAL_CHECK_FORMAT(format) check(frugal::type_tag<quant::format>{});
    FRUGAL_FORMATS(FRUGAL_CHECK_FORMAT)
#undef FRUGAL_CHECK_FORMAT
}

TEST_CASE("embedding_rows refuses rows outside the table and wrong shapes, and writes nothing then") {
    device::cpu<frugal::isa::baseline, frugal::counters_on> dev;
    const auto bytes = random_table<quant::q8_0>();
    const auto table = quant::make_weight_view<quant::all>(quant::q8_0::type, bytes, table_rows, cols);
    REQUIRE(table.has_value());
    std::vector<float> y(2 * cols, -1.0f);
    const matrix_view<float> out(y.data(), 2, cols);
    const auto look_up = [&](std::vector<std::int32_t> rows, matrix_view<float> to) {
        return ops::embedding_rows<quant::all>(dev, *table, rows, to);
    };
    for (const std::int32_t bad : {-1, static_cast<std::int32_t>(table_rows), INT32_MIN, INT32_MAX}) {
        const auto status = look_up({0, bad}, out);
        REQUIRE(!status);
        CHECK(status.error().code == errc::invalid_argument);
        CHECK(status.error().message.find(std::to_string(bad)) != std::string::npos);
    }
    CHECK(look_up({0}, out).error().code == errc::shape_mismatch);
    CHECK(look_up({0, 1}, matrix_view<float>(y.data(), 2, cols - 32)).error().code == errc::shape_mismatch);
    const auto outside = ops::embedding_rows<quant::list<quant::f32>>(dev, *table, std::vector<std::int32_t>{0, 1}, out);
    CHECK(outside.error().code == errc::unsupported_format);
    for (const float value : y) REQUIRE(value == -1.0f);
    CHECK(dev.counters().read(frugal::counter::weight_bytes_read) == 0);
    CHECK(look_up({}, matrix_view<float>(y.data(), 0, cols)));
    CHECK(look_up({3, 4}, out));
    CHECK(dev.counters().read(frugal::counter::weight_bytes_read) == 2 * table->row_bytes);
}
