// Instantiates the convolution kernel for the instruction set of this object.
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/conv1d/conv1d_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
#define FRUGAL_INSTANTIATE(name)                                                                                               \
    template void causal_conv1d_channels<isa::FRUGAL_KERNEL_ISA, activation::name>(                                            \
        matrix_view<const float>, const float*, std::size_t, std::size_t, matrix_view<float>, matrix_view<float>, std::size_t, \
        std::size_t);
FRUGAL_INSTANTIATE(identity)
FRUGAL_INSTANTIATE(silu)
#undef FRUGAL_INSTANTIATE
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
