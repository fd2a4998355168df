// Instantiates the norm kernels for the instruction set of this object.
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/norm/norm_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
using kernel_isa = isa::FRUGAL_KERNEL_ISA;
template void rms_norm_rows<kernel_isa, norm_weight::plain>(matrix_view<const float>, const float*, std::size_t, float,
                                                            matrix_view<float>, std::size_t, std::size_t);
template void rms_norm_rows<kernel_isa, norm_weight::zero_centred>(matrix_view<const float>, const float*, std::size_t, float,
                                                                   matrix_view<float>, std::size_t, std::size_t);
template void l2_norm_rows<kernel_isa>(matrix_view<const float>, std::size_t, float, matrix_view<float>, std::size_t,
                                       std::size_t);
template void gated_rms_norm_rows<kernel_isa, activation::silu>(matrix_view<const float>, matrix_view<const float>, const float*,
                                                                float, matrix_view<float>, std::size_t, std::size_t);
template void gated_rms_norm_rows<kernel_isa, activation::sigmoid>(matrix_view<const float>, matrix_view<const float>,
                                                                   const float*, float, matrix_view<float>, std::size_t,
                                                                   std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
