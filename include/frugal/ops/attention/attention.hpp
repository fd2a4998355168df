#pragma once
/// Softmax attention of a batch of queries over cached keys and values, all of them or those of an index list.
/// Source of the online softmax: Milakov and Gimelshein 2018 (arXiv:1805.02867).
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/attention/attention_cpu.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// What one row of queries attends to: the first `visible` keys of `list`, or of the sequence if `list` is null.
template <class Scalar>
struct FRUGAL_FLAGGED attention_row {
    const key_value_view<Scalar>* cache = nullptr;  ///< null: nothing
    const std::uint32_t* list = nullptr;            ///< ranks of keys
    std::size_t visible = 0;
};

/// Heads of an attention. Query head h reads key-value head h / (heads / kv_heads).
struct FRUGAL_FLAGGED attention_heads {
    std::size_t heads = 0, kv_heads = 0, head_dim = 0;
};

namespace detail {

/// Most rows of a tile, which read each key once: enough to hide the reading, few enough to stay in the first cache.
inline constexpr std::size_t attention_tile_rows = 8;

/// Consecutive rows over one sequence. A row with a list of its own stands alone: neighbours that choose nine of ten blocks alike
/// find them in the cache, and gathering once for both could save a seventh of the time at most (a tenth of it per row comes
/// from memory), while eight such rows see 1.7 times as many keys together as each alone.
struct FRUGAL_FLAGGED attention_rows {
    std::size_t first = 0, count = 0, keys = 0;  // keys: the most that a row of the tile sees
};

template <class Scalar>
[[nodiscard]] status check_attention(matrix_view<const float> q, std::size_t rows, const attention_heads& shape,
                                     matrix_view<const float> y) {
    constexpr std::size_t block = stored_features<Scalar>::block;
    if (shape.heads == 0 || shape.kv_heads == 0 || shape.heads % shape.kv_heads != 0 || q.cols() % shape.heads != 0 ||
        q.cols() / shape.heads < shape.head_dim || y.cols() != shape.heads * shape.head_dim || q.rows() != rows ||
        y.rows() != rows)
        return fail(errc::shape_mismatch, "attention of q [", q.rows(), ", ", q.cols(), "] as ", shape.heads, " heads of ",
                    shape.head_dim, " features over ", shape.kv_heads, " key-value heads, with ", rows, " rows to see, into y [",
                    y.rows(), ", ", y.cols(), "]");
    if (shape.head_dim % block != 0)
        return fail(errc::shape_mismatch, "heads of ", shape.head_dim, " features are not stored in blocks of ", block);
    return {};
}

/// Cuts rows into tiles of at most `most` rows; `visible`: keys that each sees. Returns how many tiles there are.
template <class Scalar>
[[nodiscard]] FRUGAL_FLAGGED std::size_t cut_into_tiles(std::span<const attention_row<Scalar>> rows,
                                                        std::span<const std::size_t> visible, std::size_t most,
                                                        std::span<attention_rows> tiles) noexcept {
    std::size_t count = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        if (count != 0) {
            attention_rows& last = tiles[count - 1];
            const attention_row<Scalar>& head = rows[last.first];
            if (last.count < most && rows[r].list == nullptr && head.list == nullptr && rows[r].cache == head.cache) {
                ++last.count;
                last.keys = visible[r] > last.keys ? visible[r] : last.keys;
                continue;
            }
        }
        tiles[count++] = {r, 1, visible[r]};
    }
    return count;
}

}  // namespace detail

