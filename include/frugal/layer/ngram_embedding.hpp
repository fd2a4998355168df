#pragma once
/// N-gram embedding (PLE): rows of a hashed table, gated into the residual streams, with a short convolution.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/attention/variant.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/pass.hpp"
#include "frugal/layer/ngram_state.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/ngram/ngram.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/pass.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/tensor_name.hpp"
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

/// The products of an n-gram embedding; see reuse/weights/products.hpp.
using ngram_product = reuse::product<&ngram_weights::key, &ngram_weights::value>;
using ngram_products = reuse::product_list<ngram_weights, ngram_product>;

namespace detail {

/// Rows of the table for the n-grams of the step's tokens, one after the other: out [rows, embedding]. Padding looks up zeros.
template <device::host_pass Pass>
[[nodiscard]] status look_up_ngrams(Pass& pass, std::size_t /*module*/, const ngram_dims& d, const ngram_weights& w,
                                    const ngram_state& kept, const attention::step& of, matrix_view<float> out) {
    typename Pass::scope scope(pass);
    const std::size_t heads = d.hash.heads();
    FRUGAL_TRY_ASSIGN(const auto rows, pass.template array<std::int64_t>(of.rows() * heads));
    FRUGAL_TRY_ASSIGN(const auto before, pass.template array<std::int32_t>(d.hash.context()));
    for (const attention::segment& s : of.tokens.segments) {
        const auto to = rows.subspan(s.first * heads, s.count * heads);
        if (s.sequence == attention::sequence_id::padding) {
            std::fill(to.begin(), to.end(), std::int64_t{-1});
            continue;
        }
        kept.read_tokens(s.sequence, before);
        FRUGAL_TRY(d.hash.rows(before, of.ids.subspan(s.first, s.count), to));
    }
    return ops::table_rows<typename Pass::formats>(pass, w.table, rows, {out.data(), of.rows() * heads, d.row});
}

}  // namespace detail

/// Also a part of a model (model/spec.hpp): modules that add to the residual streams before some of its layers.
/// Source: transformers `Qwen4ExpTextPLELayer`.
template <ops::norm_weight_policy NormWeight>
struct FRUGAL_FLAGGED ngram_embedding {
    static constexpr std::string_view name = "ngram_embedding";
    using dims = ngram_dims;
    using weights = ngram_weights;
    using state = ngram_state;
    using products = ngram_products;

    /// The modules of a model. Sizes: model::config.
    template <class Sizes>
    [[nodiscard]] static std::size_t count(const Sizes& c) noexcept {
        return c.ngrams.size();
    }
    /// The layer before which module m adds.
    template <class Sizes>
    [[nodiscard]] static std::size_t layer_of(const Sizes& c, std::size_t m) noexcept {
        return c.ngrams[m].layer;
    }
    /// Errors: invalid_argument.
    template <class Sizes>
    [[nodiscard]] static status validate_sizes(const Sizes& c) {
        for (const auto& m : c.ngrams) {
            FRUGAL_TRY(c.positive(c.ngram_row, "n-gram row length"));
            FRUGAL_TRY(c.positive(c.ngram_conv_kernel, "n-gram convolution kernel"));
            if (m.layer >= c.layers.size())
                return fail(errc::invalid_argument, "n-gram layer ", m.layer, " of ", c.layers.size());
            if (m.hash.vocabulary < 0 || static_cast<std::size_t>(m.hash.vocabulary) != c.vocabulary)
                return fail(errc::invalid_argument, "n-grams over ", m.hash.vocabulary, " tokens in a vocabulary of ",
                            c.vocabulary);
        }
        return {};
    }
    template <class Sizes>
    [[nodiscard]] static dims make_dims(const Sizes& c, std::size_t m) {
        return {c.hidden, c.streams, c.ngram_row, c.ngram_conv_kernel, c.rms_epsilon, c.ngrams[m].hash};
    }
    /// Reads a module's weights. File: model::layer_file of its layer. Errors: its own, shape_mismatch.
    template <class File>
    [[nodiscard]] static status bind(File& file, const dims& d, weights& w) {
        FRUGAL_TRY(file.matrix({"ple_key.weight", "ple.key_proj.weight"}, d.channels(), d.embedding(), w.key));
        FRUGAL_TRY(file.matrix({"ple_value.weight", "ple.value_proj.weight"}, d.hidden, d.embedding(), w.value));
        FRUGAL_TRY(file.vector({"ple_norm_key.weight", "ple.norm_key.weight"}, d.channels(), w.norm_key));
        FRUGAL_TRY(file.vector({"ple_norm_query.weight", "ple.norm_query.weight"}, d.channels(), w.norm_query));
        FRUGAL_TRY(file.vector({"ple_norm_conv.weight", "ple.norm_conv.weight"}, d.channels(), w.norm_conv));
        FRUGAL_TRY(file.convolution({"ple_conv1d.weight", "ple.conv1d.weight"}, d.channels(), d.conv_kernel, w.conv));
        FRUGAL_TRY_ASSIGN(std::vector<quant::weight_view> shards, table_shards(file, d));
        FRUGAL_TRY_ASSIGN(w.table, ops::row_table::make(std::move(shards)));
        if (w.table.rows() < d.hash.table_rows())
            return fail(errc::shape_mismatch, "the n-gram table has ", w.table.rows(), " rows; hashes reach ",
                        d.hash.table_rows());
        return {};
    }
    [[nodiscard]] static result<state> make_state(const dims& d, const attention::state_sizes& sizes) {
        return state::create(d, sizes.sequences, sizes.checkpoints);
    }

