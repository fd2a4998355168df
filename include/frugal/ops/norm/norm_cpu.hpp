#pragma once
/// CPU kernels of the norms: ranges of rows, each row by itself.
#include <concepts>
#include <cstddef>
#include <string_view>

#include "frugal/device/cpu/isa.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// How a norm's stored weight becomes its factor. Two types rather than a flag: a file whose convention is mistaken loads
/// cleanly and gives garbage.
namespace norm_weight {
/// The factor is w. Gated norms, and every norm of a GGUF file (its converter stores 1 + w).
struct plain {
    static constexpr std::string_view name = "plain";
    FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE static float factor(float w) noexcept { return w; }
};
/// The factor is 1 + w, formed in f32, where a small bfloat16 weight still counts. Norms of Hugging Face checkpoints of
/// Qwen3.5 and Qwen4-Exp, but for the gated one.
struct zero_centred {
    static constexpr std::string_view name = "zero_centred";
    FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE static float factor(float w) noexcept { return 1.0f + w; }
};
}  // namespace norm_weight

/// A convention of norm weights: `name` and `factor(w)`.
template <class W>
concept norm_weight_policy = requires(float w) {
    { W::name } -> std::convertible_to<std::string_view>;
    { W::factor(w) } noexcept -> std::same_as<float>;
};
static_assert(norm_weight_policy<norm_weight::plain> && norm_weight_policy<norm_weight::zero_centred>);

namespace cpu {

/// y[r][c] = x[r][c] / sqrt(mean of x² over the group of c + eps) * factor(w[c]) for row_begin <= r < row_end.
/// `group` divides x.cols(). x and y may be the same memory.
template <class Isa, class NormWeight>
FRUGAL_KERNEL void rms_norm_rows(matrix_view<const float> x, const float* w, std::size_t group, float eps, matrix_view<float> y,
                                 std::size_t row_begin, std::size_t row_end);

/// y[r][c] = x[r][c] / sqrt(sum of x² over the group of c + eps). x and y may be the same memory.
template <class Isa>
FRUGAL_KERNEL void l2_norm_rows(matrix_view<const float> x, std::size_t group, float eps, matrix_view<float> y,
                                std::size_t row_begin, std::size_t row_end);

/// y[r][c] = x[r][c] / sqrt(mean of row x² + eps) * w[c] * Gate::apply(gate[r][c]). y may be the same memory as x or gate.
template <class Isa, class Gate>
FRUGAL_KERNEL void gated_rms_norm_rows(matrix_view<const float> x, matrix_view<const float> gate, const float* w, float eps,
                                       matrix_view<float> y, std::size_t row_begin, std::size_t row_end);

}  // namespace cpu

}  // namespace ops

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/norm/norm_cpu-inl.hpp"
#endif
