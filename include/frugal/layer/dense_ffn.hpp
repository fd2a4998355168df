#pragma once
/// The dense feed-forward block: SwiGLU (Shazeer 2020, arXiv:2002.05202).
#include <array>
#include <cstddef>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/ops/moe/grouped_matmul.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// gate and up: [width, hidden]; down: [hidden, width].
struct dense_ffn_weights {
    quant::weight_view gate, up, down;
};

/// y = down(silu(gate(x)) * up(x)). x, y: [rows, hidden]; y may be the memory of x.
/// Errors: shape_mismatch, unsupported_format, out_of_memory.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status dense_ffn(Device& dev, workspace& scratch, const dense_ffn_weights& weights, matrix_view<const float> x,
                               matrix_view<float> y) {
    if (weights.up.rows != weights.gate.rows)
        return fail(errc::shape_mismatch, "feed-forward gate of ", weights.gate.rows, " rows, up of ", weights.up.rows);
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(auto gate, scratch.matrix(x.rows(), weights.gate.rows));
    FRUGAL_TRY_ASSIGN(auto up, scratch.matrix(x.rows(), weights.up.rows));
    const std::array<ops::matmul_product, 2> products = {{{weights.gate, x, gate}, {weights.up, x, up}}};
    FRUGAL_TRY(ops::grouped_matmul<Formats>(dev, scratch, products));
    FRUGAL_TRY(ops::swiglu(dev, gate, up, gate));
    return ops::matmul<Formats>(dev, scratch, weights.down, gate, y);
}

}  // namespace layer

FRUGAL_NAMESPACE_END
