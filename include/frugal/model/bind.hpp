#pragma once
/// Binds the tensors of a file to the roles of a model: every shape is checked extent by extent, every missing or odd tensor is
/// an error with its name. A source that has `check_unbound(names, config)` is asked at the end about those that no role read.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/names.hpp"
#include "frugal/model/tensor_source.hpp"
#include "frugal/model/weights.hpp"
#include "frugal/quant/codec.hpp"
#include "frugal/quant/weight.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

struct FRUGAL_FLAGGED bind_options {
    /// Decode every weight once and refuse NaN and infinity. Reads the whole file; small tensors are always checked.
    bool check_tensors = false;
};

namespace detail {

template <specification Spec, class Convention, quant::format_list Formats, tensor_source Source>
class FRUGAL_FLAGGED binder {
public:
    binder(const Source& source, const config& sizes, tensor_names<Convention> names, bind_options options)
        : source_(source), c_(sizes), names_(std::move(names)), options_(options) {}

    [[nodiscard]] result<weights> bind() {
        const std::size_t width = c_.streams * c_.hidden;
        FRUGAL_TRY(matrix(names_.global(global_tensor::embedding), c_.vocabulary, c_.hidden, out_.embedding));
        out_.head = out_.embedding;
        FRUGAL_TRY_ASSIGN(const bool untied, has(names_.global(global_tensor::head)));
        if (untied) FRUGAL_TRY(matrix(names_.global(global_tensor::head), c_.vocabulary, c_.hidden, out_.head));
        if constexpr (Spec::residual == residual_kind::plain) {
            FRUGAL_TRY(vector(names_.global(global_tensor::output_norm), c_.hidden, out_.output_norm));
        } else {
            auto& mixer = out_.output_hyper_connection;
            FRUGAL_TRY(vector(names_.global(global_tensor::hc_output_norm), width, mixer.norm));
            FRUGAL_TRY(matrix(names_.global(global_tensor::hc_output_down), c_.mix_rank, width, mixer.down));
            FRUGAL_TRY(matrix(names_.global(global_tensor::hc_output_up), width, c_.mix_rank, mixer.up));
        }
        out_.layers.resize(c_.layers.size());
        for (std::size_t i = 0; i < c_.layers.size(); ++i) FRUGAL_TRY(bind_layer(i, out_.layers[i]));
        if constexpr (Spec::ngram_embedding) {
            out_.ngrams.resize(c_.ngrams.size());
            for (std::size_t i = 0; i < c_.ngrams.size(); ++i) FRUGAL_TRY(bind_ngram(c_.ngrams[i], out_.ngrams[i]));
        }
        if constexpr (requires { source_.check_unbound(bound_, c_); }) FRUGAL_TRY(source_.check_unbound(bound_, c_));
        return std::move(out_);
    }

private:
    [[nodiscard]] result<bool> has(const std::string& name) const {
        if (name.empty()) return false;
        FRUGAL_TRY_ASSIGN(const auto found, source_.find(name));
        return found.has_value();
    }

    /// The name that the file has for a layer's tensor: the usual one unless only the other is there.
    [[nodiscard]] std::string name_of(layer_tensor role, std::size_t i) const {
        std::string usual = names_.layer(role, i), other = names_.other(role, i);
        const auto there = [&](const std::string& name) {
            const auto found = source_.find(name);
            return !found || found->has_value();  // what is there but broken is refused where it is read
        };
        return other.empty() || there(usual) || !there(other) ? usual : other;
    }

    [[nodiscard]] result<source_tensor> find(const std::string& name) {
        FRUGAL_TRY_ASSIGN(auto found, source_.find(name));
        if (!found) return fail(errc::not_found, "tensor ", name, " is missing from the file");
        bound_.push_back(name);
        return *std::move(found);
    }

    /// Extents, outermost first.
    using extents = std::initializer_list<std::uint64_t>;

    /// As the convention writes them: {4, 512} in GGUF is [512, 4] in a checkpoint.
    [[nodiscard]] static std::string text_of(std::span<const std::uint64_t> shape) {
        std::string out;
        for (std::size_t i = 0; i < shape.size(); ++i)
            out += concat(i == 0 ? "" : ", ", shape[Convention::innermost_first ? shape.size() - 1 - i : i]);
        return Convention::innermost_first ? concat("{", out, "}") : concat("[", out, "]");
    }

