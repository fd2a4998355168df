// Instantiates attention over spans of keys for every scalar type of a cache.
#include "frugal/ops/attention/attention_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
#define FRUGAL_INSTANTIATE(scalar)                                                                                              \
    template cudaError_t split_attention<scalar>(matrix_view<const float>, const split_heads&, float, const split_row<scalar>*, \
                                                 std::size_t, float*, matrix_view<float>, cudaStream_t, row_keys);
FRUGAL_INSTANTIATE(float)
FRUGAL_INSTANTIATE(half)
FRUGAL_INSTANTIATE(bfloat16)
FRUGAL_INSTANTIATE(quant::q8_0)
#undef FRUGAL_INSTANTIATE
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
