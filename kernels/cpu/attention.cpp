// Instantiates the attention kernels for every scalar type of a cache and the instruction set of this object.
#include "frugal/ops/attention/attention_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
template void attend_span<isa::FRUGAL_KERNEL_ISA, float>(const attention_tile<float>&, std::size_t, std::size_t, float*, float*);
template void attend_span<isa::FRUGAL_KERNEL_ISA, half>(const attention_tile<half>&, std::size_t, std::size_t, float*, float*);
template void attend_span<isa::FRUGAL_KERNEL_ISA, bfloat16>(const attention_tile<bfloat16>&, std::size_t, std::size_t, float*,
                                                            float*);
template void attend_span<isa::FRUGAL_KERNEL_ISA, quant::q8_0>(const attention_tile<quant::q8_0>&, std::size_t, std::size_t,
                                                               float*, float*);
template void merge_attention<isa::FRUGAL_KERNEL_ISA>(float*, const float*, std::size_t, std::size_t);
template void finish_attention<isa::FRUGAL_KERNEL_ISA>(const float*, std::size_t, std::size_t, std::size_t, float*, std::size_t);
template void multiply_sigmoid<isa::FRUGAL_KERNEL_ISA>(const float*, float*, std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
