#pragma once
/// CPU kernel of ops::select_blocks: scores of a range of blocks for one query.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Block keys of one sequence, not owned: block b lies in chunk b >> chunk_shift, and there `stride` scalars after the
/// block before it.
template <class Scalar>
struct block_key_view {
    const Scalar* const* keys = nullptr;
    std::size_t chunk_shift = 0, stride = 0;
};

namespace cpu {

/// scores[b] = sum over heads of max(0, q[h] . key[b]) / divisor for begin <= b < end. Heads begin `dim` floats apart.
/// The bits of a score depend on the query and its block alone.
template <class Isa, class Scalar>
void score_blocks(const float* q, std::size_t heads, std::size_t dim, const block_key_view<Scalar>& blocks, float divisor,
                  std::size_t begin, std::size_t end, float* scores);

}  // namespace cpu

}  // namespace ops

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/block_select/block_select_cpu-inl.hpp"
#endif
