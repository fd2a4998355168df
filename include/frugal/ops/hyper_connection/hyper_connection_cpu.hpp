#pragma once
/// CPU kernels of the hyper-connection operators; one row (token) a call.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// x[i] = silu(x[i] / divisor), i < n.
template <class Isa>
FRUGAL_KERNEL void divided_silu(float divisor, float* x, std::size_t n);

/// x[i] = 2 * sigmoid(x[i] / divisor), i < n.
template <class Isa>
FRUGAL_KERNEL void divided_double_sigmoid(float divisor, float* x, std::size_t n);

/// y[i] = mean over s < streams of sigmoid(gate[s * hidden + i]) * x[s * hidden + i], for i < n. Streams are added in order.
template <class Isa>
FRUGAL_KERNEL void gated_stream_mean(const float* gate, const float* x, std::size_t streams, std::size_t hidden, float* y,
                                     std::size_t n);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/hyper_connection/hyper_connection_cpu-inl.hpp"
#endif
