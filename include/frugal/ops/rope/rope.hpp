#pragma once
/// Rotary position embedding: partial, half-split, with three position components a token (multimodal RoPE).
/// Sources: Su et al. 2021 (arXiv:2104.09864); interleaved sections as in transformers, models/qwen3_5.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/rounded.hpp"
#include "frugal/ops/rope/position.hpp"
#include "frugal/ops/rope/rope_cpu.hpp"
#include "frugal/ops/rope/scaling.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Frequencies of a model's rotary embedding, and which position component each of them takes.
struct FRUGAL_FLAGGED rope_table {
    std::size_t rotary_dim = 0;     ///< leading features of a head that are rotated; even
    std::vector<float> inv_freq;    ///< [rotary_dim / 2]
    std::array<int, 3> sections{};  ///< frequencies of the components temporal, height, width; all 0: temporal alone
    bool interleaved = true;        ///< components alternate (T H W T H W …) instead of following one another
    float magnitude = 1;            ///< of every cosine and sine

    /// inv_freq[j] = 1 / theta^(2j / rotary_dim), the exponent, the power and the quotient each rounded to f32 as torch does,
    /// then scaled. Preconditions: theta > 0, and above 1 for yarn; validate(scaling).
    [[nodiscard]] static rope_table make(double theta, std::size_t rotary_dim, std::array<int, 3> sections = {},
                                         bool interleaved = true, const rope_scaling& scaling = {}) {
        rope_table out{rotary_dim, std::vector<float>(rotary_dim / 2), sections, interleaved,
                       static_cast<float>(scaling.magnitude)};
        const ramp kept = scaling.kind == rope_scaling_kind::yarn ? ramp::of(scaling, theta, rotary_dim) : ramp{};
        const auto factor = static_cast<float>(scaling.factor);
        for (std::size_t j = 0; j < out.inv_freq.size(); ++j) {
            const float exponent = static_cast<float>(2 * j) / static_cast<float>(rotary_dim);
            // In double, so that the power is the correctly rounded one, which a good f32 power nearly always is.
            const auto power =
                static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), static_cast<double>(exponent)));
            out.inv_freq[j] = 1.0f / power;
            if (scaling.kind == rope_scaling_kind::linear) out.inv_freq[j] /= factor;
            if (scaling.kind == rope_scaling_kind::yarn) {
                const float share = kept.share(j);
                out.inv_freq[j] =
                    simd::rounded(1.0f / (factor * power) * (1.0f - share)) + simd::rounded(out.inv_freq[j] * share);
            }
        }
        return out;
    }

    /// Position component of frequency j: 0 temporal, 1 height, 2 width. Interleaved: height where j % 3 == 1 and
    /// j < 3 * sections[1], width where j % 3 == 2 and j < 3 * sections[2], else temporal.
    [[nodiscard]] std::size_t component(std::size_t j) const noexcept {
        const auto section = [&](std::size_t c) { return sections[c] > 0 ? static_cast<std::size_t>(sections[c]) : 0; };
        if (interleaved) {
            const std::size_t c = j % 3;
            return c != 0 && j < 3 * section(c) ? c : 0;
        }
        if (j < section(0)) return 0;
        if (j < section(0) + section(1)) return 1;
        return j < section(0) + section(1) + section(2) ? 2 : 0;
    }

private:
    /// yarn: which frequencies are kept. All before `low`, none from `high` on.
    struct ramp {
        double low = 0, high = 1;

        [[nodiscard]] static ramp of(const rope_scaling& scaling, double theta, std::size_t rotary_dim) noexcept {
            // The frequency, as a real index, that turns this often within the original context.
            const auto index = [&](double turns) {
                return static_cast<double>(rotary_dim) * std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) /
                       (2 * std::log(theta));
            };
            ramp out{index(scaling.beta_fast), index(scaling.beta_slow)};
            if (scaling.whole_ends) out = {std::floor(out.low), std::ceil(out.high)};
            out = {(std::max)(out.low, 0.0), (std::min)(out.high, static_cast<double>(rotary_dim) - 1)};
            if (out.low == out.high) out.high += 0.001;  // as the references do: a step
            return out;
        }
        /// Of frequency j, how much is kept: 1 to 0.
        [[nodiscard]] float share(std::size_t j) const noexcept {
            const float along = (static_cast<float>(j) - static_cast<float>(low)) / static_cast<float>(high - low);
            return 1.0f - std::clamp(along, 0.0f, 1.0f);
        }
    };
};

