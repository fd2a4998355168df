// Instantiates the products of weights in panels with 8-bit activations for every format of the library, and the rounding to
// them.
#include "frugal/device/cuda/panels/multiply.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace device::gpu {
#define FRUGAL_INSTANTIATE(format)                                                                           \
    template cudaError_t multiply_panels<quant::format, q8_activations>(const panel_product&, cudaStream_t); \
    template cudaError_t multiply_expert_panels<quant::format, q8_activations>(const expert_product&, cudaStream_t);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
template cudaError_t quantize_activations<q8_activations>(const float*, std::size_t, std::size_t, std::int8_t*, std::int16_t*,
                                                          float*, cudaStream_t);
}  // namespace device::gpu
FRUGAL_NAMESPACE_END
