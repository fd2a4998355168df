// Instantiates what a step of a model begins with and its appending to caches, for every scalar type of a cache.
#include "frugal/ops/attention/step_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
template cudaError_t begin_step<>(const step_token*, std::size_t, const step_rows&, std::uint32_t*, cudaStream_t);
#define FRUGAL_INSTANTIATE(scalar)                                                                                            \
    template cudaError_t append_keys_values<scalar>(matrix_view<const float>, matrix_view<const float>, const std::uint32_t*, \
                                                    const contiguous_cache<scalar>&, split_row<scalar>*, cudaStream_t);
FRUGAL_INSTANTIATE(float)
FRUGAL_INSTANTIATE(half)
FRUGAL_INSTANTIATE(bfloat16)
FRUGAL_INSTANTIATE(quant::q8_0)
#undef FRUGAL_INSTANTIATE
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
