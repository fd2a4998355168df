#pragma once
/// The skeletons of products: some groups of columns of one panel times a few rows of activations. A format appears here only
/// through its kind of codes, so formats that are alike share the machine code.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/device/cpu/simd_integer.hpp"
#include "frugal/ops/matmul/activations_cpu.hpp"
#include "frugal/quant/panel/scales.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu::detail {

/// Unpacked groups of a panel: 4 KiB of codes.
struct code_groups {
    static constexpr std::size_t most = 8;
    const std::uint8_t* codes[most];
    quant::group_scales scales[most];
    alignas(64) std::uint8_t room[most][quant::panel_codes];
};

/// Groups of a panel as floats [column][row]: 8 KiB.
struct float_groups {
    static constexpr std::size_t most = 4;
    alignas(64) float values[most][quant::panel_group][quant::panel_rows];
};

/// Where a few rows of activations have their codes of the groups to come.
template <std::size_t Tokens>
struct code_rows {
    const std::int8_t* codes[Tokens];
    const float* scales[Tokens];
    const std::int16_t* sums[Tokens];

    FRUGAL_ALWAYS_INLINE code_rows(const prepared_activations& x, std::size_t row, std::size_t first) noexcept {
        for (std::size_t t = 0; t < Tokens; ++t) {
            const std::size_t at = (row + t) * x.groups + first;
            codes[t] = x.codes + at * quant::panel_group;
            scales[t] = x.scales + at;
            sums[t] = x.code_sums + 2 * at;
        }
    }
};

/// total[t] += what the integers `dots`, of one run of a group, stand for.
template <class Isa>
FRUGAL_ALWAYS_INLINE void add_scaled_dots(const simd::ints<Isa> (&dots)[quant::panel_rows / simd::width<Isa>], std::int32_t shift,
                                          const float* scales, simd::vec<Isa> scale,
                                          simd::vec<Isa> (&total)[quant::panel_rows / simd::width<Isa>]) noexcept {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    simd::detail::unrolled<registers>([&](auto v) __attribute__((always_inline)) {
        total[v] = simd::multiply_add<Isa>(__builtin_convertvector(dots[v] - shift, simd::vec<Isa>),
                                           simd::load<Isa>(scales + v * width) * scale, total[v]);
    });
}

/// The sum of a row's codes in a run of a group: run 0 or 1 of two, or all of it.
template <class Kind>
[[nodiscard]] FRUGAL_ALWAYS_INLINE std::int32_t sum_of_run(const std::int16_t* sums, std::size_t run) noexcept {
    return quant::panel_group / Kind::run == 2 ? sums[run] : sums[0] + sums[1];
}

/// total += a group's offsets times the sum of a row's activations there.
template <class Isa>
FRUGAL_ALWAYS_INLINE void add_offsets(const float* offsets, const std::int16_t* sums, float scale,
                                      simd::vec<Isa> (&total)[quant::panel_rows / simd::width<Isa>]) noexcept {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    const simd::vec<Isa> of_x = simd::broadcast<Isa>(scale * static_cast<float>(sums[0] + sums[1]));
    simd::detail::unrolled<registers>([&](auto v) __attribute__((always_inline)) {
        total[v] = simd::multiply_add<Isa>(simd::load<Isa>(offsets + v * width), of_x, total[v]);
    });
}

