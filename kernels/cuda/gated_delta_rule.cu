// Instantiates the gated delta rule, token by token, in chunks and in chunks by matrix units, for both pairings of heads and both layouts of a state.
#include "frugal/ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cuda.cuh"

FRUGAL_NAMESPACE_BEGIN
namespace ops::cuda {
#define FRUGAL_INSTANTIATE_RULE(rule, pairing, layout)                                                        \
    template cudaError_t rule<head_pairing::pairing, state_layout::layout>(                                   \
        const delta_rule_dims&, matrix_view<const float>, matrix_view<const float>, matrix_view<const float>, \
        matrix_view<const float>, matrix_view<const float>, float*, matrix_view<float>, cudaStream_t);
#define FRUGAL_INSTANTIATE(pairing, layout)                            \
    FRUGAL_INSTANTIATE_RULE(gated_delta_rule, pairing, layout)         \
    FRUGAL_INSTANTIATE_RULE(gated_delta_rule_chunked, pairing, layout) \
    FRUGAL_INSTANTIATE_RULE(gated_delta_rule_tiles, pairing, layout)
FRUGAL_INSTANTIATE(grouped, key_major)
FRUGAL_INSTANTIATE(grouped, value_major)
FRUGAL_INSTANTIATE(tiled, key_major)
FRUGAL_INSTANTIATE(tiled, value_major)
#undef FRUGAL_INSTANTIATE
#undef FRUGAL_INSTANTIATE_RULE
template cudaError_t delta_gates<>(matrix_view<const float>, matrix_view<const float>, const float*, const float*,
                                   matrix_view<float>, matrix_view<float>, cudaStream_t);
}  // namespace ops::cuda
FRUGAL_NAMESPACE_END
