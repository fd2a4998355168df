#pragma once
/// CPU kernels of ops::swiglu, ops::add and ops::add_scaled: contiguous runs of floats.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// y[i] = silu(gate[i]) * up[i], i < n; y may be gate or up.
template <class Isa>
FRUGAL_KERNEL void swiglu(const float* gate, const float* up, float* y, std::size_t n);

/// y[i] += x[i], i < n.
template <class Isa>
FRUGAL_KERNEL void add(const float* x, float* y, std::size_t n);

/// y[i] += scale * x[i], i < n.
template <class Isa>
FRUGAL_KERNEL void add_scaled(float scale, const float* x, float* y, std::size_t n);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/elementwise/elementwise_cpu-inl.hpp"
#endif
