// Instantiates attention by matrix units for every width of heads that it has.
#include "frugal/ops/attention/attention_tiles_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
template __global__ void attend_tiles<64>(attention_tiles_arguments);
template __global__ void attend_tiles<128>(attention_tiles_arguments);
template __global__ void attend_tiles<256>(attention_tiles_arguments);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
