// Instantiates the router kernel for the instruction set of this object.
#include "frugal/ops/moe/router_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
template bool route_row<isa::FRUGAL_KERNEL_ISA>(const float*, std::size_t, std::size_t, bool, float*, std::int32_t*, float*);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
