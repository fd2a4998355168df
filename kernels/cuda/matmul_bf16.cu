// Instantiates the products of weights in panels by matrix units, both rounded to bfloat16, for every format of the library.
#include "frugal/device/cuda/panels/tiles.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace device::gpu {
#define FRUGAL_INSTANTIATE(format)                                                                \
    template cudaError_t multiply_panel_tiles<quant::format>(const panel_product&, cudaStream_t); \
    template cudaError_t multiply_expert_panel_tiles<quant::format>(const expert_product&, cudaStream_t);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
}  // namespace device::gpu
FRUGAL_NAMESPACE_END
