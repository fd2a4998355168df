// What a consumer writes: two headers, a weight matrix as it lies in a file, one product.
#include <cstddef>
#include <cstdio>
#include <span>

#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats.hpp"

namespace fg = frugal;

int main() {
    using formats = fg::quant::list<fg::quant::f32>;
    const float weights[2][3] = {{1, 2, 3}, {4, 5, 6}};
    const float x[3] = {1, 10, 100};
    float y[2] = {};
    const auto w = fg::quant::make_weight_view<formats>(fg::quant::f32::type, std::as_bytes(std::span(weights)), 2, 3);
    if (!w) return std::fprintf(stderr, "%s\n", w.error().message.c_str()), 1;
    fg::device::cpu<fg::isa::baseline> cpu;
    fg::workspace scratch;
    const fg::status done = fg::ops::matmul<formats>(cpu, scratch, *w, {x, 1, 3}, {y, 1, 2});
    if (!done) return std::fprintf(stderr, "%s\n", done.error().message.c_str()), 1;
    std::printf("%g %g\n", static_cast<double>(y[0]), static_cast<double>(y[1]));
    return y[0] == 321 && y[1] == 654 ? 0 : 1;
}
