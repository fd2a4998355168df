// Instantiates the attention kernels for every scalar type of a cache and the instruction set of this object.
#include "frugal/ops/attention/attention_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
#define FRUGAL_INSTANTIATE(scalar)                                                                                      \
    template void attend_span<isa::FRUGAL_KERNEL_ISA, scalar>(const attention_tile<scalar>&, std::size_t, std::size_t,  \
                                                              std::size_t, float*, float*);                             \
    template void finish_attention<isa::FRUGAL_KERNEL_ISA, scalar>(const attention_tile<scalar>&, const float*, float*, \
                                                                   std::size_t);
FRUGAL_INSTANTIATE(float)
FRUGAL_INSTANTIATE(half)
FRUGAL_INSTANTIATE(bfloat16)
FRUGAL_INSTANTIATE(quant::q8_0)
#undef FRUGAL_INSTANTIATE
template void merge_attention<isa::FRUGAL_KERNEL_ISA>(float*, const float*, std::size_t, std::size_t);
template void multiply_sigmoid<isa::FRUGAL_KERNEL_ISA>(const float*, float*, std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
