#pragma once
// A QSA layer of ggml's operators, in the order in which llama.cpp's graph for qwen4exp takes them (version of get_ggml.sh),
// without the projections of queries, keys, values and output: what is left is what a cache layout decides about.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ggml.hpp"
#include "qsa_data.hpp"

namespace bench::peer {

/// `tokens` queries behind `before` tokens of one sequence; token i lies in cell i.
class qsa_layer {
public:
    /// Errors: out_of_memory.
    [[nodiscard]] static fg::result<std::unique_ptr<qsa_layer>> make(const ggml& library, const qsa_data& data,
                                                                     std::size_t before, std::size_t tokens) {
        std::unique_ptr<qsa_layer> out(new qsa_layer(library, before, tokens));
        out->build();
        FRUGAL_TRY(out->graph_.allocate());
        out->fill(data);
        return out;
    }

    [[nodiscard]] fg::status run(std::size_t threads) const { return graph_.compute(threads); }
    /// Gated heads: [tokens, heads * head_dim].
    [[nodiscard]] std::vector<float> result() const {
        std::vector<float> out(tokens_ * shape::heads * shape::head_dim);
        graph_.get(gated_, out.data(), out.size());
        return out;
    }

private:
    using tensor = ggml_tensor*;

    qsa_layer(const ggml& library, std::size_t before, std::size_t tokens)
        : graph_(library, 256), before_(before), tokens_(tokens), cells_((before + tokens + 255) / 256 * 256) {}

    [[nodiscard]] std::size_t blocks() const noexcept { return cells_ / shape::ratio; }

    // ggml counts dimensions from the fastest; these give each a name's worth of shortness.
    tensor reshape(tensor x, std::size_t a, std::size_t b = 1, std::size_t c = 1, std::size_t d = 1) {
        const auto n = [](std::size_t size) { return static_cast<std::int64_t>(size); };
        return graph_.g.ggml_reshape_4d(graph_.context(), x, n(a), n(b), n(c), n(d));
    }
    /// Part of x: extents, then the bytes between neighbours in dimensions 1 to 3, then the first byte.
    tensor view(tensor x, std::size_t a, std::size_t b, std::size_t c, std::size_t b_bytes, std::size_t c_bytes,
                std::size_t first = 0) {
        const auto n = [](std::size_t size) { return static_cast<std::int64_t>(size); };
        return graph_.g.ggml_view_4d(graph_.context(), x, n(a), n(b), n(c), 1, b_bytes, c_bytes, c_bytes * c, first);
    }
    tensor norm_and_rotate(tensor x, tensor weight, tensor positions) {
        const ggml& g = graph_.g;
        x = g.ggml_mul(graph_.context(), g.ggml_rms_norm(graph_.context(), x, shape::eps), weight);
        return rotate(x, positions);
    }
    tensor rotate(tensor x, tensor positions) {
        int sections[4] = {shape::sections[0], shape::sections[1], shape::sections[2], 0};
        return graph_.g.ggml_rope_multi(graph_.context(), x, positions, nullptr, static_cast<int>(shape::rotary_dim), sections,
                                        interleaved_mrope, 262144, shape::theta, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f);
    }

