#pragma once
/// Choice of the best blocks of a query by score.
///
/// The rule, everywhere: the higher score first, among equal scores the lower index; -0 equals 0; NaN ranks after every
/// number. Exact ties are normal here, since max(0, .) makes many scores exactly 0.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <type_traits>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/block_select/block_select_cpu.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Writes the indices of the min(top, scores.size()) best scores to `chosen`, ascending, and returns how many.
/// O(scores), no scratch. `chosen` holds at least as many.
FRUGAL_FLAGGED inline std::size_t top_indices(std::span<const float> scores, std::size_t top, std::uint32_t* chosen) noexcept {
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

namespace detail {

/// Writes `n` floats as codes -limit … limit and the scale that is returned: the greatest magnitude / limit; code = value / scale
/// to the nearest, halves to even, so that scale * code is within half a scale of the value, and a rounding. Zeros have scale 0,
/// and so have numbers so small that their scale would not be a normal one. Among NaN or infinities the scale is NaN and all
/// codes are 0.
template <class Code>
FRUGAL_FLAGGED float encode_codes(const float* from, std::size_t n, int limit, Code* codes) noexcept {
    float most = 0;
    bool finite = true;
    for (std::size_t i = 0; i < n; ++i) {
        const float magnitude = std::fabs(from[i]);
        finite = finite && magnitude <= (std::numeric_limits<float>::max)();
        most = (std::max)(most, magnitude);
    }
    const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : most / static_cast<float>(limit);
    if (!(scale >= (std::numeric_limits<float>::min)())) {
        std::fill(codes, codes + n, Code{0});
        return finite ? 0.0f : scale;
    }
    for (std::size_t i = 0; i < n; ++i) {
        // Adding 1.5 * 2^23 rounds to an integer, to nearest even in the default mode.
        const float shifted = from[i] / scale + 12582912.0f;
        codes[i] = static_cast<Code>(shifted - 12582912.0f);
    }
    return scale;
}

}  // namespace detail

/// Writes a key of `dim` floats as 8-bit codes and the scale that is returned, the greatest magnitude / 127: scale * code is
/// within half a scale of the value. A key that holds NaN or an infinity has scale NaN and codes 0: its score is NaN and ranks
/// last, where in other precisions an infinity could rank first.
FRUGAL_FLAGGED inline float encode_block_key(const float* key, std::size_t dim, std::int8_t* codes) noexcept {
    return detail::encode_codes(key, dim, 127, codes);
}

/// The greatest magnitude of the codes of queries: 16 bits, or fewer where `dim` products with keys' codes would not fit 32.
[[nodiscard]] FRUGAL_FLAGGED constexpr int block_query_limit(std::size_t dim) noexcept {
    const std::size_t limit =
        static_cast<std::size_t>((std::numeric_limits<std::int32_t>::max)()) / 127 / std::max<std::size_t>(dim, 1);
    return static_cast<int>(std::min<std::size_t>(limit, (std::numeric_limits<std::int16_t>::max)()));
}

/// Writes a row of `heads` queries for keys of 8 bits: as many codes, with one scale, the greatest magnitude / the limit. With up
/// to 516 features that is a part in 2^15 of the greatest, so each code is off by a part in 2^16 of it: 2^8 times less than those
/// of keys. A row that holds NaN or an infinity has scale NaN, and so have all its scores.
FRUGAL_FLAGGED inline block_queries<std::int8_t> encode_block_queries(const float* q, std::size_t heads, std::size_t dim,
                                                                      std::int16_t* codes) noexcept {
    return {codes, detail::encode_codes(q, heads * dim, block_query_limit(dim), codes)};
}

/// Which part of `reference` is in `chosen`; both ascending, as select_blocks writes them. 1 for an empty reference.
/// The measure of a selection by keys of less precision against that by f32 keys.
[[nodiscard]] FRUGAL_FLAGGED inline double selection_recall(std::span<const std::uint32_t> reference,
                                                            std::span<const std::uint32_t> chosen) noexcept {
    std::size_t found = 0;
    for (std::size_t i = 0, j = 0; i < reference.size() && j < chosen.size();) {
        const std::uint32_t wanted = reference[i], have = chosen[j];
        if (wanted == have) ++found;
        i += wanted <= have ? 1 : 0;
        j += have <= wanted ? 1 : 0;
    }
    return reference.empty() ? 1.0 : static_cast<double>(found) / static_cast<double>(reference.size());
}

/// The blocks that one row of queries may choose from: the first `complete` of `blocks`.
template <class Scalar>
struct FRUGAL_FLAGGED block_row {
    const block_key_view<Scalar>* blocks = nullptr;
    std::size_t complete = 0;
};

namespace detail {

/// The best blocks of one row among those scanned, ascending by index, and others not yet dropped.
struct FRUGAL_FLAGGED best_blocks {
    ranked_block* kept = nullptr;
    std::size_t count = 0;
    ranked_block threshold = 0;  ///< the top-th best so far; 0: there are fewer
};

/// Drops all but the best `top`, of which there is at least one. `other`: room for as many as are kept.
inline void drop_beyond(best_blocks& best, std::size_t top, ranked_block* other) noexcept {
    if (best.count < top) return;
    // Ranked blocks differ, so exactly `top` reach the threshold. The order by index is kept: no sort at the end.
    std::copy(best.kept, best.kept + best.count, other);
    std::nth_element(other, other + (top - 1), other + best.count, std::greater<ranked_block>());
    best.threshold = other[top - 1];
    const auto* const end =
        std::remove_if(best.kept, best.kept + best.count, [&](ranked_block ranked) { return ranked < best.threshold; });
    best.count = static_cast<std::size_t>(end - best.kept);
}

/// Consecutive rows over the same block keys, which a thread reads once for all of them.
struct FRUGAL_FLAGGED row_group {
    std::size_t first = 0, count = 0, complete = 0;  ///< complete: the most of any row
};

/// How select_blocks cuts its work: rows into groups, and where these are fewer than the threads, their blocks into parts.
struct FRUGAL_FLAGGED selection_plan {
    static constexpr std::size_t piece = 128;  ///< blocks that a group's rows score one after the other
    static constexpr std::size_t least_part = 512;
    std::size_t group_rows = 1, groups = 0, cuts = 1;

    /// Groups of up to 16 rows; smaller ones, down to 4, where there are threads to spare.
    selection_plan(std::size_t rows, std::size_t threads) noexcept
        : group_rows((std::min)(std::min<std::size_t>(rows, 16), std::max<std::size_t>(4, (rows + threads - 1) / threads))) {}
    /// A part has at least twice `top` blocks, or it would merely hand them on.
    void cut(std::size_t threads, std::size_t most_blocks, std::size_t top) noexcept {
        const std::size_t least = (std::max)(least_part, 2 * top);
        cuts = std::max<std::size_t>(1, (std::min)((threads + groups - 1) / groups, most_blocks / least));
    }
};

/// The rows that have more blocks than they may keep.
struct FRUGAL_FLAGGED cut_rows {
    std::size_t count = 0, most_blocks = 0;
};
/// Gives all blocks to the rows that have no more than `top`, and counts the others.
template <class Scalar>
[[nodiscard]] FRUGAL_FLAGGED cut_rows take_all_that_fit(std::span<const block_row<Scalar>> rows, std::size_t top,
                                                        std::span<std::uint32_t> chosen, std::span<std::size_t> counts) noexcept {
    cut_rows out;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        if (top != 0 && rows[r].complete > top) {
            ++out.count;
            out.most_blocks = (std::max)(out.most_blocks, rows[r].complete);
            continue;
        }
        counts[r] = (std::min)(top, rows[r].complete);
        for (std::size_t i = 0; i < counts[r]; ++i) chosen[r * top + i] = static_cast<std::uint32_t>(i);
    }
    return out;
}

/// Makes groups of at most `most` consecutive rows that are cut. Returns how many.
template <class Scalar>
[[nodiscard]] FRUGAL_FLAGGED std::size_t group_cut_rows(std::span<const block_row<Scalar>> rows, std::size_t top,
                                                        std::size_t most, std::span<row_group> groups) noexcept {
    std::size_t count = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        if (top == 0 || rows[r].complete <= top) continue;
        row_group* last = count == 0 ? nullptr : &groups[count - 1];
        if (last == nullptr || last->first + last->count != r || last->count == most ||
            rows[last->first].blocks != rows[r].blocks) {
            last = &groups[count++];
            *last = {r, 0, 0};
        }
        ++last->count;
        last->complete = (std::max)(last->complete, rows[r].complete);
    }
    return count;
}

