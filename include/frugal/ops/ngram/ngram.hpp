#pragma once
/// Gating of an n-gram embedding into the residual streams.
#include <cstddef>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/ngram/hash.hpp"
#include "frugal/ops/ngram/ngram_cpu.hpp"
#include "frugal/ops/ngram/row_table.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// y[s] = sigmoid(signed root of (key[s] . query[s]) / sqrt(hidden)) * value for every stream s, where the signed root of a is
/// sign(a) * sqrt(max(|a|, 1e-6)), and 0 at 0. key, query, y: [rows, streams * hidden]; value: [rows, hidden].
/// y may be the memory of key. Errors: shape_mismatch. Source: transformers `Qwen4ExpTextPLELayer`.
template <device::cpu_target Device>
[[nodiscard]] status ngram_gate(Device& dev, matrix_view<const float> key, matrix_view<const float> query,
                                matrix_view<const float> value, matrix_view<float> y) {
    const std::size_t hidden = value.cols();
    for (const matrix_view<const float>& m : {key, query, matrix_view<const float>(y)})
        if (hidden == 0 || m.rows() != value.rows() || m.cols() % hidden != 0 || m.cols() != key.cols())
            return fail(errc::shape_mismatch, "n-gram gate of [", m.rows(), ", ", m.cols(), "] and values [", value.rows(), ", ",
                        hidden, "]");
    dev.run_ranges(key.rows(), device::grain(3 * key.cols()), [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r)
            ops::cpu::ngram_gate_row<typename Device::isa>(key.row(r), query.row(r), value.row(r), key.cols() / hidden, hidden,
                                                           y.row(r));
    });
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
