#pragma once
/// CPU kernel of ops::ngram_gate.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// For each stream s of one token: a = sum(key[s] * query[s]) / sqrt(hidden), g = sign(a) * sqrt(max(|a|, 1e-6)) with
/// sign(0) = 0, and out[s] = sigmoid(g) * value. key, query, out: [streams][hidden]; value: [hidden]. `out` may be key.
template <class Isa>
FRUGAL_KERNEL void ngram_gate_row(const float* key, const float* query, const float* value, std::size_t streams,
                                  std::size_t hidden, float* out);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/ngram/ngram_cpu-inl.hpp"
#endif
