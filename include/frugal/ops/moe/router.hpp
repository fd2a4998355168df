#pragma once
/// The router of a mixture of experts: softmax over all experts, then the most probable ones.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/moe/router_cpu.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Chooses `index.cols()` experts for each row of `logits` [rows, experts]: softmax over ALL experts in f32, then the most
/// probable; ties go to the lower expert. `index` and `weight` [rows, top_k] are in that order. `logits` is overwritten.
/// With `renormalise` a row's weights are divided by their sum (transformers `norm_topk_prob`).
/// Errors: shape_mismatch, invalid_argument (top_k is 0 or above the number of experts), not_finite (a NaN or infinite logit;
/// the message names the first such row).
template <device::cpu_target Device>
[[nodiscard]] status route(Device& dev, matrix_view<float> logits, bool renormalise, matrix_view<std::int32_t> index,
                           matrix_view<float> weight) {
    const std::size_t rows = logits.rows(), top_k = index.cols();
    if (index.rows() != rows || weight.rows() != rows || weight.cols() != top_k)
        return fail(errc::shape_mismatch, "router logits of ", rows, " rows into indices [", index.rows(), ", ", top_k,
                    "] and weights [", weight.rows(), ", ", weight.cols(), "]");
    if (top_k == 0 || top_k > logits.cols())
        return fail(errc::invalid_argument, "cannot choose ", top_k, " of ", logits.cols(), " experts");
    std::atomic<std::size_t> first_bad{rows};
    dev.run_ranges(rows, device::grain(64 * logits.cols()), [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r) {
            if (ops::cpu::route_row<typename Device::isa>(logits.row(r), logits.cols(), top_k, renormalise, logits.row(r),
                                                          index.row(r), weight.row(r)))
                continue;
            std::size_t seen = first_bad.load();
            while (r < seen && !first_bad.compare_exchange_weak(seen, r)) {
            }
        }
    });
    if (const std::size_t bad = first_bad.load(); bad != rows)
        return fail(errc::not_finite, "the router's logits of row ", bad, " are not all finite");
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END