    /// Extent by extent, one of `expected`. Extents of 1 in front count for nothing: files add and drop them.
    [[nodiscard]] static status check_shape(const source_tensor& t, std::initializer_list<extents> expected) {
        const auto significant = [](std::span<const std::uint64_t> shape) {
            while (!shape.empty() && shape.front() == 1) shape = shape.subspan(1);
            return shape;
        };
        const auto found = significant(t.shape);
        for (const extents& each : expected) {
            const auto want = significant({each.begin(), each.size()});
            if (std::equal(found.begin(), found.end(), want.begin(), want.end())) return {};
        }
        const extents& first = *expected.begin();
        return fail(errc::shape_mismatch, "tensor ", t.name, " has shape ", text_of(t.shape), "; ",
                    text_of({first.begin(), first.size()}), " is expected");
    }

    /// The tensor's blocks. Errors: those of quant::make_weight_view, with the names of tensor and type.
    [[nodiscard]] static result<quant::weight_view> view(const source_tensor& t, std::size_t rows, std::size_t cols) {
        auto out = quant::make_weight_view<Formats>(t.type, t.bytes, rows, cols);
        if (out) return out;
        if (out.error().code == errc::unsupported_format && !t.type_name.empty())
            return fail(errc::unsupported_format, "tensor ", t.name, " has type ", t.type_name,
                        ", which is not among the formats compiled: ", Formats::names());
        return fail(out.error().code, "tensor ", t.name, ": ", out.error().message);
    }

    [[nodiscard]] status matrix(const std::string& name, std::size_t rows, std::size_t cols, quant::weight_view& out) {
        return rows_of(name, {rows, cols}, rows, cols, out);
    }
    /// `count` matrices, one after the other.
    [[nodiscard]] status stack(const std::string& name, std::size_t count, std::size_t rows, std::size_t cols,
                               quant::weight_view& out) {
        return rows_of(name, {count, rows, cols}, count * rows, cols, out);
    }
    [[nodiscard]] status rows_of(const std::string& name, extents shape, std::size_t rows, std::size_t cols,
                                 quant::weight_view& out) {
        FRUGAL_TRY_ASSIGN(const source_tensor t, find(name));
        FRUGAL_TRY(check_shape(t, {shape}));
        FRUGAL_TRY_ASSIGN(out, view(t, rows, cols));
        if (options_.check_tensors)
            if (const status finite = quant::check_finite<Formats>(out); !finite)
                return fail(finite.error().code, "tensor ", name, ": ", finite.error().message);
        return {};
    }

    /// All values as f32, owned by the result.
    [[nodiscard]] status values(const std::string& name, std::initializer_list<extents> shapes, std::vector<float>& out) {
        FRUGAL_TRY_ASSIGN(const source_tensor t, find(name));
        FRUGAL_TRY(check_shape(t, shapes));
        std::size_t n = 1;
        for (const std::uint64_t extent : *shapes.begin()) n *= static_cast<std::size_t>(extent);
        FRUGAL_TRY_ASSIGN(const quant::weight_view all, view(t, 1, n));
        FRUGAL_TRY_ASSIGN(out, quant::dequantize<Formats>(all));
        for (std::size_t i = 0; i < out.size(); ++i)
            if (!std::isfinite(out[i])) return fail(errc::not_finite, "tensor ", name, " has a value of ", out[i], " at ", i);
        return {};
    }

    [[nodiscard]] status vector(const std::string& name, std::size_t n, std::span<const float>& out) {
        std::vector<float> read;
        FRUGAL_TRY(values(name, {{n}}, read));
        out = out_.keep(std::move(read));
        return {};
    }
    /// A convolution of each channel by itself; the extent between, of inputs a channel, may be left out.
    [[nodiscard]] status convolution(const std::string& name, std::size_t channels, std::size_t kernel,
                                     std::span<const float>& out) {
        std::vector<float> read;
        constexpr bool squeezed = Convention::innermost_first;
        const extents with{channels, 1, kernel}, without{channels, kernel};
        FRUGAL_TRY(values(name, {squeezed ? without : with, squeezed ? with : without}, read));
        out = out_.keep(std::move(read));
        return {};
    }