namespace detail {
/// The features of `heads` heads lie x.cols() / heads apart.
[[nodiscard]] inline status check_rope(const rope_table& table, std::size_t rows, matrix_view<float> x, std::size_t heads,
                                       std::size_t head_dim) {
    if (table.rotary_dim % 2 != 0 || table.inv_freq.size() != table.rotary_dim / 2)
        return fail(errc::invalid_argument, "rotary table of ", table.rotary_dim, " features with ", table.inv_freq.size(),
                    " frequencies");
    if (heads == 0 || x.cols() % heads != 0 || x.cols() / heads < head_dim || head_dim < table.rotary_dim || x.rows() != rows)
        return fail(errc::shape_mismatch, "rope of x [", x.rows(), ", ", x.cols(), "] as ", heads, " heads of ", head_dim,
                    " features, ", table.rotary_dim, " of them rotary, at ", rows, " positions");
    return {};
}
}  // namespace detail

/// Cosines and sines of every angle of a batch, for as many tensors as share its positions: out[r] holds rotary_dim / 2
/// cosines, then as many sines. The angle is the f32 product of the f32 position and the f32 frequency, as in the
/// reference; at positions beyond some thousands an exacter angle would differ visibly. Both are scaled by the table's magnitude.
/// out: [positions, rotary_dim].
/// Errors: shape_mismatch, invalid_argument.
template <device::cpu_target Device>
[[nodiscard]] status rope_angles(Device& dev, const rope_table& table, std::span<const rope_position> positions,
                                 matrix_view<float> out) {
    FRUGAL_TRY(detail::check_rope(table, positions.size(), out, 1, out.cols()));
    const std::size_t half = table.rotary_dim / 2;
    dev.run_ranges(positions.size(), device::grain(64 * table.rotary_dim), [&](std::size_t begin, std::size_t end) {
        for (std::size_t r = begin; r < end; ++r) {
            const rope_position& at = positions[r];
            const float components[3] = {static_cast<float>(at.temporal), static_cast<float>(at.height),
                                         static_cast<float>(at.width)};
            float* row = out.row(r);
            for (std::size_t j = 0; j < half; ++j) {
                const float angle = components[table.component(j)] * table.inv_freq[j];
                row[j] = table.magnitude * ::cosf(angle);
                row[half + j] = table.magnitude * ::sinf(angle);
            }
        }
    });
    return {};
}

/// Rotates the leading rotary_dim features of every head in place: feature j pairs with feature j + rotary_dim / 2.
/// angles: [rows, rotary_dim] from rope_angles. x: [rows, heads * stride] with stride >= head_dim: head h begins at feature
/// h * (x.cols() / heads), so heads with something between them (a gate) need no copy. Errors: shape_mismatch.
template <device::cpu_target Device>
[[nodiscard]] status apply_rope(Device& dev, const rope_table& table, matrix_view<const float> angles, std::size_t heads,
                                std::size_t head_dim, matrix_view<float> x) {
    FRUGAL_TRY(detail::check_rope(table, angles.rows(), x, heads, head_dim));
    if (angles.cols() != table.rotary_dim)
        return fail(errc::shape_mismatch, "rope of ", table.rotary_dim, " features with ", angles.cols(), " cosines and sines");
    dev.run_ranges(x.rows(), device::grain(2 * heads * table.rotary_dim), [&](std::size_t begin, std::size_t end) {
        ops::cpu::rotate_rows<typename Device::isa>(angles, x, heads, x.cols() / heads, begin, end);
    });
    return {};
}

/// The same, with the angles of `positions` made on the way in `scratch`. Errors: as above, out_of_memory.
template <device::cpu_target Device>
[[nodiscard]] status apply_rope(Device& dev, workspace& scratch, const rope_table& table,
                                std::span<const rope_position> positions, std::size_t heads, std::size_t head_dim,
                                matrix_view<float> x) {
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(auto angles, scratch.matrix(positions.size(), table.rotary_dim));
    FRUGAL_TRY(rope_angles(dev, table, positions, angles));
    return apply_rope(dev, table, matrix_view<const float>(angles), heads, head_dim, x);
}

}  // namespace ops

FRUGAL_NAMESPACE_END