/// total[t] += the product of one group of a panel with group g of the rows x, in integers.
template <class Isa, class Kind, bool HasOffsets, std::size_t Tokens>
FRUGAL_ALWAYS_INLINE void add_code_group(const std::uint8_t* codes, const quant::group_scales& scales, const code_rows<Tokens>& x,
                                         std::size_t g,
                                         simd::vec<Isa> (&total)[Tokens][quant::panel_rows / simd::width<Isa>]) noexcept {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    constexpr std::int32_t bias = Kind::offset + simd::code_bias<Isa, Kind::is_signed>;
    constexpr std::size_t runs = quant::panel_group / Kind::run;
    using simd::detail::unrolled;  // loops over registers, which must not become loops over memory
    for (std::size_t run = 0; run < runs; ++run) {
        const std::int8_t* from[Tokens];
        unrolled<Tokens>([&](auto t)
                             __attribute__((always_inline)) { from[t] = x.codes[t] + g * quant::panel_group + run * Kind::run; });
        simd::ints<Isa> dots[Tokens][registers];
        simd::quad_dots<Isa, Kind::is_signed, Kind::most, Kind::run / 4>(codes + run * Kind::run * quant::panel_rows, from, dots);
        unrolled<Tokens>([&](auto t) __attribute__((always_inline)) {
            add_scaled_dots<Isa>(dots[t], bias == 0 ? 0 : bias * sum_of_run<Kind>(x.sums[t] + 2 * g, run), scales.scales[run],
                                 simd::broadcast<Isa>(x.scales[t][g]), total[t]);
        });
    }
    if constexpr (HasOffsets)
        unrolled<Tokens>([&](auto t) __attribute__((always_inline)) {
            add_offsets<Isa>(scales.offsets, x.sums[t] + 2 * g, x.scales[t][g], total[t]);
        });
}

/// sums[t][r] += the product of `count` groups from `first` on with rows `row` … `row` + Tokens - 1 of x, in integers.
template <class Isa, class Kind, bool HasOffsets, std::size_t Tokens>
FRUGAL_KERNEL void code_tile(const code_groups& w, std::size_t count, const prepared_activations& x, std::size_t row,
                             std::size_t first, float* sums) {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    const code_rows<Tokens> rows(x, row, first);
    simd::vec<Isa> total[Tokens][registers];
    for (std::size_t t = 0; t < Tokens; ++t)
        for (std::size_t v = 0; v < registers; ++v) total[t][v] = simd::load<Isa>(sums + t * quant::panel_rows + v * width);
    for (std::size_t g = 0; g < count; ++g)
        add_code_group<Isa, Kind, HasOffsets, Tokens>(w.codes[g], w.scales[g], rows, g, total);
    for (std::size_t t = 0; t < Tokens; ++t)
        for (std::size_t v = 0; v < registers; ++v) simd::store<Isa>(sums + t * quant::panel_rows + v * width, total[t][v]);
}

/// code_tile for 16 rows of x, by a unit that gives 16 x 16 dot products at once (device/cpu/amx.hpp): the same bits.
template <class Isa, class Kind, bool HasOffsets, class Tiles>
FRUGAL_KERNEL void code_block(const Tiles& tiles, const code_groups& w, std::size_t count, const prepared_activations& x,
                              std::size_t row, std::size_t first, float* sums) {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width, rows = 16;
    const std::size_t stride = x.groups * quant::panel_group;
    const std::int8_t* const codes = x.codes + row * stride + first * quant::panel_group;
    const float* const scales = x.scales + row * x.groups + first;
    const std::int16_t* const code_sums = x.code_sums + 2 * (row * x.groups + first);
    simd::vec<Isa> total[rows][registers];
    for (std::size_t t = 0; t < rows; ++t)
        for (std::size_t v = 0; v < registers; ++v) total[t][v] = simd::load<Isa>(sums + t * quant::panel_rows + v * width);
    for (std::size_t g = 0; g < count; ++g) {
        for (std::size_t run = 0; run < quant::panel_group / Kind::run; ++run) {
            alignas(64) std::int32_t dots[rows][quant::panel_rows];
            const std::size_t column = run * Kind::run;
            tiles.template dots<Kind::is_signed, Kind::run / 4>(w.codes[g] + column * quant::panel_rows,
                                                                codes + g * quant::panel_group + column, stride, dots);
            for (std::size_t t = 0; t < rows; ++t) {
                simd::ints<Isa> of_row[registers];
                std::memcpy(of_row, dots[t], sizeof(of_row));
                const std::int32_t shift =
                    Kind::offset == 0 ? 0 : Kind::offset * sum_of_run<Kind>(code_sums + 2 * (t * x.groups + g), run);
                add_scaled_dots<Isa>(of_row, shift, w.scales[g].scales[run], simd::broadcast<Isa>(scales[t * x.groups + g]),
                                     total[t]);
            }
        }
        if constexpr (HasOffsets)
            for (std::size_t t = 0; t < rows; ++t)
                add_offsets<Isa>(w.scales[g].offsets, code_sums + 2 * (t * x.groups + g), scales[t * x.groups + g], total[t]);
    }
    for (std::size_t t = 0; t < rows; ++t)
        for (std::size_t v = 0; v < registers; ++v) simd::store<Isa>(sums + t * quant::panel_rows + v * width, total[t][v]);
}

