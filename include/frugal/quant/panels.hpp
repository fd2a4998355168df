#pragma once
/// Weights repacked for the CPU, in the layouts of quant/panel/: what a kernel reads is one stream of memory, in the order in
/// which it multiplies.
#include <algorithm>
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
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t panel_bytes(std::size_t cols) noexcept {
    using layout = panel_of<Format>;
    return (cols + layout::columns - 1) / layout::columns * layout::bytes;
}

/// One matrix as panels of 16 rows, one after the other; rows that the last one lacks are zeros. Not owned.
struct panel_view {
    type_id type{};
    const std::byte* data = nullptr;
    std::size_t rows = 0, cols = 0, panel_bytes = 0;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE std::size_t panels() const noexcept { return (rows + panel_rows - 1) / panel_rows; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE std::size_t bytes() const noexcept { return panels() * panel_bytes; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE const std::byte* panel(std::size_t p) const noexcept { return data + p * panel_bytes; }
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

/// Packs panels first <= p < last of a matrix, one after the other from `out` on, which holds zeros.
using panel_packer = void (*)(const weight_view& w, std::size_t first, std::size_t last, std::byte* out) noexcept;

/// Packs with what the including file is compiled for. On the CPU device::pack_panels is faster.
struct FRUGAL_FLAGGED plain_packing {
    template <format Format>
    static void pack(const weight_view& w, std::size_t first, std::size_t last, std::byte* out) noexcept {
        for (; first < last; ++first, out += panel_bytes<Format>(w.cols)) pack_panel<Format>(w, first, out);
    }
};

/// Packs on the calling thread: see panel_weights::pack.
struct FRUGAL_FLAGGED one_range {
    template <class F>
    void operator()(std::size_t n, std::size_t, F&& f) const {
        if (n != 0) f(std::size_t{0}, n);
    }
};

/// Owns one or more matrices as panels. Move-only.
class FRUGAL_FLAGGED panel_weights {
public:
    /// Repacks matrices, which may differ in format. `run_ranges(n, grain, f)` calls f(begin, end) for ranges of at least
    /// `grain` that make up 0 … n-1, on any threads, as device::cpu::run_ranges does; the result does not depend on it.
    /// Packing::pack<Format> is a panel_packer. Errors: those of check_weight_view; out_of_memory.
    template <format_list Formats, class Packing = plain_packing, class RunRanges = one_range>
    [[nodiscard]] static result<panel_weights> pack(std::span<const weight_view> parts, RunRanges&& run_ranges = {}) {
        panel_weights out;
        std::vector<panel_packer> packers;
        std::size_t bytes = 0, panels = 0;
        for (const weight_view& w : parts) {
            FRUGAL_TRY(check_weight_view<Formats>(w));
            panel_view made{w.type, nullptr, w.rows, w.cols, 0};
            FRUGAL_TRY(visit<Formats>(w.type, [&]<class Format>(type_tag<Format>) {
                made.panel_bytes = panel_bytes<Format>(w.cols);
                packers.push_back(&Packing::template pack<Format>);
            }));
            if (w.cols > (std::numeric_limits<std::size_t>::max)() / 2 / panel_codes ||
                (made.panel_bytes != 0 &&
                 made.panels() > ((std::numeric_limits<std::size_t>::max)() / 2 - bytes) / made.panel_bytes))
                return fail(errc::out_of_memory, "weights [", w.rows, ", ", w.cols, "] are beyond the address space");
            bytes += made.bytes();
            panels += made.panels();
            out.parts_.push_back(made);
        }
        FRUGAL_TRY_ASSIGN(out.memory_, buffer<std::byte>::allocate(bytes));
        std::byte* const memory = out.memory_.data();
        const std::byte* data = memory;
        for (panel_view& made : out.parts_) {
            made.data = data;
            data += made.bytes();
        }
        constexpr std::size_t least_bytes = std::size_t{1} << 16;  // worth a thread
        const std::size_t grain = std::max<std::size_t>(bytes == 0 ? 1 : least_bytes * panels / bytes, 1);
        run_ranges(panels, grain, [&](std::size_t begin, std::size_t end) {
            std::size_t first = 0;  // of this part's panels
            for (std::size_t i = 0; i < parts.size(); ++i) {
                const panel_view& made = out.parts_[i];
                const std::size_t from = (std::max)(begin, first), to = (std::min)(end, first + made.panels());
                if (from < to) packers[i](parts[i], from - first, to - first, memory + (made.panel(from - first) - memory));
                first += made.panels();
            }
        });
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
