#pragma once
/// The keys of QSA's indexer on a GPU: of tokens, and of the blocks that they complete, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/ops/attention/step_cuda.hpp"
#include "frugal/ops/block_select/block_select_cuda.hpp"
#include "frugal/ops/norm/norm_cpu.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// Where the indexer's keys of one layer and sequence lie on the device.
template <class Scalar>
struct contiguous_block_keys {
    Scalar* keys = nullptr;   ///< [blocks][dim]
    float* scales = nullptr;  ///< [blocks], where Scalar is a byte
    float* raw = nullptr;  ///< [step_rows::history_rows][dim]: of the newest tokens, before pooling; token i in row i modulo it
};

/// Takes the raw keys of a step's tokens, row t that of token visible[t] - 1. Where that completes a block of `ratio` tokens,
/// makes the block's key: the mean of the tokens' keys, added in their order; normed; rotated by the block's angles
/// [rows][2 * pairs] (those of step.block_positions). Row t of a selection sees the blocks complete up to it.
/// Errors: cudaErrorInvalidValue for keys of more than 256 features.
template <norm_weight_policy NormWeight, class Scalar>
[[nodiscard]] cudaError_t append_index_keys(matrix_view<const float> raw, const step_rows& step, const float* norm, float eps,
                                            const float* angles, int pairs, const contiguous_block_keys<Scalar>& keys,
                                            select_row<Scalar>* rows, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
