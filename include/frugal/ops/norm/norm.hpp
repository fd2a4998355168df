#pragma once
/// Root-mean-square norms with either weight convention, plain or gated, and the l2 norm.
#include <cstddef>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/norm/norm_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {

[[nodiscard]] inline status check_norm(matrix_view<const float> x, std::size_t weights, std::size_t group, matrix_view<float> y) {
    if (y.rows() != x.rows() || y.cols() != x.cols())
        return fail(errc::shape_mismatch, "norm of [", x.rows(), ", ", x.cols(), "] into [", y.rows(), ", ", y.cols(), "]");
    if (weights != x.cols()) return fail(errc::shape_mismatch, "norm of ", x.cols(), " features with ", weights, " weights");
    if (x.cols() != 0 && (group == 0 || x.cols() % group != 0))
        return fail(errc::shape_mismatch, "norm of ", x.cols(), " features in groups of ", group);
    return {};
}

}  // namespace detail

/// Root-mean-square norm of each group of `group` consecutive features:
/// y = x / sqrt(mean(x² of the group) + eps) * NormWeight::factor(w), in f32. x, y: [rows, features]; w: [features].
/// x and y may be the same memory. Errors: shape_mismatch. Source: Zhang and Sennrich 2019 (arXiv:1910.07467).
template <norm_weight_policy NormWeight, device::cpu_target Device>
[[nodiscard]] status grouped_rms_norm(Device& dev, std::span<const float> w, matrix_view<const float> x, std::size_t group,
                                      float eps, matrix_view<float> y) {
    FRUGAL_TRY(detail::check_norm(x, w.size(), group, y));
    if (x.cols() == 0) return {};
    dev.run_ranges(x.rows(), device::grain(x.cols()), [&](std::size_t begin, std::size_t end) {
        ops::cpu::rms_norm_rows<typename Device::isa, NormWeight>(x, w.data(), group, eps, y, begin, end);
    });
    return {};
}

/// Root-mean-square norm of each row by itself; otherwise as grouped_rms_norm.
template <norm_weight_policy NormWeight, device::cpu_target Device>
[[nodiscard]] status rms_norm(Device& dev, std::span<const float> w, matrix_view<const float> x, float eps,
                              matrix_view<float> y) {
    return grouped_rms_norm<NormWeight>(dev, w, x, x.cols(), eps, y);
}

/// y = x / sqrt(sum(x² of the group) + eps) for each group of `group` consecutive features. eps is added to the sum, inside
/// the root. x and y may be the same memory. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status grouped_l2_norm(Device& dev, matrix_view<const float> x, std::size_t group, float eps,
                                     matrix_view<float> y) {
    FRUGAL_TRY(detail::check_norm(x, x.cols(), group, y));
    if (x.cols() == 0) return {};
    dev.run_ranges(x.rows(), device::grain(x.cols()), [&](std::size_t begin, std::size_t end) {
        ops::cpu::l2_norm_rows<typename Device::isa>(x, group, eps, y, begin, end);
    });
    return {};
}

/// l2 norm of each row by itself; otherwise as grouped_l2_norm.
template <device::cpu_target Device>
[[nodiscard]] status l2_norm(Device& dev, matrix_view<const float> x, float eps, matrix_view<float> y) {
    return grouped_l2_norm(dev, x, x.cols(), eps, y);
}

/// The gated norm of a Gated DeltaNet head: norm first, then the gate: y = x / sqrt(mean(x²) + eps) * w * Gate::apply(gate).
/// The weight is used as it is. x, gate, y: [rows, features]; w: [features]; y may be the same memory as x or gate.
/// Errors: shape_mismatch.
template <class Gate, device::cpu_target Device>
[[nodiscard]] status gated_rms_norm(Device& dev, std::span<const float> w, matrix_view<const float> x,
                                    matrix_view<const float> gate, float eps, matrix_view<float> y) {
    FRUGAL_REQUIRE_ACTIVATION(Gate);
    FRUGAL_TRY(detail::check_norm(x, w.size(), x.cols(), y));
    if (gate.rows() != x.rows() || gate.cols() != x.cols())
        return fail(errc::shape_mismatch, "gated norm of [", x.rows(), ", ", x.cols(), "] with a gate [", gate.rows(), ", ",
                    gate.cols(), "]");
    if (x.cols() == 0) return {};
    dev.run_ranges(x.rows(), device::grain(x.cols() * 8), [&](std::size_t begin, std::size_t end) {
        ops::cpu::gated_rms_norm_rows<typename Device::isa, Gate>(x, gate, w.data(), eps, y, begin, end);
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
