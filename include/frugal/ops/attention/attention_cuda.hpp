#pragma once
/// Softmax attention on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/ops/attention/attention_cpu.hpp"
#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int split_keys = 128;  ///< keys of a span, counted along a query's own list: part of the order of summation

/// Heads of an attention. Query head h reads key-value head h / (heads / kv_heads).
struct split_heads {
    std::size_t heads = 0, kv_heads = 0, head_dim = 0;
};

/// What one row of queries attends to: the first `visible` keys of `list`, or of the sequence if `list` is null. All on the
/// device.
template <class Scalar>
struct split_row {
    key_value_view<Scalar> cache;
    const std::uint32_t* list = nullptr;
    std::uint32_t visible = 0;
};

/// What the rows of one call see.
enum class row_keys {
    own,             ///< each what its split_row says
    of_one_sequence  ///< all have the same cache and none has a list: a block reads a key once for several rows
};

/// Floats of `partial` that split_attention needs for rows that see at most `visible` keys.
[[nodiscard]] constexpr std::size_t split_partial(std::size_t rows, const split_heads& shape, std::size_t visible) noexcept {
    return rows * shape.heads * ((visible + split_keys - 1) / split_keys) * (shape.head_dim + 2);
}

/// As ops::attention, on device memory: rows [q.rows()], each seeing at most `visible` keys; partial: split_partial floats. The
/// bits of a row depend on its own query and list alone, not on `keys`. Errors: cudaErrorInvalidValue for heads of more than 256
/// features.
template <class Scalar>
[[nodiscard]] cudaError_t split_attention(matrix_view<const float> q, const split_heads& shape, float scale,
                                          const split_row<Scalar>* rows, std::size_t visible, float* partial,
                                          matrix_view<float> y, cudaStream_t stream, row_keys keys = row_keys::own);

/// Attention of the queries of one sequence over its first visible[r] keys each (never fewer than the query before sees), on
/// device memory, by matrix units: see attention_tiles_cuda.cuh for what is rounded. A query's bits depend on itself and the keys
/// alone. Errors: cudaErrorInvalidValue for heads that are not 64, 128 or 256 wide.
template <class Unit = void>
[[nodiscard]] cudaError_t tile_attention(matrix_view<const float> q, const split_heads& shape, float scale,
                                         const key_value_view<bfloat16>& cache, const std::uint32_t* visible,
                                         matrix_view<float> y, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