    [[nodiscard]] status bind_layer(std::size_t i, layer_weights& layer) {
        const auto name = [&](layer_tensor role) { return name_of(role, i); };
        if constexpr (Spec::residual == residual_kind::plain) {
            FRUGAL_TRY(vector(name(layer_tensor::attention_norm), c_.hidden, layer.attention_norm));
            FRUGAL_TRY(vector(name(layer_tensor::ffn_norm), c_.hidden, layer.ffn_norm));
        } else {
            const std::size_t width = c_.streams * c_.hidden;
            auto& a = layer.attention_hyper_connection;
            FRUGAL_TRY(vector(name(layer_tensor::hc_attention_norm), width, a.norm));
            FRUGAL_TRY(matrix(name(layer_tensor::hc_attention_down), c_.mix_rank, width, a.down));
            FRUGAL_TRY(matrix(name(layer_tensor::hc_attention_up), width, c_.mix_rank, a.up));
            FRUGAL_TRY(matrix(name(layer_tensor::hc_attention_inject), c_.streams, width, a.inject));
            auto& f = layer.ffn_hyper_connection;
            FRUGAL_TRY(vector(name(layer_tensor::hc_ffn_norm), width, f.norm));
            FRUGAL_TRY(matrix(name(layer_tensor::hc_ffn_down), c_.mix_rank, width, f.down));
            FRUGAL_TRY(matrix(name(layer_tensor::hc_ffn_up), width, c_.mix_rank, f.up));
            FRUGAL_TRY(matrix(name(layer_tensor::hc_ffn_inject), c_.streams, width, f.inject));
        }
        if (c_.layers[i] == layer_kind::gdn)
            FRUGAL_TRY(bind_gdn(name, layer.gdn));
        else
            FRUGAL_TRY(bind_attention(name, layer.attention));
        if constexpr (Spec::feed_forward == feed_forward_kind::dense) {
            FRUGAL_TRY(matrix(name(layer_tensor::ffn_gate), c_.intermediate, c_.hidden, layer.dense.gate));
            FRUGAL_TRY(matrix(name(layer_tensor::ffn_up), c_.intermediate, c_.hidden, layer.dense.up));
            FRUGAL_TRY(matrix(name(layer_tensor::ffn_down), c_.hidden, c_.intermediate, layer.dense.down));
        } else {
            FRUGAL_TRY(bind_moe(i, layer.moe));
        }
        return {};
    }

    template <class Name>
    [[nodiscard]] status bind_gdn(const Name& name, attention::gdn_weights& w) {
        const std::size_t value_width = c_.value_heads * c_.value_dim;
        const std::size_t channels = 2 * c_.key_heads * c_.key_dim + value_width;
        FRUGAL_TRY(matrix(name(layer_tensor::gdn_qkv), channels, c_.hidden, w.qkv));
        FRUGAL_TRY(matrix(name(layer_tensor::gdn_z), value_width, c_.hidden, w.z));
        FRUGAL_TRY(matrix(name(layer_tensor::gdn_beta), c_.value_heads, c_.hidden, w.beta));
        FRUGAL_TRY(matrix(name(layer_tensor::gdn_alpha), c_.value_heads, c_.hidden, w.alpha));
        FRUGAL_TRY(matrix(name(layer_tensor::gdn_out), c_.hidden, value_width, w.out));
        FRUGAL_TRY(convolution(name(layer_tensor::gdn_conv), channels, c_.conv_kernel, w.conv));
        FRUGAL_TRY(vector(name(layer_tensor::gdn_dt_bias), c_.value_heads, w.dt_bias));
        FRUGAL_TRY(vector(name(layer_tensor::gdn_norm), c_.value_dim, w.norm));
        std::vector<float> decay;
        FRUGAL_TRY(values(name(layer_tensor::gdn_decay), {{c_.value_heads}}, decay));
        for (float& a : decay) {
            if constexpr (Convention::decay_is_log) a = -std::exp(a);
            if (a > 0)
                return fail(errc::invalid_argument, "tensor ", name(layer_tensor::gdn_decay), " has a positive decay of ", a,
                            "; a state would grow without bound");
        }
        w.a_neg_exp = out_.keep(std::move(decay));
        return {};
    }

