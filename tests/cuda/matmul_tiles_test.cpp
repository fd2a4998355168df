// Products by matrix units with weights and activations in bfloat16 on the emulator, against sums in double of the rounded
// numbers.
#if defined(FRUGAL_CUDA_EMULATOR)
#include "frugal/device/cuda/panels/tiles.cuh"
#else  // on a GPU they are linked
#include "frugal/device/cuda/products.hpp"
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/quant/panels.hpp"
#include "frugal/tensor/scalar.hpp"
#include "simt_data.hpp"
#include "weights.hpp"

namespace device = frugal::device;
namespace quant = frugal::quant;

namespace {

double rounded(float x) { return static_cast<double>(frugal::to_float(frugal::to_bfloat16(x))); }

}  // namespace

TEST_CASE(
    "products by matrix units are sums of rounded terms, for every format, and the same bits whatever the batch and the order") {
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        constexpr std::size_t rows = 21, most = 70;
        for (const std::size_t cols : {std::size_t{Format::block_size == 1 ? 40 : Format::block_size}, std::size_t{512}}) {
            if (cols == 512 && Format::block_size == 32) continue;  // the groups of a block are all alike
            CAPTURE(cols);
            const std::size_t groups = (cols + 31) / 32;
            const auto bytes = test::random_weights<Format>(rows, cols, static_cast<std::uint32_t>(cols));
            const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
            REQUIRE(w.has_value());
            const auto decoded = quant::dequantize<quant::all>(*w);
            REQUIRE(decoded.has_value());
            const auto packed = quant::panel_weights::pack<quant::all>(std::span(&*w, 1));
            REQUIRE(packed.has_value());
            const auto* from = reinterpret_cast<const unsigned char*>(packed->parts()[0].data);
            const auto x = test::random_floats(most * cols, 5);
            std::vector<float> padded(most * groups * 32);
            for (std::size_t t = 0; t < most; ++t) std::copy_n(x.data() + t * cols, cols, padded.data() + t * groups * 32);
            const auto run = [&](std::size_t first, std::size_t tokens) {
                simt::device_array<unsigned char> weights(std::vector<unsigned char>(from, from + packed->bytes()));
                const auto begin = padded.begin() + static_cast<std::ptrdiff_t>(first * groups * 32);
                simt::device_array<float> values(
                    std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(tokens * groups * 32)));
                test::device_matrix y(tokens, rows);
                device::gpu::panel_product product;
                product.weights = reinterpret_cast<const std::byte*>(weights.data());
                product.rows = rows;
                product.panel_bytes = packed->parts()[0].panel_bytes;
                product.x.values = values.data();
                product.x.tokens = tokens;
                product.x.groups = groups;
                product.y = y.data();
                product.y_stride = rows;
                const cudaError_t started = device::gpu::multiply_panel_tiles<Format>(product, nullptr);
                REQUIRE(started == cudaSuccess);
                return y.to_host();
            };
            const auto all = run(0, most);
            std::size_t bad = 0;
            for (std::size_t t = 0; t < most; ++t)
                for (std::size_t r = 0; r < rows; ++r) {
                    double want = 0, size = 0;
                    for (std::size_t c = 0; c < cols; ++c) {
                        const double term = rounded((*decoded)[r * cols + c]) * rounded(x[t * cols + c]);
                        want += term, size += std::abs(term);
                    }
                    // The terms are exact; a unit rounds once a product of 16 columns here, and a device no worse than every
                    // addition.
                    if (!(std::abs(static_cast<double>(all[t * rows + r]) - want) <= 0x1p-24 * static_cast<double>(cols) * size))
                        ++bad;
                }
            CHECK(bad == 0);
            const auto alone = run(33, 1);
            CHECK(std::memcmp(alone.data(), &all[33 * rows], rows * sizeof(float)) == 0);
            CHECK(simt::same_under_all_schedules([&] { return run(0, 9); }, 1));
        }
    });
}
