// Instantiates the products of weights in panels with f32 activations for every format of the library.
#include "frugal/device/cuda/panels/multiply.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace device::gpu {
#define FRUGAL_INSTANTIATE(format)                                                                            \
    template cudaError_t multiply_panels<quant::format, f32_activations>(const panel_product&, cudaStream_t); \
    template cudaError_t multiply_expert_panels<quant::format, f32_activations>(const expert_product&, cudaStream_t);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
}  // namespace device::gpu
FRUGAL_NAMESPACE_END
