#pragma once
/// Full attention on a GPU: weights, cache and every operator there. One sequence.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/attention/full/gated_heads.hpp"
#include "frugal/attention/recurrent_cuda.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/ops/attention/attention_cuda.hpp"
#include "frugal/ops/attention/precision.hpp"
#include "frugal/ops/attention/step_cuda.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"
#include "frugal/ops/norm/norm_cuda.hpp"
#include "frugal/ops/rope/rope_cuda.hpp"
#include "frugal/reuse/weights/packed_products.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// What all attention layers of a step share, on the device.
struct FRUGAL_FLAGGED cuda_attention_inputs {
    ops::cuda::step_rows step;              ///< of as many tokens as the layers are given rows
    matrix_view<const float> angles;        ///< [rows, rotary_dim] of ops::cuda::rope_angles
    matrix_view<const float> block_angles;  ///< the same of step.block_positions, where there are blocks
    std::size_t most_visible = 0;           ///< no row sees more tokens: bounds the work that is started
};

/// Keys and values of one sequence on a device, max_tokens at most, in the precision Scalar.
template <key_value_scalar Scalar>
struct FRUGAL_FLAGGED cuda_kv_cache {
    ops::cuda::contiguous_cache<Scalar> data;
    ops::key_value_view<Scalar> view;
    ops::cuda::split_row<Scalar>* rows = nullptr;  ///< one for each token of a step; all see this cache

    [[nodiscard]] static result<cuda_kv_cache> create(device::gpu::room& memory, const full_dims& d, std::size_t rows,
                                                      std::size_t max_tokens) {
        using element = typename ops::stored_features<Scalar>::element;
        if (d.head_dim % ops::stored_features<Scalar>::block != 0)
            return fail(errc::invalid_argument, "heads of ", d.head_dim, " features do not fill the blocks of the cache");
        cuda_kv_cache out;
        out.data.stride = ops::stored_features<Scalar>::elements(d.kv_heads * d.head_dim);
        FRUGAL_TRY_ASSIGN(out.data.keys, memory.array<element>(max_tokens * out.data.stride));
        FRUGAL_TRY_ASSIGN(out.data.values, memory.array<element>(max_tokens * out.data.stride));
        // One chunk holds all tokens.
        const element* const chunks[2] = {out.data.keys, out.data.values};
        FRUGAL_TRY_ASSIGN(const element* const* const table, memory.copy(std::span<const element* const>(chunks)));
        out.view = {table, table + 1, 40, out.data.stride};
        const std::vector<ops::cuda::split_row<Scalar>> same(rows, {out.view, nullptr, 0});
        FRUGAL_TRY_ASSIGN(out.rows, memory.copy(std::span<const ops::cuda::split_row<Scalar>>(same)));
        return out;
    }
    /// What a saved sequence of so many tokens holds.
    void list_segments(std::size_t length, std::vector<cuda_segment>& to) const {
        to.push_back(make_segment(data.keys, length * data.stride));
        to.push_back(make_segment(data.values, length * data.stride));
    }
};

namespace detail {

/// Norms, rotates and appends what the products have left. Queued.
template <class NormWeight, class Device, class Scalar>
[[nodiscard]] status finish_heads(device::gpu::pass<Device>& pass, const full_dims& d, std::span<const float> q_norm,
                                  std::span<const float> k_norm, const cuda_kv_cache<Scalar>& cache,
                                  const cuda_attention_inputs& shared, matrix_view<float> queries_and_gates,
                                  matrix_view<float> keys, matrix_view<float> values) {
    const auto query_heads = heads_as_rows(queries_and_gates, d.heads, d.head_dim);
    const auto key_heads = heads_as_rows(keys, d.kv_heads, d.head_dim);
    FRUGAL_TRY(ops::rms_norm<NormWeight>(pass, q_norm, query_heads, d.eps, query_heads));
    FRUGAL_TRY(ops::rms_norm<NormWeight>(pass, k_norm, key_heads, d.eps, key_heads));
    FRUGAL_TRY(ops::apply_rope(pass, shared.angles, d.heads, queries_and_gates));
    FRUGAL_TRY(ops::apply_rope(pass, shared.angles, d.kv_heads, keys));
    return pass.start([&](cudaStream_t stream) {
        return ops::cuda::append_keys_values<Scalar>(keys, values, shared.step.visible, cache.data, cache.rows, stream);
    });
}

/// Attends as the cache's rows say, as many rows at once as have room for partial results, but one at least. kind: whether rows
/// have lists. Queued.
template <class Device, class Scalar>
[[nodiscard]] status attend_rows(device::gpu::pass<Device>& pass, const full_dims& d, const cuda_kv_cache<Scalar>& cache,
                                 ops::cuda::row_keys kind, std::size_t most_visible, matrix_view<const float> queries,
                                 matrix_view<float> attended) {
    constexpr std::size_t wanted = std::size_t{1} << 24;  // floats
    const ops::cuda::split_heads shape{d.heads, d.kv_heads, d.head_dim};
    const std::size_t rows = queries.rows(), a_row = ops::cuda::split_partial(1, shape, most_visible);
    // Never less for fewer keys to see: a step takes no more scratch than one that sees more.
    const std::size_t size = (std::max)(a_row, (std::min)(rows * a_row, wanted)), at_once = size / a_row;
    typename device::gpu::pass<Device>::scope scope(pass);
    FRUGAL_TRY_ASSIGN(const auto partial, pass.template array<float>(size));
    for (std::size_t first = 0; first < rows; first += at_once) {
        const std::size_t count = (std::min)(at_once, rows - first);
        FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
            return ops::cuda::split_attention(queries.rows_range(first, count), shape, d.scale(), cache.rows + first,
                                              most_visible, partial.data(), attended.rows_range(first, count), stream, kind);
        }));
    }
    return {};
}

