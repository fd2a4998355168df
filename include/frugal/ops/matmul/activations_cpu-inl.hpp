#pragma once
#include <cstring>

#include "frugal/ops/matmul/activations_cpu.hpp"
#include "frugal/quant/activation.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa>
void quantize_rows(const prepared_activations& x, std::int8_t* codes, float* scales, std::int16_t* sums, std::size_t row_begin,
                   std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    using activation = quant::q8_activation<quant::panel_group>;
    for (std::size_t r = row_begin; r < row_end; ++r)
        for (std::size_t g = 0; g < x.groups; ++g) {
            typename activation::block block;
            activation::quantize(x.values + r * x.stride + g * quant::panel_group, block);
            const std::size_t at = r * x.groups + g;
            std::memcpy(codes + at * quant::panel_group, block.codes, sizeof(block.codes));
            scales[at] = block.scale;
            std::memcpy(sums + 2 * at, block.sums, sizeof(block.sums));
        }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
