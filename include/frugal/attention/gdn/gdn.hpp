#pragma once
/// The Gated DeltaNet layer of Qwen3.5 and Qwen4-Exp: linear attention whose memory is one matrix a head.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/gdn/gdn_state.hpp"
#include "frugal/attention/variant.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule.hpp"
#include "frugal/ops/matmul/activations.hpp"
#include "frugal/ops/matmul/grouped_matmul.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/tensor_name.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// What a Gated DeltaNet layer reads from a file; not owned.
struct FRUGAL_FLAGGED gdn_weights {
    quant::weight_view qkv;            ///< [all queries | all keys | all values, hidden]
    quant::weight_view z;              ///< [values, hidden], the gate of the norm
    quant::weight_view beta, alpha;    ///< [value heads, hidden]
    quant::weight_view out;            ///< [hidden, values]
    std::span<const float> conv;       ///< [channels][kernel], oldest tap first
    std::span<const float> a_neg_exp;  ///< [value heads], -exp(A_log)
    std::span<const float> dt_bias;    ///< [value heads]
    std::span<const float> norm;       ///< [value dim], used as it is, shared by the heads
};

/// The products of a Gated DeltaNet layer; see reuse/weights/products.hpp.
using gdn_qkv_product = reuse::product<&gdn_weights::qkv>;
using gdn_z_product = reuse::product<&gdn_weights::z>;
using gdn_out_product = reuse::product<&gdn_weights::out>;
using gdn_gates_product = reuse::small_product<&gdn_weights::alpha, &gdn_weights::beta>;
using gdn_products = reuse::product_list<gdn_weights, gdn_qkv_product, gdn_z_product, gdn_out_product, gdn_gates_product>;

/// Gated DeltaNet: project; causal convolution with SiLU over queries, keys and values; l2 norm of queries and keys; gates in
/// f32; gated delta rule; gated norm; project.
/// `Pairing`: which key head a value head reads (head_pairing::grouped for Hugging Face weights, tiled for GGUF);
/// `Gate`: of the norm (silu for Qwen3.5, sigmoid for Qwen4-Exp); `Scan`: how prefills run; `Layout`: of the state in memory.
/// Source: transformers, modeling_qwen3_5.py, Qwen3_5GatedDeltaNet.
template <class Pairing, class Gate = ops::activation::silu, class Scan = ops::scan::recurrent,
          class Layout = ops::state_layout::key_major>
struct FRUGAL_FLAGGED gdn {
    static_assert(ops::head_pairing_policy<Pairing>,
                  "frugal: attention::gdn needs a head pairing: write gdn<ops::head_pairing::grouped> for Hugging Face weights, "
                  "gdn<ops::head_pairing::tiled> for GGUF");
    FRUGAL_REQUIRE_ACTIVATION(Gate);
    static_assert(ops::scan_policy<Scan>,
                  "frugal: attention::gdn needs a scan: write ops::scan::recurrent or ops::scan::chunked<64>");
    static_assert(ops::state_layout_policy<Layout>,
                  "frugal: attention::gdn needs a state layout: write ops::state_layout::key_major or value_major");

    static constexpr std::string_view name = "gdn";
    static constexpr bool is_recurrent = true;
    using dims = gdn_dims;
    using weights = gdn_weights;
    using products = gdn_products;
    using state = basic_gdn_state<Layout>;

