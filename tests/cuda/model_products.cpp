// The products and look-ups of the formats that the tests' models have, as kernels/cuda instantiates those of all formats.
#include "frugal/ops/embedding/embedding_cuda.cuh"
#include "frugal/ops/matmul/matmul_cuda.cuh"
#include "frugal/ops/ngram/ngram_cuda.cuh"

#define FRUGAL_TEST_FORMATS(X) \
    X(f32)                     \
    X(q4_k)                    \
    X(q6_k)

FRUGAL_NAMESPACE_BEGIN
#define FRUGAL_INSTANTIATE(format)                                                                                               \
    template cudaError_t device::gpu::multiply_panels<quant::format, device::f32_activations>(const device::gpu::panel_product&, \
                                                                                              cudaStream_t);                     \
    template cudaError_t device::gpu::multiply_expert_panels<quant::format, device::f32_activations>(                            \
        const device::gpu::expert_product&, cudaStream_t);                                                                       \
    template cudaError_t ops::cuda::embedding_rows<quant::format>(const std::byte*, std::size_t, const std::int64_t*,            \
                                                                  matrix_view<float>, cudaStream_t);
FRUGAL_TEST_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
template cudaError_t ops::cuda::ngram_rows<>(const ops::cuda::device_ngram_hash&, const std::int64_t*, const std::int64_t*,
                                             std::size_t, std::int64_t*, cudaStream_t);
template cudaError_t ops::cuda::keep_ngram_tokens<>(std::int64_t*, std::size_t, const std::int64_t*, std::size_t, cudaStream_t);
template cudaError_t ops::cuda::ngram_gate<>(matrix_view<const float>, matrix_view<const float>, matrix_view<const float>,
                                             matrix_view<float>, cudaStream_t);
FRUGAL_NAMESPACE_END
