#pragma once
/// Activations made ready for products: once, for every product that reads them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/activations.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/matmul/activations_cpu.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/quant/panels.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

namespace detail {

/// Floats that prepared rows lie apart, those of `padded` columns included: products read some rows side by side, and where
/// rows are a multiple of a cache line apart, the same column of each lies in the same bank of the cache, if not in the same set.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t spread_stride(std::size_t padded) noexcept { return padded + 18; }

/// Whether rows are copied so that they lie spread: a few rows are not worth it.
[[nodiscard]] FRUGAL_FLAGGED constexpr bool spreads_rows(std::size_t rows, std::size_t stride) noexcept {
    return rows >= 16 && stride % 16 == 0;
}

}  // namespace detail

/// Floats of scratch that prepare_activations takes for x [rows, cols], at most.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t prepared_scratch(std::size_t rows, std::size_t cols) noexcept {
    const std::size_t groups = (cols + quant::panel_group - 1) / quant::panel_group;
    // A copy filled up with zeros, and what takes more of codes with scale and sums (10 floats a group) and bfloat16 with a sum.
    return rows * (detail::spread_stride(groups * quant::panel_group) + groups * (quant::panel_group / 2 + 1)) + 64;
}

/// Makes x, [tokens, columns], ready for the products of `dev`; what it needs beside x comes from `scratch` and lives until the
/// scope that the caller holds on it ends. x must stay as it is until then. Errors: out_of_memory.
template <device::cpu_target Device>
[[nodiscard]] result<prepared_activations> prepare_activations(Device& dev, workspace& scratch, matrix_view<const float> x) {
    using isa = typename Device::isa;
    prepared_activations out;
    out.rows = x.rows();
    out.cols = x.cols();
    out.groups = (x.cols() + quant::panel_group - 1) / quant::panel_group;
    const std::size_t padded = out.groups * quant::panel_group;
    out.values = x.data();
    out.stride = x.stride();
    const bool spread = detail::spreads_rows(x.rows(), padded == x.cols() ? x.stride() : padded);
    if (spread || padded != x.cols()) {
        out.stride = spread ? detail::spread_stride(padded) : padded;
        FRUGAL_TRY_ASSIGN(const auto copy, scratch.matrix(x.rows(), out.stride));
        dev.run_ranges(x.rows(), device::grain(padded), [&](std::size_t begin, std::size_t end) {
            for (std::size_t r = begin; r < end; ++r) {
                std::memcpy(copy.row(r), x.row(r), x.cols() * sizeof(float));
                std::memset(copy.row(r) + x.cols(), 0, (padded - x.cols()) * sizeof(float));
            }
        });
        out.values = copy.data();
    }
    if constexpr (device::activations_of<Device>::quantized) {
        FRUGAL_TRY_ASSIGN(const auto codes, scratch.template array<std::int8_t>(x.rows() * padded));
        FRUGAL_TRY_ASSIGN(const auto scales, scratch.matrix(x.rows(), out.groups));
        FRUGAL_TRY_ASSIGN(const auto sums, scratch.template array<std::int16_t>(x.rows() * out.groups * 2));
        dev.counters().add(counter::activation_quantize_calls, 1);
        dev.run_ranges(x.rows(), device::grain(8 * padded), [&](std::size_t begin, std::size_t end) {
            ops::cpu::quantize_rows<isa>(out, codes.data(), scales.data(), sums.data(), begin, end);
        });
        out.codes = codes.data();
        out.scales = scales.data();
        out.code_sums = sums.data();
    }
    if constexpr (device::activations_of<Device>::rounded) {
        FRUGAL_TRY_ASSIGN(const auto rounded, scratch.template array<bfloat16>(x.rows() * padded));
        FRUGAL_TRY_ASSIGN(const auto sums, scratch.template array<float>(x.rows() * out.groups));
        dev.counters().add(counter::activation_quantize_calls, 1);
        dev.run_ranges(x.rows(), device::grain(8 * padded), [&](std::size_t begin, std::size_t end) {
            ops::cpu::round_rows<isa>(out, rounded.data(), sums.data(), begin, end);
        });
        out.rounded = rounded.data();
        out.sums = sums.data();
    }
    return out;
}

