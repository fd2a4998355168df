// Instantiates the hyper-connection kernels for the instruction set of this object.
#include "frugal/ops/hyper_connection/hyper_connection_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
template void divided_silu<isa::FRUGAL_KERNEL_ISA>(float, float*, std::size_t);
template void divided_double_sigmoid<isa::FRUGAL_KERNEL_ISA>(float, float*, std::size_t);
template void gated_stream_mean<isa::FRUGAL_KERNEL_ISA>(const float*, const float*, std::size_t, std::size_t, float*,
                                                        std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
