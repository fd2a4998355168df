// The products and look-ups of the formats that the tests' models have, as kernels/cuda instantiates those of all formats.
#include "frugal/device/cuda/panels/multiply.cuh"
#include "frugal/device/cuda/panels/tiles.cuh"
#include "frugal/ops/embedding/embedding_cuda.cuh"
#include "frugal/ops/ngram/ngram_cuda.cuh"

#define FRUGAL_TEST_FORMATS(X) \
    X(f32)                     \
    X(q4_k)                    \
    X(q6_k)

FRUGAL_NAMESPACE_BEGIN
namespace device::gpu {
#define FRUGAL_INSTANTIATE(format)                                                                                    \
    template cudaError_t multiply_panels<quant::format, f32_activations>(const panel_product&, cudaStream_t);         \
    template cudaError_t multiply_panels<quant::format, q8_activations>(const panel_product&, cudaStream_t);          \
    template cudaError_t multiply_expert_panels<quant::format, f32_activations>(const expert_product&, cudaStream_t); \
    template cudaError_t multiply_panel_tiles<quant::format>(const panel_product&, cudaStream_t);                     \
    template cudaError_t multiply_expert_panel_tiles<quant::format>(const expert_product&, cudaStream_t);
FRUGAL_TEST_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
template cudaError_t quantize_activations<q8_activations>(const float*, std::size_t, std::size_t, std::int8_t*, std::int16_t*,
                                                          float*, cudaStream_t);
}  // namespace device::gpu
namespace ops::cuda {
#define FRUGAL_INSTANTIATE(format)                                                                                             \
    template cudaError_t embedding_rows<quant::format>(const std::byte*, std::size_t, const std::int64_t*, matrix_view<float>, \
                                                       cudaStream_t);
FRUGAL_TEST_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
template cudaError_t ngram_rows<>(const device_ngram_hash&, const std::int64_t*, const std::int64_t*, std::size_t, std::int64_t*,
                                  cudaStream_t);
template cudaError_t keep_ngram_tokens<>(std::int64_t*, std::size_t, const std::int64_t*, std::size_t, cudaStream_t);
template cudaError_t ngram_gate<>(matrix_view<const float>, matrix_view<const float>, matrix_view<const float>,
                                  matrix_view<float>, cudaStream_t);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
