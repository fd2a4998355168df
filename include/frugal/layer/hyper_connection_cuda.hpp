#pragma once
/// Hyper-connections on a GPU.
#include <cstddef>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/layer/hyper_connection.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"
#include "frugal/ops/norm/norm_cuda.hpp"
#include "frugal/reuse/weights/packed_products.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// One connection of hyper_connection<NormWeight> around a block, or the mixer at the end. Device: device::cuda<…>.
template <class NormWeight, class Device>
class FRUGAL_FLAGGED cuda_hyper_connection {
public:
    /// Errors: shape_mismatch, those of packing, out_of_memory.
    [[nodiscard]] static result<cuda_hyper_connection> create(Device& dev, device::gpu::room& memory,
                                                              const hyper_connection_dims& d, const hyper_connection_weights& w,
                                                              const reuse::source_unneeded& unneeded) {
        if (w.norm.size() != d.streams * d.hidden)
            return fail(errc::shape_mismatch, d.streams, " streams of ", d.hidden, " features with a norm of ", w.norm.size());
        cuda_hyper_connection out;
        FRUGAL_TRY_ASSIGN(out.products_, products::pack(dev, w, unneeded));
        FRUGAL_TRY_ASSIGN(out.norm_, memory.keep(w.norm));
        return out;
    }

    /// As hyper_connection::mix where there are injections, else as final_mix. streams: [rows, streams * hidden]; mixed: [rows,
    /// hidden]; injection: [rows, streams] for `inject`, where there are any. Queued.
    [[nodiscard]] status mix(device::gpu::pass<Device>& pass, const hyper_connection_dims& d, matrix_view<const float> streams,
                             matrix_view<float> mixed, matrix_view<float> injection) const {
        const std::size_t rows = streams.rows();
        typename device::gpu::pass<Device>::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto normed, pass.input_matrix(rows, d.streams * d.hidden));
        FRUGAL_TRY_ASSIGN(const auto low, pass.input_matrix(rows, d.rank));
        FRUGAL_TRY_ASSIGN(const auto gate, pass.matrix(rows, d.streams * d.hidden));
        const bool injects = products_.template has<inject_product>();
        const auto divisor = static_cast<float>(d.streams);
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(pass, norm_, streams, d.hidden, d.eps, normed));
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(normed));
        FRUGAL_TRY(pass.multiply(products_.template image<mix_down_product>(), input, {low}));
        if (injects) FRUGAL_TRY(pass.multiply(products_.template image<inject_product>(), input, {injection}));
        FRUGAL_TRY(ops::divided_silu(pass, divisor, low));
        FRUGAL_TRY_ASSIGN(const auto inner, pass.input(low));
        FRUGAL_TRY(pass.multiply(products_.template image<mix_up_product>(), inner, {gate}));
        if (injects) FRUGAL_TRY(ops::divided_double_sigmoid(pass, divisor, injection));
        return ops::gated_stream_mean(pass, gate, normed, d.streams, mixed);
    }

    /// After the block. Queued.
    [[nodiscard]] status inject(device::gpu::pass<Device>& pass, matrix_view<const float> injection,
                                matrix_view<const float> output, matrix_view<float> streams) const {
        return ops::add_to_streams(pass, injection, output, streams);
    }
    [[nodiscard]] std::size_t image_bytes() const noexcept { return products_.bytes(); }

private:
    using products = reuse::packed_products<hyper_connection_products, Device>;

    products products_;
    std::span<const float> norm_;  ///< on the device
};

}  // namespace layer

FRUGAL_NAMESPACE_END
