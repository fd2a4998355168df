#pragma once
/// Panels of integer codes with scales: for every format whose blocks are small integers.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "frugal/core/config.hpp"
#include "frugal/quant/panel/codes.hpp"
#include "frugal/quant/panel/layout.hpp"
#include "frugal/quant/panel/scales.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// A panel block is the header of its scales, then for each group of 32 columns the group's scales and its codes.
template <class Codes, class Scales, bool Signed, int Most, int Offset>
struct coded_panel {
    using kind = code_kind<Signed, Most, Offset, Scales::run>;
    static constexpr bool has_offsets = Scales::has_offsets;
    static constexpr std::size_t columns = Scales::columns, groups = columns / panel_group;
    static constexpr std::size_t group_bytes = Scales::group_bytes + Codes::bytes;
    static constexpr std::size_t bytes = Scales::header_bytes + groups * group_bytes;

    template <class Format>
    FRUGAL_ALWAYS_INLINE static void pack(const std::byte* const (&rows)[panel_rows], std::size_t cols, std::byte* out) noexcept {
        static_assert(Format::block_size == columns, "frugal: a panel's layout covers one block of its format");
        for (std::size_t b = 0; b < cols / columns; ++b, out += bytes) {
            std::uint8_t codes[groups][panel_codes] = {};
            for (std::size_t r = 0; r < panel_rows; ++r) {
                if (rows[r] == nullptr) continue;
                const auto fields = Format::fields(rows[r] + b * Format::block_bytes);
                for (std::size_t g = 0; g < groups; ++g) {
                    Scales::store(out, group(out, g), r, fields, g);
                    for (std::size_t k = 0; k < panel_group; k += 4)
                        std::memcpy(codes[g] + code_index(r, k), fields.codes + g * panel_group + k, 4);
                }
            }
            for (std::size_t g = 0; g < groups; ++g) Codes::pack(codes[g], group(out, g) + Scales::group_bytes);
        }
    }

    /// The codes of group g in the order of code_index: in `room` (panel_codes bytes), or where they lie.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static const std::uint8_t* codes(const std::byte* block, std::size_t g,
                                                                        std::uint8_t* room) noexcept {
        return Codes::unpack(block + Scales::header_bytes + g * group_bytes + Scales::group_bytes, room);
    }
    FRUGAL_ALWAYS_INLINE static void scales(const std::byte* block, std::size_t g, group_scales& out) noexcept {
        Scales::load(block, block + Scales::header_bytes + g * group_bytes, out);
    }

private:
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static std::byte* group(std::byte* block, std::size_t g) noexcept {
        return block + Scales::header_bytes + g * group_bytes;
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
