#pragma once
/// Rotary position embedding on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/kernel_queue.hpp"
#include "frugal/device/cuda/runtime.hpp"
#include "frugal/ops/rope/position.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// A rope_table on the device: its frequencies, and rope_table::component of each.
struct rope_frequencies {
    const float* inv_freq = nullptr;           ///< [pairs]
    const std::uint8_t* components = nullptr;  ///< [pairs]
    int pairs = 0;                             ///< rotary_dim / 2
    float magnitude = 1;                       ///< of every cosine and sine
};

/// As ops::rope_angles, on device memory. angles: [positions][2 * pairs], without gaps.
template <class Unit = void>
[[nodiscard]] cudaError_t rope_angles(const rope_frequencies& table, const rope_position* positions, std::size_t count,
                                      float* angles, cudaStream_t stream);

/// As ops::apply_rope, on device memory: angles of rope_angles, head h of x at feature h * (x.cols() / heads).
template <class Unit = void>
[[nodiscard]] cudaError_t apply_rope(const float* angles, int pairs, matrix_view<float> x, std::size_t heads,
                                     cudaStream_t stream);

}  // namespace ops::cuda

namespace ops {

/// As ops::apply_rope with angles, on device memory: queued. angles: [rows, rotary_dim] without gaps. Errors: of the start.
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status apply_rope(const Pass& pass, matrix_view<const float> angles, std::size_t heads, matrix_view<float> x) {
    return pass.start([&](cudaStream_t stream) {
        return cuda::apply_rope(angles.data(), static_cast<int>(angles.cols() / 2), x, heads, stream);
    });
}

}  // namespace ops

FRUGAL_NAMESPACE_END
