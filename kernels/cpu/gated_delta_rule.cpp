// Instantiates the kernels of the gated delta rule for the instruction set of this object.
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
using kernel_isa = isa::FRUGAL_KERNEL_ISA;
template void delta_rule_recurrent<kernel_isa>(const delta_rule_head&, std::size_t, std::size_t, const float*, float*);
template void delta_rule_chunked<kernel_isa>(const delta_rule_head&, std::size_t, float*);
template void delta_gates_rows<kernel_isa>(matrix_view<const float>, matrix_view<const float>, const float*, const float*,
                                           matrix_view<float>, matrix_view<float>, std::size_t, std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