/// Whether products of `dev` read f32 activations for weights of this type, not only codes or rounded ones.
/// Precondition: the type is in the list.
template <class Formats, device::cpu_target Device>
[[nodiscard]] bool reads_values(const Device&, quant::type_id type) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    bool read = true;
    using activations = device::activations_of<Device>;
    if constexpr (activations::quantized || activations::rounded)
        (void)quant::visit<Formats>(type, [&]<class Format>(type_tag<Format>) {
            using layout = quant::panel_of<Format>;
            read = !reads_codes<activations, layout> && !reads_rounded<activations, layout>;
        });
    return read;
}

/// Rows picked from activations that are ready already: row i is row rows[i] of x, with the bits that it has there, in scratch
/// of the caller's scope. `values`: whether the result needs them in f32 too (reads_values); it has none otherwise.
/// Errors: out_of_memory. Precondition: each row is one of x.
template <device::cpu_target Device>
[[nodiscard]] result<prepared_activations> gather_activations(Device& dev, workspace& scratch, const prepared_activations& x,
                                                              std::span<const std::size_t> rows, bool values = true) {
    prepared_activations out = x;
    const std::size_t padded = x.groups * quant::panel_group, count = rows.size();
    out.rows = count;
    out.values = nullptr;
    out.stride = 0;
    float* to = nullptr;
    if (values || (x.codes == nullptr && x.rounded == nullptr)) {
        out.stride = detail::spreads_rows(count, padded) ? detail::spread_stride(padded) : padded;
        FRUGAL_TRY_ASSIGN(const auto copy, scratch.matrix(count, out.stride));
        out.values = to = copy.data();
    }
    std::span<std::int8_t> codes;
    std::span<float> scales;
    std::span<std::int16_t> sums;
    if (x.codes != nullptr) {
        FRUGAL_TRY_ASSIGN(codes, scratch.template array<std::int8_t>(count * padded));
        FRUGAL_TRY_ASSIGN(scales, scratch.template array<float>(count * x.groups));
        FRUGAL_TRY_ASSIGN(sums, scratch.template array<std::int16_t>(count * x.groups * 2));
        out.codes = codes.data();
        out.scales = scales.data();
        out.code_sums = sums.data();
    }
    std::span<bfloat16> rounded;
    std::span<float> rounded_sums;
    if (x.rounded != nullptr) {
        FRUGAL_TRY_ASSIGN(rounded, scratch.template array<bfloat16>(count * padded));
        FRUGAL_TRY_ASSIGN(rounded_sums, scratch.template array<float>(count * x.groups));
        out.rounded = rounded.data();
        out.sums = rounded_sums.data();
    }
    dev.run_ranges(count, device::grain(padded), [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            const prepared_activations from = x.rows_range(rows[i], 1);
            if (to != nullptr) std::memcpy(to + i * out.stride, from.values, padded * sizeof(float));
            if (x.rounded != nullptr) {
                std::memcpy(rounded.data() + i * padded, from.rounded, padded * sizeof(bfloat16));
                std::memcpy(rounded_sums.data() + i * x.groups, from.sums, x.groups * sizeof(float));
            }
            if (x.codes == nullptr) continue;
            std::memcpy(codes.data() + i * padded, from.codes, padded);
            std::memcpy(scales.data() + i * x.groups, from.scales, x.groups * sizeof(float));
            std::memcpy(sums.data() + i * x.groups * 2, from.code_sums, x.groups * 2 * sizeof(std::int16_t));
        }
    });
    return out;
}

}  // namespace ops

FRUGAL_NAMESPACE_END
