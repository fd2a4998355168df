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
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Floats of scratch that prepare_activations takes for x [rows, cols], at most.
[[nodiscard]] constexpr std::size_t prepared_scratch(std::size_t rows, std::size_t cols) noexcept {
    const std::size_t groups = (cols + quant::panel_group - 1) / quant::panel_group;
    return rows * groups * (quant::panel_group + quant::panel_group / 4 + 2) + 64;
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
    if (padded != x.cols()) {
        FRUGAL_TRY_ASSIGN(const auto copy, scratch.matrix(x.rows(), padded));
        for (std::size_t r = 0; r < x.rows(); ++r) {
            std::memcpy(copy.row(r), x.row(r), x.cols() * sizeof(float));
            std::memset(copy.row(r) + x.cols(), 0, (padded - x.cols()) * sizeof(float));
        }
        out.values = copy.data();
        out.stride = padded;
    }
    if constexpr (device::activations_of<Device>::quantized) {
        FRUGAL_TRY_ASSIGN(const auto codes, scratch.template array<std::int8_t>(x.rows() * padded));
        FRUGAL_TRY_ASSIGN(const auto scales, scratch.matrix(x.rows(), out.groups));
        FRUGAL_TRY_ASSIGN(const auto sums, scratch.template array<std::int16_t>(x.rows() * out.groups * 2));
        dev.counters().add(counter::activation_quantize_calls, 1);
        dev.run_ranges(x.rows(), 1, [&](std::size_t begin, std::size_t end) {
            ops::cpu::quantize_rows<isa>(out, codes.data(), scales.data(), sums.data(), begin, end);
        });
        out.codes = codes.data();
        out.scales = scales.data();
        out.code_sums = sums.data();
    }
    return out;
}

}  // namespace ops

FRUGAL_NAMESPACE_END
