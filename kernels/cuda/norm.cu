// Instantiates the norms.
#include "frugal/ops/norm/norm_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
template cudaError_t norm_rows(matrix_view<const float>, std::size_t, float, weighted_norm<norm_weight::plain>,
                               matrix_view<float>, cudaStream_t);
template cudaError_t norm_rows(matrix_view<const float>, std::size_t, float, weighted_norm<norm_weight::zero_centred>,
                               matrix_view<float>, cudaStream_t);
template cudaError_t norm_rows(matrix_view<const float>, std::size_t, float, plain_l2_norm, matrix_view<float>, cudaStream_t);
template cudaError_t norm_rows(matrix_view<const float>, std::size_t, float, gated_norm<activation::silu>, matrix_view<float>,
                               cudaStream_t);
template cudaError_t norm_rows(matrix_view<const float>, std::size_t, float, gated_norm<activation::sigmoid>, matrix_view<float>,
                               cudaStream_t);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