/// Merges what one row keeps of each cut into of[0]; the lists are `stride` apart.
inline void merge_cuts(best_blocks* of, std::size_t cuts, std::size_t stride, std::size_t top) noexcept {
    best_blocks& all = of[0];
    for (std::size_t cut = 1; cut < cuts; ++cut) {
        // A list is read up to where the first may have to borrow it.
        const best_blocks& next = of[cut * stride];
        for (std::size_t n = 0; n < next.count; ++n)
            if (next.kept[n] > all.threshold) all.kept[all.count++] = next.kept[n];
        drop_beyond(all, top, next.kept);
    }
}

}  // namespace detail

/// For each row the best `top` of its complete blocks, by score(b) = sum over heads of max(0, q[h] . key[b]) / sqrt(dim).
/// q: [rows, heads * dim]. Row r writes chosen[r * top …], ascending, and their number to counts[r]; a row with no more
/// than `top` blocks takes all and scores none. Blocks are scored a piece at a time and only those kept that rank above the
/// top-th best so far: the scratch grows with rows at once and `top`, not with the number of blocks. With keys of 8 bits the
/// queries are rounded to 16; see encode_block_queries.
/// Source: transformers, models/qwen4_exp, Qwen4ExpTextQSAIndexer (its tie order is unspecified; ours is not).
/// Errors: shape_mismatch, out_of_memory.
template <device::cpu_target Device, class Scalar>
[[nodiscard]] status select_blocks(Device& dev, workspace& scratch, matrix_view<const float> q,
                                   std::span<const block_row<Scalar>> rows, std::size_t heads, std::size_t top,
                                   std::span<std::uint32_t> chosen, std::span<std::size_t> counts) {
    using isa = typename Device::isa;
    using detail::best_blocks, detail::ranked_block, detail::row_group;
    if (heads == 0 || q.cols() % heads != 0 || q.rows() != rows.size() || counts.size() != rows.size() ||
        (top != 0 && chosen.size() / top < rows.size()))
        return fail(errc::shape_mismatch, "block selection of q [", q.rows(), ", ", q.cols(), "] as ", heads, " heads, for ",
                    rows.size(), " rows, ", top, " blocks each, into ", chosen.size());
    const auto is_cut = [&](std::size_t r) { return top != 0 && rows[r].complete > top; };
    const auto [cut_rows, most] = detail::take_all_that_fit<Scalar>(rows, top, chosen, counts);
    if (cut_rows == 0) return {};
    if (most > (std::numeric_limits<std::uint32_t>::max)())
        return fail(errc::shape_mismatch, "block selection among ", most, " blocks, more than 32 bits can number");

    workspace::scope scope(scratch);
    const std::size_t dim = q.cols() / heads;
    const float divisor = std::sqrt(static_cast<float>(dim));
    const std::size_t threads = std::max<std::size_t>(1, dev.concurrency());
    detail::selection_plan plan(cut_rows, threads);
    constexpr bool encoded = std::is_same_v<Scalar, std::int8_t>;
    const std::size_t query_codes = encoded ? q.cols() : 0;
    FRUGAL_TRY_ASSIGN(auto codes, scratch.array<std::int16_t>(rows.size() * query_codes));
    FRUGAL_TRY_ASSIGN(auto scales, scratch.array<float>(encoded ? rows.size() : 0));
    if constexpr (encoded)
        dev.run_ranges(rows.size(), device::grain(8 * q.cols()), [&](std::size_t begin, std::size_t end) {
            for (std::size_t r = begin; r < end; ++r)
                if (is_cut(r)) scales[r] = encode_block_queries(q.row(r), heads, dim, &codes[r * query_codes]).scale;
        });
    const auto queries_of = [&](std::size_t r) -> block_queries<Scalar> {
        if constexpr (encoded)
            return {&codes[r * query_codes], scales[r]};
        else
            return q.row(r);
    };
    FRUGAL_TRY_ASSIGN(auto groups, scratch.array<row_group>(cut_rows));
    plan.groups = detail::group_cut_rows<Scalar>(rows, top, plan.group_rows, groups);
    plan.cut(threads, most, top);

    // Each part has a list for every row of a group and one to spare.
    const std::size_t parts = plan.cuts > 1 ? plan.groups * plan.cuts : (std::min)(plan.groups, threads);
    const std::size_t capacity = 2 * top + plan.piece, lists = plan.group_rows + 1;
    FRUGAL_TRY_ASSIGN(auto best, scratch.array<best_blocks>(parts * plan.group_rows));
    if (capacity > (std::numeric_limits<std::size_t>::max)() / (parts * lists))
        return fail(errc::out_of_memory, "block selection of ", top, " blocks");
    FRUGAL_TRY_ASSIGN(auto room, scratch.array<ranked_block>(parts * lists * capacity));

    // What the rows of a group keep of the blocks of one cut.
    const auto scan = [&](std::size_t part, const row_group& group, std::size_t begin, std::size_t end) {
        best_blocks* const of = &best[part * plan.group_rows];
        ranked_block* const own = &room[part * lists * capacity];
        for (std::size_t i = 0; i < group.count; ++i) of[i] = {own + i * capacity, 0, 0};
        for (std::size_t first = begin; first < end; first += plan.piece)
            for (std::size_t i = 0; i < group.count; ++i) {
                const block_row<Scalar>& row = rows[group.first + i];
                const std::size_t last = (std::min)({first + plan.piece, end, row.complete});
                if (first >= last) continue;
                if (of[i].count > 2 * top) detail::drop_beyond(of[i], top, own + plan.group_rows * capacity);
                of[i].count = ops::cpu::keep_blocks<isa>(queries_of(group.first + i), heads, dim, *row.blocks, divisor, first,
                                                         last, i == 0 ? (std::min)(end, row.complete) : 0, of[i].threshold,
                                                         of[i].kept, of[i].count);
            }
        for (std::size_t i = 0; i < group.count; ++i) detail::drop_beyond(of[i], top, own + plan.group_rows * capacity);
    };
    const auto write = [&](std::size_t r, const best_blocks& from) {
        counts[r] = from.count;
        for (std::size_t i = 0; i < from.count; ++i) chosen[r * top + i] = detail::block_of(from.kept[i]);
    };
    if (plan.cuts == 1) {
        dev.run(parts, [&](std::size_t part) {
            for (std::size_t g = part; g < plan.groups; g += parts) {
                scan(part, groups[g], 0, groups[g].complete);
                for (std::size_t i = 0; i < groups[g].count; ++i) write(groups[g].first + i, best[part * plan.group_rows + i]);
            }
        });
        return {};
    }
    dev.run(parts, [&](std::size_t part) {
        const row_group& group = groups[part / plan.cuts];
        const std::size_t cut = part % plan.cuts;
        scan(part, group, group.complete * cut / plan.cuts, group.complete * (cut + 1) / plan.cuts);
    });
    dev.run(plan.groups * plan.group_rows, [&](std::size_t task) {
        const std::size_t g = task / plan.group_rows, i = task % plan.group_rows;
        if (i >= groups[g].count) return;
        best_blocks* const of = &best[g * plan.cuts * plan.group_rows + i];
        detail::merge_cuts(of, plan.cuts, plan.group_rows, top);
        write(groups[g].first + i, of[0]);
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