    template <class Name>
    [[nodiscard]] status bind_attention(const Name& name, attention::qsa_weights& w) {
        const std::size_t q_rows = 2 * c_.heads * c_.head_dim, kv_rows = c_.kv_heads * c_.head_dim;
        FRUGAL_TRY_ASSIGN(const bool apart, has(name(layer_tensor::attention_q)));
        if (std::is_same_v<Convention, convention::gguf> && !apart) {
            // Some converters fuse the three projections under the name that GDN layers use.
            quant::weight_view fused;
            FRUGAL_TRY(matrix(name(layer_tensor::gdn_qkv), q_rows + 2 * kv_rows, c_.hidden, fused));
            w.q = fused.rows_range(0, q_rows);
            w.k = fused.rows_range(q_rows, kv_rows);
            w.v = fused.rows_range(q_rows + kv_rows, kv_rows);
        } else {
            FRUGAL_TRY(matrix(name(layer_tensor::attention_q), q_rows, c_.hidden, w.q));
            FRUGAL_TRY(matrix(name(layer_tensor::attention_k), kv_rows, c_.hidden, w.k));
            FRUGAL_TRY(matrix(name(layer_tensor::attention_v), kv_rows, c_.hidden, w.v));
        }
        FRUGAL_TRY(matrix(name(layer_tensor::attention_out), c_.hidden, c_.heads * c_.head_dim, w.o));
        FRUGAL_TRY(vector(name(layer_tensor::attention_q_norm), c_.head_dim, w.q_norm));
        FRUGAL_TRY(vector(name(layer_tensor::attention_k_norm), c_.head_dim, w.k_norm));
        if constexpr (Spec::attention == attention_kind::qsa) {
            const std::size_t query_rows = c_.index_heads * c_.index_dim;
            if constexpr (std::is_same_v<Convention, convention::gguf>) {
                FRUGAL_TRY(matrix(name(layer_tensor::indexer_q), query_rows, c_.hidden, w.indexer_q));
                FRUGAL_TRY(matrix(name(layer_tensor::indexer_k), c_.index_dim, c_.hidden, w.indexer_k));
            } else {
                quant::weight_view fused;
                FRUGAL_TRY(matrix(name(layer_tensor::indexer_qk), query_rows + c_.index_dim, c_.hidden, fused));
                w.indexer_q = fused.rows_range(0, query_rows);
                w.indexer_k = fused.rows_range(query_rows, c_.index_dim);
            }
            FRUGAL_TRY(vector(name(layer_tensor::indexer_q_norm), c_.index_dim, w.indexer_q_norm));
            FRUGAL_TRY(vector(name(layer_tensor::indexer_k_norm), c_.index_dim, w.indexer_k_norm));
        }
        return {};
    }

    [[nodiscard]] status bind_moe(std::size_t i, layer::moe_weights& w) {
        const auto name = [&](layer_tensor role) { return name_of(role, i); };
        const std::size_t wide = c_.expert_intermediate;
        FRUGAL_TRY(matrix(name(layer_tensor::router), c_.experts, c_.hidden, w.router));
        FRUGAL_TRY_ASSIGN(const bool fused, has(name(layer_tensor::experts_gate_up)));
        FRUGAL_TRY_ASSIGN(const bool stacked, has(name(layer_tensor::experts_down)));
        quant::weight_view all;
        if (!stacked && !std::is_same_v<Convention, convention::gguf>) {
            std::vector<quant::weight_view> gate(c_.experts), up(c_.experts), down(c_.experts);
            for (std::size_t e = 0; e < c_.experts; ++e) {  // one tensor an expert, as older and FP8 checkpoints have it
                const std::string each = concat(names_.prefix, "layers.", i, ".mlp.experts.", e, ".");
                FRUGAL_TRY(matrix(each + "gate_proj.weight", wide, c_.hidden, gate[e]));
                FRUGAL_TRY(matrix(each + "up_proj.weight", wide, c_.hidden, up[e]));
                FRUGAL_TRY(matrix(each + "down_proj.weight", c_.hidden, wide, down[e]));
            }
            FRUGAL_TRY_ASSIGN(w.gate, layer::expert_stack::separate(gate));
            FRUGAL_TRY_ASSIGN(w.up, layer::expert_stack::separate(up));
            FRUGAL_TRY_ASSIGN(w.down, layer::expert_stack::separate(down));
        } else {
            if (fused) {
                FRUGAL_TRY(stack(name(layer_tensor::experts_gate_up), c_.experts, 2 * wide, c_.hidden, all));
                FRUGAL_TRY_ASSIGN(w.gate, layer::expert_stack::part(all, c_.experts, 0, wide));
                FRUGAL_TRY_ASSIGN(w.up, layer::expert_stack::part(all, c_.experts, wide, wide));
            } else {
                FRUGAL_TRY(stack(name(layer_tensor::experts_gate), c_.experts, wide, c_.hidden, all));
                FRUGAL_TRY_ASSIGN(w.gate, layer::expert_stack::whole(all, c_.experts));
                FRUGAL_TRY(stack(name(layer_tensor::experts_up), c_.experts, wide, c_.hidden, all));
                FRUGAL_TRY_ASSIGN(w.up, layer::expert_stack::whole(all, c_.experts));
            }
            FRUGAL_TRY(stack(name(layer_tensor::experts_down), c_.experts, c_.hidden, wide, all));
            FRUGAL_TRY_ASSIGN(w.down, layer::expert_stack::whole(all, c_.experts));
        }
        FRUGAL_TRY(matrix(name(layer_tensor::shared_router), 1, c_.hidden, w.shared_gate));
        FRUGAL_TRY(matrix(name(layer_tensor::shared_gate), c_.shared_intermediate, c_.hidden, w.shared_gate_proj));
        FRUGAL_TRY(matrix(name(layer_tensor::shared_up), c_.shared_intermediate, c_.hidden, w.shared_up));
        FRUGAL_TRY(matrix(name(layer_tensor::shared_down), c_.hidden, c_.shared_intermediate, w.shared_down));
        return {};
    }

