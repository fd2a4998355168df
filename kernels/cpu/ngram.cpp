// Instantiates the n-gram embedding kernels for every format of the library and the instruction set of this object.
#include "frugal/ops/ngram/ngram_cpu-inl.hpp"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
#define FRUGAL_INSTANTIATE(format) \
    template void decode_table_row<isa::FRUGAL_KERNEL_ISA, quant::format>(const std::byte*, std::size_t, float*);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
template void ngram_gate_row<isa::FRUGAL_KERNEL_ISA>(const float*, const float*, const float*, std::size_t, std::size_t, float*);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
