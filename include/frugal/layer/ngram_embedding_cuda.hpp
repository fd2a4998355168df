#pragma once
/// N-gram embedding (PLE) on a GPU: the table, the state and every operator there. One sequence.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "frugal/attention/recurrent_cuda.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/layer/ngram_embedding.hpp"
#include "frugal/ops/conv1d/conv1d_cuda.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"
#include "frugal/ops/embedding/image_rows_cuda.hpp"
#include "frugal/ops/ngram/ngram_cuda.hpp"
#include "frugal/ops/norm/norm_cuda.hpp"
#include "frugal/reuse/weights/packed_products.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// One module of ngram_embedding<NormWeight> with its state. Device: device::cuda<…>.
template <class NormWeight, class Device>
class FRUGAL_FLAGGED cuda_ngram {
public:
    /// Packs table and weights. Shards of a table become one. `checkpoints`: how many of the newest tokens can be taken back.
    /// Errors: shape_mismatch, unsupported (shards of different formats), those of packing, out_of_memory.
    [[nodiscard]] static result<cuda_ngram> create(Device& dev, device::gpu::room& memory, const ngram_dims& d,
                                                   const ngram_weights& w, std::size_t checkpoints,
                                                   const reuse::source_unneeded& unneeded) {
        const std::size_t channels = d.channels();
        if (w.conv.size() != channels * d.conv_kernel || w.norm_key.size() != channels || w.norm_query.size() != channels ||
            w.norm_conv.size() != channels || w.table.cols() != d.row || w.table.rows() < d.hash.table_rows())
            return fail(errc::shape_mismatch, "n-gram embedding of ", channels, " channels with weights of other sizes");
        cuda_ngram out;
        FRUGAL_TRY_ASSIGN(out.products_, products::pack(dev, w, unneeded));
        FRUGAL_TRY_ASSIGN(out.table_, pack_table(dev, w.table));
        if (unneeded)
            for (const quant::weight_view& shard : w.table.shards()) unneeded({shard.data, shard.bytes()});
        FRUGAL_TRY_ASSIGN(out.norm_key_, memory.keep(w.norm_key));
        FRUGAL_TRY_ASSIGN(out.norm_query_, memory.keep(w.norm_query));
        FRUGAL_TRY_ASSIGN(out.norm_conv_, memory.keep(w.norm_conv));
        FRUGAL_TRY_ASSIGN(out.conv_, memory.keep(w.conv));
        out.hash_.ngram_size = static_cast<int>(d.hash.ngram_size);
        out.hash_.heads_per_ngram = static_cast<int>(d.hash.heads_per_ngram);
        out.hash_.eos = d.hash.eos;
        FRUGAL_TRY_ASSIGN(out.hash_.multipliers, memory.copy(std::span<const std::uint64_t>(d.hash.multipliers)));
        FRUGAL_TRY_ASSIGN(out.hash_.head_offsets, memory.copy(std::span<const std::uint64_t>(d.hash.head_offsets)));
        FRUGAL_TRY_ASSIGN(out.hash_.head_sizes, memory.copy(std::span<const std::uint64_t>(d.hash.head_sizes)));
        const std::vector<std::int64_t> none(d.hash.context(), d.hash.eos);
        FRUGAL_TRY_ASSIGN(out.no_tokens_, memory.copy(std::span<const std::int64_t>(none)));
        FRUGAL_TRY_ASSIGN(out.before_, tokens_type::create(memory, none.size(), checkpoints));
        FRUGAL_TRY_ASSIGN(out.history_, history_type::create(memory, d.conv_history() * channels, checkpoints));
        return out;
    }