    /// What the caller adds to the streams before the layer's first hyper-connection:
    /// e = table rows of the token's n-grams, one after the other; per stream s: k = norm_key(key(e)), q = norm_query(x),
    /// gated[s] = sigmoid(signed root of k[s] . q[s] / sqrt(hidden)) * value(e);
    /// y = gated + silu(dilated causal convolution of norm_conv(gated)). All norms are per stream.
    /// The convolution does not reset at EOS; the n-grams do. of.ids: [rows]; x (the streams), y: [rows, streams * hidden];
    /// x and y must not overlap. Tokens of padding segments are not looked at; their y is 0. `module`: its number.
    /// Errors: shape_mismatch, invalid_argument (step; a token outside the vocabulary), unsupported_format, out_of_memory, those
    /// of the products; the state is as before then.
    template <class Pass, class State, class Step>
    [[nodiscard]] static status forward(Pass& pass, std::size_t module, const dims& d, const weights& w, State& kept,
                                        const Step& of, matrix_view<const float> x, matrix_view<float> y) {
        if constexpr (device::host_pass<Pass>) FRUGAL_TRY(check(d, w, kept, of.tokens, of.ids, x, y));
        const std::size_t rows = of.rows();
        if (rows == 0) return {};
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(auto products, pass.template begin<ngram_products>(module, w));
        FRUGAL_TRY_ASSIGN(const auto embedding, pass.input_matrix(rows, d.embedding()));
        FRUGAL_TRY_ASSIGN(const auto key, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto query, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto value, pass.matrix(rows, d.hidden));
        FRUGAL_TRY(detail::look_up_ngrams(pass, module, d, w, kept, of, embedding));
        FRUGAL_TRY_ASSIGN(const auto input, products.share(embedding));
        FRUGAL_TRY(products.template multiply<ngram_product>(input, {key, value}));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(pass, w.norm_key, key, d.hidden, d.eps, key));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(pass, w.norm_query, x, d.hidden, d.eps, query));
        const matrix_view<float> gated = key, normed = query;
        FRUGAL_TRY(ops::ngram_gate(pass, key, query, value, gated));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(pass, w.norm_conv, gated, d.hidden, d.eps, normed));
        return kept.convolve(
            pass, of, normed, y, [&](std::size_t first, std::size_t count, matrix_view<float> history) -> status {
                const auto out = y.rows_range(first, count);
                FRUGAL_TRY(ops::causal_conv1d<ops::activation::silu>(pass, w.conv, normed.rows_range(first, count), d.conv_kernel,
                                                                     d.hash.ngram_size, history, out));
                return ops::add(pass, gated.rows_range(first, count), out);
            });
    }

    /// The same by itself, from the blocks of the file.
    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] static status forward(Device& dev, workspace& scratch, const dims& d, const weights& w, state& kept,
                                        const attention::batch& batch, std::span<const std::int32_t> tokens,
                                        matrix_view<const float> x, matrix_view<float> y) {
        reuse::direct_store<Formats> store;
        reuse::cpu_pass pass(dev, scratch, store);
        return forward(pass, 0, d, w, kept, attention::step{batch, {}, tokens}, x, y);
    }

private:
    /// GGUF has the table in one piece, checkpoints in numbered shards or, when a module was saved by itself, in one piece too.
    template <class File>
    [[nodiscard]] static result<std::vector<quant::weight_view>> table_shards(File& file, const dims& d) {
        std::vector<quant::weight_view> out;
        constexpr tensor_name whole{"per_layer_token_embd.weight", "ple.ple_embedding.ngram_embedding.weight", {}, true};
        FRUGAL_TRY_ASSIGN(auto rows, file.rows_of(whole));
        if (rows || !file.is_checkpoint()) {
            FRUGAL_TRY(file.matrix(whole, rows.value_or(0), d.row, out.emplace_back()));
            return out;
        }
        for (std::size_t shard = 0;; ++shard) {
            const std::string part = concat("ple.ple_embedding.ngram_embedding.shard_", shard, ".weight");
            FRUGAL_TRY_ASSIGN(rows, file.rows_of({"", part}));
            if (rows) {
                FRUGAL_TRY(file.matrix({"", part}, *rows, d.row, out.emplace_back()));
                continue;
            }
            if (shard == 0)
                return fail(errc::not_found, "neither tensor ", file.name(whole), " nor ", file.name({"", part}),
                            " is in the file");
            return out;
        }
    }

    [[nodiscard]] static status check(const dims& d, const weights& w, const state& kept, const attention::batch& batch,
                                      std::span<const std::int32_t> tokens, matrix_view<const float> x, matrix_view<float> y) {
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
