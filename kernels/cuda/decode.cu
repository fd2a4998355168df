// Instantiates the decoding of weights in panels to bfloat16 for every format of the library, and the rounding to it.
#include "frugal/device/cuda/panels/decode.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace device::gpu {
#define FRUGAL_INSTANTIATE(format) \
    template cudaError_t decode_panels<quant::format>(const panel_product&, bfloat16*, cudaStream_t);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
template cudaError_t round_values<bfloat16>(const float*, std::size_t, bfloat16*, cudaStream_t);
}  // namespace device::gpu
FRUGAL_NAMESPACE_END
