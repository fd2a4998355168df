// Instantiates attention by matrix units for every width of heads that it has.
#include "frugal/ops/attention/attention_tiles_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
template cudaError_t tile_attention<>(matrix_view<const float>, const split_heads&, float, const key_value_view<bfloat16>&,
                                      const std::uint32_t*, matrix_view<float>, cudaStream_t);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
