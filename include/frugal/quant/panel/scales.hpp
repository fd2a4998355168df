#pragma once
/// How the scales of a panel are stored, and what they are as floats. A type of scales has
/// - `columns`: of a panel block; `run`: columns that share a scale; `has_offsets`: whether w = scale * level + offset;
/// - `header_bytes` at the start of a panel block, `group_bytes` before the codes of each group;
/// - `store(header, group, row, fields, g)`: group g of one row; `load`: the floats of a group's 16 rows.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "frugal/core/config.hpp"
#include "frugal/quant/block.hpp"
#include "frugal/quant/panel/layout.hpp"
#include "frugal/quant/vectors.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

namespace detail {

FRUGAL_ALWAYS_INLINE void put_u16(std::byte* to, std::size_t i, std::uint16_t bits) noexcept {
    std::memcpy(to + 2 * i, &bits, sizeof(bits));
}

}  // namespace detail

/// The scales of one group as kernels take them: [run of columns][row]; offsets [row].
struct group_scales {
    float scales[2][panel_rows];
    float offsets[panel_rows];
};

/// A half for 32 columns.
struct half_scales {
    static constexpr std::size_t columns = 32, run = 32, header_bytes = 0, group_bytes = 2 * panel_rows;
    static constexpr bool has_offsets = false;
    template <class Fields>
    FRUGAL_ALWAYS_INLINE static void store(std::byte*, std::byte* group, std::size_t row, const Fields& f, std::size_t) noexcept {
        detail::put_u16(group, row, f.scale);
    }
    FRUGAL_ALWAYS_INLINE static void load(const std::byte*, const std::byte* group, group_scales& out) noexcept {
        detail::load_halves(group, out.scales[0]);
    }
};

/// A half and an offset for 32 columns.
struct half_scales_and_offsets {
    static constexpr std::size_t columns = 32, run = 32, header_bytes = 0, group_bytes = 4 * panel_rows;
    static constexpr bool has_offsets = true;
    template <class Fields>
    FRUGAL_ALWAYS_INLINE static void store(std::byte*, std::byte* group, std::size_t row, const Fields& f, std::size_t) noexcept {
        detail::put_u16(group, row, f.scale);
        detail::put_u16(group, panel_rows + row, f.offset_scale);
    }
    FRUGAL_ALWAYS_INLINE static void load(const std::byte*, const std::byte* group, group_scales& out) noexcept {
        detail::load_halves(group, out.scales[0]);
        detail::load_halves(group + 2 * panel_rows, out.offsets);
    }
};

/// A half for 256 columns times a signed byte for each run of `Run`.
template <std::size_t Run>
struct byte_scales {
    static constexpr std::size_t columns = 256, run = Run, header_bytes = 2 * panel_rows;
    static constexpr std::size_t group_bytes = panel_rows * (panel_group / Run);
    static constexpr bool has_offsets = false;
    template <class Fields>
    FRUGAL_ALWAYS_INLINE static void store(std::byte* header, std::byte* group, std::size_t row, const Fields& f,
                                           std::size_t g) noexcept {
        detail::put_u16(header, row, f.scale);
        for (std::size_t i = 0; i < panel_group / Run; ++i)
            group[i * panel_rows + row] = static_cast<std::byte>(f.run_scales[g * (panel_group / Run) + i]);
    }
    FRUGAL_ALWAYS_INLINE static void load(const std::byte* header, const std::byte* group, group_scales& out) noexcept {
        float factors[panel_rows];
        detail::load_halves(header, factors);
        for (std::size_t i = 0; i < panel_group / Run; ++i)
            detail::multiply_bytes<std::int8_t>(factors, group + i * panel_rows, out.scales[i]);
    }
};

/// Two halves for 256 columns: one times a byte for each 32 is the scale, minus the other times a byte the offset.
struct byte_scales_and_minima {
    static constexpr std::size_t columns = 256, run = 32, header_bytes = 4 * panel_rows, group_bytes = 2 * panel_rows;
    static constexpr bool has_offsets = true;
    template <class Fields>
    FRUGAL_ALWAYS_INLINE static void store(std::byte* header, std::byte* group, std::size_t row, const Fields& f,
                                           std::size_t g) noexcept {
        detail::put_u16(header, row, f.scale);
        detail::put_u16(header, panel_rows + row, static_cast<std::uint16_t>(f.offset_scale ^ 0x8000u));
        group[row] = static_cast<std::byte>(f.run_scales[g]);
        group[panel_rows + row] = static_cast<std::byte>(f.run_offsets[g]);
    }
    FRUGAL_ALWAYS_INLINE static void load(const std::byte* header, const std::byte* group, group_scales& out) noexcept {
        float factors[panel_rows];
        detail::load_halves(header, factors);
        detail::multiply_bytes<std::uint8_t>(factors, group, out.scales[0]);
        detail::load_halves(header + 2 * panel_rows, factors);
        detail::multiply_bytes<std::uint8_t>(factors, group + panel_rows, out.offsets);
    }
};

/// A power of two for 32 columns: the byte that stands for 2^(byte - 128), as MXFP4's doubled levels want it.
struct power_scales {
    static constexpr std::size_t columns = 32, run = 32, header_bytes = 0, group_bytes = panel_rows;
    static constexpr bool has_offsets = false;
    template <class Fields>
    FRUGAL_ALWAYS_INLINE static void store(std::byte*, std::byte* group, std::size_t row, const Fields& f, std::size_t) noexcept {
        group[row] = static_cast<std::byte>(f.scale);
    }
    FRUGAL_ALWAYS_INLINE static void load(const std::byte*, const std::byte* group, group_scales& out) noexcept {
        detail::load_powers(group, out.scales[0]);
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
