#pragma once
/// QSA on a GPU: weights, cache, indexer keys, selection and attention there. One sequence.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/attention/full/full_cuda.hpp"
#include "frugal/attention/qsa/indexer.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/ops/block_select/block_select_cuda.hpp"
#include "frugal/ops/block_select/index_keys_cuda.hpp"
#include "frugal/ops/norm/norm_cuda.hpp"
#include "frugal/ops/rope/rope_cuda.hpp"
#include "frugal/reuse/weights/packed_products.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// One layer of attention::qsa<Ratio, NormWeight, Scalar, IndexScalar> with its cache. Raw indexer keys are kept in f32, those of
/// the newest tokens alone. Device: device::cuda<…>.
template <std::size_t Ratio, class NormWeight, key_value_scalar Scalar, index_key_scalar IndexScalar, class Device>
class FRUGAL_FLAGGED cuda_qsa {
public:
    using dims = qsa_dims;
    using weights = qsa_weights;

    /// Packs the weights and takes an empty cache. `dense`: a layer that attends to everything and has no use for the indexer.
    /// `rows`: most tokens of a step; `history_rows`: of step_rows. Errors: shape_mismatch, invalid_argument, unsupported, those
    /// of packing, out_of_memory.
    [[nodiscard]] static result<cuda_qsa> create(Device& dev, device::gpu::room& memory, const dims& d, const weights& w,
                                                 bool dense, std::size_t rows, std::size_t history_rows, std::size_t max_tokens,
                                                 const reuse::source_unneeded& unneeded) {
        if (w.q_norm.size() != d.head_dim || w.k_norm.size() != d.head_dim || w.indexer_q_norm.size() != d.index_dim ||
            w.indexer_k_norm.size() != d.index_dim)
            return fail(errc::shape_mismatch, "QSA of heads of ", d.head_dim, " and indexer heads of ", d.index_dim,
                        " features with norms of other sizes");
        if (d.index_dim > 256)
            return fail(errc::unsupported, "indexer heads of ", d.index_dim, " features on a GPU; 256 at most");
        cuda_qsa out;
        out.dense_ = dense;
        weights used = w;
        if (dense) used.indexer_q = used.indexer_k = {};
        FRUGAL_TRY_ASSIGN(out.products_, products::pack(dev, used, unneeded));
        FRUGAL_TRY_ASSIGN(out.q_norm_, memory.keep(w.q_norm));
        FRUGAL_TRY_ASSIGN(out.k_norm_, memory.keep(w.k_norm));
        FRUGAL_TRY_ASSIGN(out.cache_, cuda_kv_cache<Scalar>::create(memory, d, rows, max_tokens));
        if (dense) return out;
        FRUGAL_TRY_ASSIGN(out.indexer_q_norm_, memory.keep(w.indexer_q_norm));
        FRUGAL_TRY_ASSIGN(out.indexer_k_norm_, memory.keep(w.indexer_k_norm));
        const std::size_t blocks = max_tokens / Ratio;
        FRUGAL_TRY_ASSIGN(out.keys_.keys, memory.array<IndexScalar>(blocks * d.index_dim));
        FRUGAL_TRY_ASSIGN(out.keys_.raw, memory.array<float>(history_rows * d.index_dim));
        const IndexScalar* const chunks[1] = {out.keys_.keys};
        FRUGAL_TRY_ASSIGN(const IndexScalar* const* const table, memory.copy(std::span<const IndexScalar* const>(chunks)));
        ops::cuda::select_row<IndexScalar> row;
        row.blocks.keys = table;
        row.blocks.chunk_shift = 31;
        row.blocks.stride = d.index_dim;
        if constexpr (std::is_same_v<IndexScalar, std::int8_t>) {
            FRUGAL_TRY_ASSIGN(out.keys_.scales, memory.array<float>(blocks));
            const float* const scales[1] = {out.keys_.scales};
            FRUGAL_TRY_ASSIGN(row.blocks.scales, memory.copy(std::span<const float* const>(scales)));
        }
        const std::vector<ops::cuda::select_row<IndexScalar>> same(rows, row);
        FRUGAL_TRY_ASSIGN(out.rows_, memory.copy(std::span<const ops::cuda::select_row<IndexScalar>>(same)));
        return out;
    }

