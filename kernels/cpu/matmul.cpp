// Instantiates the matmul kernels for every format of the library and the instruction set of this object.
#include "frugal/ops/matmul/activations_cpu-inl.hpp"
#include "frugal/ops/matmul/matmul_cpu-inl.hpp"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
#define FRUGAL_INSTANTIATE_FOR(format, activations)                                          \
    template void matmul_panels<isa::FRUGAL_KERNEL_ISA, quant::format, device::activations>( \
        const quant::panel_view&, const prepared_activations&, matrix_view<float>, std::size_t, std::size_t, float*);
#define FRUGAL_INSTANTIATE(format)                  \
    FRUGAL_INSTANTIATE_FOR(format, f32_activations) \
    FRUGAL_INSTANTIATE_FOR(format, q8_activations)  \
    FRUGAL_INSTANTIATE_FOR(format, bf16_activations)
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
#undef FRUGAL_INSTANTIATE_FOR
template void quantize_rows<isa::FRUGAL_KERNEL_ISA>(const prepared_activations&, std::int8_t*, float*, std::int16_t*, std::size_t,
                                                    std::size_t);
template void round_rows<isa::FRUGAL_KERNEL_ISA>(const prepared_activations&, bfloat16*, float*, std::size_t, std::size_t);
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