    /// The sizes of a model's layer. Sizes: model::config. Errors: invalid_argument.
    template <class Sizes>
    [[nodiscard]] static status validate_sizes(const Sizes& c) {
        FRUGAL_TRY(c.positive(c.key_heads, "linear key head count"));
        FRUGAL_TRY(c.positive(c.value_heads, "linear value head count"));
        FRUGAL_TRY(c.positive(c.key_dim, "linear key head size"));
        FRUGAL_TRY(c.positive(c.value_dim, "linear value head size"));
        FRUGAL_TRY(c.positive(c.conv_kernel, "convolution kernel"));
        if (c.value_heads % c.key_heads != 0)
            return fail(errc::invalid_argument, c.value_heads, " value heads cannot share ", c.key_heads, " key heads");
        return {};
    }
    template <class Sizes>
    [[nodiscard]] static dims make_dims(const Sizes& c, std::size_t /*layer*/) {
        return {c.hidden, c.key_heads, c.value_heads, c.key_dim, c.value_dim, c.conv_kernel, c.rms_epsilon};
    }
    /// Reads a layer's weights. File: model::layer_file. Errors: its own, invalid_argument (a decay that grows).
    template <class File>
    [[nodiscard]] static status bind(File& file, const dims& d, weights& w) {
        FRUGAL_TRY(file.matrix({"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"}, d.channels(), d.hidden, w.qkv));
        FRUGAL_TRY(file.matrix({"attn_gate.weight", "linear_attn.in_proj_z.weight"}, d.values(), d.hidden, w.z));
        FRUGAL_TRY(file.matrix({"ssm_beta.weight", "linear_attn.in_proj_b.weight"}, d.value_heads, d.hidden, w.beta));
        FRUGAL_TRY(file.matrix({"ssm_alpha.weight", "linear_attn.in_proj_a.weight"}, d.value_heads, d.hidden, w.alpha));
        FRUGAL_TRY(file.matrix({"ssm_out.weight", "linear_attn.out_proj.weight"}, d.hidden, d.values(), w.out));
        FRUGAL_TRY(file.convolution({"ssm_conv1d.weight", "linear_attn.conv1d.weight"}, d.channels(), d.conv_kernel, w.conv));
        FRUGAL_TRY(file.vector({"ssm_dt.bias", "linear_attn.dt_bias", "ssm_dt"}, d.value_heads, w.dt_bias));
        FRUGAL_TRY(file.vector({"ssm_norm.weight", "linear_attn.norm.weight"}, d.value_dim, w.norm));
        constexpr tensor_name decay_name{"ssm_a", "linear_attn.A_log"};
        FRUGAL_TRY_ASSIGN(std::vector<float> decay, file.values(decay_name, d.value_heads));
        for (float& a : decay) {
            if constexpr (File::convention::decay_is_log) a = -std::exp(a);
            if (a > 0)
                return fail(errc::invalid_argument, "tensor ", file.name(decay_name), " has a positive decay of ", a,
                            "; a state would grow without bound");
        }
        w.a_neg_exp = file.keep(std::move(decay));
        return {};
    }
    /// States of empty sequences. Errors: invalid_argument, out_of_memory.
    [[nodiscard]] static result<state> make_state(const dims& d, const state_sizes& sizes) {
        return state::create(d, sizes.sequences, sizes.checkpoints);
    }

    /// Appends the step's tokens to their sequences. x, y: [rows, hidden]; they may be the same memory. Padding rows of y are 0.
    /// With scan::recurrent the bits of a row depend on its sequence's tokens alone: not on how they are split into calls, on
    /// other sequences, threads or checkpoints. With scan::chunked they depend on where calls begin, and tokens for which a
    /// checkpoint is kept are worked through singly.
    /// Errors: invalid_argument, shape_mismatch, unsupported_format, out_of_memory: nothing changed; those of the pass's products
    /// too: where the product of `out` fails, the sequences have advanced and must be cleared or restored.
    template <class Pass, class State, class Step>
    [[nodiscard]] static status forward(Pass& pass, std::size_t layer, const dims& d, const weights& w, State& sequences,
                                        const Step& step, matrix_view<const float> x, matrix_view<float> y) {
        if constexpr (device::host_pass<Pass>) {
            FRUGAL_TRY(validate(step.tokens, sequences.sequences()));
            FRUGAL_TRY(check<typename Pass::formats>(d, w, sequences, step.tokens, x, y));
            if (!any_token(step.tokens)) return clear_padding(step, y);
        }
        const std::size_t rows = x.rows(), keys = d.key_heads * d.key_dim;
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(auto products, pass.template begin<gdn_products>(layer, w));
        FRUGAL_TRY_ASSIGN(const auto qkv, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto mixed, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto z, pass.matrix(rows, d.values()));
        FRUGAL_TRY_ASSIGN(const auto read, pass.input_matrix(rows, d.values()));
        FRUGAL_TRY_ASSIGN(const auto g, pass.matrix(rows, d.value_heads));
        FRUGAL_TRY_ASSIGN(const auto beta, pass.matrix(rows, d.value_heads));
        FRUGAL_TRY_ASSIGN(const auto input, products.share(x));
        FRUGAL_TRY(products.template multiply<gdn_qkv_product>(input, {qkv}));
        FRUGAL_TRY(products.template multiply<gdn_z_product>(input, {z}));
        FRUGAL_TRY(products.template multiply<gdn_gates_product>(input, {g, beta}));
        FRUGAL_TRY(ops::delta_gates(pass, w.a_neg_exp, w.dt_bias, g, beta, g, beta));
        // From here on sequences change, so what the rest needs is taken, and given back, beforehand.
        FRUGAL_TRY(make_room(pass, d, rows));
        FRUGAL_TRY(sequences.convolve(pass, step, qkv, mixed, [&](const auto& in, const auto& history, const auto& out) {
            return ops::causal_conv1d<ops::activation::silu>(pass, w.conv, in, d.conv_kernel, 1, history, out);
        }));
        const auto queries_and_keys = mixed.cols_range(0, 2 * keys);
        FRUGAL_TRY(ops::grouped_l2_norm(pass, queries_and_keys, d.key_dim, dims::l2_eps, queries_and_keys));
        FRUGAL_TRY(sequences.recur(pass, step, read, [&](std::size_t first, std::size_t count, const auto& memory) {
            const auto part = [&](matrix_view<float> m) { return m.rows_range(first, count); };
            return ops::gated_delta_rule<Pairing, Layout, Scan>(
                pass, part(mixed.cols_range(0, keys)), part(mixed.cols_range(keys, keys)),
                part(mixed.cols_range(2 * keys, d.values())), part(g), part(beta), d.rule(), memory, part(read));
        }));
        const matrix_view<float> heads(read.data(), rows * d.value_heads, d.value_dim);
        const matrix_view<const float> gates(z.data(), rows * d.value_heads, d.value_dim);
        FRUGAL_TRY(ops::gated_rms_norm<Gate>(pass, w.norm, heads, gates, d.eps, heads));
        FRUGAL_TRY(products.template multiply<gdn_out_product>(read, {y}));
        return clear_padding(step, y);
    }

