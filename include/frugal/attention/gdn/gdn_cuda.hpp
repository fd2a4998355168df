#pragma once
/// The Gated DeltaNet layer on a GPU: weights, state and every operator there. One sequence.
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/attention/recurrent_cuda.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/ops/conv1d/conv1d_cuda.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cuda.hpp"
#include "frugal/ops/norm/norm_cuda.hpp"
#include "frugal/reuse/weights/packed_products.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// One layer of attention::gdn<Pairing, Gate> with its state. Device: device::cuda<…>.
template <class Pairing, class Gate, class Device>
class FRUGAL_FLAGGED cuda_gdn {
public:
    /// Packs the weights and takes an empty state; `checkpoints`: how many of the newest tokens can be taken back. Errors:
    /// shape_mismatch, unsupported (values of all heads together that are no whole groups of 32), those of packing,
    /// out_of_memory.
    [[nodiscard]] static result<cuda_gdn> create(Device& dev, device::gpu::room& memory, const gdn_dims& d, const gdn_weights& w,
                                                 std::size_t checkpoints, const reuse::source_unneeded& unneeded) {
        if (w.conv.size() != d.channels() * d.conv_kernel || w.a_neg_exp.size() != d.value_heads ||
            w.dt_bias.size() != d.value_heads || w.norm.size() != d.value_dim)
            return fail(errc::shape_mismatch, "Gated DeltaNet layer with small weights of other sizes than ", d.channels(),
                        " channels and ", d.value_heads, " heads of ", d.value_dim);
        if (d.values() % quant::panel_group != 0)  // rows of heads, and at once an input of a product
            return fail(errc::unsupported, "Gated DeltaNet on a GPU with values of ", d.values(), " features: whole groups of ",
                        quant::panel_group, " are needed");
        cuda_gdn out;
        FRUGAL_TRY_ASSIGN(out.products_, products::pack(dev, w, unneeded));
        FRUGAL_TRY_ASSIGN(out.conv_, memory.keep(w.conv));
        FRUGAL_TRY_ASSIGN(out.a_neg_exp_, memory.keep(w.a_neg_exp));
        FRUGAL_TRY_ASSIGN(out.dt_bias_, memory.keep(w.dt_bias));
        FRUGAL_TRY_ASSIGN(out.norm_, memory.keep(w.norm));
        FRUGAL_TRY_ASSIGN(out.state_, state::create(memory, d.rule().state_size(), checkpoints));
        FRUGAL_TRY_ASSIGN(out.history_, state::create(memory, (d.conv_kernel - 1) * d.channels(), checkpoints));
        return out;
    }

    /// Appends x to the sequence. x, y: [rows, hidden]. Queued; a token's bits do not depend on how tokens are split into calls,
    /// unless prefills may round (device::prefill): then more than 16 tokens that are not `newest` go in chunks, by matrix units
    /// where the policy wants it.
    [[nodiscard]] status forward(device::gpu::pass<Device>& pass, const gdn_dims& d, const cuda_checkpoints& newest,
                                 matrix_view<const float> x, matrix_view<float> y) const {
        const std::size_t rows = x.rows(), keys = d.key_heads * d.key_dim;
        typename device::gpu::pass<Device>::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto qkv, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto mixed, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto z, pass.matrix(rows, d.values()));
        FRUGAL_TRY_ASSIGN(const auto read, pass.matrix(rows, d.values()));
        FRUGAL_TRY_ASSIGN(const auto g, pass.matrix(rows, d.value_heads));
        FRUGAL_TRY_ASSIGN(const auto beta, pass.matrix(rows, d.value_heads));
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(x));
        FRUGAL_TRY(pass.multiply(products_.template image<gdn_qkv_product>(), input, {qkv}));
        FRUGAL_TRY(pass.multiply(products_.template image<gdn_z_product>(), input, {z}));
        FRUGAL_TRY(pass.multiply(products_.template image<gdn_gates_product>(), input, {g, beta}));
        FRUGAL_TRY(ops::delta_gates(pass, a_neg_exp_, dt_bias_, g, beta, g, beta));
        const matrix_view<float> history(history_.data(), d.conv_kernel - 1, d.channels());
        FRUGAL_TRY(history_.append(pass, newest, rows, [&](std::size_t first, std::size_t count) {
            return ops::causal_conv1d<ops::activation::silu>(pass, conv_, qkv.rows_range(first, count), d.conv_kernel, 1, history,
                                                             mixed.rows_range(first, count));
        }));
        const auto queries_and_keys = mixed.cols_range(0, 2 * keys);
        FRUGAL_TRY(ops::grouped_l2_norm(pass, queries_and_keys, d.key_dim, gdn_dims::l2_eps, queries_and_keys));
        FRUGAL_TRY(state_.append(pass, newest, rows, [&](std::size_t first, std::size_t count) {
            const auto part = [&](matrix_view<float> m) { return m.rows_range(first, count); };
            const auto in = part(mixed);
            return ops::gated_delta_rule<Pairing>(pass, in.cols_range(0, keys), in.cols_range(keys, keys),
                                                  in.cols_range(2 * keys, d.values()), part(g), part(beta), d.rule(),
                                                  std::span(state_.data(), state_.size()), part(read));
        }));
        const matrix_view<float> heads(read.data(), rows * d.value_heads, d.value_dim);
        const matrix_view<const float> gates(z.data(), rows * d.value_heads, d.value_dim);
        FRUGAL_TRY(ops::gated_rms_norm<Gate>(pass, norm_, heads, gates, d.eps, heads));
        FRUGAL_TRY_ASSIGN(const auto inner, pass.input(read));
        return pass.multiply(products_.template image<gdn_out_product>(), inner, {y});
    }

    /// Queues that the sequence is empty again.
    [[nodiscard]] status clear(device::gpu::pass<Device>& pass) const {
        FRUGAL_TRY(state_.clear(pass));
        return history_.clear(pass);
    }
    /// Queues that the sequence is as before token number `length`. Precondition: it is one of the newest that were kept.
    [[nodiscard]] status rollback(device::gpu::pass<Device>& pass, std::size_t length) const {
        FRUGAL_TRY(state_.rollback(pass, length));
        return history_.rollback(pass, length);
    }
    /// What a saved sequence holds of this layer.
    void list_segments(std::vector<cuda_segment>& to) const {
        to.push_back(state_.segment());
        to.push_back(history_.segment());
    }
    [[nodiscard]] std::size_t image_bytes() const noexcept { return products_.bytes(); }

private:
    using products = reuse::packed_products<gdn_products, Device>;
    using state = cuda_recurrent_state<float>;

    products products_;
    std::span<const float> conv_, a_neg_exp_, dt_bias_, norm_;  ///< on the device
    state state_, history_;                                     ///< history_: [conv_kernel - 1][channels]
};

}  // namespace attention

FRUGAL_NAMESPACE_END
