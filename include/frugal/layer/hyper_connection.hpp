#pragma once
/// Hyper-connections: several residual streams that are mixed into a block's input and fed with its output.
#include <algorithm>
#include <cstddef>
#include <span>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/hyper_connection/hyper_connection.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
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

/// The products of a hyper-connection; see reuse/products.hpp. Two of them read the same input.
using mix_down_product = reuse::small_product<&hyper_connection_weights::down>;
using inject_product = reuse::small_product<&hyper_connection_weights::inject>;
using mix_up_product = reuse::small_product<&hyper_connection_weights::up>;
using hyper_connection_products = reuse::product_list<hyper_connection_weights, mix_down_product, inject_product, mix_up_product>;

/// One connection around one block, or the mixer at the end of the model. Rows of streams are [streams][hidden].
/// Source: transformers `Qwen4ExpTextGatedResidual`.
template <class NormWeight>
struct FRUGAL_FLAGGED hyper_connection {
    using dims = hyper_connection_dims;
    using weights = hyper_connection_weights;

    /// Starts the streams as copies of the embedding. x: [rows, hidden]; streams: [rows, count * hidden].
    template <device::cpu_target Device>
    [[nodiscard]] static status expand(Device& dev, matrix_view<const float> x, matrix_view<float> streams) {
        const std::size_t hidden = x.cols();
        if (hidden == 0 || streams.rows() != x.rows() || streams.cols() % hidden != 0)
            return fail(errc::shape_mismatch, "embedding [", x.rows(), ", ", hidden, "] into streams [", streams.rows(), ", ",
                        streams.cols(), "]");
        dev.run_ranges(x.rows(), 8, [&](std::size_t begin, std::size_t end) {
            for (std::size_t r = begin; r < end; ++r)
                for (std::size_t c = 0; c < streams.cols(); c += hidden) std::copy_n(x.row(r), hidden, streams.row(r) + c);
        });
        return {};
    }

    /// Before the block. With n = grouped norm of the streams (each stream by itself):
    /// mixed = mean over streams of sigmoid(up(silu(down(n) / streams))) * n;  injection = 2 * sigmoid(inject(n) / streams).
    /// streams: [rows, streams * hidden], not changed; mixed: [rows, hidden], the block's input; injection: [rows, streams],
    /// to be kept for `inject`. `multiplier`: reuse::direct_products, or a step of a reuse::image_store of
    /// hyper_connection_products. Errors: shape_mismatch, out_of_memory, and those of the multiplier.
    template <device::cpu_target Device, class Products>
    [[nodiscard]] static status mix(Device& dev, workspace& scratch, Products& multiplier, const dims& d, const weights& w,
                                    matrix_view<const float> streams, matrix_view<float> mixed, matrix_view<float> injection) {
        if (w.inject.rows != d.streams || injection.rows() != streams.rows() || injection.cols() != d.streams)
            return fail(errc::shape_mismatch, d.streams, " streams with injection weights of ", w.inject.rows,
                        " rows and injections [", injection.rows(), ", ", injection.cols(), "]");
        return run(dev, scratch, multiplier, d, w, streams, mixed, &injection);
    }
    /// The same from the blocks of the file. Errors: unsupported_format too.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status mix(Device& dev, workspace& scratch, const dims& d, const weights& w,
                                    matrix_view<const float> streams, matrix_view<float> mixed, matrix_view<float> injection) {
        reuse::direct_products<Formats, Device, weights> direct(dev, scratch, w);
        return mix(dev, scratch, direct, d, w, streams, mixed, injection);
    }

    /// At the end of the model: the mix alone. There is no other final norm.
    template <device::cpu_target Device, class Products>
    [[nodiscard]] static status final_mix(Device& dev, workspace& scratch, Products& multiplier, const dims& d, const weights& w,
                                          matrix_view<const float> streams, matrix_view<float> mixed) {
        return run(dev, scratch, multiplier, d, w, streams, mixed, nullptr);
    }
    /// The same from the blocks of the file.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status final_mix(Device& dev, workspace& scratch, const dims& d, const weights& w,
                                          matrix_view<const float> streams, matrix_view<float> mixed) {
        reuse::direct_products<Formats, Device, weights> direct(dev, scratch, w);
        return final_mix(dev, scratch, direct, d, w, streams, mixed);
    }

    /// After the block: streams[s] += injection[s] * output. output: [rows, hidden].
    template <device::cpu_target Device>
    [[nodiscard]] static status inject(Device& dev, matrix_view<const float> injection, matrix_view<const float> output,
                                       matrix_view<float> streams) {
        return ops::add_to_streams(dev, injection, output, streams);
    }

private:
    template <class Device, class Products>
    [[nodiscard]] static status run(Device& dev, workspace& scratch, Products& multiplier, const dims& d, const weights& w,
                                    matrix_view<const float> streams, matrix_view<float> mixed, matrix_view<float>* injection) {
        const std::size_t rows = streams.rows(), all = d.streams * d.hidden;
        if (d.streams == 0 || streams.cols() != all || mixed.rows() != rows || mixed.cols() != d.hidden)
            return fail(errc::shape_mismatch, d.streams, " streams of ", d.hidden, " features: got [", rows, ", ", streams.cols(),
                        "], mixed [", mixed.rows(), ", ", mixed.cols(), "]");
        if (w.down.rows != d.rank || w.up.rows != all)
            return fail(errc::shape_mismatch, "mix of rank ", d.rank, " with down of ", w.down.rows, " and up of ", w.up.rows,
                        " rows");
        workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(auto normed, scratch.matrix(rows, all));
        FRUGAL_TRY_ASSIGN(auto low, scratch.matrix(rows, d.rank));
        FRUGAL_TRY_ASSIGN(auto gate, scratch.matrix(rows, all));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(dev, streams, w.norm, d.hidden, d.eps, normed));
        FRUGAL_TRY_ASSIGN(const reuse::product_input input, multiplier.share(normed));
        FRUGAL_TRY(multiplier.template multiply<mix_down_product>(input, {low}));
        if (injection != nullptr) FRUGAL_TRY(multiplier.template multiply<inject_product>(input, {*injection}));
        const auto divisor = static_cast<float>(d.streams);
        ops::divided_silu(dev, divisor, low);
        FRUGAL_TRY(multiplier.template multiply<mix_up_product>(low, {gate}));
        if (injection != nullptr) ops::divided_double_sigmoid(dev, divisor, *injection);
        return ops::gated_stream_mean(dev, gate, normed, d.streams, mixed);
    }
};

}  // namespace layer

FRUGAL_NAMESPACE_END
