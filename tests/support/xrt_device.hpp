#pragma once
/// device::xrt on the emulated device.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "frugal/device/xrt/xrt.hpp"
#include "frugal/quant/q4nx.hpp"
#include "frugal/quant/tiles.hpp"
#include "frugal/tensor/scalar.hpp"
#include "weights.hpp"
#include "xrt_emulator/emulator.hpp"
#include "xrt_emulator/tile_matmul.hpp"

namespace test {

/// What makes an emulated kernel usable by device::xrt. The kernel must be installed.
inline frugal::device::xrt_options emulated_options(const xrt_emulator::tile_matmul& kernel) {
    frugal::device::xrt_options out;
    out.binary = kernel.binary();
    out.kernel.name = kernel.name;
    if (kernel.shape_scalars) out.kernel.tokens = 6, out.kernel.rows = 7, out.kernel.columns = 8;
    out.instructions = [kernel](std::size_t rows, std::size_t columns) { return kernel.instructions(rows, columns); };
    return out;
}

/// An emulated machine with one such kernel, as at the start of the process.
struct emulated_machine {
    explicit emulated_machine(xrt_emulator::tile_matmul wanted = {}) : kernel(std::move(wanted)) {
        xrt_emulator::restart();
        if (kernel.tile.empty()) kernel.tile = frugal::device::xrt<>::tile_name();
        kernel.install();
    }
    emulated_machine(const emulated_machine&) = delete;
    emulated_machine& operator=(const emulated_machine&) = delete;
    ~emulated_machine() { xrt_emulator::restart(); }

    [[nodiscard]] frugal::device::xrt_options options() const { return emulated_options(kernel); }
    /// Opens device 0; the host arguments are those of device::xrt::open.
    template <class Device = frugal::device::xrt<>, class... HostArgument>
    [[nodiscard]] Device open(HostArgument&&... host) const {
        auto out = Device::open(0, options(), std::forward<HostArgument>(host)...);
        if (!out) FAIL(out.error().message);
        return std::move(out).value();
    }

    xrt_emulator::tile_matmul kernel;
};

/// Weights of some parts with equal columns, and what a product with them must give.
struct problem {
    using tiles = frugal::quant::q4nx<>;

    problem(std::vector<std::size_t> part_rows, std::size_t columns, std::uint32_t seed)
        : rows(std::move(part_rows)), cols(columns) {
        for (const std::size_t each : rows) values.push_back(test::random_floats(each * cols, seed++, 0.05f));
        for (std::size_t i = 0; i < rows.size(); ++i) parts.emplace_back(values[i].data(), rows[i], cols);
        std::size_t all = 0;
        for (const std::size_t each : rows) all += each;
        std::vector<std::byte> packed(frugal::quant::packed_tiles<tiles>::bytes(all, cols));
        REQUIRE(frugal::quant::pack_tiles<tiles>(std::span<const frugal::matrix_view<const float>>(parts), packed));
        decoded.resize(all * cols);
        REQUIRE(frugal::quant::unpack_tiles<tiles>(packed, all, cols, frugal::matrix_view<float>(decoded.data(), all, cols)));
    }

    problem(const problem&) = delete;
    problem& operator=(const problem&) = delete;

    template <class Device>
    [[nodiscard]] auto pack(Device& device) const {
        return device.pack(std::span<const frugal::matrix_view<const float>>(parts));
    }

    /// Multiplies random activations of `tokens` tokens and compares. The result.
    template <class Device, class Image>
    std::vector<float> check(Device& device, const Image& image, std::size_t tokens, std::uint32_t seed) const {
        const std::size_t stride = cols + 3;  // the rows of activations need not lie side by side
        const std::vector<float> x = test::random_floats(tokens * stride, seed);
        std::size_t all = 0;
        for (const std::size_t each : rows) all += each;
        std::vector<float> y((tokens + 1) * all, std::numeric_limits<float>::quiet_NaN());  // somewhere, even without tokens
        std::vector<frugal::matrix_view<float>> results;
        std::size_t at = 0;
        for (const std::size_t each : rows) {
            results.emplace_back(y.data() + at, tokens, each, all);
            at += each;
        }
        const frugal::matrix_view<const float> input(x.data(), tokens, cols, stride);
        const frugal::status done = device.multiply(scratch, image, input, results);
        REQUIRE_MESSAGE(done, done.error().message);
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t r = 0; r < all; ++r) {
                double exact = 0.0, magnitude = 0.0;
                for (std::size_t c = 0; c < cols; ++c) {
                    const double term = static_cast<double>(decoded[r * cols + c]) *
                                        static_cast<double>(frugal::to_float(frugal::to_bfloat16(x[t * stride + c])));
                    exact += term;
                    magnitude += std::abs(term);
                }
                // cols products and as many sums in f32, each rounded to half of 2^-23.
                const double bound = (static_cast<double>(cols) + 1.0) * 0x1p-24 * magnitude * 1.001;
                CAPTURE(t);
                CAPTURE(r);
                CHECK(std::abs(static_cast<double>(y[t * all + r]) - exact) <= bound);
            }
        return y;
    }

    std::vector<std::size_t> rows;
    std::size_t cols;
    std::vector<std::vector<float>> values;
    std::vector<frugal::matrix_view<const float>> parts;
    std::vector<float> decoded;
    mutable frugal::workspace scratch;
};

}  // namespace test
