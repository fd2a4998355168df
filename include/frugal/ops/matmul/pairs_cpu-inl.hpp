#pragma once
/// The skeletons of products with activations in bfloat16: weights as pairs of columns, in the layout of
/// quant::scalar_panel<bfloat16>, which is that of AMX. Codes of weights become such pairs first; the scales come afterwards.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/device/cpu/simd_integer.hpp"
#include "frugal/ops/matmul/activations_cpu.hpp"
#include "frugal/ops/matmul/tiles_cpu-inl.hpp"
#include "frugal/quant/panel/scalars.hpp"
#include "frugal/quant/panel/scales.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu::detail {

inline constexpr std::size_t pair_bytes = quant::scalar_panel<bfloat16>::bytes;  ///< a group of a panel

/// Groups of a panel as pairs of columns: 8 KiB.
struct pair_groups {
    static constexpr std::size_t most = 8;
    const std::byte* pairs[most];
    quant::group_scales scales[most];
    alignas(64) std::byte room[most][pair_bytes];
};

/// A register of pairs of bfloat16.
template <class Isa>
struct pair_register {
    typedef std::uint32_t type __attribute__((vector_size(Isa::vector_bytes)));
};
template <class Isa>
using pair_words = typename pair_register<Isa>::type;

template <class Isa>
FRUGAL_ALWAYS_INLINE pair_words<Isa> load_pairs(const void* from) noexcept {
    pair_words<Isa> out;
    std::memcpy(&out, from, sizeof(out));
    return out;
}

/// The even columns of pairs (Odd: the odd ones) in f32.
template <class Isa, bool Odd>
FRUGAL_ALWAYS_INLINE simd::vec<Isa> columns_of(const pair_words<Isa>& pairs) noexcept {
    const pair_words<Isa> bits = Odd ? pairs & 0xFFFF0000u : pairs << 16;
    return reinterpret_cast<simd::vec<Isa>>(bits);
}

/// Codes less their offset, as pairs of columns. They have at most 8 bits, so bfloat16 holds them exactly.
template <class Isa, class Kind>
FRUGAL_ALWAYS_INLINE void pair_codes(const std::uint8_t* codes, std::byte (&out)[pair_bytes]) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    for (std::size_t k = 0; k < quant::panel_group; k += 4)
        for (std::size_t r = 0; r < quant::panel_rows; r += width) {
            simd::ints<Isa> quads;
            std::memcpy(&quads, codes + quant::code_index(r, k), sizeof(quads));
            pair_words<Isa> bits[4];
            for (int i = 0; i < 4; ++i) {
                simd::ints<Isa> level;
                if constexpr (Kind::is_signed)
                    level = (quads << (24 - 8 * i)) >> 24;
                else
                    level = ((quads >> (8 * i)) & 0xFF) - Kind::offset;
                bits[i] = reinterpret_cast<pair_words<Isa>>(__builtin_convertvector(level, simd::vec<Isa>));
            }
            for (std::size_t i = 0; i < 2; ++i) {
                const pair_words<Isa> pair = (bits[2 * i] >> 16) | bits[2 * i + 1];
                std::memcpy(out + ((k / 2 + i) * quant::panel_rows + r) * sizeof(std::uint32_t), &pair, sizeof(pair));
            }
        }
}

/// The columns of a group of some rows of activations in f32: first the even ones, then the odd ones.
template <std::size_t Tokens>
struct split_rows {
    static constexpr std::size_t pairs = quant::panel_group / 2;
    alignas(64) float columns[Tokens][2][pairs];

    template <class Isa>
    FRUGAL_ALWAYS_INLINE void load(const prepared_activations& x, std::size_t row, std::size_t group) noexcept {
        for (std::size_t t = 0; t < Tokens; ++t) {
            const bfloat16* const from = x.rounded + ((row + t) * x.groups + group) * quant::panel_group;
            for (std::size_t p = 0; p < pairs; p += simd::width<Isa>) {
                const pair_words<Isa> words = load_pairs<Isa>(from + 2 * p);
                simd::store<Isa>(columns[t][0] + p, columns_of<Isa, false>(words));
                simd::store<Isa>(columns[t][1] + p, columns_of<Isa, true>(words));
            }
        }
    }
};

/// sums[t] += the products of columns of one parity, one column after the other.
template <class Isa, bool Odd, std::size_t Pairs, std::size_t Tokens>
FRUGAL_ALWAYS_INLINE void add_columns(const std::byte* pairs, const split_rows<Tokens>& x, std::size_t first,
                                      simd::vec<Isa> (&sums)[Tokens][quant::panel_rows / simd::width<Isa>]) noexcept {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    for (std::size_t t = 0; t < Tokens; ++t)
        for (std::size_t v = 0; v < registers; ++v) sums[t][v] = simd::vec<Isa>{};
    for (std::size_t p = 0; p < Pairs; ++p) {
        simd::vec<Isa> column[registers];
        for (std::size_t v = 0; v < registers; ++v)
            column[v] =
                columns_of<Isa, Odd>(load_pairs<Isa>(pairs + (p * quant::panel_rows + v * width) * sizeof(std::uint32_t)));
        for (std::size_t t = 0; t < Tokens; ++t) {
            const simd::vec<Isa> value = simd::broadcast<Isa>(x.columns[t][Odd ? 1 : 0][first + p]);
            for (std::size_t v = 0; v < registers; ++v) sums[t][v] = simd::multiply_add<Isa>(column[v], value, sums[t][v]);
        }
    }
}

