#pragma once
/// What full attention and QSA have in common: projections into gated heads, and the way from the heads back.
#include <cmath>
#include <cstddef>
#include <span>

#include "frugal/attention/kv_cache.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/pass.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/tensor_name.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// Sizes of an attention layer. Query head h reads key-value head h / (heads / kv_heads).
struct FRUGAL_FLAGGED full_dims {
    std::size_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
    float eps = 0;                          ///< of the query and key norms
    const ops::rope_table* rope = nullptr;  ///< not owned; rotary_dim <= head_dim

    [[nodiscard]] ops::attention_heads shape() const noexcept { return {heads, kv_heads, head_dim}; }
    /// Factor of a score before the softmax: 1 / sqrt(head_dim).
    [[nodiscard]] float scale() const noexcept { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))); }
};

/// Weights of an attention layer; not owned.
struct FRUGAL_FLAGGED full_weights {
    quant::weight_view q;     ///< [heads * 2 * head_dim, hidden]: per head head_dim query rows, then head_dim gate rows
    quant::weight_view k, v;  ///< [kv_heads * head_dim, hidden]
    quant::weight_view o;     ///< [hidden, heads * head_dim]
    std::span<const float> q_norm, k_norm;  ///< [head_dim]
};

/// The products of an attention layer; see reuse/weights/products.hpp.
using qkv_product = reuse::product<&full_weights::q, &full_weights::k, &full_weights::v>;
using out_product = reuse::product<&full_weights::o>;
using full_products = reuse::product_list<full_weights, qkv_product, out_product>;

namespace detail {

/// Errors: invalid_argument. Sizes: model::config.
template <class Sizes>
[[nodiscard]] status validate_heads(const Sizes& c) {
    FRUGAL_TRY(c.positive(c.heads, "attention head count"));
    FRUGAL_TRY(c.positive(c.kv_heads, "key-value head count"));
    FRUGAL_TRY(c.positive(c.head_dim, "head size"));
    FRUGAL_TRY(c.validate_rope());
    if (c.heads % c.kv_heads != 0)
        return fail(errc::invalid_argument, c.heads, " attention heads cannot share ", c.kv_heads, " key-value heads");
    return {};
}
/// Their rotary table stays null: the model sets it.
template <class Dims, class Sizes>
[[nodiscard]] Dims make_heads(const Sizes& c) {
    Dims d;
    d.hidden = c.hidden;
    d.heads = c.heads;
    d.kv_heads = c.kv_heads;
    d.head_dim = c.head_dim;
    d.eps = c.rms_epsilon;
    return d;
}
template <class File>
[[nodiscard]] status bind_heads(File& file, const full_dims& d, full_weights& w) {
    const std::size_t q_rows = 2 * d.heads * d.head_dim, kv_rows = d.kv_heads * d.head_dim;
    constexpr tensor_name q{"attn_q.weight", "self_attn.q_proj.weight"};
    constexpr tensor_name fused_name{"attn_qkv.weight", ""};  // some converters use the name that Gated DeltaNet layers have
    FRUGAL_TRY_ASSIGN(const bool apart, file.has(q));
    FRUGAL_TRY_ASSIGN(const bool fused, file.has(fused_name));
    if (!apart && fused) {
        quant::weight_view all;
        FRUGAL_TRY(file.matrix(fused_name, q_rows + 2 * kv_rows, d.hidden, all));
        w.q = all.rows_range(0, q_rows);
        w.k = all.rows_range(q_rows, kv_rows);
        w.v = all.rows_range(q_rows + kv_rows, kv_rows);
    } else {
        FRUGAL_TRY(file.matrix(q, q_rows, d.hidden, w.q));
        FRUGAL_TRY(file.matrix({"attn_k.weight", "self_attn.k_proj.weight"}, kv_rows, d.hidden, w.k));
        FRUGAL_TRY(file.matrix({"attn_v.weight", "self_attn.v_proj.weight"}, kv_rows, d.hidden, w.v));
    }
    FRUGAL_TRY(file.matrix({"attn_output.weight", "self_attn.o_proj.weight"}, d.hidden, d.heads * d.head_dim, w.o));
    FRUGAL_TRY(file.vector({"attn_q_norm.weight", "self_attn.q_norm.weight"}, d.head_dim, w.q_norm));
    return file.vector({"attn_k_norm.weight", "self_attn.k_norm.weight"}, d.head_dim, w.k_norm);
}

/// A step as heads.
struct FRUGAL_FLAGGED projected_heads {
    matrix_view<float> queries_and_gates;  ///< [rows, heads * 2 * head_dim], per head [query | gate]
    matrix_view<float> keys, values;       ///< [rows, kv_heads * head_dim]

