// Rows of a table in panels, decoded on the emulator: the bits of the format's own decoding.
#if defined(FRUGAL_CUDA_EMULATOR)
#include "frugal/ops/embedding/embedding_cuda.cuh"
#else  // on a GPU they are linked
#include "frugal/ops/embedding/embedding_cuda.hpp"
#endif

#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/quant/panels.hpp"
#include "simt_data.hpp"
#include "weights.hpp"

namespace gpu = frugal::ops::cuda;
namespace quant = frugal::quant;

TEST_CASE("look-ups have the bits of the decoded rows, for every format; a negative row gives zeros") {
    const std::vector<std::int64_t> wanted = {17, 0, -1, 36, 5, 5, 15, 16};
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        for (const std::size_t cols : {std::size_t{Format::block_size == 1 ? 37 : Format::block_size}, std::size_t{512}}) {
            CAPTURE(cols);
            constexpr std::size_t rows = 37;
            const auto bytes = test::random_weights<Format>(rows, cols, static_cast<std::uint32_t>(cols));
            const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols);
            REQUIRE(w.has_value());
            const auto decoded = quant::dequantize<quant::all>(*w);
            REQUIRE(decoded.has_value());
            const auto packed = quant::panel_weights::pack<quant::all>(std::span(&*w, 1));
            REQUIRE(packed.has_value());
            const quant::panel_view table = packed->parts()[0];
            const auto* from = reinterpret_cast<const unsigned char*>(table.data);
            simt::for_each_schedule(
                [&] {
                    simt::device_array<unsigned char> panels(std::vector<unsigned char>(from, from + table.bytes()));
                    simt::device_array<std::int64_t> index(wanted);
                    test::device_matrix y(wanted.size(), cols);
                    const cudaError_t started = gpu::embedding_rows<Format>(reinterpret_cast<const std::byte*>(panels.data()),
                                                                            table.panel_bytes, index.data(), y, nullptr);
                    REQUIRE(started == cudaSuccess);
                    const auto got = y.to_host();
                    for (std::size_t i = 0; i < wanted.size(); ++i)
                        for (std::size_t c = 0; c < cols; ++c) {
                            const float want = wanted[i] < 0 ? 0.0f : (*decoded)[static_cast<std::size_t>(wanted[i]) * cols + c];
                            // A zero may have either sign: weights of scale and code are the same number.
                            CHECK(got[i * cols + c] == want);
                        }
                },
                1);
        }
    });
}
