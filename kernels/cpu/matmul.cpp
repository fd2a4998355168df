// Instantiates the matmul kernel for every format of the library and the instruction set of this object.
#include "frugal/ops/matmul/matmul_cpu-inl.hpp"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
#define FRUGAL_INSTANTIATE(format)                                                                                       \
    template void matmul_rows<isa::FRUGAL_KERNEL_ISA, quant::format>(const quant::weight_view&, matrix_view<const float>, \
                                                                     matrix_view<float>, std::size_t, std::size_t, float*);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
