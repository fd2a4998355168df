#pragma once
/// The dense feed-forward block: SwiGLU (Shazeer 2020, arXiv:2002.05202).
#include <array>
#include <cstddef>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// gate and up: [width, hidden]; down: [hidden, width].
struct FRUGAL_FLAGGED dense_ffn_weights {
    quant::weight_view gate, up, down;
};

/// The products of a dense feed-forward block; see reuse/products.hpp.
using gate_up_product = reuse::product<&dense_ffn_weights::gate, &dense_ffn_weights::up>;
using down_product = reuse::product<&dense_ffn_weights::down>;
using dense_ffn_products = reuse::product_list<dense_ffn_weights, gate_up_product, down_product>;

/// y = down(silu(gate(x)) * up(x)). x, y: [rows, hidden]; y may be the memory of x.
/// `multiplier`: reuse::direct_products, or what reuse::image_store gives for dense_ffn_products.
/// Errors: shape_mismatch, unsupported_format, out_of_memory, and those of the multiplier.
template <device::cpu_target Device, class Products>
[[nodiscard]] status dense_ffn(Device& dev, workspace& scratch, Products& multiplier, const dense_ffn_weights& weights,
                               const reuse::product_input& x, matrix_view<float> y) {
    if (weights.up.rows != weights.gate.rows)
        return fail(errc::shape_mismatch, "feed-forward gate of ", weights.gate.rows, " rows, up of ", weights.up.rows);
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(auto gate, scratch.matrix(x.rows(), weights.gate.rows));
    FRUGAL_TRY_ASSIGN(auto up, scratch.matrix(x.rows(), weights.up.rows));
    FRUGAL_TRY(multiplier.template multiply<gate_up_product>(x, {gate, up}));
    FRUGAL_TRY(ops::swiglu(dev, gate, up, gate));
    return multiplier.template multiply<down_product>(gate, {y});
}

/// The same from the blocks of the file.
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status dense_ffn(Device& dev, workspace& scratch, const dense_ffn_weights& weights, matrix_view<const float> x,
                               matrix_view<float> y) {
    reuse::direct_products<Formats, Device, dense_ffn_weights> direct(dev, scratch, weights);
    return dense_ffn(dev, scratch, direct, weights, x, y);
}

}  // namespace layer

FRUGAL_NAMESPACE_END
