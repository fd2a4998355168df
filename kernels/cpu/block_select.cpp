// Instantiates the block score kernels for every scalar type of block keys and the instruction set of this object.
#include "frugal/ops/block_select/block_select_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cpu {
#define FRUGAL_INSTANTIATE(scalar)                                                                                             \
    template void score_blocks<isa::FRUGAL_KERNEL_ISA, scalar>(block_queries<scalar>, std::size_t, std::size_t,                \
                                                               const block_key_view<scalar>&, float, std::size_t, std::size_t, \
                                                               float*);                                                        \
    template std::size_t keep_blocks<isa::FRUGAL_KERNEL_ISA, scalar>(                                                          \
        block_queries<scalar>, std::size_t, std::size_t, const block_key_view<scalar>&, float, std::size_t, std::size_t,       \
        std::size_t, std::uint64_t, std::uint64_t*, std::size_t);
FRUGAL_INSTANTIATE(float)
FRUGAL_INSTANTIATE(half)
FRUGAL_INSTANTIATE(bfloat16)
FRUGAL_INSTANTIATE(std::int8_t)
#undef FRUGAL_INSTANTIATE
}  // namespace ops::cpu
FRUGAL_NAMESPACE_END
