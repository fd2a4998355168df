// Instantiates the embedding kernel for every format of the library and the instruction set of this object.
#include "frugal/ops/embedding/embedding_cpu-inl.hpp"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
#define FRUGAL_INSTANTIATE(format)                                                                                      \
    template void embedding_rows<isa::FRUGAL_KERNEL_ISA, quant::format>(const quant::weight_view&, const std::int32_t*, \
                                                                        matrix_view<float>, std::size_t, std::size_t);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
