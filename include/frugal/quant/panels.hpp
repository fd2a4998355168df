#pragma once
/// Weights repacked for the CPU, in the layouts of quant/panel/: what a kernel reads is one stream of memory, in the order in
/// which it multiplies.
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/quant/panel/scalars.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/buffer.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// Bytes of one panel of a format's layout, for rows of `cols` weights.
template <format Format>
[[nodiscard]] constexpr std::size_t panel_bytes(std::size_t cols) noexcept {
    using layout = panel_of<Format>;
    return (cols + layout::columns - 1) / layout::columns * layout::bytes;
}

/// One matrix as panels of 16 rows, one after the other; rows that the last one lacks are zeros. Not owned.
struct panel_view {
    type_id type{};
    const std::byte* data = nullptr;
    std::size_t rows = 0, cols = 0, panel_bytes = 0;

    [[nodiscard]] std::size_t panels() const noexcept { return (rows + panel_rows - 1) / panel_rows; }
    [[nodiscard]] std::size_t bytes() const noexcept { return panels() * panel_bytes; }
    [[nodiscard]] const std::byte* panel(std::size_t p) const noexcept { return data + p * panel_bytes; }
};

/// Fills the zeroed memory of a panel from rows 16 * panel … of w.
template <format Format>
FRUGAL_ALWAYS_INLINE void pack_panel(const weight_view& w, std::size_t panel, std::byte* out) noexcept {
    const std::byte* rows[panel_rows];
    for (std::size_t r = 0; r < panel_rows; ++r) {
        const std::size_t row = panel * panel_rows + r;
        rows[r] = row < w.rows ? w.row(row) : nullptr;
    }
    panel_of<Format>::template pack<Format>(rows, w.cols, out);
}

/// Owns one or more matrices as panels. Move-only.
class panel_weights {
public:
    /// Repacks matrices, which may differ in format. Errors: those of check_weight_view; out_of_memory.
    template <format_list Formats>
    [[nodiscard]] static result<panel_weights> pack(std::span<const weight_view> parts) {
        panel_weights out;
        std::size_t bytes = 0;
        for (const weight_view& w : parts) {
            FRUGAL_TRY(check_weight_view<Formats>(w));
            panel_view made{w.type, nullptr, w.rows, w.cols, 0};
            FRUGAL_TRY(
                visit<Formats>(w.type, [&]<class Format>(type_tag<Format>) { made.panel_bytes = panel_bytes<Format>(w.cols); }));
            if (w.cols > (std::numeric_limits<std::size_t>::max)() / 2 / panel_codes ||
                (made.panel_bytes != 0 &&
                 made.panels() > ((std::numeric_limits<std::size_t>::max)() / 2 - bytes) / made.panel_bytes))
                return fail(errc::out_of_memory, "weights [", w.rows, ", ", w.cols, "] are beyond the address space");
            bytes += made.bytes();
            out.parts_.push_back(made);
        }
        FRUGAL_TRY_ASSIGN(out.memory_, buffer<std::byte>::allocate(bytes));
        std::byte* to = out.memory_.data();
        for (std::size_t i = 0; i < parts.size(); ++i) {
            panel_view& made = out.parts_[i];
            made.data = to;
            FRUGAL_TRY(visit<Formats>(made.type, [&]<class Format>(type_tag<Format>) {
                for (std::size_t p = 0; p < made.panels(); ++p) pack_panel<Format>(parts[i], p, to + p * made.panel_bytes);
            }));
            to += made.bytes();
        }
        return out;
    }

    [[nodiscard]] std::span<const panel_view> parts() const noexcept { return parts_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return memory_.size(); }

private:
    buffer<std::byte> memory_;
    std::vector<panel_view> parts_;
};

}  // namespace quant

FRUGAL_NAMESPACE_END