    /// Appends the tokens and adds what ngram_embedding::forward gives to the streams. tokens: [streams.rows()], on the device.
    /// Queued; a token's bits do not depend on how tokens are split into calls.
    [[nodiscard]] status forward(device::gpu::pass<Device>& pass, const ngram_dims& d, const std::int64_t* tokens,
                                 const attention::cuda_checkpoints& newest, matrix_view<float> streams) const {
        const std::size_t rows = streams.rows(), heads = d.hash.heads();
        typename device::gpu::pass<Device>::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto embedding, pass.input_matrix(rows, d.embedding()));
        FRUGAL_TRY_ASSIGN(const auto key, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto query, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto value, pass.matrix(rows, d.hidden));
        FRUGAL_TRY_ASSIGN(const auto added, pass.matrix(rows, d.channels()));
        FRUGAL_TRY_ASSIGN(const auto table_rows, pass.template array<std::int64_t>(rows * heads));
        FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
            return ops::cuda::ngram_rows(hash_, before_.data(), tokens, rows, table_rows.data(), stream);
        }));
        FRUGAL_TRY(before_.append(pass, newest, rows, [&](std::size_t first, std::size_t count) {
            return pass.start([&](cudaStream_t stream) {
                return ops::cuda::keep_ngram_tokens(before_.data(), d.hash.context(), tokens + first, count, stream);
            });
        }));
        if (embedding.stride() == embedding.cols())
            FRUGAL_TRY(ops::cuda::look_up(pass, table_, table_rows.data(), {embedding.data(), rows * heads, d.row}));
        else  // a token's rows lie together, those of the next one further on
            for (std::size_t t = 0; t < rows; ++t)
                FRUGAL_TRY(ops::cuda::look_up(pass, table_, table_rows.data() + t * heads, {embedding.row(t), heads, d.row}));
        FRUGAL_TRY_ASSIGN(const auto input, pass.input(embedding));
        FRUGAL_TRY(pass.multiply(products_.template image<ngram_product>(), input, {key, value}));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(pass, norm_key_, key, d.hidden, d.eps, key));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(pass, norm_query_, streams, d.hidden, d.eps, query));
        FRUGAL_TRY(ops::ngram_gate(pass, key, query, value, key));
        FRUGAL_TRY(ops::grouped_rms_norm<NormWeight>(pass, norm_conv_, key, d.hidden, d.eps, query));
        const matrix_view<float> history(history_.data(), d.conv_history(), d.channels());
        FRUGAL_TRY(history_.append(pass, newest, rows, [&](std::size_t first, std::size_t count) {
            return ops::causal_conv1d<ops::activation::silu>(pass, conv_, query.rows_range(first, count), d.conv_kernel,
                                                             d.hash.ngram_size, history, added.rows_range(first, count));
        }));
        FRUGAL_TRY(ops::add(pass, key, added));
        return ops::add(pass, added, streams);
    }

    /// Queues that the sequence is empty again.
    [[nodiscard]] status clear(device::gpu::pass<Device>& pass) const {
        FRUGAL_TRY(pass.copy(before_.data(), no_tokens_, before_.bytes()));
        return history_.clear(pass);
    }
    /// Queues that the sequence is as before token number `length`. Precondition: it is one of the newest that were kept.
    [[nodiscard]] status rollback(device::gpu::pass<Device>& pass, std::size_t length) const {
        FRUGAL_TRY(before_.rollback(pass, length));
        return history_.rollback(pass, length);
    }
    /// What a saved sequence holds of this module.
    void list_segments(std::vector<attention::cuda_segment>& to) const {
        to.push_back(before_.segment());
        to.back().tokens = true;
        to.push_back(history_.segment());
    }
    [[nodiscard]] std::size_t image_bytes() const noexcept { return products_.bytes() + table_.bytes(); }

private:
    using products = reuse::packed_products<ngram_products, Device>;
    using image = typename Device::image;
    using tokens_type = attention::cuda_recurrent_state<std::int64_t>;
    using history_type = attention::cuda_recurrent_state<float>;

    [[nodiscard]] static result<image> pack_table(Device& dev, const ops::row_table& table) {
        quant::weight_view whole = table.shards().front();
        if (table.shards().size() == 1) return dev.pack({&whole, 1});
        std::vector<std::byte> rows;
        for (const quant::weight_view& shard : table.shards()) {
            if (shard.type != whole.type || shard.row_bytes != whole.row_bytes)
                return fail(errc::unsupported, "an n-gram table in shards of different formats on a GPU");
            rows.insert(rows.end(), shard.data, shard.data + shard.bytes());
        }
        whole.data = rows.data();
        whole.rows = table.rows();
        return dev.pack({&whole, 1});
    }

    products products_;
    image table_;
    ops::cuda::device_ngram_hash hash_;
    std::span<const float> norm_key_, norm_query_, norm_conv_, conv_;  ///< on the device
    const std::int64_t* no_tokens_ = nullptr;                          ///< what stands before the first token
    tokens_type before_;
    history_type history_;  ///< [conv history][channels]
};

}  // namespace layer

FRUGAL_NAMESPACE_END