    /// The same by itself, from the blocks of the file.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, const dims& d, const weights& w, state& sequences,
                                        const batch& b, matrix_view<const float> x, matrix_view<float> y) {
        reuse::direct_store<Formats> store;
        reuse::cpu_pass pass(dev, scratch, store);
        return forward(pass, 0, d, w, sequences, step{b, {}, {}}, x, y);
    }

private:
    [[nodiscard]] static bool any_token(const batch& b) noexcept {
        return std::any_of(b.segments.begin(), b.segments.end(),
                           [](const segment& s) { return s.sequence != sequence_id::padding && s.count != 0; });
    }

    template <class Formats>
    [[nodiscard]] static status check(const dims& d, const weights& w, const state& sequences, const batch& b,
                                      matrix_view<const float> x, matrix_view<float> y) {
        if (sequences.shape() != gdn_state_shape{d.rule(), d.channels(), d.conv_kernel - 1})
            return fail(errc::shape_mismatch, "Gated DeltaNet layer of ", d.key_heads, " key heads of ", d.key_dim, ", ",
                        d.value_heads, " value heads of ", d.value_dim, " and a kernel of ", d.conv_kernel,
                        " with a state of other sizes");
        if (x.rows() != b.rows() || y.rows() != b.rows() || x.cols() != d.hidden || y.cols() != d.hidden)
            return fail(errc::shape_mismatch, "Gated DeltaNet layer of ", d.hidden, " features and ", b.rows(), " rows with x [",
                        x.rows(), ", ", x.cols(), "] and y [", y.rows(), ", ", y.cols(), "]");
        const auto matrix = [](const char* name, const quant::weight_view& view, std::size_t rows, std::size_t cols) -> status {
            if (view.rows != rows || view.cols != cols)
                return fail(errc::shape_mismatch, "Gated DeltaNet weight ", name, " is [", view.rows, ", ", view.cols, "], not [",
                            rows, ", ", cols, "]");
            return quant::check_weight_view<Formats>(view);
        };
        FRUGAL_TRY(matrix("qkv", w.qkv, d.channels(), d.hidden));
        FRUGAL_TRY(matrix("z", w.z, d.values(), d.hidden));
        FRUGAL_TRY(matrix("beta", w.beta, d.value_heads, d.hidden));
        FRUGAL_TRY(matrix("alpha", w.alpha, d.value_heads, d.hidden));
        FRUGAL_TRY(matrix("out", w.out, d.hidden, d.values()));
        const auto vector = [](const char* name, std::span<const float> values, std::size_t size) -> status {
            if (values.size() == size) return {};
            return fail(errc::shape_mismatch, "Gated DeltaNet weight ", name, " holds ", values.size(), " values, not ", size);
        };
        FRUGAL_TRY(vector("conv", w.conv, d.channels() * d.conv_kernel));
        FRUGAL_TRY(vector("a_neg_exp", w.a_neg_exp, d.value_heads));
        FRUGAL_TRY(vector("dt_bias", w.dt_bias, d.value_heads));
        return vector("norm", w.norm, d.value_dim);
    }

    template <device::host_pass Pass>
    [[nodiscard]] static status make_room(Pass& pass, const dims& d, std::size_t rows) {
        typename Pass::scope scope(pass);
        const std::size_t product = ops::grouped_matmul_scratch(pass, d.values()) + ops::prepared_scratch(rows, d.values());
        FRUGAL_TRY_ASSIGN([[maybe_unused]] const auto room,
                          pass.template array<float>((std::max)(product, ops::gated_delta_rule_scratch<Scan>(pass, d.rule()))));
        return {};
    }
    /// Elsewhere a pass never runs out of scratch halfway.
    template <class Pass>
    [[nodiscard]] static status make_room(Pass&, const dims&, std::size_t) {
        return {};
    }
};

static_assert(variant<gdn<ops::head_pairing::grouped>> && variant<gdn<ops::head_pairing::tiled, ops::activation::sigmoid>>);

}  // namespace attention

FRUGAL_NAMESPACE_END
