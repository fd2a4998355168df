// Instantiates the n-gram gate for the instruction set of this object.
#include "frugal/ops/ngram/ngram_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
template void ngram_gate_row<isa::FRUGAL_KERNEL_ISA>(const float*, const float*, const float*, std::size_t, std::size_t, float*);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
