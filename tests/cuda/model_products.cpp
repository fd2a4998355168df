// The products and look-ups of the formats that the tests' models have, as kernels/cuda instantiates those of all formats.
#include "frugal/ops/embedding/embedding_cuda.cuh"
#include "frugal/ops/matmul/matmul_cuda.cuh"

#define FRUGAL_TEST_FORMATS(X) \
    X(f32)                     \
    X(q4_k)                    \
    X(q6_k)

FRUGAL_NAMESPACE_BEGIN
#define FRUGAL_INSTANTIATE(format)                                                                                               \
    template cudaError_t device::gpu::multiply_panels<quant::format, device::f32_activations>(const device::gpu::panel_product&, \
                                                                                              cudaStream_t);                     \
    template cudaError_t ops::cuda::embedding_rows<quant::format>(const std::byte*, std::size_t, const std::int64_t*,            \
                                                                  matrix_view<float>, cudaStream_t);
FRUGAL_TEST_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
FRUGAL_NAMESPACE_END