    /// Appends x to the sequence. x, y: [rows, hidden]; shared.step has blocks of Ratio tokens, alike for all layers. Queued; a
    /// token's bits do not depend on how tokens are split into calls, but for what cuda_full says of matrix units.
    [[nodiscard]] status forward(device::gpu::pass<Device>& pass, const dims& d, const cuda_attention_inputs& shared,
                                 matrix_view<const float> x, matrix_view<float> y) const {
        const std::size_t rows = x.rows(), top = d.budget / Ratio;
        typename device::gpu::pass<Device>::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto queries, pass.matrix(rows, d.heads * 2 * d.head_dim));
        FRUGAL_TRY_ASSIGN(const auto keys, pass.matrix(rows, d.kv_heads * d.head_dim));
        FRUGAL_TRY_ASSIGN(const auto values, pass.matrix(rows, d.kv_heads * d.head_dim));
        FRUGAL_TRY_ASSIGN(const auto attended, pass.input_matrix(rows, d.heads * d.head_dim));
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(x));
        FRUGAL_TRY(pass.multiply(products_.template image<qkv_product>(), input, {queries, keys, values}));
        FRUGAL_TRY(detail::finish_heads<NormWeight>(pass, d, q_norm_, k_norm_, cache_, shared, queries, keys, values));
        if (!dense_) {
            typename device::gpu::pass<Device>::scope keys_scope(pass);
            FRUGAL_TRY_ASSIGN(const auto raw, pass.matrix(rows, d.index_dim));
            FRUGAL_TRY(pass.multiply(products_.template image<indexer_k_product>(), input, {raw}));
            FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
                return ops::cuda::append_index_keys<NormWeight>(
                    matrix_view<const float>(raw), shared.step, indexer_k_norm_.data(), d.eps, shared.block_angles.data(),
                    static_cast<int>(shared.block_angles.cols() / 2), keys_, rows_, stream);
            }));
        }
        if (dense_ || shared.most_visible / Ratio <= top) {  // no row has more blocks than it may choose
            FRUGAL_TRY(detail::attend_all(pass, d, cache_, shared, queries, attended));
        } else {
            FRUGAL_TRY_ASSIGN(const auto lists, pass.template array<std::uint32_t>(rows * ((top + 1) * Ratio - 1)));
            FRUGAL_TRY(choose(pass, d, shared, input, rows, lists));
            const std::size_t most = (std::min)(shared.most_visible, (top + 1) * Ratio - 1);
            FRUGAL_TRY(detail::attend_rows(pass, d, cache_, ops::cuda::row_keys::own, most, queries, attended));
        }
        return detail::gate_and_project(pass, d, products_.template image<out_product>(), queries, attended, y);
    }
    /// What a saved sequence of so many tokens holds of this layer: of raw keys, those of the open block.
    void list_segments(const dims& d, std::size_t length, const ops::cuda::step_rows& step, std::vector<cuda_segment>& to) const {
        cache_.list_segments(length, to);
        if (dense_) return;
        const std::size_t blocks = length / Ratio;
        to.push_back(make_segment(keys_.keys, blocks * d.index_dim));
        if constexpr (std::is_same_v<IndexScalar, std::int8_t>) to.push_back(make_segment(keys_.scales, blocks));
        for (std::size_t token = blocks * Ratio; token < length; ++token)
            to.push_back(make_segment(keys_.raw + token % step.history_rows * d.index_dim, d.index_dim));
    }
    [[nodiscard]] std::size_t image_bytes() const noexcept { return products_.bytes(); }

private:
    using products = reuse::packed_products<qsa_products, Device>;

    /// Lets the rows of the attention see the tokens of their best blocks, and their tails: by `lists`, as
    /// ops::cuda::attend_chosen wants room for. Scores as many rows at once as there is room for, but one at least.
    [[nodiscard]] status choose(device::gpu::pass<Device>& pass, const dims& d, const cuda_attention_inputs& shared,
                                const device::gpu::activations& input, std::size_t rows, std::span<std::uint32_t> lists) const {
        const std::size_t top = d.budget / Ratio, most_complete = shared.most_visible / Ratio;
        constexpr std::size_t wanted = std::size_t{1} << 22;  // floats
        const std::size_t size = (std::max)(most_complete, (std::min)(rows * most_complete, wanted)),
                          at_once = size / most_complete;
        typename device::gpu::pass<Device>::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto queries, pass.matrix(rows, d.index_heads * d.index_dim));
        FRUGAL_TRY_ASSIGN(const auto scores, pass.template array<float>(size));
        FRUGAL_TRY_ASSIGN(const auto candidates, pass.template array<std::uint32_t>(ops::cuda::select_candidates(
                                                     (std::min)(rows, ops::cuda::select_few_rows), most_complete, top)));
        FRUGAL_TRY_ASSIGN(const auto chosen, pass.template array<std::uint32_t>(rows * top));
        FRUGAL_TRY_ASSIGN(const auto counts, pass.template array<std::uint32_t>(rows));
        FRUGAL_TRY(pass.multiply(products_.template image<indexer_q_product>(), input, {queries}));
        const auto heads = detail::heads_as_rows(queries, d.index_heads, d.index_dim);
        FRUGAL_TRY(ops::rms_norm<NormWeight>(pass, indexer_q_norm_, heads, d.eps, heads));
        FRUGAL_TRY(ops::apply_rope(pass, shared.angles, d.index_heads, queries));
        for (std::size_t first = 0; first < rows; first += at_once) {
            const std::size_t count = (std::min)(at_once, rows - first);
            FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
                return ops::cuda::select_blocks(matrix_view<const float>(queries.rows_range(first, count)), d.index_heads,
                                                rows_ + first, most_complete, top, scores.data(), candidates.data(),
                                                chosen.data() + first * top, counts.data() + first, stream);
            }));
        }
        return pass.start([&](cudaStream_t stream) {
            return ops::cuda::attend_chosen(chosen.data(), counts.data(), top, Ratio, shared.step.complete, shared.step.visible,
                                            rows, lists.data(), cache_.rows, stream);
        });
    }

    products products_;
    bool dense_ = false;
    std::span<const float> q_norm_, k_norm_, indexer_q_norm_, indexer_k_norm_;  ///< on the device
    cuda_kv_cache<Scalar> cache_;
    ops::cuda::contiguous_block_keys<IndexScalar> keys_;
    ops::cuda::select_row<IndexScalar>* rows_ = nullptr;  ///< one for each token of a step
};

}  // namespace attention

FRUGAL_NAMESPACE_END
