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

/// What the layers of a step use one after the other, for `rows` tokens at most.
struct FRUGAL_FLAGGED cuda_moe_buffers {
    matrix_view<float> logits, gate, up, outputs, shared, shared_gate;
    cuda_ffn_buffers shared_ffn;
    std::int32_t* index = nullptr;
    float* weight = nullptr;
    device::gpu::expert_groups groups;
    /// The first row whose router logits are not finite; set above all rows before a step.
    int* first_bad = nullptr;

    /// `width`, `shared_width`: of an expert, of the shared expert.
    [[nodiscard]] static result<cuda_moe_buffers> create(device::gpu::room& memory, const moe_dims& d, std::size_t hidden,
                                                         std::size_t width, std::size_t shared_width, std::size_t rows) {
        cuda_moe_buffers out;
        FRUGAL_TRY_ASSIGN(out.logits, memory.matrix(rows, d.experts));
        FRUGAL_TRY_ASSIGN(out.gate, memory.input_matrix(rows * d.top_k, width));
        FRUGAL_TRY_ASSIGN(out.up, memory.matrix(rows * d.top_k, width));
        FRUGAL_TRY_ASSIGN(out.outputs, memory.matrix(rows * d.top_k, hidden));
        FRUGAL_TRY_ASSIGN(out.shared, memory.matrix(rows, hidden));
        FRUGAL_TRY_ASSIGN(out.shared_gate, memory.matrix(rows, 1));
        FRUGAL_TRY_ASSIGN(out.shared_ffn, cuda_ffn_buffers::create(memory, rows, shared_width));
        FRUGAL_TRY_ASSIGN(out.index, memory.array<std::int32_t>(rows * d.top_k));
        FRUGAL_TRY_ASSIGN(out.weight, memory.array<float>(rows * d.top_k));
        using device::gpu::choice_tile;
        using device::gpu::expert_groups;
        const auto tiles = [&](std::size_t size) {
            return memory.array<choice_tile>(expert_groups::most_tiles(rows * d.top_k, d.experts, size));
        };
        out.groups.experts = d.experts;
        FRUGAL_TRY_ASSIGN(out.groups.order, memory.array<std::int32_t>(rows * d.top_k));
        FRUGAL_TRY_ASSIGN(out.groups.of_few, tiles(expert_groups::few));
        FRUGAL_TRY_ASSIGN(out.groups.of_many, tiles(expert_groups::many));
        FRUGAL_TRY_ASSIGN(out.first_bad, memory.array<int>(1));
        return out;
    }
};

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

    /// As layer::moe. x, y: [rows, hidden]. Queued; a token's bits do not depend on the others, but for how many they are where
    /// the device's prefill policy rounds.
    [[nodiscard]] status forward(const device::gpu::pass<Device>& pass, const moe_dims& d, const cuda_moe_buffers& all,
                                 matrix_view<const float> x, matrix_view<float> y) const {
        const std::size_t rows = x.rows(), pairs = rows * d.top_k;
        const auto logits = all.logits.rows_range(0, rows), gate = all.gate.rows_range(0, pairs),
                   up = all.up.rows_range(0, pairs), outputs = all.outputs.rows_range(0, pairs);
        matrix_view<const float> shared;
        const float* shared_gate = nullptr;
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(x));
        if (products_.template has<shared_gate_product>()) {
            FRUGAL_TRY(
                pass.multiply(products_.template image<shared_gate_product>(), input, {all.shared_gate.rows_range(0, rows)}));
            shared_gate = all.shared_gate.data();
        }
        FRUGAL_TRY(pass.multiply(products_.template image<router_product>(), input, {logits}));
        FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
            return ops::cuda::route(logits, d.top_k, d.renormalise, all.index, all.weight, all.first_bad, stream);
        }));
        device::gpu::expert_groups groups;
        if (device::gpu::groups_choices<typename Device::prefill>(rows, pairs, d.experts)) {
            groups = all.groups;
            groups.tokens = rows;
            FRUGAL_TRY(
                pass.start([&](cudaStream_t stream) { return ops::cuda::group_choices(all.index, pairs, groups, stream); }));
        }
        FRUGAL_TRY(pass.multiply_experts(gate_, input, all.index, groups, d.top_k, gate));
        FRUGAL_TRY(pass.multiply_experts(up_, input, all.index, groups, d.top_k, up));
        if (shared_.template has<down_product>()) {  // the last that reads the input
            const auto own = all.shared.rows_range(0, rows);
            FRUGAL_TRY(dense_ffn(pass, shared_, all.shared_ffn, input, own));
            shared = own;
        }
        FRUGAL_TRY(ops::swiglu(pass, gate, up, gate));
        FRUGAL_TRY_ASSIGN(const auto inner, pass.input(gate));
        FRUGAL_TRY(pass.multiply_experts(down_, inner, all.index, groups, 1, outputs));
        return pass.start([&](cudaStream_t stream) {
            return ops::cuda::combine_experts(outputs, all.index, all.weight, d.top_k, shared, shared_gate, y, stream);
        });
    }
    [[nodiscard]] std::size_t image_bytes() const noexcept {
        return products_.bytes() + shared_.bytes() + gate_.bytes() + up_.bytes() + down_.bytes();
    }

private:
    using products = reuse::packed_products<moe_products, Device>;
    using shared_products = reuse::packed_products<dense_ffn_products, Device>;

    products products_;
    shared_products shared_;
    typename Device::image gate_, up_, down_;  ///< a part an expert
};

}  // namespace layer

FRUGAL_NAMESPACE_END
