#pragma once
/// Rows of a table in panels on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// y[i] = row rows[i] of a table of Format in panels of `panel_bytes` bytes; a negative entry gives zeros. All on the device;
/// rows are within the table.
template <class Format>
[[nodiscard]] cudaError_t embedding_rows(const std::byte* table, std::size_t panel_bytes, const std::int64_t* rows,
                                         matrix_view<float> y, cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
