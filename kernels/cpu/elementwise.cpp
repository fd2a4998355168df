// Instantiates the elementwise kernels for the instruction set of this object.
#include "frugal/ops/elementwise/elementwise_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
template void swiglu<isa::FRUGAL_KERNEL_ISA>(const float*, const float*, float*, std::size_t);
template void add<isa::FRUGAL_KERNEL_ISA>(const float*, float*, std::size_t);
template void add_scaled<isa::FRUGAL_KERNEL_ISA>(float, const float*, float*, std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
