// The smallest program: quantise a matrix to 8 bits and multiply it with a vector.
//   g++ -std=c++20 -O3 -march=native -I include examples/matmul/main.cpp -o matmul && ./matmul
#include <cstddef>
#include <cstdio>
#include <vector>

#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats.hpp"

int main() {
    using format = frugal::quant::q8_0;
    using formats = frugal::quant::list<format>;
    constexpr std::size_t rows = 3, cols = 64, blocks = cols / format::block_size;

    std::vector<std::byte> packed(rows * blocks * format::block_bytes);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t b = 0; b < blocks; ++b) {
            const std::vector<float> weights(format::block_size, static_cast<float>(r + 1));
            format::encode(weights.data(), packed.data() + (r * blocks + b) * format::block_bytes);
        }
    const auto w = frugal::quant::make_weight_view<formats>(format::type, packed, rows, cols);
    if (!w) return std::fprintf(stderr, "%s\n", w.error().message.c_str()), 1;

    const std::vector<float> x(cols, 1.0f / cols);
    std::vector<float> y(rows);
    frugal::device::cpu<> device;
    frugal::workspace scratch;
    const frugal::status done = frugal::ops::matmul<formats>(device, scratch, *w, frugal::matrix_view(x.data(), 1, cols),
                                                             frugal::matrix_view(y.data(), 1, rows));
    if (!done) return std::fprintf(stderr, "%s\n", done.error().message.c_str()), 1;
    std::printf("y = %.2f %.2f %.2f\n", static_cast<double>(y[0]), static_cast<double>(y[1]), static_cast<double>(y[2]));
    return std::fflush(stdout) == 0 ? 0 : 1;
}
