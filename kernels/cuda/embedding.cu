// Instantiates look-ups of rows for every format of the library, and those of n-grams.
#include "frugal/ops/embedding/embedding_cuda.cuh"
#include "frugal/ops/ngram/ngram_cuda.cuh"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
#define FRUGAL_INSTANTIATE(format)                                                                                             \
    template cudaError_t embedding_rows<quant::format>(const std::byte*, std::size_t, const std::int64_t*, matrix_view<float>, \
                                                       cudaStream_t);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
template cudaError_t ngram_rows<>(const device_ngram_hash&, const std::int64_t*, const std::int64_t*, std::size_t, std::int64_t*,
                                  cudaStream_t);
template cudaError_t keep_ngram_tokens<>(std::int64_t*, std::size_t, const std::int64_t*, std::size_t, cudaStream_t);
template cudaError_t ngram_gate<>(matrix_view<const float>, matrix_view<const float>, matrix_view<const float>,
                                  matrix_view<float>, cudaStream_t);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
