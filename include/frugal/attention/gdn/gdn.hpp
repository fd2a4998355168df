#pragma once
/// The Gated DeltaNet layer of Qwen3.5 and Qwen4-Exp: linear attention whose memory is one matrix a head.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

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
#include "frugal/reuse/weights/products.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
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

/// The products of a Gated DeltaNet layer; see reuse/products.hpp.
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
    static_assert(ops::scan_policy<Scan>,
                  "frugal: attention::gdn needs a scan: write ops::scan::recurrent or ops::scan::chunked<64>");
    static_assert(ops::state_layout_policy<Layout>,
                  "frugal: attention::gdn needs a state layout: write ops::state_layout::key_major or value_major");

    static constexpr std::string_view name = "gdn";
    using dims = gdn_dims;
    using weights = gdn_weights;
    using products = gdn_products;
    using state = basic_gdn_state<Layout>;

    /// Appends the batch's tokens to their sequences. x, y: [rows, hidden]; they may be the same memory. Padding rows of y are 0.
    /// With scan::recurrent the bits of a row depend on its sequence's tokens alone: not on how they are split into calls, on
    /// other sequences, threads or checkpoints. With scan::chunked they depend on where calls begin, and tokens for which a
    /// checkpoint is kept are worked through singly.
    /// Errors: invalid_argument, shape_mismatch, unsupported_format, out_of_memory: nothing changed.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, const dims& d, const weights& w, state& sequences,
                                        const batch& b, matrix_view<const float> x, matrix_view<float> y) {
        reuse::direct_products<Formats, Device, weights> direct(dev, scratch, w);
        return forward<Formats>(dev, scratch, direct, d, w, sequences, b, x, y);
    }

    /// The same with products of your own: reuse::direct_products, or what reuse::image_store gives for `products`.
    /// Errors: theirs too; where the product of `out` fails, the batch's sequences have advanced and must be cleared or restored.
    template <quant::format_list Formats, device::cpu_target Device, class Products>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, Products& multiplier, const dims& d, const weights& w,
                                        state& sequences, const batch& b, matrix_view<const float> x, matrix_view<float> y) {
        FRUGAL_TRY(validate(b, sequences.sequences()));
        FRUGAL_TRY(check<Formats>(d, w, sequences, b, x, y));
        const bool any = std::any_of(b.segments.begin(), b.segments.end(),
                                     [](const segment& s) { return s.sequence != sequence_id::padding && s.count != 0; });
        if (any) FRUGAL_TRY(run(dev, scratch, multiplier, d, w, sequences, b, x, y));
        for (const segment& s : b.segments)
            if (s.sequence == sequence_id::padding) fill_rows(y.rows_range(s.first, s.count));
        return {};
    }

private:
    static void fill_rows(matrix_view<float> rows) noexcept {
        for (std::size_t r = 0; r < rows.rows(); ++r) std::fill_n(rows.row(r), rows.cols(), 0.0f);
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

    template <class Device, class Products>
    [[nodiscard]] static status run(Device& dev, workspace& scratch, Products& multiplier, const dims& d, const weights& w,
                                    state& sequences, const batch& b, matrix_view<const float> x, matrix_view<float> y) {
        const std::size_t rows = b.rows(), keys = d.key_heads * d.key_dim;
        workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(const auto qkv, scratch.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto mixed, scratch.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto z, scratch.matrix(rows, d.values()));
        FRUGAL_TRY_ASSIGN(const auto read, scratch.matrix(rows, d.values()));
        FRUGAL_TRY_ASSIGN(const auto g, scratch.matrix(rows, d.value_heads));
        FRUGAL_TRY_ASSIGN(const auto beta, scratch.matrix(rows, d.value_heads));
        FRUGAL_TRY_ASSIGN(const reuse::product_input input, multiplier.share(x));
        FRUGAL_TRY(multiplier.template multiply<gdn_qkv_product>(input, {qkv}));
        FRUGAL_TRY(multiplier.template multiply<gdn_z_product>(input, {z}));
        FRUGAL_TRY(multiplier.template multiply<gdn_gates_product>(input, {g, beta}));
        FRUGAL_TRY(ops::delta_gates(dev, g, beta, w.a_neg_exp, w.dt_bias, g, beta));
        // From here on sequences change, so what the rest needs is taken, and given back, beforehand.
        FRUGAL_TRY(make_room(dev, scratch, d, x.rows()));
        for (const segment& s : b.segments) {
            if (s.sequence != sequence_id::padding) {
                FRUGAL_TRY(convolve(dev, d, w, sequences, s, qkv, mixed));
                continue;
            }
            fill_rows(mixed.rows_range(s.first, s.count));
            fill_rows(read.rows_range(s.first, s.count));
        }
        const auto queries_and_keys = mixed.cols_range(0, 2 * keys);
        FRUGAL_TRY(ops::grouped_l2_norm(dev, queries_and_keys, d.key_dim, dims::l2_eps, queries_and_keys));
        for (const segment& s : b.segments) {
            if (s.sequence == sequence_id::padding || s.count == 0) continue;
            const auto remember = [&](std::size_t first, std::size_t count) {
                const auto part = [&](matrix_view<float> m) { return m.rows_range(s.first + first, count); };
                return ops::gated_delta_rule<Pairing, Layout, Scan>(dev, scratch, d.rule(), part(mixed.cols_range(0, keys)),
                                                                    part(mixed.cols_range(keys, keys)),
                                                                    part(mixed.cols_range(2 * keys, d.values())), part(g),
                                                                    part(beta), sequences.recurrent(s.sequence), part(read));
            };
            const std::size_t kept = sequences.kept(s.count);
            FRUGAL_TRY(remember(0, s.count - kept));
            for (std::size_t t = s.count - kept; t < s.count; ++t) {
                sequences.keep_recurrent(s.sequence, t);
                FRUGAL_TRY(remember(t, 1));
            }
            sequences.advance(s.sequence, s.count);
        }
        const matrix_view<float> heads(read.data(), rows * d.value_heads, d.value_dim);
        const matrix_view<const float> gates(z.data(), rows * d.value_heads, d.value_dim);
        FRUGAL_TRY(ops::gated_rms_norm<Gate>(dev, heads, gates, w.norm, d.eps, heads));
        return multiplier.template multiply<gdn_out_product>(read, {y});
    }

    template <class Device>
    [[nodiscard]] static status convolve(Device& dev, const dims& d, const weights& w, state& sequences, const segment& s,
                                         matrix_view<float> qkv, matrix_view<float> mixed) {
        const auto in = qkv.rows_range(s.first, s.count);
        sequences.keep_conv_history(s.sequence, in);
        return ops::causal_conv1d<ops::activation::silu>(dev, in, w.conv, d.conv_kernel, 1, sequences.conv_history(s.sequence),
                                                         mixed.rows_range(s.first, s.count));
    }

    template <class Device>
    [[nodiscard]] static status make_room(Device& dev, workspace& scratch, const dims& d, std::size_t rows) {
        workspace::scope scope(scratch);
        const std::size_t product = ops::grouped_matmul_scratch(dev, d.values()) + ops::prepared_scratch(rows, d.values());
        FRUGAL_TRY_ASSIGN([[maybe_unused]] const float* room,
                          scratch.floats((std::max)(product, ops::gated_delta_rule_scratch<Scan>(dev, d.rule()))));
        return {};
    }
};

static_assert(variant<gdn<ops::head_pairing::grouped>> && variant<gdn<ops::head_pairing::tiled, ops::activation::sigmoid>>);

}  // namespace attention

FRUGAL_NAMESPACE_END