    void build() {
        const ggml& g = graph_.g;
        ggml_context* const c = graph_.context();
        constexpr std::size_t f = sizeof(float), h = 2;  // bytes of f32 and f16
        const std::size_t dim = shape::index_dim, width = shape::kv_heads * shape::head_dim;

        x_ = graph_.tensor(f32, {shape::hidden, tokens_});
        positions_ = graph_.tensor(i32, {4 * tokens_});
        mask_ = graph_.tensor(f16, {cells_, tokens_});
        new_cells_ = graph_.tensor(i64, {tokens_});
        cell_block_ = graph_.tensor(i32, {cells_});
        block_cells_ = graph_.tensor(i32, {shape::ratio * blocks()});
        block_positions_ = graph_.tensor(i32, {4 * blocks()});
        bias_ = graph_.tensor(f32, {blocks(), tokens_});
        raw_keys_ = graph_.tensor(f16, {dim, cells_});
        keys_ = graph_.tensor(f16, {width, cells_});
        values_ = graph_.tensor(f16, {width, cells_});
        index_q_ = graph_.tensor(q8_0, {shape::hidden, shape::index_heads * dim});
        index_k_ = graph_.tensor(q8_0, {shape::hidden, dim});
        index_q_norm_ = graph_.tensor(f32, {dim});
        index_k_norm_ = graph_.tensor(f32, {dim});
        q_norm_ = graph_.tensor(f32, {shape::head_dim});
        k_norm_ = graph_.tensor(f32, {shape::head_dim});
        queries_and_gates_ = graph_.tensor(f32, {2 * shape::head_dim * shape::heads, tokens_});
        new_keys_ = graph_.tensor(f32, {width, tokens_});
        new_values_ = graph_.tensor(f32, {width, tokens_});

        // The indexer: raw keys to the cache, all blocks pooled, normed and rotated, scores, choice of cells.
        graph_.expand(g.ggml_set_rows(c, raw_keys_, g.ggml_mul_mat(c, index_k_, x_), new_cells_));
        const tensor members = g.ggml_get_rows(c, raw_keys_, block_cells_);
        tensor pooled = nullptr;
        for (std::size_t i = 0; i < shape::ratio; ++i) {
            const std::size_t step = shape::ratio * dim * f;
            const tensor slice = g.ggml_cont(c, view(members, dim, blocks(), 1, step, step * blocks(), i * dim * f));
            pooled = pooled != nullptr ? g.ggml_add(c, pooled, slice) : slice;
        }
        pooled = g.ggml_scale(c, pooled, 1.0f / static_cast<float>(shape::ratio));
        pooled = g.ggml_mul(c, g.ggml_rms_norm(c, reshape(pooled, dim, blocks()), shape::eps), index_k_norm_);
        pooled = reshape(rotate(reshape(pooled, dim, 1, blocks()), block_positions_), dim, blocks());
        const tensor index_q = norm_and_rotate(reshape(g.ggml_mul_mat(c, index_q_, x_), dim, shape::index_heads, tokens_),
                                               index_q_norm_, positions_);
        tensor score = g.ggml_mul_mat(c, pooled, reshape(index_q, dim, shape::index_heads * tokens_));
        score = g.ggml_relu(c, reshape(score, blocks(), shape::index_heads, tokens_));
        tensor summed = nullptr;
        for (std::size_t head = 0; head < shape::index_heads; ++head) {
            const tensor slice = view(score, blocks(), tokens_, 1, shape::index_heads * blocks() * f,
                                      shape::index_heads * blocks() * tokens_ * f, head * blocks() * f);
            summed = summed != nullptr ? g.ggml_add(c, summed, slice) : g.ggml_cont(c, slice);
        }
        summed = g.ggml_add(c, summed, bias_);
        tensor expanded = g.ggml_get_rows(c, g.ggml_cont(c, g.ggml_permute(c, summed, 1, 0, 2, 3)), cell_block_);
        expanded = g.ggml_cont(c, g.ggml_permute(c, expanded, 1, 0, 2, 3));
        expanded = g.ggml_add(c, expanded, g.ggml_cast(c, mask_, f32));
        const std::size_t chosen = std::min(cells_, shape::budget + shape::ratio - 1);
        const tensor top = g.ggml_cont(c, g.ggml_top_k(c, expanded, static_cast<int>(chosen)));

        // The attention: over all cells, those not chosen masked.
        const std::size_t head = shape::head_dim * f;
        const tensor q =
            norm_and_rotate(view(queries_and_gates_, shape::head_dim, shape::heads, tokens_, 2 * head, 2 * head * shape::heads),
                            q_norm_, positions_);
        const tensor k = norm_and_rotate(reshape(new_keys_, shape::head_dim, shape::kv_heads, tokens_), k_norm_, positions_);
        graph_.expand(q);
        graph_.expand(g.ggml_set_rows(c, keys_, reshape(k, width, tokens_), new_cells_));
        graph_.expand(g.ggml_set_rows(c, values_, new_values_, new_cells_));
        const tensor masked =
            view(g.ggml_fill(c, mask_, -std::numeric_limits<float>::infinity()), 1, cells_, tokens_, h, cells_ * h);
        const tensor zeros = g.ggml_fill(c, graph_.tensor(f32, {1, chosen, tokens_}), 0.0f);
        tensor seen = g.ggml_set_rows(c, masked, zeros, top);
        seen = g.ggml_add(c, view(seen, cells_, tokens_, 1, cells_ * h, cells_ * tokens_ * h), mask_);
        const auto cached = [&](tensor cache) {
            return view(cache, shape::head_dim, cells_, shape::kv_heads, width * h, shape::head_dim * h);
        };
        const tensor attended = g.ggml_flash_attn_ext(c, g.ggml_permute(c, q, 0, 2, 1, 3), cached(keys_), cached(values_), seen,
                                                      1.0f / std::sqrt(static_cast<float>(shape::head_dim)), 0.0f, 0.0f);
        g.ggml_prec_set_acc(attended, accumulate_f32);
        const tensor gates = g.ggml_cont(
            c, view(queries_and_gates_, shape::head_dim, shape::heads, tokens_, 2 * head, 2 * head * shape::heads, head));
        gated_ = g.ggml_mul(c, attended, g.ggml_sigmoid(c, gates));
        graph_.expand(gated_);
    }