/// Attends to everything up to each row: where prefills may round, from bf16 caches, for heads that they take, by matrix units.
/// Queued.
template <class Device, class Scalar>
[[nodiscard]] status attend_all(device::gpu::pass<Device>& pass, const full_dims& d, const cuda_kv_cache<Scalar>& cache,
                                const cuda_attention_inputs& shared, matrix_view<const float> queries,
                                matrix_view<float> attended) {
    if constexpr (std::is_same_v<Scalar, bfloat16>)
        if (pass.may_round(queries.rows()) && (d.head_dim == 64 || d.head_dim == 128 || d.head_dim == 256))
            return pass.start([&](cudaStream_t stream) {
                return ops::cuda::tile_attention(queries, {d.heads, d.kv_heads, d.head_dim}, d.scale(), cache.view,
                                                 shared.step.visible, attended, stream);
            });
    return attend_rows(pass, d, cache, ops::cuda::row_keys::of_one_sequence, shared.most_visible, queries, attended);
}

/// Gates what the heads have attended to and projects it into y; see the host's gate_and_project. Queued.
template <class Device>
[[nodiscard]] status gate_and_project(device::gpu::pass<Device>& pass, const full_dims& d, const typename Device::image& out,
                                      matrix_view<float> queries_and_gates, matrix_view<float> attended, matrix_view<float> y) {
    projected_heads heads;
    heads.queries_and_gates = queries_and_gates;
    FRUGAL_TRY(ops::gate_heads(pass, heads.gates(d), d.heads, attended));
    FRUGAL_TRY_ASSIGN(const auto input, pass.input(attended));
    return pass.multiply(out, input, {y});
}

}  // namespace detail

/// One layer of attention::full<NormWeight, Scalar> with its cache. Device: device::cuda<…>.
template <class NormWeight, key_value_scalar Scalar, class Device>
class FRUGAL_FLAGGED cuda_full {
public:
    using dims = full_dims;
    using weights = full_weights;

    /// Packs the weights and takes an empty cache. `rows`: most tokens of a step. Errors: shape_mismatch, invalid_argument,
    /// those of packing, out_of_memory.
    [[nodiscard]] static result<cuda_full> create(Device& dev, device::gpu::room& memory, const full_dims& d,
                                                  const full_weights& w, std::size_t rows, std::size_t max_tokens,
                                                  const reuse::source_unneeded& unneeded) {
        if (w.q_norm.size() != d.head_dim || w.k_norm.size() != d.head_dim)
            return fail(errc::shape_mismatch, "attention of heads of ", d.head_dim, " features with norms of ", w.q_norm.size(),
                        " and ", w.k_norm.size());
        cuda_full out;
        FRUGAL_TRY_ASSIGN(out.products_, products::pack(dev, w, unneeded));
        FRUGAL_TRY_ASSIGN(out.q_norm_, memory.keep(w.q_norm));
        FRUGAL_TRY_ASSIGN(out.k_norm_, memory.keep(w.k_norm));
        FRUGAL_TRY_ASSIGN(out.cache_, cuda_kv_cache<Scalar>::create(memory, d, rows, max_tokens));
        return out;
    }

    /// Appends x to the sequence. x, y: [rows, hidden]. Queued; a token's bits do not depend on how tokens are split into calls,
    /// unless matrix units attend (device::prefill::bf16_tiles with a bf16 cache, more than 16 rows).
    [[nodiscard]] status forward(device::gpu::pass<Device>& pass, const full_dims& d, const cuda_attention_inputs& shared,
                                 matrix_view<const float> x, matrix_view<float> y) const {
        const std::size_t rows = x.rows();
        typename device::gpu::pass<Device>::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto queries, pass.matrix(rows, d.heads * 2 * d.head_dim));
        FRUGAL_TRY_ASSIGN(const auto keys, pass.matrix(rows, d.kv_heads * d.head_dim));
        FRUGAL_TRY_ASSIGN(const auto values, pass.matrix(rows, d.kv_heads * d.head_dim));
        FRUGAL_TRY_ASSIGN(const auto attended, pass.input_matrix(rows, d.heads * d.head_dim));
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(x));
        FRUGAL_TRY(pass.multiply(products_.template image<qkv_product>(), input, {queries, keys, values}));
        FRUGAL_TRY(detail::finish_heads<NormWeight>(pass, d, q_norm_, k_norm_, cache_, shared, queries, keys, values));
        FRUGAL_TRY(detail::attend_all(pass, d, cache_, shared, queries, attended));
        return detail::gate_and_project(pass, d, products_.template image<out_product>(), queries, attended, y);
    }
    /// What a saved sequence of so many tokens holds of this layer.
    void list_segments(const full_dims&, std::size_t length, const ops::cuda::step_rows&, std::vector<cuda_segment>& to) const {
        cache_.list_segments(length, to);
    }
    [[nodiscard]] std::size_t image_bytes() const noexcept { return products_.bytes(); }

private:
    using products = reuse::packed_products<full_products, Device>;

    products products_;
    std::span<const float> q_norm_, k_norm_;  ///< on the device
    cuda_kv_cache<Scalar> cache_;
};

}  // namespace attention

FRUGAL_NAMESPACE_END
