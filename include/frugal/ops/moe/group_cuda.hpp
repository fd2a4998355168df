#pragma once
/// The choices of a batch by expert on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/products.hpp"
#include "frugal/device/cuda/runtime.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr std::size_t group_most = 512;  ///< experts of a layer

/// Sorts the choices of a batch by expert, stably, and cuts them into tiles: all arrays of `out`. index: [choices], of `route`,
/// each less than out.experts. Counts and places alone are computed, so nothing depends on the order of threads. Errors:
/// cudaErrorInvalidValue for more than group_most experts.
template <class Unit = void>
[[nodiscard]] cudaError_t group_choices(const std::int32_t* index, std::size_t choices, const device::gpu::expert_groups& out,
                                        cudaStream_t stream);

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END
