// Instantiates the norms.
#include "frugal/ops/norm/norm_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
#define FRUGAL_INSTANTIATE(weight)                                                                                         \
    template cudaError_t grouped_rms_norm<norm_weight::weight>(matrix_view<const float>, const float*, std::size_t, float, \
                                                               matrix_view<float>, cudaStream_t);
FRUGAL_INSTANTIATE(plain)
FRUGAL_INSTANTIATE(zero_centred)
#undef FRUGAL_INSTANTIATE
template cudaError_t grouped_l2_norm<>(matrix_view<const float>, std::size_t, float, matrix_view<float>, cudaStream_t);
#define FRUGAL_INSTANTIATE(gate)                                                                                            \
    template cudaError_t gated_rms_norm<activation::gate>(matrix_view<const float>, matrix_view<const float>, const float*, \
                                                          float, matrix_view<float>, cudaStream_t);
FRUGAL_INSTANTIATE(silu)
FRUGAL_INSTANTIATE(sigmoid)
#undef FRUGAL_INSTANTIATE
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
