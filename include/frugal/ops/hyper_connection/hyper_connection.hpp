#pragma once
/// Operators on the residual streams of hyper-connections. A row of streams is [streams][hidden].
/// Source: Zhu et al. 2024 (arXiv:2409.19606); the gated low-rank form is transformers' `Qwen4ExpTextGatedResidual`.
#include <algorithm>
#include <cstddef>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/hyper_connection/hyper_connection_cpu.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {

[[nodiscard]] inline status check_streams(matrix_view<const float> streams, std::size_t count, matrix_view<const float> one) {
    if (count != 0 && streams.rows() == one.rows() && streams.cols() == count * one.cols()) return {};
    return fail(errc::shape_mismatch, count, " streams of [", streams.rows(), ", ", streams.cols(), "] and one of [", one.rows(),
                ", ", one.cols(), "]");
}

}  // namespace detail

/// Starts the streams as copies of one: x [rows, hidden]; streams [rows, count * hidden]. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status expand_streams(Device& dev, matrix_view<const float> x, matrix_view<float> streams) {
    const std::size_t hidden = x.cols();
    if (hidden == 0 || streams.rows() != x.rows() || streams.cols() % hidden != 0)
        return fail(errc::shape_mismatch, "embedding [", x.rows(), ", ", hidden, "] into streams [", streams.rows(), ", ",
                    streams.cols(), "]");
    dev.run_ranges(x.rows(), device::grain(streams.cols()), [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r)
            for (std::size_t c = 0; c < streams.cols(); c += hidden) std::copy_n(x.row(r), hidden, streams.row(r) + c);
    });
    return {};
}

/// x = silu(x / divisor) in place. x: [rows, width].
template <device::cpu_target Device>
[[nodiscard]] status divided_silu(Device& dev, float divisor, matrix_view<float> x) {
    detail::for_each_run(dev, x.rows(), x.cols(), [&](std::size_t r, std::size_t c, std::size_t n) {
        ops::cpu::divided_silu<typename Device::isa>(divisor, x.row(r) + c, n);
    });
    return {};
}

/// x = 2 * sigmoid(x / divisor) in place. x: [rows, width].
template <device::cpu_target Device>
[[nodiscard]] status divided_double_sigmoid(Device& dev, float divisor, matrix_view<float> x) {
    detail::for_each_run(dev, x.rows(), x.cols(), [&](std::size_t r, std::size_t c, std::size_t n) {
        ops::cpu::divided_double_sigmoid<typename Device::isa>(divisor, x.row(r) + c, n);
    });
    return {};
}

/// y = mean over the streams of sigmoid(gate) * x. gate, x: [rows, streams * hidden]; y: [rows, hidden].
/// Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status gated_stream_mean(Device& dev, matrix_view<const float> gate, matrix_view<const float> x,
                                       std::size_t streams, matrix_view<float> y) {
    FRUGAL_TRY(detail::same_shape("stream gate", gate, x));
    FRUGAL_TRY(detail::check_streams(x, streams, y));
    const std::size_t hidden = y.cols();
    // Short runs: a decoded token has one row, and each element costs `streams` exponentials.
    constexpr std::size_t run = 256;
    const std::size_t a_row = (hidden + run - 1) / run;
    dev.run_ranges(y.rows() * a_row, device::grain(8 * streams * run), [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            const std::size_t r = i / a_row, c = i % a_row * run;
            ops::cpu::gated_stream_mean<typename Device::isa>(gate.row(r) + c, x.row(r) + c, streams, hidden, y.row(r) + c,
                                                              hidden - c < run ? hidden - c : run);
        }
    });
    return {};
}

/// streams[r][s] += scale[r][s] * x[r] for every stream s. streams: [rows, count * hidden]; scale: [rows, count];
/// x: [rows, hidden]. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status add_to_streams(Device& dev, matrix_view<const float> scale, matrix_view<const float> x,
                                    matrix_view<float> streams) {
    FRUGAL_TRY(detail::check_streams(streams, scale.cols(), x));
    if (scale.rows() != x.rows())
        return fail(errc::shape_mismatch, scale.rows(), " rows of stream scales for ", x.rows(), " rows");
    const std::size_t hidden = x.cols();
    detail::for_each_run(dev, x.rows(), hidden, [&](std::size_t r, std::size_t c, std::size_t n) {
        for (std::size_t s = 0; s < scale.cols(); ++s)
            ops::cpu::add_scaled<typename Device::isa>(scale(r, s), x.row(r) + c, streams.row(r) + s * hidden + c, n);
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
