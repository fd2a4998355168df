#pragma once
/// Mixture of experts on a GPU.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/layer/dense_ffn_cuda.hpp"
#include "frugal/layer/moe.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"
#include "frugal/ops/moe/combine_cuda.hpp"
#include "frugal/ops/moe/group_cuda.hpp"
#include "frugal/ops/moe/router_cuda.hpp"
#include "frugal/reuse/weights/packed_products.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// The mixture of one layer: every expert resident. An expert's weights are read once for several choices of it, where a batch
/// has choices enough (device::gpu::expert_groups), otherwise once a choice. Device: device::cuda<…>.
template <class Device>
class FRUGAL_FLAGGED cuda_moe {
public:
    /// Errors: shape_mismatch, unsupported (more than 512 experts, or 64 of a token), those of packing, out_of_memory.
    [[nodiscard]] static result<cuda_moe> create(Device& dev, const moe_dims& d, const moe_weights& w, std::size_t hidden,
                                                 const reuse::source_unneeded& unneeded) {
        FRUGAL_TRY(detail::check_moe(d, w, hidden));
        if (d.experts > ops::cuda::group_most || d.top_k > ops::cuda::combine_most)
            return fail(errc::unsupported, d.top_k, " of ", d.experts, " experts on a GPU; ", ops::cuda::combine_most, " of ",
                        ops::cuda::group_most, " at most");
        cuda_moe out;
        FRUGAL_TRY_ASSIGN(out.products_, products::pack(dev, w, unneeded));
        FRUGAL_TRY_ASSIGN(out.shared_, shared_products::pack(dev, w.shared_expert(), unneeded));
        for (const auto& [stack, image] :
             {std::pair(&w.gate, &out.gate_), std::pair(&w.up, &out.up_), std::pair(&w.down, &out.down_)}) {
            std::vector<quant::weight_view> experts;
            for (std::size_t e = 0; e < stack->experts; ++e) experts.push_back(stack->expert(e));
            FRUGAL_TRY_ASSIGN(*image, dev.pack(experts));
            if (unneeded)
                for (const quant::weight_view& one : experts) unneeded({one.data, one.bytes()});
        }
        return out;
    }

    /// As layer::moe. x, y: [rows, hidden]. first_bad: of ops::cuda::route. Queued; a token's bits do not depend on the
    /// others, but for how many they are where the device's prefill policy rounds.
    [[nodiscard]] status forward(device::gpu::pass<Device>& pass, const moe_dims& d, int* first_bad, matrix_view<const float> x,
                                 matrix_view<float> y) const {
        const std::size_t rows = x.rows(), pairs = rows * d.top_k;
        const std::size_t width = gate_.parts().front().rows;
        typename device::gpu::pass<Device>::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto logits, pass.matrix(rows, d.experts));
        FRUGAL_TRY_ASSIGN(const auto gate, pass.input_matrix(pairs, width));
        FRUGAL_TRY_ASSIGN(const auto up, pass.matrix(pairs, width));
        FRUGAL_TRY_ASSIGN(const auto outputs, pass.matrix(pairs, y.cols()));
        FRUGAL_TRY_ASSIGN(const auto index, pass.template array<std::int32_t>(pairs));
        FRUGAL_TRY_ASSIGN(const auto weight, pass.template array<float>(pairs));
        matrix_view<const float> shared;
        const float* shared_gate = nullptr;
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(x));
        if (products_.template has<shared_gate_product>()) {
            FRUGAL_TRY_ASSIGN(const auto own, pass.matrix(rows, 1));
            FRUGAL_TRY(pass.multiply(products_.template image<shared_gate_product>(), input, {own}));
            shared_gate = own.data();
        }
        FRUGAL_TRY(pass.multiply(products_.template image<router_product>(), input, {logits}));
        FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
            return ops::cuda::route(logits, d.top_k, d.renormalise, index.data(), weight.data(), first_bad, stream);
        }));
        device::gpu::expert_groups groups;
        if (device::gpu::groups_choices<typename Device::prefill>(rows, pairs, d.experts)) {
            FRUGAL_TRY_ASSIGN(groups, take_groups(pass, pairs, d.experts));
            groups.tokens = rows;
            FRUGAL_TRY(
                pass.start([&](cudaStream_t stream) { return ops::cuda::group_choices(index.data(), pairs, groups, stream); }));
        }
        FRUGAL_TRY(pass.multiply_experts(gate_, input, index.data(), groups, d.top_k, gate));
        FRUGAL_TRY(pass.multiply_experts(up_, input, index.data(), groups, d.top_k, up));
        if (shared_.template has<down_product>()) {  // the last that reads the input
            FRUGAL_TRY_ASSIGN(const auto own, pass.matrix(rows, y.cols()));
            FRUGAL_TRY(dense_ffn(pass, shared_, input, own));
            shared = own;
        }
        FRUGAL_TRY(ops::swiglu(pass, gate, up, gate));
        FRUGAL_TRY_ASSIGN(const auto inner, pass.input(gate));
        FRUGAL_TRY(pass.multiply_experts(down_, inner, index.data(), groups, 1, outputs));
        return pass.start([&](cudaStream_t stream) {
            return ops::cuda::combine_experts(outputs, index.data(), weight.data(), d.top_k, shared, shared_gate, y, stream);
        });
    }
    [[nodiscard]] std::size_t image_bytes() const noexcept {
        return products_.bytes() + shared_.bytes() + gate_.bytes() + up_.bytes() + down_.bytes();
    }

private:
    using products = reuse::packed_products<moe_products, Device>;
    using shared_products = reuse::packed_products<dense_ffn_products, Device>;

    [[nodiscard]] static result<device::gpu::expert_groups> take_groups(device::gpu::pass<Device>& pass, std::size_t choices,
                                                                        std::size_t experts) {
        using device::gpu::choice_tile;
        device::gpu::expert_groups out;
        out.experts = experts;
        FRUGAL_TRY_ASSIGN(const auto order, pass.template array<std::int32_t>(choices));
        FRUGAL_TRY_ASSIGN(const auto few, pass.template array<choice_tile>(out.most_tiles(choices, experts, out.few)));
        FRUGAL_TRY_ASSIGN(const auto many, pass.template array<choice_tile>(out.most_tiles(choices, experts, out.many)));
        out.order = order.data();
        out.of_few = few.data();
        out.of_many = many.data();
        return out;
    }

    products products_;
    shared_products shared_;
    typename Device::image gate_, up_, down_;  ///< a part an expert
};

}  // namespace layer

FRUGAL_NAMESPACE_END
