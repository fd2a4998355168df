#pragma once
/// The dense feed-forward block on a GPU.
#include <cstddef>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"
#include "frugal/reuse/weights/packed_products.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// As dense_ffn, on device memory, with images of its products: what reuse::packed_products packs for dense_ffn_products.
/// x: what pass.input() gives for [rows, hidden], which ends with this; y: [rows, hidden]. Queued.
template <class Device>
[[nodiscard]] status dense_ffn(device::gpu::pass<Device>& pass,
                               const reuse::packed_products<dense_ffn_products, Device>& products,
                               const device::gpu::activations& x, matrix_view<float> y) {
    typename device::gpu::pass<Device>::scope scope(pass);
    const std::size_t width = products.template image<gate_up_product>().parts().front().rows;
    FRUGAL_TRY_ASSIGN(const auto gate, pass.input_matrix(x.tokens, width));
    FRUGAL_TRY_ASSIGN(const auto up, pass.matrix(x.tokens, width));
    FRUGAL_TRY(pass.multiply(products.template image<gate_up_product>(), x, {gate, up}));
    FRUGAL_TRY(ops::swiglu(pass, gate, up, gate));
    FRUGAL_TRY_ASSIGN(const auto inner, pass.input(gate));
    return pass.multiply(products.template image<down_product>(), inner, {y});
}

}  // namespace layer

FRUGAL_NAMESPACE_END
