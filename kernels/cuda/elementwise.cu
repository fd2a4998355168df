// Instantiates the elementwise operators, the rotary embedding and the convolution.
#include "frugal/ops/conv1d/conv1d_cuda.cuh"
#include "frugal/ops/elementwise/elementwise_cuda.cuh"
#include "frugal/ops/rope/rope_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
template cudaError_t swiglu<>(matrix_view<const float>, matrix_view<const float>, matrix_view<float>, cudaStream_t);
template cudaError_t add<>(matrix_view<const float>, matrix_view<float>, cudaStream_t);
template cudaError_t add_scaled<>(const float*, matrix_view<const float>, matrix_view<float>, cudaStream_t);
template cudaError_t gate_heads<>(matrix_view<const float>, std::size_t, matrix_view<float>, cudaStream_t);
template cudaError_t divided_silu<>(float, matrix_view<float>, cudaStream_t);
template cudaError_t divided_double_sigmoid<>(float, matrix_view<float>, cudaStream_t);
template cudaError_t gated_stream_mean<>(matrix_view<const float>, matrix_view<const float>, std::size_t, matrix_view<float>,
                                         cudaStream_t);
template cudaError_t add_to_streams<>(matrix_view<const float>, matrix_view<const float>, matrix_view<float>, cudaStream_t);
template cudaError_t expand_streams<>(matrix_view<const float>, matrix_view<float>, cudaStream_t);
template cudaError_t keep_before_token<float>(const float*, std::size_t, const std::uint32_t*, float*, std::size_t, cudaStream_t);
template cudaError_t keep_before_token<std::int64_t>(const std::int64_t*, std::size_t, const std::uint32_t*, std::int64_t*,
                                                     std::size_t, cudaStream_t);
template cudaError_t store_number<>(std::uint32_t*, std::uint32_t, cudaStream_t);
#define FRUGAL_INSTANTIATE(name)                                                                                           \
    template cudaError_t causal_conv1d<activation::name>(matrix_view<const float>, const float*, std::size_t, std::size_t, \
                                                         matrix_view<float>, matrix_view<float>, cudaStream_t);
FRUGAL_INSTANTIATE(identity)
FRUGAL_INSTANTIATE(silu)
#undef FRUGAL_INSTANTIATE
template cudaError_t rope_angles<>(const rope_frequencies&, const rope_position*, std::size_t, float*, cudaStream_t);
template cudaError_t apply_rope<>(const float*, int, matrix_view<float>, std::size_t, cudaStream_t);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
