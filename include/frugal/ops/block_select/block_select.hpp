#pragma once
/// Choice of the best blocks of a query by score.
///
/// The rule, everywhere: the higher score first, among equal scores the lower index; -0 equals 0; NaN ranks after every
/// number. Exact ties are normal here, since max(0, .) makes many scores exactly 0.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/block_select/block_select_cpu.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {
/// An integer that orders as the rule says, NaN lowest.
[[nodiscard]] constexpr std::uint32_t score_key(float score) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(score);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return 0;
    if (magnitude == 0) return 0x80000000u;
    return bits > magnitude ? ~bits : bits | 0x80000000u;
}
}  // namespace detail

/// Writes the indices of the min(top, scores.size()) best scores to `chosen`, ascending, and returns how many.
/// O(scores), no scratch. `chosen` holds at least as many.
inline std::size_t top_indices(std::span<const float> scores, std::size_t top, std::uint32_t* chosen) noexcept {
    std::size_t count = 0;
    if (scores.size() <= top) {
        for (; count < scores.size(); ++count) chosen[count] = static_cast<std::uint32_t>(count);
        return count;
    }
    if (top == 0) return 0;
    // The key of the top-th best, byte by byte from the highest: count the keys that share the bytes found so far.
    std::uint32_t threshold = 0, known = 0;
    std::size_t left = top;  // of the keys that share the known bytes, this many are taken
    for (int shift = 24; shift >= 0; shift -= 8) {
        std::uint32_t histogram[256] = {};
        for (const float score : scores) {
            const std::uint32_t key = detail::score_key(score);
            if ((key & known) == threshold) ++histogram[(key >> shift) & 0xFFu];
        }
        std::uint32_t byte = 255;
        for (; histogram[byte] < left; --byte) left -= histogram[byte];
        threshold |= byte << shift;
        known |= 0xFFu << shift;
    }
    for (std::size_t i = 0; i < scores.size() && count < top; ++i) {
        const std::uint32_t key = detail::score_key(scores[i]);
        if (key < threshold) continue;
        if (key == threshold) {
            if (left == 0) continue;
            --left;
        }
        chosen[count++] = static_cast<std::uint32_t>(i);
    }
    return count;
}

/// The blocks that one row of queries may choose from: the first `complete` of `blocks`.
template <class Scalar>
struct block_row {
    const block_key_view<Scalar>* blocks = nullptr;
    std::size_t complete = 0;
};

/// For each row the best `top` of its complete blocks, by score(b) = sum over heads of max(0, q[h] . key[b]) / sqrt(dim).
/// q: [rows, heads * dim]. Row r writes chosen[r * top …], ascending, and their number to counts[r]; a row with no more
/// than `top` blocks takes all and scores none. Scratch: the scores of one row a thread.
/// Source: transformers, models/qwen4_exp, Qwen4ExpTextQSAIndexer (its tie order is unspecified; ours is not).
/// Errors: shape_mismatch, out_of_memory.
template <device::cpu_target Device, class Scalar>
[[nodiscard]] status select_blocks(Device& dev, workspace& scratch, matrix_view<const float> q, std::size_t heads,
                                   std::span<const block_row<Scalar>> rows, std::size_t top, std::span<std::uint32_t> chosen,
                                   std::span<std::size_t> counts) {
    using isa = typename Device::isa;
    if (heads == 0 || q.cols() % heads != 0 || q.rows() != rows.size() || counts.size() != rows.size() ||
        (top != 0 && chosen.size() / top < rows.size()))
        return fail(errc::shape_mismatch, "block selection of q [", q.rows(), ", ", q.cols(), "] as ", heads, " heads, for ",
                    rows.size(), " rows, ", top, " blocks each, into ", chosen.size());
    if (rows.empty()) return {};
    workspace::scope scope(scratch);
    const std::size_t dim = q.cols() / heads;
    const float divisor = std::sqrt(static_cast<float>(dim));
    std::size_t most = 0;
    for (const block_row<Scalar>& row : rows)
        if (row.complete > top && row.complete > most) most = row.complete;
    const std::size_t threads = dev.concurrency() == 0 ? 1 : dev.concurrency();
    const std::size_t parts = rows.size() < threads ? rows.size() : threads;
    FRUGAL_TRY_ASSIGN(auto scores, scratch.matrix(parts, most));
    const auto score = [&](std::size_t r, std::size_t begin, std::size_t end, float* out) {
        ops::cpu::score_blocks<isa>(q.row(r), heads, dim, *rows[r].blocks, divisor, begin, end, out);
    };
    const auto choose = [&](std::size_t r, const float* from) {
        counts[r] = top_indices({from, rows[r].complete}, top, chosen.data() + r * top);
    };
    if (parts == rows.size()) {
        // Few rows: their blocks are shared out among the threads. A score is the same whoever computes it.
        constexpr std::size_t piece = 512;
        const std::size_t pieces = (most + piece - 1) / piece;
        dev.run(rows.size() * pieces, [&](std::size_t task) {
            const std::size_t r = task / pieces, begin = task % pieces * piece;
            if (rows[r].complete <= top || begin >= rows[r].complete) return;
            score(r, begin, begin + piece < rows[r].complete ? begin + piece : rows[r].complete, scores.row(r));
        });
        dev.run(rows.size(), [&](std::size_t r) { choose(r, scores.row(r)); });
        return {};
    }
    dev.run(parts, [&](std::size_t part) {
        for (std::size_t r = part; r < rows.size(); r += parts) {
            if (rows[r].complete > top) score(r, 0, rows[r].complete, scores.row(part));
            choose(r, scores.row(part));
        }
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
