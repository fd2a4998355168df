#pragma once
/// Hyper-connections: several residual streams that are mixed into a block's input and fed with its output.
#include <cstddef>
#include <span>
#include <string_view>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/layer/residual.hpp"
#include "frugal/ops/hyper_connection/hyper_connection.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/tensor_name.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

struct FRUGAL_FLAGGED hyper_connection_dims {
    std::size_t hidden = 0, streams = 0, rank = 0;
    float eps = 1e-6f;
};

/// norm: [streams * hidden]; down: [rank, streams * hidden]; up: [streams * hidden, rank]; inject: [streams, streams * hidden],
/// empty in the model's final mixer.
struct FRUGAL_FLAGGED hyper_connection_weights {
    std::span<const float> norm;
    quant::weight_view down, up, inject;
};

/// The products of a hyper-connection; see reuse/weights/products.hpp. Two of them read the same input.
using mix_down_product = reuse::small_product<&hyper_connection_weights::down>;
using inject_product = reuse::small_product<&hyper_connection_weights::inject>;
using mix_up_product = reuse::small_product<&hyper_connection_weights::up>;
using hyper_connection_products = reuse::product_list<hyper_connection_weights, mix_down_product, inject_product, mix_up_product>;

/// Several streams. One connection around each block, and a mixer at the end of the model. Rows of streams are [streams][hidden].
/// Source: transformers `Qwen4ExpTextGatedResidual`.
template <ops::norm_weight_policy NormWeight>
struct FRUGAL_FLAGGED hyper_connection {
    static constexpr std::string_view name = "hyper_connection";
    using dims = hyper_connection_dims;
    using weights = hyper_connection_weights;

