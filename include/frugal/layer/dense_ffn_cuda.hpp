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

/// The two wide inputs of the block's last product, for `rows` tokens at most.
struct FRUGAL_FLAGGED cuda_ffn_buffers {
    matrix_view<float> gate, up;

    [[nodiscard]] static result<cuda_ffn_buffers> create(device::gpu::room& memory, std::size_t rows, std::size_t width) {
        cuda_ffn_buffers out;
        FRUGAL_TRY_ASSIGN(out.gate, memory.input_matrix(rows, width));
        FRUGAL_TRY_ASSIGN(out.up, memory.matrix(rows, width));
        return out;
    }
};

/// As dense_ffn, on device memory, with images of its products: what reuse::packed_products packs for dense_ffn_products.
/// x: what pass.input() gives for [rows, hidden], which ends with this; y: [rows, hidden]. Queued.
template <class Device>
[[nodiscard]] status dense_ffn(const device::gpu::pass<Device>& pass,
                               const reuse::packed_products<dense_ffn_products, Device>& products, const cuda_ffn_buffers& all,
                               const device::gpu::activations& x, matrix_view<float> y) {
    const auto gate = all.gate.rows_range(0, x.tokens), up = all.up.rows_range(0, x.tokens);
    FRUGAL_TRY(pass.multiply(products.template image<gate_up_product>(), x, {gate, up}));
    FRUGAL_TRY(ops::swiglu(pass, gate, up, gate));
    FRUGAL_TRY_ASSIGN(const auto inner, pass.input(gate));
    return pass.multiply(products.template image<down_product>(), inner, {y});
}

}  // namespace layer

FRUGAL_NAMESPACE_END
