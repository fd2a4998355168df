#pragma once
#include <bit>
#include <cstdint>
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

template <class Isa>
void round_rows(const prepared_activations& x, bfloat16* rounded, float* sums, std::size_t row_begin, std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t r = row_begin; r < row_end; ++r)
        for (std::size_t g = 0; g < x.groups; ++g) {
            const std::size_t at = r * x.groups + g;
            const float* const from = x.values + r * x.stride + g * quant::panel_group;
            bfloat16* const to = rounded + at * quant::panel_group;
            float sum = 0.0f;
            for (std::size_t k = 0; k < quant::panel_group; ++k) {
                const auto bits = std::bit_cast<std::uint32_t>(from[k]);
                const std::uint32_t kept = (bits & 0x7F800000u) == 0 ? bits & 0x80000000u : bits;
                to[k] = to_bfloat16(std::bit_cast<float>(kept));
                sum += to_float(to[k]);
            }
            sums[at] = sum;
        }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
