// Instantiates the elementwise operators, the rotary embedding and the convolution.
#include "frugal/ops/conv1d/conv1d_cuda.cuh"
#include "frugal/ops/elementwise/elementwise_cuda.cuh"
#include "frugal/ops/rope/rope_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
#define FRUGAL_INSTANTIATE(element) template cudaError_t start_elements(element, std::size_t, std::size_t, cudaStream_t);
FRUGAL_INSTANTIATE(swiglu_element)
FRUGAL_INSTANTIATE(add_element)
FRUGAL_INSTANTIATE(add_scaled_element)
FRUGAL_INSTANTIATE(gate_heads_element)
FRUGAL_INSTANTIATE(divided_silu_element)
FRUGAL_INSTANTIATE(divided_double_sigmoid_element)
FRUGAL_INSTANTIATE(gated_stream_mean_element)
FRUGAL_INSTANTIATE(add_to_streams_element)
#undef FRUGAL_INSTANTIATE
#define FRUGAL_INSTANTIATE(name)                                                                                           \
    template cudaError_t causal_conv1d<activation::name>(matrix_view<const float>, const float*, std::size_t, std::size_t, \
                                                         matrix_view<float>, matrix_view<float>, cudaStream_t);
FRUGAL_INSTANTIATE(identity)
FRUGAL_INSTANTIATE(silu)
#undef FRUGAL_INSTANTIATE
template __global__ void make_rope_angles<64>(rope_frequencies, const rope_position*, float*);
template __global__ void rotate_heads<256>(const float*, int, float*, std::size_t, int, int);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
