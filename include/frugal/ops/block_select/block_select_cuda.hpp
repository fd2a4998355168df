#pragma once
/// Choice of the best blocks of a query on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/ops/attention/attention_cuda.hpp"
#include "frugal/ops/block_select/block_select_cpu.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// The blocks that one row of queries may choose from: the first `complete`. All on the device.
template <class Scalar>
struct select_row {
    block_key_view<Scalar> blocks;
    std::uint32_t complete = 0;
};

/// Scores that one block of threads chooses from while others do beside it, where there are few rows and many scores.
inline constexpr std::size_t select_segment = 8192;
/// Rows that are few: more of them keep a GPU busy with one block of threads each.
inline constexpr std::size_t select_few_rows = 64;

/// Segments that a row's scores are cut into; 0: they are not.
[[nodiscard]] constexpr std::size_t select_segments(std::size_t rows, std::size_t complete, std::size_t top) noexcept {
    if (rows > select_few_rows || complete <= select_segment || top > select_segment || top == 0) return 0;
    return (complete + select_segment - 1) / select_segment;
}
/// Candidates that select_blocks wants room for.
[[nodiscard]] constexpr std::size_t select_candidates(std::size_t rows, std::size_t complete, std::size_t top) noexcept {
    return rows * select_segments(rows, complete, top) * top;
}

/// As ops::select_blocks, on device memory: q [rows, heads * dim]; rows [q.rows()], each with at most `complete` blocks;
/// scores: room for q.rows() * complete floats; candidates: for select_candidates(q.rows(), complete, top) of them; chosen
/// [q.rows()][top]; counts [q.rows()]. The bits of a score depend on the
/// query and its block alone. Errors: cudaErrorInvalidValue for heads of more than 256 features.
template <class Scalar>
[[nodiscard]] cudaError_t select_blocks(matrix_view<const float> q, std::size_t heads, const select_row<Scalar>* rows,
                                        std::size_t complete, std::size_t top, float* scores, std::uint32_t* candidates,
                                        std::uint32_t* chosen, std::uint32_t* counts, cudaStream_t stream);

/// Makes each row of an attention see the tokens of its chosen blocks of `ratio` tokens, then those behind its last complete
/// block: row r has complete[r] of these and sees visible[r] tokens in all. Lists lie top * ratio + ratio - 1 apart, so many
/// are room enough. Nothing goes through the host.
template <class Scalar>
[[nodiscard]] cudaError_t attend_chosen(const std::uint32_t* chosen, const std::uint32_t* counts, std::size_t top,
                                        std::size_t ratio, const std::uint32_t* complete, const std::uint32_t* visible,
                                        std::size_t rows_count, std::uint32_t* lists, split_row<Scalar>* rows,
                                        cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