    /// The gates, as heads with queries between them.
    [[nodiscard]] matrix_view<const float> gates(const full_dims& d) const noexcept {
        return {queries_and_gates.data() + d.head_dim, queries_and_gates.rows(), queries_and_gates.cols(),
                queries_and_gates.stride()};
    }
};

/// Heads of [rows, heads * stride] as rows of their own: [rows * heads, head_dim]. x has no gap between its rows.
[[nodiscard]] FRUGAL_FLAGGED inline matrix_view<float> heads_as_rows(matrix_view<float> x, std::size_t heads,
                                                                     std::size_t head_dim) noexcept {
    return {x.data(), x.rows() * heads, head_dim, x.cols() / heads};
}

template <class State>
[[nodiscard]] status check_layer(const full_dims& d, const State& cache, const step& of, matrix_view<const float> x,
                                 matrix_view<float> y) {
    if (d.heads == 0 || d.kv_heads == 0 || d.head_dim == 0 || d.heads % d.kv_heads != 0)
        return fail(errc::invalid_argument, "attention of ", d.heads, " heads of ", d.head_dim, " features over ", d.kv_heads,
                    " key-value heads");
    if (d.rope == nullptr) return fail(errc::invalid_argument, "attention without a rotary table: set dims.rope");
    if (cache.kv_heads() != d.kv_heads || cache.head_dim() != d.head_dim)
        return fail(errc::shape_mismatch, "attention of ", d.kv_heads, " key-value heads of ", d.head_dim,
                    " features with a cache of ", cache.kv_heads(), " of ", cache.head_dim());
    if (x.rows() != of.rows() || y.rows() != of.rows() || x.cols() != d.hidden || y.cols() != d.hidden)
        return fail(errc::shape_mismatch, "attention of x [", x.rows(), ", ", x.cols(), "] into y [", y.rows(), ", ", y.cols(),
                    "] for ", of.rows(), " rows of ", d.hidden);
    return validate(of.tokens, cache.sequences());
}

/// Projects, norms and rotates queries and keys, and projects the values, in scratch of the caller's scope.
template <class NormWeight, class Pass, class Products, class Step, class Input>
[[nodiscard]] result<projected_heads> project(Pass& pass, Products& products, const full_dims& d, const full_weights& w,
                                              const Step& of, const Input& x) {
    projected_heads out;
    const std::size_t rows = of.rows();
    FRUGAL_TRY_ASSIGN(out.queries_and_gates, pass.matrix(rows, d.heads * 2 * d.head_dim));
    FRUGAL_TRY_ASSIGN(out.keys, pass.matrix(rows, d.kv_heads * d.head_dim));
    FRUGAL_TRY_ASSIGN(out.values, pass.matrix(rows, d.kv_heads * d.head_dim));
    FRUGAL_TRY(products.template multiply<qkv_product>(x, {out.queries_and_gates, out.keys, out.values}));
    const auto queries = heads_as_rows(out.queries_and_gates, d.heads, d.head_dim);
    const auto keys = heads_as_rows(out.keys, d.kv_heads, d.head_dim);
    FRUGAL_TRY(ops::rms_norm<NormWeight>(pass, w.q_norm, queries, d.eps, queries));
    FRUGAL_TRY(ops::rms_norm<NormWeight>(pass, w.k_norm, keys, d.eps, keys));
    FRUGAL_TRY(ops::apply_rope(pass, *d.rope, of.angles, d.heads, d.head_dim, out.queries_and_gates));
    FRUGAL_TRY(ops::apply_rope(pass, *d.rope, of.angles, d.kv_heads, d.head_dim, out.keys));
    return out;
}

/// Gates the attended heads and projects them into y.
template <class Pass, class Products>
[[nodiscard]] status gate_and_project(Pass& pass, Products& products, const full_dims& d, const projected_heads& heads,
                                      matrix_view<float> attended, matrix_view<float> y) {
    FRUGAL_TRY(ops::gate_heads(pass, heads.gates(d), d.heads, attended));
    return products.template multiply<out_product>(attended, {y});
}

/// Rotary angles of a step that stands alone, in scratch of the caller's scope.
template <device::host_pass Pass>
[[nodiscard]] result<step> lone_step(Pass& pass, const full_dims& d, const batch& tokens) {
    if (d.rope == nullptr) return fail(errc::invalid_argument, "attention without a rotary table: set dims.rope");
    FRUGAL_TRY_ASSIGN(const auto angles, pass.matrix(tokens.rows(), d.rope->rotary_dim));
    FRUGAL_TRY(ops::rope_angles(pass, *d.rope, tokens.positions, angles));
    return step{tokens, angles, {}};
}

}  // namespace detail

// For variants of your own over the same weights.
using detail::gate_and_project;
using detail::project;
using detail::projected_heads;

}  // namespace attention

FRUGAL_NAMESPACE_END