    [[nodiscard]] status bind_ngram(const ngram_module& m, layer::ngram_weights& w) {
        const auto name = [&](layer_tensor role) { return name_of(role, m.layer); };
        const std::size_t width = c_.streams * c_.hidden;
        const std::size_t embedded = m.hash.heads() * c_.ngram_row;
        FRUGAL_TRY(matrix(name(layer_tensor::ngram_key), width, embedded, w.key));
        FRUGAL_TRY(matrix(name(layer_tensor::ngram_value), c_.hidden, embedded, w.value));
        FRUGAL_TRY(vector(name(layer_tensor::ngram_norm_key), width, w.norm_key));
        FRUGAL_TRY(vector(name(layer_tensor::ngram_norm_query), width, w.norm_query));
        FRUGAL_TRY(vector(name(layer_tensor::ngram_norm_conv), width, w.norm_conv));
        FRUGAL_TRY(convolution(name(layer_tensor::ngram_conv), width, c_.ngram_conv_kernel, w.conv));
        FRUGAL_TRY_ASSIGN(std::vector<quant::weight_view> shards, table_shards(m));
        FRUGAL_TRY_ASSIGN(w.table, ops::row_table::make(std::move(shards)));
        if (w.table.rows() < m.hash.table_rows())
            return fail(errc::shape_mismatch, "the n-gram table has ", w.table.rows(), " rows; hashes reach ",
                        m.hash.table_rows());
        return {};
    }

    /// GGUF has the table in one piece, checkpoints in numbered shards or, when a module was saved by itself, in one piece too.
    [[nodiscard]] result<std::vector<quant::weight_view>> table_shards(const ngram_module& m) {
        std::vector<quant::weight_view> out;
        const auto take = [&](const source_tensor& t, const std::string& name) -> status {
            if (t.shape.size() != 2)
                return fail(errc::shape_mismatch, "tensor ", name, " has shape ", text_of(t.shape), "; two extents are expected");
            return matrix(name, static_cast<std::size_t>(t.shape[0]), c_.ngram_row, out.emplace_back());
        };
        const std::string at = concat(names_.prefix, "layers.", m.layer, ".ple.ple_embedding.ngram_embedding.");
        const bool one_piece = std::is_same_v<Convention, convention::gguf>;
        const std::string whole = one_piece ? names_.global(global_tensor::ngram_table) : at + "weight";
        FRUGAL_TRY_ASSIGN(const auto found, source_.find(whole));
        if (found) {
            FRUGAL_TRY(take(*found, whole));
            return out;
        }
        if (one_piece) return fail(errc::not_found, "tensor ", whole, " is missing from the file");
        for (std::size_t shard = 0;; ++shard) {
            const std::string name = concat(at, "shard_", shard, ".weight");
            FRUGAL_TRY_ASSIGN(const auto part, source_.find(name));
            if (part) {
                FRUGAL_TRY(take(*part, name));
                continue;
            }
            if (shard == 0) return fail(errc::not_found, "neither tensor ", whole, " nor ", name, " is in the file");
            return out;
        }
    }

    const Source& source_;
    const config& c_;
    tensor_names<Convention> names_;
    bind_options options_;
    std::vector<std::string> bound_;  ///< names of the tensors that a role has read
    weights out_;
};

}  // namespace detail

/// Binds every tensor that a model of `Spec` with these sizes needs.
/// Errors: not_found, shape_mismatch, unsupported_format, not_finite, invalid_argument; each names the tensor.
template <specification Spec, class Convention, quant::format_list Formats, tensor_source Source>
[[nodiscard]] result<weights> bind(const Source& source, const config& sizes, const tensor_names<Convention>& names,
                                   bind_options options = {}) {
    FRUGAL_TRY(validate<Spec>(sizes));
    return detail::binder<Spec, Convention, Formats, Source>(source, sizes, names, options).bind();
}

}  // namespace model

FRUGAL_NAMESPACE_END
