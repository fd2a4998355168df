// A product of one format, as in README.md.
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats/q4_k.hpp"
#include "frugal/quant/list.hpp"

namespace fg = frugal;

fg::status multiply(fg::device::cpu<>& device, fg::workspace& scratch, const fg::quant::weight_view& weight,
                    fg::matrix_view<const float> x, fg::matrix_view<float> y) {
    return fg::ops::matmul<fg::quant::list<fg::quant::q4_k>>(device, scratch, weight, x, y);
}
