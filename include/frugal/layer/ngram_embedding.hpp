#pragma once
/// N-gram embedding (PLE): rows of a hashed table, gated into the residual streams, with a short convolution.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/attention/batch.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/layer/ngram_state.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/ngram/ngram.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// table: at least hash.table_rows() rows of `row` values; key: [streams * hidden, embedding]; value: [hidden, embedding];
/// norms: [streams * hidden]; conv: [streams * hidden][kernel], oldest tap first.
struct FRUGAL_FLAGGED ngram_weights {
    ops::row_table table;
    quant::weight_view key, value;
    std::span<const float> norm_key, norm_query, norm_conv, conv;
};

/// The products of an n-gram embedding; see reuse/products.hpp.
using ngram_product = reuse::product<&ngram_weights::key, &ngram_weights::value>;
using ngram_products = reuse::product_list<ngram_weights, ngram_product>;

/// Source: transformers `Qwen4ExpTextPLELayer`.
template <class NormWeight>
struct FRUGAL_FLAGGED ngram_embedding {
    using dims = ngram_dims;
    using weights = ngram_weights;
    using state = ngram_state;
    using products = ngram_products;

    /// What the caller adds to the streams before the layer's first hyper-connection:
    /// e = table rows of the token's n-grams, one after the other; per stream s: k = norm_key(key(e)), q = norm_query(x),
    /// gated[s] = sigmoid(signed root of k[s] . q[s] / sqrt(hidden)) * value(e);
    /// y = gated + silu(dilated causal convolution of norm_conv(gated)). All norms are per stream.
    /// The convolution does not reset at EOS; the n-grams do. tokens: [rows]; x (the streams), y: [rows, streams * hidden];
    /// x and y must not overlap. Tokens of padding segments are not looked at; their y is 0.
    /// Errors: shape_mismatch, invalid_argument (batch; a token outside the vocabulary), unsupported_format, out_of_memory;
    /// the state is as before then.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, const dims& d, const weights& w, state& kept,
                                        const attention::batch& batch, std::span<const std::int64_t> tokens,
                                        matrix_view<const float> x, matrix_view<float> y) {
        reuse::direct_products<Formats, Device, weights> direct(dev, scratch, w);
        return forward<Formats>(dev, scratch, direct, d, w, kept, batch, tokens, x, y);
    }

    /// The same with products of your own: reuse::direct_products, or what reuse::image_store gives for `products`.
    template <quant::format_list Formats, device::cpu_target Device, class Products>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, Products& multiplier, const dims& d, const weights& w,
                                        state& kept, const attention::batch& batch, std::span<const std::int64_t> tokens,
                                        matrix_view<const float> x, matrix_view<float> y) {
        FRUGAL_TRY(check(d, w, kept, batch, tokens, x, y));
        const std::size_t rows = batch.rows(), heads = d.hash.heads();
        if (rows == 0) return {};
        workspace::scope scope(scratch);

        FRUGAL_TRY_ASSIGN(const auto table_rows, scratch.array<std::int64_t>(rows * heads));
        FRUGAL_TRY_ASSIGN(const auto before, scratch.array<std::int64_t>(d.hash.context()));
        for (const attention::segment& s : batch.segments) {
            const auto out = table_rows.subspan(s.first * heads, s.count * heads);
            if (s.sequence == attention::sequence_id::padding) {
                std::fill(out.begin(), out.end(), std::int64_t{-1});  // looks up zeros
                continue;
            }
            kept.read_tokens(s.sequence, before);
            FRUGAL_TRY(d.hash.rows(before, tokens.subspan(s.first, s.count), out));
        }

        FRUGAL_TRY_ASSIGN(auto embedding, scratch.matrix(rows, d.embedding()));
        FRUGAL_TRY_ASSIGN(auto key, scratch.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(auto query, scratch.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(auto value, scratch.matrix(rows, d.hidden));
        FRUGAL_TRY_ASSIGN(auto history, scratch.matrix(d.conv_history(), d.channels()));
        FRUGAL_TRY(ops::table_rows<Formats>(dev, w.table, table_rows, {embedding.data(), rows * heads, d.row}));
        FRUGAL_TRY(multiplier.template multiply<ngram_product>(embedding, {key, value}));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(dev, key, w.norm_key, d.hidden, d.eps, key));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(dev, x, w.norm_query, d.hidden, d.eps, query));
        const matrix_view<float> gated = key, normed = query;
        FRUGAL_TRY(ops::ngram_gate(dev, key, query, value, gated));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(dev, gated, w.norm_conv, d.hidden, d.eps, normed));

        // Two passes over the segments: the states change only when nothing can fail any more.
        for (const attention::segment& s : batch.segments) {
            const auto out = y.rows_range(s.first, s.count);
            if (s.sequence == attention::sequence_id::padding) {
                for (std::size_t r = 0; r < s.count; ++r) std::fill_n(out.row(r), out.cols(), 0.0f);
                continue;
            }
            kept.read_history(s.sequence, history);
            FRUGAL_TRY(ops::causal_conv1d<ops::activation::silu>(dev, normed.rows_range(s.first, s.count), w.conv, d.conv_kernel,
                                                                 d.hash.ngram_size, history, out));
            FRUGAL_TRY(ops::add(dev, gated.rows_range(s.first, s.count), out));
        }
        for (const attention::segment& s : batch.segments)
            if (s.sequence != attention::sequence_id::padding)
                kept.append(s.sequence, tokens.subspan(s.first, s.count), normed.rows_range(s.first, s.count));
        return {};
    }

private:
    [[nodiscard]] static status check(const dims& d, const weights& w, const state& kept, const attention::batch& batch,
                                      std::span<const std::int64_t> tokens, matrix_view<const float> x, matrix_view<float> y) {
        FRUGAL_TRY(attention::validate(batch, kept.sequences()));
        const std::size_t rows = batch.rows(), channels = d.channels();
        if (tokens.size() != rows || x.rows() != rows || y.rows() != rows || x.cols() != channels || y.cols() != channels)
            return fail(errc::shape_mismatch, "n-gram embedding of ", tokens.size(), " tokens in a batch of ", rows, " with x [",
                        x.rows(), ", ", x.cols(), "] and y [", y.rows(), ", ", y.cols(), "]");
        if (kept.channels() != channels || kept.context() != d.hash.context() || kept.conv_history() != d.conv_history())
            return fail(errc::shape_mismatch, "the n-gram state was made for other sizes");
        if (w.table.cols() != d.row || w.table.rows() < d.hash.table_rows())
            return fail(errc::shape_mismatch, "n-gram table [", w.table.rows(), ", ", w.table.cols(), "]; at least [",
                        d.hash.table_rows(), ", ", d.row, "] is needed");
        if (w.conv.size() != channels * d.conv_kernel)
            return fail(errc::shape_mismatch, "n-gram convolution of ", channels, " channels with ", w.conv.size(), " weights");
        return {};
    }
};

}  // namespace layer

FRUGAL_NAMESPACE_END