/// total[t] += the product of one group of a panel with rows of activations in f32; x[t]: where row t has the group's columns.
template <class Isa, std::size_t Tokens>
FRUGAL_ALWAYS_INLINE void add_float_group(const float (&w)[quant::panel_group][quant::panel_rows],
                                          const float* const (&x)[Tokens],
                                          simd::vec<Isa> (&total)[Tokens][quant::panel_rows / simd::width<Isa>]) noexcept {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    using simd::detail::unrolled;  // loops over registers, which must not become loops over memory
    constexpr std::size_t sums = Tokens * registers, step = 4;
    simd::vec<Isa> dots[Tokens][registers];
    unrolled<sums>([&](auto i) __attribute__((always_inline)) { dots[i / registers][i % registers] = simd::vec<Isa>{}; });
    for (std::size_t first = 0; first < quant::panel_group; first += step)
        unrolled<step>([&](auto i) __attribute__((always_inline)) {
            const std::size_t k = first + i;
            simd::vec<Isa> column[registers];
            unrolled<registers>([&](auto v) __attribute__((always_inline)) { column[v] = simd::load<Isa>(w[k] + v * width); });
            unrolled<Tokens>([&](auto t) __attribute__((always_inline)) {
                const simd::vec<Isa> value = simd::broadcast<Isa>(x[t][k]);
                unrolled<registers>([&](auto v) __attribute__((always_inline)) {
                    dots[t][v] = simd::multiply_add<Isa>(column[v], value, dots[t][v]);
                });
            });
        });
    unrolled<sums>([&](auto i) __attribute__((always_inline)) {
        total[i / registers][i % registers] += dots[i / registers][i % registers];
    });
}

/// code_tile in f32.
template <class Isa, std::size_t Tokens>
FRUGAL_KERNEL void float_tile(const float_groups& w, std::size_t count, const prepared_activations& x, std::size_t row,
                              std::size_t first, float* sums) {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    simd::vec<Isa> total[Tokens][registers];
    for (std::size_t t = 0; t < Tokens; ++t)
        for (std::size_t v = 0; v < registers; ++v) total[t][v] = simd::load<Isa>(sums + t * quant::panel_rows + v * width);
    for (std::size_t g = 0; g < count; ++g) {
        const float* values[Tokens];
        for (std::size_t t = 0; t < Tokens; ++t) {
            values[t] = x.values + (row + t) * x.stride + (first + g) * quant::panel_group;
            // The rows of the next tile: many rows of few columns each are no stream that a processor would fetch by itself.
            const float* const next = values[t] + Tokens * x.stride;
            for (std::size_t k = 0; k < quant::panel_group; k += 16) __builtin_prefetch(next + k);
        }
        add_float_group<Isa, Tokens>(w.values[g], values, total);
    }
    for (std::size_t t = 0; t < Tokens; ++t)
        for (std::size_t v = 0; v < registers; ++v) simd::store<Isa>(sums + t * quant::panel_rows + v * width, total[t][v]);
}

/// Calls tile(constant<n>, row) so that the tiles cover rows 0 … rows - 1: as many of Most rows as fit, then fewer.
template <std::size_t Most, class Tile>
FRUGAL_ALWAYS_INLINE void for_each_tile(std::size_t rows, Tile&& tile) {
    std::size_t row = 0;
    for (; row + Most <= rows; row += Most) tile(std::integral_constant<std::size_t, Most>{}, row);
    if constexpr (Most > 2)
        for (; row + 2 <= rows; row += 2) tile(std::integral_constant<std::size_t, 2>{}, row);
    for (; row < rows; ++row) tile(std::integral_constant<std::size_t, 1>{}, row);
}

}  // namespace ops::cpu::detail

FRUGAL_NAMESPACE_END