/// y[r][h] = sum over the keys t that row r sees of softmax_t(scale * q[r][h] . k[t]) * v[t], in f32.
/// q: [rows, heads * stride] with stride >= head_dim: head h begins at feature h * (q.cols() / heads). y: [rows, heads *
/// head_dim]. A row that sees nothing, or nothing but keys that score -inf, becomes 0; a NaN in its query or in a key that it
/// sees makes its head NaN, one in a value that feature. The bits of a row depend on its own query and list alone: a list that
/// names every key gives the same as no list. Scratch: a few partial rows a thread, or, where the keys
/// of a row are shared out, one for 1024 keys; never a matrix of scores.
/// Errors: shape_mismatch, out_of_memory.
template <device::cpu_target Device, class Scalar>
[[nodiscard]] status attention(Device& dev, workspace& scratch, matrix_view<const float> q,
                               std::span<const attention_row<Scalar>> rows, const attention_heads& shape, float scale,
                               matrix_view<float> y) {
    using isa = typename Device::isa;
    using stored = stored_features<Scalar>;
    FRUGAL_TRY(detail::check_attention<Scalar>(q, rows.size(), shape, y));
    if (rows.empty()) return {};
    workspace::scope scope(scratch);
    const std::size_t group = shape.heads / shape.kv_heads;
    const std::size_t head_stride = q.cols() / shape.heads;
    const std::size_t threads = dev.concurrency() == 0 ? 1 : dev.concurrency();
    const std::size_t partial = ops::cpu::attention_partial(shape.head_dim);

    FRUGAL_TRY_ASSIGN(auto visible, scratch.array<std::size_t>(rows.size()));
    std::size_t most = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        visible[r] = rows[r].cache != nullptr ? rows[r].visible : 0;
        most = visible[r] > most ? visible[r] : most;
    }
    // With few rows and many keys the spans of a row go to different threads; the partial results are the same.
    const bool by_span = rows.size() < threads && most > ops::cpu::attention_span;
    const std::size_t share = rows.size() / threads;  // narrower tiles where threads would get none
    const std::size_t tile_rows = share < 1 ? 1 : (share < detail::attention_tile_rows ? share : detail::attention_tile_rows);
    FRUGAL_TRY_ASSIGN(auto tiles, scratch.array<detail::attention_rows>(rows.size()));
    const std::size_t tile_count = detail::cut_into_tiles<Scalar>(rows, visible, tile_rows, tiles);
    const auto spans_of = [](std::size_t keys) {
        return keys <= ops::cpu::attention_span ? 1 : (keys + ops::cpu::attention_span - 1) / ops::cpu::attention_span;
    };
    // All key-value heads of a token lie together and are best read together, where that leaves enough to share out.
    const std::size_t pieces = by_span ? spans_of(most) : 1;  // of every tile; short rows leave some unused
    const std::size_t whole = tile_count * pieces;
    const std::size_t kv_heads = whole >= 4 * threads || whole % threads == 0 ? shape.kv_heads : 1;  // of a task
    const std::size_t splits = shape.kv_heads / kv_heads, queries = tile_rows * kv_heads * group;
    const auto tile_of = [&](const detail::attention_rows& range, std::size_t split) {
        const attention_row<Scalar>& head = rows[range.first];
        return ops::cpu::attention_tile<Scalar>{q.row(range.first) + split * kv_heads * group * head_stride,
                                                q.stride(),
                                                head_stride,
                                                range.count,
                                                kv_heads,
                                                group,
                                                shape.head_dim,
                                                scale,
                                                head.cache != nullptr ? *head.cache : key_value_view<Scalar>{},
                                                stored::elements(split * kv_heads * shape.head_dim),
                                                head.list,
                                                visible.data() + range.first};
    };
    const auto attend = [&](const ops::cpu::attention_tile<Scalar>& tile, std::size_t keys, std::size_t span, float* out,
                            float* room) {
        const std::size_t begin = span * ops::cpu::attention_span, end = begin + ops::cpu::attention_span;
        ops::cpu::attend_span<isa>(tile, begin, end < keys ? end : keys, by_span ? begin : keys, out, room);
    };
    const auto finish = [&](const detail::attention_rows& range, std::size_t split, const float* from) {
        ops::cpu::finish_attention<isa>(tile_of(range, split), from,
                                        y.row(range.first) + split * kv_heads * group * shape.head_dim, y.stride());
    };
    const std::size_t room = ops::cpu::attention_room<Scalar>(queries, shape.head_dim);

    if (!by_span) {
        const std::size_t tasks = tile_count * splits;
        const std::size_t parts = tasks < threads ? tasks : threads;
        FRUGAL_TRY_ASSIGN(auto partials, scratch.matrix(parts * 2, queries * partial));
        FRUGAL_TRY_ASSIGN(auto rooms, scratch.matrix(parts, room));
        dev.run(parts, [&](std::size_t part) {
            // Every parts-th task: later rows see more, so neighbours go to different parts.
            for (std::size_t task = part; task < tasks; task += parts) {
                const detail::attention_rows& range = tiles[task / splits];
                const std::size_t split = task % splits;
                const auto tile = tile_of(range, split);
                float* sum = partials.row(part * 2);
                attend(tile, range.keys, 0, sum, rooms.row(part));
                for (std::size_t span = 1; span < spans_of(range.keys); ++span) {
                    attend(tile, range.keys, span, partials.row(part * 2 + 1), rooms.row(part));
                    ops::cpu::merge_attention<isa>(sum, partials.row(part * 2 + 1), range.count * kv_heads * group,
                                                   shape.head_dim);
                }
                finish(range, split, sum);
            }
        });
        return {};
    }
    // Of each tile and split one partial result a span, all of which are merged in order afterwards.
    FRUGAL_TRY_ASSIGN(auto partials, scratch.matrix(whole * splits, queries * partial));
    const std::size_t parts = partials.rows() < threads ? partials.rows() : threads;
    FRUGAL_TRY_ASSIGN(auto rooms, scratch.matrix(parts, room));
    dev.run(parts, [&](std::size_t part) {
        for (std::size_t piece = part; piece < partials.rows(); piece += parts) {
            const std::size_t split = piece % splits, span = piece / splits % pieces;
            const detail::attention_rows& range = tiles[piece / splits / pieces];
            if (span < spans_of(range.keys))
                attend(tile_of(range, split), range.keys, span, partials.row(piece), rooms.row(part));
        }
    });
    dev.run(tile_count * splits, [&](std::size_t task) {
        const detail::attention_rows& range = tiles[task / splits];
        const std::size_t split = task % splits, first = task / splits * pieces * splits + split;
        float* const sum = partials.row(first);
        for (std::size_t span = 1; span < spans_of(range.keys); ++span)
            ops::cpu::merge_attention<isa>(sum, partials.row(first + span * splits), range.count * kv_heads * group,
                                           shape.head_dim);
        finish(range, split, sum);
    });
    return {};
}

/// y[r][h] *= sigmoid(gate[r][h]): the output gate of every head. gate: [rows, heads * stride], head h at feature
/// h * (gate.cols() / heads); y: [rows, heads * head_dim], stride >= head_dim. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status gate_heads(Device& dev, matrix_view<const float> gate, std::size_t heads, matrix_view<float> y) {
    if (heads == 0 || gate.rows() != y.rows() || gate.cols() % heads != 0 || y.cols() % heads != 0 || gate.cols() < y.cols())
        return fail(errc::shape_mismatch, "gate [", gate.rows(), ", ", gate.cols(), "] on y [", y.rows(), ", ", y.cols(), "] as ",
                    heads, " heads");
    const std::size_t head_dim = y.cols() / heads, stride = gate.cols() / heads;
    dev.run_ranges(y.rows(), device::grain(8 * y.cols()), [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r)
            for (std::size_t h = 0; h < heads; ++h)
                ops::cpu::multiply_sigmoid<typename Device::isa>(gate.row(r) + h * stride, y.row(r) + h * head_dim, head_dim);
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
