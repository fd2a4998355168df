#pragma once
/// What a step of a model on a GPU begins with, and how it appends to a cache, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/ops/attention/attention_cuda.hpp"
#include "frugal/ops/rope/position.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// One token as the host describes it: all that goes to the device for it.
struct step_token {
    std::int32_t token = 0;
    rope_position position;
};
static_assert(sizeof(step_token) == 16);

/// The tokens of a step as kernels read them. On the device, [tokens of a step] each.
struct step_rows {
    std::int64_t* tokens = nullptr;
    rope_position* positions = nullptr;
    std::uint32_t* visible = nullptr;  ///< tokens of the sequence up to this one, itself included

    // For attention over blocks, the same for all its layers: a block is `ratio` tokens of the sequence; 0: there are none.
    std::uint32_t ratio = 0;
    std::uint32_t* complete = nullptr;         ///< blocks that are complete up to this token, itself included
    rope_position* block_positions = nullptr;  ///< of the first token of the block that this one completes, if any
    rope_position* history = nullptr;          ///< [history_rows] of the newest tokens: token i in row i modulo history_rows
    std::uint32_t history_rows = 0;            ///< at least ratio more than the tokens of a step
};

/// Unpacks `count` tokens that follow the *length tokens of a sequence, and counts them in. The length is on the device, so a
/// recorded step serves for every token.
template <class Unit = void>
[[nodiscard]] cudaError_t begin_step(const step_token* from, std::size_t count, const step_rows& rows, std::uint32_t* length,
                                     cudaStream_t stream);

/// Where keys and values of a sequence lie on the device, without a gap; a token after the other.
template <class Scalar>
struct contiguous_cache {
    using element = typename stored_features<Scalar>::element;
    element *keys = nullptr, *values = nullptr;
    std::size_t stride = 0;  ///< elements of a token
};

/// Writes row t of keys and values as token visible[t] - 1 of the cache, rounded as the host's caches are, and makes row t of
/// an attention see the tokens up to it. Rows of q8_0 are whole blocks.
template <class Scalar>
[[nodiscard]] cudaError_t append_keys_values(matrix_view<const float> keys, matrix_view<const float> values,
                                             const std::uint32_t* visible, const contiguous_cache<Scalar>& cache,
                                             split_row<Scalar>* rows, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
