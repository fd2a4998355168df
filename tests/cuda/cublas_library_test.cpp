// device::gpu::cublas_products with NVIDIA's library: right on a machine with a GPU, an error on one without.
#include "frugal/device/cuda/cublas.hpp"

#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/tensor/scalar.hpp"

namespace gpu = frugal::device::gpu;

TEST_CASE("a product by cuBLASLt, or CUDA's name for why there is none") {
    constexpr std::size_t rows = 48, cols = 64, tokens = 17, stride = 50;
    const auto on = std::make_shared<gpu::context>();
    gpu::cublas_products products;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        auto refused = products.multiply(on, {}, nullptr, rows, cols, nullptr, tokens, nullptr, stride);
        REQUIRE(!refused);
        CHECK(refused.error().message.find("cudaError") != std::string::npos);
        MESSAGE("no GPU that this process may use: nothing was multiplied (" << refused.error().message << ")");
        return;
    }
    std::vector<frugal::bfloat16> w(rows * cols), x(tokens * cols);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = frugal::to_bfloat16(static_cast<float>(i % 13) - 6.0f);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = frugal::to_bfloat16(static_cast<float>(i % 7) - 3.0f);
    const auto room = [&](std::size_t bytes) { return gpu::device_memory::allocate(on, bytes).value(); };
    const auto dw = room(w.size() * 2), dx = room(x.size() * 2), dy = room(tokens * stride * 4);
    const auto queue = gpu::stream::create(on).value();
    REQUIRE(queue.upload(dw.data(), w.data(), w.size() * 2));
    REQUIRE(queue.upload(dx.data(), x.data(), x.size() * 2));
    REQUIRE(products.multiply(on, queue, dw.as<frugal::bfloat16>(), rows, cols, dx.as<frugal::bfloat16>(), tokens, dy.as<float>(),
                              stride));
    std::vector<float> y(tokens * stride);
    REQUIRE(queue.download(y.data(), dy.data(), y.size() * 4));
    REQUIRE(queue.synchronize());
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t r = 0; r < rows; ++r) {
            double want = 0;  // whole numbers: exact in any order
            for (std::size_t c = 0; c < cols; ++c)
                want += static_cast<double>(frugal::to_float(w[r * cols + c])) *
                        static_cast<double>(frugal::to_float(x[t * cols + c]));
            CHECK(static_cast<double>(y[t * stride + r]) == want);
        }
}
