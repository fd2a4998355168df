#pragma once
/// The dense feed-forward block: SwiGLU (Shazeer 2020, arXiv:2002.05202).
#include <cstddef>
#include <string_view>

#include "frugal/core/type_list.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// gate and up: [width, hidden]; down: [hidden, width].
struct FRUGAL_FLAGGED dense_ffn_weights {
    quant::weight_view gate, up, down;
};

/// The products of a dense feed-forward block; see reuse/weights/products.hpp.
using gate_up_product = reuse::product<&dense_ffn_weights::gate, &dense_ffn_weights::up>;
using down_product = reuse::product<&dense_ffn_weights::down>;
using dense_ffn_products = reuse::product_list<dense_ffn_weights, gate_up_product, down_product>;

/// y = down(silu(gate(x)) * up(x)). x: what products.share() gives for [rows, hidden]; y: [rows, hidden], which may be the memory
/// of that. `products`: those of dense_ffn_products for `weights`. Errors: shape_mismatch, out_of_memory, those of the products.
template <class Pass, class Products, class Input>
[[nodiscard]] status dense_ffn(Pass& pass, Products& products, const dense_ffn_weights& weights, const Input& x,
                               matrix_view<float> y) {
    if (weights.up.rows != weights.gate.rows)
        return fail(errc::shape_mismatch, "feed-forward gate of ", weights.gate.rows, " rows, up of ", weights.up.rows);
    typename Pass::scope scope(pass);
    FRUGAL_TRY_ASSIGN(const auto gate, pass.input_matrix(y.rows(), weights.gate.rows));
    FRUGAL_TRY_ASSIGN(const auto up, pass.matrix(y.rows(), weights.up.rows));
    FRUGAL_TRY(products.template multiply<gate_up_product>(x, {gate, up}));
    FRUGAL_TRY(ops::swiglu(pass, gate, up, gate));
    FRUGAL_TRY_ASSIGN(const auto inner, products.share(gate));
    return products.template multiply<down_product>(inner, {y});
}

/// The same by itself, from the blocks of the file. x, y: [rows, hidden].
template <quant::format_list Formats, device::cpu_target Device>
[[nodiscard]] status dense_ffn(Device& dev, workspace& scratch, const dense_ffn_weights& weights, matrix_view<const float> x,
                               matrix_view<float> y) {
    reuse::direct_store<Formats> store;
    reuse::cpu_pass pass(dev, scratch, store);
    reuse::direct_products<Formats, Device, dense_ffn_weights> products(dev, scratch, weights);
    return dense_ffn(pass, products, weights, reuse::product_input(x), y);
}

/// The dense block as a part of a model (model/spec.hpp): the only feed-forward of its layers.
struct FRUGAL_FLAGGED dense {
    static constexpr std::string_view name = "dense";
    using weights = dense_ffn_weights;
    struct dims {
        std::size_t hidden = 0, width = 0;
    };

    /// Sizes: model::config. Errors: invalid_argument.
    template <class Sizes>
    [[nodiscard]] static status validate_sizes(const Sizes& c) {
        return c.positive(c.intermediate, "feed-forward size");
    }
    template <class Sizes>
    [[nodiscard]] static dims make_dims(const Sizes& c) {
        return {c.hidden, c.intermediate};
    }
    /// File: model::layer_file. Errors: its own.
    template <class File>
    [[nodiscard]] static status bind(File& file, const dims& d, weights& w) {
        FRUGAL_TRY(file.matrix({"ffn_gate.weight", "mlp.gate_proj.weight"}, d.width, d.hidden, w.gate));
        FRUGAL_TRY(file.matrix({"ffn_up.weight", "mlp.up_proj.weight"}, d.width, d.hidden, w.up));
        return file.matrix({"ffn_down.weight", "mlp.down_proj.weight"}, d.hidden, d.width, w.down);
    }
    using product_lists = type_list<dense_ffn_products>;
    /// Calls `f(type_tag<List>{}, layer, weights) -> status` for the product lists of a layer.
    template <class F>
    [[nodiscard]] static status for_each_list(std::size_t layer, const weights& w, F&& f) {
        return f(type_tag<dense_ffn_products>{}, layer, w);
    }

    /// x, y: [rows, hidden].
    template <class Pass>
    [[nodiscard]] static status forward(Pass& pass, std::size_t layer, const dims&, const weights& w, matrix_view<const float> x,
                                        matrix_view<float> y) {
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(auto products, pass.template begin<dense_ffn_products>(layer, w));
        FRUGAL_TRY_ASSIGN(const auto input, products.share(x));
        return dense_ffn(pass, products, w, input, y);
    }
};

}  // namespace layer

FRUGAL_NAMESPACE_END