    void fill(const qsa_data& data) {
        const std::size_t n = before_ + tokens_, complete = n / shape::ratio;
        std::vector<std::int32_t> numbers;
        for (int section = 0; section < 4; ++section)
            for (std::size_t t = 0; t < tokens_; ++t) numbers.push_back(static_cast<std::int32_t>(before_ + t));
        graph_.set(positions_, numbers.data(), numbers.size());
        std::vector<std::int64_t> cells(tokens_);
        for (std::size_t t = 0; t < tokens_; ++t) cells[t] = static_cast<std::int64_t>(before_ + t);
        graph_.set(new_cells_, cells.data(), tokens_);
        // Blocks that are not complete share the spare one.
        const std::size_t spare = std::min(complete, blocks() - 1);
        numbers.clear();
        for (std::size_t i = 0; i < cells_; ++i)
            numbers.push_back(static_cast<std::int32_t>(i / shape::ratio < complete ? i / shape::ratio : spare));
        graph_.set(cell_block_, numbers.data(), cells_);
        numbers.clear();
        for (std::size_t i = 0; i < cells_; ++i)
            numbers.push_back(i / shape::ratio < complete ? static_cast<std::int32_t>(i) : 0);
        graph_.set(block_cells_, numbers.data(), cells_);
        numbers.clear();
        for (int section = 0; section < 4; ++section)
            for (std::size_t b = 0; b < blocks(); ++b)
                numbers.push_back(b < complete ? static_cast<std::int32_t>(b * shape::ratio) : 0);
        graph_.set(block_positions_, numbers.data(), numbers.size());

        constexpr float forced = 1e9f, hidden = -std::numeric_limits<float>::infinity();
        std::vector<float> bias(blocks());
        std::vector<fg::half> mask(cells_);
        for (std::size_t t = 0; t < tokens_; ++t) {
            const std::size_t visible = before_ + t + 1, tail = visible / shape::ratio * shape::ratio;
            for (std::size_t b = 0; b < blocks(); ++b)
                bias[b] = b >= complete ? (b == spare ? forced : hidden) : b * shape::ratio >= tail ? forced : 0.0f;
            graph_.set(bias_, bias.data(), bias.size(), t * blocks());
            for (std::size_t i = 0; i < cells_; ++i) mask[i] = fg::to_half(i < visible ? 0.0f : hidden);
            graph_.set(mask_, mask.data(), mask.size(), t * cells_);
        }

        graph_.set(x_, data.x.data(), tokens_ * shape::hidden);
        graph_.set(queries_and_gates_, data.queries_and_gates.data(), tokens_ * data.queries_and_gates_width);
        graph_.set(new_keys_, data.keys.data(), tokens_ * data.kv_width);
        graph_.set(new_values_, data.values.data(), tokens_ * data.kv_width);
        graph_.set(index_q_, data.index_q.view().data, data.index_q.view().rows * data.index_q.view().row_bytes);
        graph_.set(index_k_, data.index_k.view().data, data.index_k.view().rows * data.index_k.view().row_bytes);
        const auto gamma = [&](tensor to, const std::vector<float>& weight) {
            std::vector<float> one_more(weight);
            for (float& value : one_more) value += 1.0f;
            graph_.set(to, one_more.data(), one_more.size());
        };
        gamma(index_q_norm_, data.index_norm);
        gamma(index_k_norm_, data.index_norm);
        gamma(q_norm_, data.head_norm);
        gamma(k_norm_, data.head_norm);
        // What was there before, and nothing in the cells behind.
        std::vector<float> row;
        std::vector<fg::half> halves;
        const auto cache = [&](tensor to, std::size_t width, auto&& row_of) {
            for (std::size_t i = 0; i < cells_; ++i) {
                const float* const from = i < before_ ? row_of(i) : nullptr;
                halves.assign(width, fg::to_half(0.0f));
                for (std::size_t d = 0; from != nullptr && d < width; ++d) halves[d] = fg::to_half(from[d]);
                graph_.set(to, halves.data(), width, i * width);
            }
        };
        cache(raw_keys_, shape::index_dim, [&](std::size_t i) { return data.past_raw_key(i); });
        cache(keys_, data.kv_width, [&](std::size_t i) { return data.past_key(i); });
        cache(values_, data.kv_width, [&](std::size_t i) { return data.past_value(i); });
    }

    graph graph_;
    std::size_t before_, tokens_, cells_;
    tensor x_{}, positions_{}, mask_{}, new_cells_{}, cell_block_{}, block_cells_{}, block_positions_{}, bias_{}, raw_keys_{},
        keys_{}, values_{}, index_q_{}, index_k_{}, index_q_norm_{}, index_k_norm_{}, q_norm_{}, k_norm_{}, queries_and_gates_{},
        new_keys_{}, new_values_{}, gated_{};
};

}  // namespace bench::peer
