// Instantiates the choice of blocks for every scalar type of block keys, and the other choices: experts, tokens.
#include "frugal/ops/block_select/block_select_cuda.cuh"
#include "frugal/ops/block_select/index_keys_cuda.cuh"
#include "frugal/ops/moe/combine_cuda.cuh"
#include "frugal/ops/moe/group_cuda.cuh"
#include "frugal/ops/moe/router_cuda.cuh"
#include "frugal/ops/sampling/sampling_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
#define FRUGAL_INSTANTIATE(scalar)                                                                                            \
    template cudaError_t select_blocks<scalar>(matrix_view<const float>, std::size_t, const select_row<scalar>*, std::size_t, \
                                               std::size_t, float*, std::uint32_t*, std::uint32_t*, std::uint32_t*,           \
                                               cudaStream_t);
FRUGAL_INSTANTIATE(float)
FRUGAL_INSTANTIATE(half)
FRUGAL_INSTANTIATE(bfloat16)
FRUGAL_INSTANTIATE(std::int8_t)
#undef FRUGAL_INSTANTIATE
#define FRUGAL_INSTANTIATE(scalar)                                                                                      \
    template cudaError_t attend_chosen<scalar>(const std::uint32_t*, const std::uint32_t*, std::size_t, std::size_t,    \
                                               const std::uint32_t*, const std::uint32_t*, std::size_t, std::uint32_t*, \
                                               split_row<scalar>*, cudaStream_t);
FRUGAL_INSTANTIATE(float)
FRUGAL_INSTANTIATE(half)
FRUGAL_INSTANTIATE(bfloat16)
FRUGAL_INSTANTIATE(quant::q8_0)
#undef FRUGAL_INSTANTIATE
#define FRUGAL_INSTANTIATE(scalar)                                                          \
    template cudaError_t append_index_keys<norm_weight::plain, scalar>(                     \
        matrix_view<const float>, const step_rows&, const float*, float, const float*, int, \
        const contiguous_block_keys<scalar>&, select_row<scalar>*, cudaStream_t);           \
    template cudaError_t append_index_keys<norm_weight::zero_centred, scalar>(              \
        matrix_view<const float>, const step_rows&, const float*, float, const float*, int, \
        const contiguous_block_keys<scalar>&, select_row<scalar>*, cudaStream_t);
FRUGAL_INSTANTIATE(float)
FRUGAL_INSTANTIATE(half)
FRUGAL_INSTANTIATE(bfloat16)
FRUGAL_INSTANTIATE(std::int8_t)
#undef FRUGAL_INSTANTIATE
template cudaError_t route<>(matrix_view<const float>, std::size_t, bool, std::int32_t*, float*, int*, cudaStream_t);
template cudaError_t group_choices<>(const std::int32_t*, std::size_t, const device::gpu::expert_groups&, cudaStream_t);
template cudaError_t combine_experts<>(matrix_view<const float>, const std::int32_t*, const float*, std::size_t,
                                       matrix_view<const float>, const float*, matrix_view<float>, cudaStream_t);
template cudaError_t greedy<>(matrix_view<const float>, std::int32_t*, cudaStream_t);
template cudaError_t sample<>(matrix_view<const float>, const sampling_draw*, std::int32_t*, cudaStream_t);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
