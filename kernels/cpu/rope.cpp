// Instantiates the rope kernel for the instruction set of this object.
#include "frugal/ops/rope/rope_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
template void rotate_rows<isa::FRUGAL_KERNEL_ISA>(matrix_view<const float>, matrix_view<float>, std::size_t, std::size_t,
                                                  std::size_t, std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