/// How a layout's pairs become weights: bfloat16 as they are, or times a scale for each `run` columns, plus an offset or not.
template <class Layout>
struct pair_scaling {
    static constexpr bool scaled = false, has_offsets = false;
    static constexpr std::size_t run = quant::panel_group;
};
template <quant::coded_layout Layout>
struct pair_scaling<Layout> {
    static constexpr bool scaled = true, has_offsets = Layout::has_offsets;
    static constexpr std::size_t run = Layout::kind::run;
};

/// total += the sums of one run of a group.
template <class Isa, bool Scaled>
FRUGAL_ALWAYS_INLINE void add_scaled_sums(const simd::vec<Isa> (&sums)[quant::panel_rows / simd::width<Isa>], const float* scales,
                                          simd::vec<Isa> (&total)[quant::panel_rows / simd::width<Isa>]) noexcept {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    for (std::size_t v = 0; v < registers; ++v)
        if constexpr (Scaled)
            total[v] = simd::multiply_add<Isa>(sums[v], simd::load<Isa>(scales + v * width), total[v]);
        else
            total[v] += sums[v];
}

/// total += a group's offsets times the sum of a row's activations there.
template <class Isa>
FRUGAL_ALWAYS_INLINE void add_offset_sums(const float* offsets, float sum,
                                          simd::vec<Isa> (&total)[quant::panel_rows / simd::width<Isa>]) noexcept {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    for (std::size_t v = 0; v < registers; ++v)
        total[v] = simd::multiply_add<Isa>(simd::load<Isa>(offsets + v * width), simd::broadcast<Isa>(sum), total[v]);
}

/// sums[t][r] += the product of `count` groups from `first` on with rows `row` … `row` + Tokens - 1 of x.
template <class Isa, class Scaling, std::size_t Tokens>
FRUGAL_KERNEL void pair_tile(const pair_groups& w, std::size_t count, const prepared_activations& x, std::size_t row,
                             std::size_t first, float* sums) {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width, run_pairs = Scaling::run / 2;
    simd::vec<Isa> total[Tokens][registers];
    for (std::size_t t = 0; t < Tokens; ++t)
        for (std::size_t v = 0; v < registers; ++v) total[t][v] = simd::load<Isa>(sums + t * quant::panel_rows + v * width);
    for (std::size_t g = 0; g < count; ++g) {
        split_rows<Tokens> columns;
        columns.template load<Isa>(x, row, first + g);
        for (std::size_t run = 0; run < quant::panel_group / Scaling::run; ++run) {
            const std::byte* const pairs = w.pairs[g] + run * run_pairs * quant::panel_rows * sizeof(std::uint32_t);
            simd::vec<Isa> even[Tokens][registers], odd[Tokens][registers];
            add_columns<Isa, false, run_pairs>(pairs, columns, run * run_pairs, even);
            add_columns<Isa, true, run_pairs>(pairs, columns, run * run_pairs, odd);
            for (std::size_t t = 0; t < Tokens; ++t) {
                for (std::size_t v = 0; v < registers; ++v) even[t][v] += odd[t][v];
                add_scaled_sums<Isa, Scaling::scaled>(even[t], w.scales[g].scales[run], total[t]);
            }
        }
        if constexpr (Scaling::has_offsets)
            for (std::size_t t = 0; t < Tokens; ++t)
                add_offset_sums<Isa>(w.scales[g].offsets, x.sums[(row + t) * x.groups + first + g], total[t]);
    }
    for (std::size_t t = 0; t < Tokens; ++t)
        for (std::size_t v = 0; v < registers; ++v) simd::store<Isa>(sums + t * quant::panel_rows + v * width, total[t][v]);
}

/// pair_tile for 16 rows of x, by a unit that gives 16 x 16 sums at once (device/cpu/amx.hpp): the same bits.
template <class Isa, class Scaling, class Tiles>
FRUGAL_KERNEL void pair_block(const Tiles& tiles, const pair_groups& w, std::size_t count, const prepared_activations& x,
                              std::size_t row, std::size_t first, float* sums) {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width, rows = 16;
    constexpr std::size_t run_pairs = Scaling::run / 2;
    const std::size_t stride = x.groups * quant::panel_group;
    const bfloat16* const from = x.rounded + row * stride + first * quant::panel_group;
    if constexpr (!Scaling::scaled) {
        tiles.add_products(w.pairs, count, from, stride * sizeof(bfloat16), sums);
    } else {
        simd::vec<Isa> total[rows][registers];
        for (std::size_t t = 0; t < rows; ++t)
            for (std::size_t v = 0; v < registers; ++v) total[t][v] = simd::load<Isa>(sums + t * quant::panel_rows + v * width);
        for (std::size_t g = 0; g < count; ++g) {
            for (std::size_t run = 0; run < quant::panel_group / Scaling::run; ++run) {
                alignas(64) float products[rows][quant::panel_rows];
                tiles.template products<run_pairs>(w.pairs[g] + run * run_pairs * quant::panel_rows * sizeof(std::uint32_t),
                                                   from + g * quant::panel_group + run * Scaling::run, stride * sizeof(bfloat16),
                                                   products);
                for (std::size_t t = 0; t < rows; ++t) {
                    simd::vec<Isa> of_row[registers];
                    std::memcpy(of_row, products[t], sizeof(of_row));
                    add_scaled_sums<Isa, true>(of_row, w.scales[g].scales[run], total[t]);
                }
            }
            if constexpr (Scaling::has_offsets)
                for (std::size_t t = 0; t < rows; ++t)
                    add_offset_sums<Isa>(w.scales[g].offsets, x.sums[(row + t) * x.groups + first + g], total[t]);
        }
        for (std::size_t t = 0; t < rows; ++t)
            for (std::size_t v = 0; v < registers; ++v) simd::store<Isa>(sums + t * quant::panel_rows + v * width, total[t][v]);
    }
}

}  // namespace ops::cpu::detail

FRUGAL_NAMESPACE_END
