// Instantiates the matmul kernels for every format of the library and the instruction set of this object.
#include "frugal/ops/matmul/matmul_cpu-inl.hpp"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
#define FRUGAL_INSTANTIATE(format)                                                                                            \
    template void matmul_rows<isa::FRUGAL_KERNEL_ISA, quant::format>(const quant::weight_view&, matrix_view<const float>,      \
                                                                     matrix_view<float>, std::size_t, std::size_t, float*);    \
    template void matmul_interleaved<isa::FRUGAL_KERNEL_ISA, quant::format>(                                                   \
        const quant::interleaved_view&, matrix_view<const float>, matrix_view<float>, std::size_t, std::size_t, float*);       \
    template void matmul_q8_rows<isa::FRUGAL_KERNEL_ISA, quant::format>(                                                       \
        const quant::weight_view&, const quant::activation_of<quant::format>::block*, std::size_t, matrix_view<float>,         \
        std::size_t, std::size_t);
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
template void quantize_rows<isa::FRUGAL_KERNEL_ISA, quant::q8_activation<32>>(
    matrix_view<const float>, quant::q8_activation<32>::block*, std::size_t, std::size_t);
template void quantize_rows<isa::FRUGAL_KERNEL_ISA, quant::q8_activation<256>>(
    matrix_view<const float>, quant::q8_activation<256>::block*, std::size_t, std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