    /// Before the block. With n = grouped norm of the streams (each stream by itself):
    /// mixed = mean over streams of sigmoid(up(silu(down(n) / streams))) * n;  injection = 2 * sigmoid(inject(n) / streams).
    /// streams: [rows, streams * hidden], not changed; mixed: [rows, hidden], the block's input; injection: [rows, streams],
    /// to be kept for `inject`, or null at the end of the model, where there is no other final norm. `index`: of the connection.
    /// Errors: shape_mismatch, out_of_memory, and those of the pass's products.
    template <class Pass>
    [[nodiscard]] static status mix(Pass& pass, std::size_t index, const dims& d, const weights& w,
                                    matrix_view<const float> streams, matrix_view<float> mixed,
                                    const matrix_view<float>* injection) {
        const std::size_t rows = streams.rows(), all = d.streams * d.hidden;
        if (injection != nullptr && (w.inject.rows != d.streams || injection->rows() != rows || injection->cols() != d.streams))
            return fail(errc::shape_mismatch, d.streams, " streams with injection weights of ", w.inject.rows,
                        " rows and injections [", injection->rows(), ", ", injection->cols(), "]");
        if (d.streams == 0 || streams.cols() != all || mixed.rows() != rows || mixed.cols() != d.hidden)
            return fail(errc::shape_mismatch, d.streams, " streams of ", d.hidden, " features: got [", rows, ", ", streams.cols(),
                        "], mixed [", mixed.rows(), ", ", mixed.cols(), "]");
        if (w.down.rows != d.rank || w.up.rows != all)
            return fail(errc::shape_mismatch, "mix of rank ", d.rank, " with down of ", w.down.rows, " and up of ", w.up.rows,
                        " rows");
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(auto products, pass.template begin<hyper_connection_products>(index, w));
        FRUGAL_TRY_ASSIGN(const auto normed, pass.input_matrix(rows, all));
        FRUGAL_TRY_ASSIGN(const auto low, pass.input_matrix(rows, d.rank));
        FRUGAL_TRY_ASSIGN(const auto gate, pass.matrix(rows, all));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(pass, w.norm, streams, d.hidden, d.eps, normed));
        FRUGAL_TRY_ASSIGN(const auto input, products.share(normed));
        FRUGAL_TRY(products.template multiply<mix_down_product>(input, {low}));
        if (injection != nullptr) FRUGAL_TRY(products.template multiply<inject_product>(input, {*injection}));
        const auto divisor = static_cast<float>(d.streams);
        FRUGAL_TRY(ops::divided_silu(pass, divisor, low));
        FRUGAL_TRY_ASSIGN(const auto inner, products.share(low));
        FRUGAL_TRY(products.template multiply<mix_up_product>(inner, {gate}));
        if (injection != nullptr) FRUGAL_TRY(ops::divided_double_sigmoid(pass, divisor, *injection));
        return ops::gated_stream_mean(pass, gate, normed, d.streams, mixed);
    }
    /// After the block: streams[s] += injection[s] * output. output: [rows, hidden].
    template <class Pass>
    [[nodiscard]] static status inject(Pass& pass, matrix_view<const float> injection, matrix_view<const float> output,
                                       matrix_view<float> streams) {
        return ops::add_to_streams(pass, injection, output, streams);
    }
    /// Starts the streams as copies of the embedding. x: [rows, hidden]; streams: [rows, count * hidden].
    template <class Pass>
    [[nodiscard]] static status expand(Pass& pass, matrix_view<const float> x, matrix_view<float> streams) {
        return ops::expand_streams(pass, x, streams);
    }

    /// The mix by itself, from the blocks of the file, with injections and without. Errors: unsupported_format too.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status mix(Device& dev, workspace& scratch, const dims& d, const weights& w,
                                    matrix_view<const float> streams, matrix_view<float> mixed, matrix_view<float> injection) {
        reuse::direct_store<Formats> store;
        reuse::cpu_pass pass(dev, scratch, store);
        return mix(pass, 0, d, w, streams, mixed, &injection);
    }
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status final_mix(Device& dev, workspace& scratch, const dims& d, const weights& w,
                                          matrix_view<const float> streams, matrix_view<float> mixed) {
        reuse::direct_store<Formats> store;
        reuse::cpu_pass pass(dev, scratch, store);
        return mix(pass, 0, d, w, streams, mixed, nullptr);
    }

    // As the residual of a model (model/spec.hpp).

    /// Sizes: model::config. Errors: invalid_argument.
    template <class Sizes>
    [[nodiscard]] static status validate_sizes(const Sizes& c) {
        if (c.streams < 2) return fail(errc::invalid_argument, "hyper-connections need at least 2 streams, not ", c.streams);
        FRUGAL_TRY(c.positive(c.streams, "stream count"));
        return c.positive(c.mix_rank, "hyper-connection rank");
    }
    template <class Sizes>
    [[nodiscard]] static dims make_dims(const Sizes& c) {
        return {c.hidden, c.streams, c.mix_rank, c.rms_epsilon};
    }
    [[nodiscard]] static std::size_t width(const dims& d) noexcept { return d.streams * d.hidden; }
    /// File: model::layer_file. Errors: its own.
    template <class File>
    [[nodiscard]] static status bind(File& file, residual_place place, const dims& d, weights& w) {
        constexpr tensor_name norms[] = {{"hc_attn_norm.weight", "attn_hyper_connection.hc_norm.weight"},
                                         {"hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm.weight"},
                                         {"output_hc_norm.weight", "hyper_connection_mixer.hc_norm.weight"}};
        constexpr tensor_name downs[] = {{"hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down.weight"},
                                         {"hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down.weight"},
                                         {"output_hc_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight"}};
        constexpr tensor_name ups[] = {{"hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up.weight"},
                                       {"hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up.weight"},
                                       {"output_hc_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight"}};
        constexpr tensor_name injects[] = {{"hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight"},
                                           {"hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight"}};
        const auto at = static_cast<std::size_t>(place);
        FRUGAL_TRY(file.vector(norms[at], width(d), w.norm));
        FRUGAL_TRY(file.matrix(downs[at], d.rank, width(d), w.down));
        FRUGAL_TRY(file.matrix(ups[at], width(d), d.rank, w.up));
        if (place == residual_place::output) return {};
        return file.matrix(injects[at], d.streams, width(d), w.inject);
    }
    using product_lists = type_list<hyper_connection_products>;
    /// Calls `f(type_tag<List>{}, index, weights) -> status` for the product lists of a connection.
    template <class F>
    [[nodiscard]] static status for_each_list(std::size_t index, const weights& w, F&& f) {
        return f(type_tag<hyper_connection_products>{}, index, w);
    }

    /// Begins the streams with copies of what `look_up(to) -> status` puts into a [rows, hidden].
    template <class Pass, class LookUp>
    [[nodiscard]] static status begin(Pass& pass, matrix_view<float> streams, matrix_view<float> mixed, LookUp&& look_up) {
        FRUGAL_TRY(look_up(mixed));
        return expand(pass, mixed, streams);
    }
    /// Runs `body()`, which makes branch from mixed, between the streams' way out and back in.
    template <class Pass, class Body>
    [[nodiscard]] static status around(Pass& pass, std::size_t index, const dims& d, const weights& w, matrix_view<float> streams,
                                       matrix_view<float> mixed, matrix_view<float> branch, Body&& body) {
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const matrix_view<float> injection, pass.matrix(streams.rows(), d.streams));
        FRUGAL_TRY(mix(pass, index, d, w, streams, mixed, &injection));
        FRUGAL_TRY(body());
        return inject(pass, injection, branch, streams);
    }
    /// What the head reads. streams: [rows, width(d)]; y: [rows, hidden].
    template <class Pass>
    [[nodiscard]] static status finish(Pass& pass, std::size_t index, const dims& d, const weights& w,
                                       matrix_view<const float> streams, matrix_view<float> y) {
        return mix(pass, index, d, w, streams, y, nullptr);
    }
};

}  // namespace layer

FRUGAL_NAMESPACE_END
