#pragma once
/// What all layers of a forward pass share, made once for it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/attention/batch.hpp"
#include "frugal/core/error.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// The tokens of a pass on a CPU. Refers to its arguments.
struct FRUGAL_FLAGGED step {
    batch tokens;                       ///< whose they are, and where they stand
    matrix_view<const float> angles;    ///< [rows, rotary_dim], of ops::rope_angles; empty where no layer rotates
    std::span<const std::int32_t> ids;  ///< [rows]; empty where no layer looks at them

    [[nodiscard]] std::size_t rows() const noexcept { return tokens.rows(); }
};

/// The same for a layer whose kind shares something of its own (`Layer::shared_inputs`).
template <class Shared>
struct FRUGAL_FLAGGED shared_step : step {
    const Shared& shared;
};

/// Rows of padding become 0. Stored, not multiplied by 0: what a padding row brought may be NaN.
[[nodiscard]] FRUGAL_FLAGGED inline status clear_padding(const step& of, matrix_view<float> y) noexcept {
    for (const segment& part : of.tokens.segments)
        if (part.sequence == sequence_id::padding)
            for (std::size_t r = 0; r < part.count; ++r) std::fill_n(y.row(part.first + r), y.cols(), 0.0f);
    return {};
}

}  // namespace attention

FRUGAL_NAMESPACE_END
