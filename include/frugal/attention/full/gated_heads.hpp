#pragma once
/// What full attention and QSA have in common: projections into gated heads, and the way from the heads back.
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/kv_cache.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

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

/// The products of an attention layer; see reuse/products.hpp.
using qkv_product = reuse::product<&full_weights::q, &full_weights::k, &full_weights::v>;
using out_product = reuse::product<&full_weights::o>;
using full_products = reuse::product_list<full_weights, qkv_product, out_product>;

namespace detail {

/// A batch as heads.
struct FRUGAL_FLAGGED projected_heads {
    matrix_view<float> queries_and_gates;  ///< [rows, heads * 2 * head_dim], per head [query | gate]
    matrix_view<float> keys, values;       ///< [rows, kv_heads * head_dim]
    matrix_view<const float> angles;       ///< [rows, rotary_dim], from ops::rope_angles

    /// Heads of queries with their gates between them: what ops::attention and ops::apply_rope take.
    [[nodiscard]] matrix_view<const float> queries(const full_dims&) const noexcept { return queries_and_gates; }
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
[[nodiscard]] status check_layer(const full_dims& d, const State& cache, const batch& tokens, matrix_view<const float> x,
                                 matrix_view<float> y) {
    if (d.heads == 0 || d.kv_heads == 0 || d.head_dim == 0 || d.heads % d.kv_heads != 0)
        return fail(errc::invalid_argument, "attention of ", d.heads, " heads of ", d.head_dim, " features over ", d.kv_heads,
                    " key-value heads");
    if (d.rope == nullptr) return fail(errc::invalid_argument, "attention without a rotary table: set dims.rope");
    if (cache.kv_heads() != d.kv_heads || cache.head_dim() != d.head_dim)
        return fail(errc::shape_mismatch, "attention of ", d.kv_heads, " key-value heads of ", d.head_dim,
                    " features with a cache of ", cache.kv_heads(), " of ", cache.head_dim());
    if (x.rows() != tokens.rows() || y.rows() != tokens.rows() || x.cols() != d.hidden || y.cols() != d.hidden)
        return fail(errc::shape_mismatch, "attention of x [", x.rows(), ", ", x.cols(), "] into y [", y.rows(), ", ", y.cols(),
                    "] for ", tokens.rows(), " rows of ", d.hidden);
    return validate(tokens, cache.sequences());
}

/// Projects, norms and rotates queries and keys, and projects the values, in scratch of the caller's scope.
template <class NormWeight, class Device, class Products>
[[nodiscard]] result<projected_heads> project(Device& dev, workspace& scratch, Products& products, const full_dims& d,
                                              const full_weights& w, const batch& tokens, const reuse::product_input& x) {
    projected_heads out;
    const std::size_t rows = x.rows();
    FRUGAL_TRY_ASSIGN(out.queries_and_gates, scratch.matrix(rows, d.heads * 2 * d.head_dim));
    FRUGAL_TRY_ASSIGN(out.keys, scratch.matrix(rows, d.kv_heads * d.head_dim));
    FRUGAL_TRY_ASSIGN(out.values, scratch.matrix(rows, d.kv_heads * d.head_dim));
    FRUGAL_TRY_ASSIGN(auto angles, scratch.matrix(rows, d.rope->rotary_dim));
    FRUGAL_TRY(products.template multiply<qkv_product>(x, {out.queries_and_gates, out.keys, out.values}));
    const auto queries = heads_as_rows(out.queries_and_gates, d.heads, d.head_dim);
    const auto keys = heads_as_rows(out.keys, d.kv_heads, d.head_dim);
    FRUGAL_TRY(ops::rms_norm<NormWeight>(dev, matrix_view<const float>(queries), w.q_norm, d.eps, queries));
    FRUGAL_TRY(ops::rms_norm<NormWeight>(dev, matrix_view<const float>(keys), w.k_norm, d.eps, keys));
    FRUGAL_TRY(ops::rope_angles(dev, *d.rope, tokens.positions, angles));
    out.angles = angles;
    FRUGAL_TRY(ops::apply_rope(dev, *d.rope, out.angles, out.queries_and_gates, d.heads, d.head_dim));
    FRUGAL_TRY(ops::apply_rope(dev, *d.rope, out.angles, out.keys, d.kv_heads, d.head_dim));
    return out;
}

/// Makes room for the batch in every sequence, then writes its keys and values there, not yet committed.
template <class Device, class State>
[[nodiscard]] status write_cache(Device& dev, State& cache, const batch& tokens, const projected_heads& heads) {
    for (const segment& part : tokens.segments)
        if (part.sequence != sequence_id::padding) FRUGAL_TRY(cache.reserve(part.sequence, part.count));
    for (const segment& part : tokens.segments) {
        if (part.sequence == sequence_id::padding) continue;
        const std::size_t length = cache.length(part.sequence);
        dev.run_ranges(part.count, 64, [&](std::size_t begin, std::size_t end) {
            for (std::size_t r = begin; r < end; ++r)
                cache.write(part.sequence, length + r, heads.keys.row(part.first + r), heads.values.row(part.first + r));
        });
    }
    return {};
}

/// Gates the attended heads and projects them into y; rows of padding become 0.
template <class Device, class Products>
[[nodiscard]] status gate_and_project(Device& dev, Products& products, const full_dims& d, const batch& tokens,
                                      const projected_heads& heads, matrix_view<float> attended, matrix_view<float> y) {
    FRUGAL_TRY(ops::gate_heads(dev, heads.gates(d), d.heads, attended));
    FRUGAL_TRY(products.template multiply<out_product>(attended, {y}));
    // Stored, not multiplied by 0: what a padding row brought may be NaN.
    for (const segment& part : tokens.segments)
        if (part.sequence == sequence_id::padding)
            for (std::size_t r = 0; r < part.count; ++r) std::memset(y.row(part.first + r), 0, y.cols() * sizeof(float));
    return {};
}

template <class State>
void commit(State& cache, const batch& tokens) noexcept {
    for (const segment& part : tokens.segments)
        if (part.sequence != sequence_id::padding) cache.commit(part.sequence, part.count);
}

}  // namespace detail

}  // namespace attention

FRUGAL_NAMESPACE_END
