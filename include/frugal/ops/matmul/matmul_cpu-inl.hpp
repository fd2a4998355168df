#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "frugal/device/cpu/amx.hpp"
#include "frugal/device/cpu/flush_denormals.hpp"
#include "frugal/device/cpu/simd.hpp"
#include "frugal/device/cpu/simd_integer.hpp"
#include "frugal/ops/matmul/matmul_cpu.hpp"
#include "frugal/ops/matmul/pairs_cpu-inl.hpp"
#include "frugal/ops/matmul/tiles_cpu-inl.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// The weights that codes stand for, with the bits that the format's own decoding gives them.
template <class Isa, class Kind, bool HasOffsets>
FRUGAL_ALWAYS_INLINE void decode_codes(const std::uint8_t* codes, const quant::group_scales& scales,
                                       float (&out)[quant::panel_group][quant::panel_rows]) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    for (std::size_t k = 0; k < quant::panel_group; k += 4)
        for (std::size_t r = 0; r < quant::panel_rows; r += width) {
            simd::ints<Isa> quads;
            std::memcpy(&quads, codes + quant::code_index(r, k), sizeof(quads));
            const simd::vec<Isa> scale = simd::load<Isa>(scales.scales[k / Kind::run] + r);
            for (int i = 0; i < 4; ++i) {
                simd::ints<Isa> level;
                if constexpr (Kind::is_signed)
                    level = (quads << (24 - 8 * i)) >> 24;
                else
                    level = ((quads >> (8 * i)) & 0xFF) - Kind::offset;
                simd::vec<Isa> value = __builtin_convertvector(level, simd::vec<Isa>) * scale;
                // The product has at most 24 bits wherever there is an offset, so fusing changes nothing.
                if constexpr (HasOffsets) value += simd::load<Isa>(scales.offsets + r);
                simd::store<Isa>(out[k + static_cast<std::size_t>(i)] + r, value);
            }
        }
}

/// Asks for the memory of a group some way ahead: weights of a product with one row come from memory, and the processor's own
/// prefetching keeps too little in flight. Panels of a matrix follow one another, so what is ahead is needed next.
template <std::size_t Bytes>
FRUGAL_ALWAYS_INLINE void prefetch_ahead(const std::byte* group) noexcept {
    constexpr std::size_t distance = 4096;
    for (std::size_t at = 0; at < Bytes; at += 64) __builtin_prefetch(group + distance + at);
}

/// One panel times one row of x, in integers: codes go from their planes to the sums without a stop in memory.
template <class Isa, class Layout>
FRUGAL_ALWAYS_INLINE void multiply_codes_by_row(const std::byte* panel, const prepared_activations& x, std::size_t row,
                                                float* sums) {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    const code_rows<1> rows(x, row, 0);
    simd::vec<Isa> total[1][registers];
    simd::detail::unrolled<registers>([&](auto v) __attribute__((always_inline)) { total[0][v] = simd::vec<Isa>{}; });
    for (std::size_t first = 0; first < x.groups; first += Layout::groups, panel += Layout::bytes)
        for (std::size_t g = 0; g < Layout::groups; ++g) {
            prefetch_ahead<Layout::bytes / Layout::groups>(panel + g * (Layout::bytes / Layout::groups));
            alignas(64) std::uint8_t room[quant::panel_codes];
            quant::group_scales scales;
            const std::uint8_t* codes = Layout::codes(panel, g, room);
            Layout::scales(panel, g, scales);
            add_code_group<Isa, typename Layout::kind, Layout::has_offsets, 1>(codes, scales, rows, first + g, total);
        }
    simd::detail::unrolled<registers>([&](auto v)
                                          __attribute__((always_inline)) { simd::store<Isa>(sums + v * width, total[0][v]); });
}

/// No unit of 16 x 16 dot products.
struct no_tiles {};

/// One panel times all rows of x, in integers.
template <class Isa, class Layout, class Tiles>
FRUGAL_KERNEL FRUGAL_ALWAYS_INLINE void multiply_codes(const Tiles& tiles, const std::byte* panel, const prepared_activations& x,
                                                       std::size_t row, std::size_t rows, float* sums) {
    using kind = typename Layout::kind;
    if (rows == 1) return multiply_codes_by_row<Isa, Layout>(panel, x, row, sums);
    code_groups w;
    for (std::size_t first = 0; first < x.groups; first += code_groups::most) {
        const std::size_t left = x.groups - first, count = left < code_groups::most ? left : code_groups::most;
        for (std::size_t g = 0; g < count; ++g) {
            const std::byte* block = panel + (first + g) / Layout::groups * Layout::bytes;
            prefetch_ahead<Layout::bytes / Layout::groups>(panel + (first + g) * (Layout::bytes / Layout::groups));
            w.codes[g] = Layout::codes(block, (first + g) % Layout::groups, w.room[g]);
            Layout::scales(block, (first + g) % Layout::groups, w.scales[g]);
        }
        std::size_t done = 0;
        if constexpr (!std::is_same_v<Tiles, no_tiles>)
            for (; done + 16 <= rows; done += 16)
                code_block<Isa, kind, Layout::has_offsets>(tiles, w, count, x, row + done, first,
                                                           sums + done * quant::panel_rows);
        for_each_tile<4>(rows - done, [&](auto tokens, std::size_t t) {
            code_tile<Isa, kind, Layout::has_offsets, decltype(tokens)::value>(w, count, x, row + done + t, first,
                                                                               sums + (done + t) * quant::panel_rows);
        });
    }
}

/// The weights of a group of a panel.
template <class Isa, class Layout>
FRUGAL_ALWAYS_INLINE void decode_group(const std::byte* panel, std::size_t group,
                                       float (&values)[quant::panel_group][quant::panel_rows]) {
    constexpr std::size_t groups = Layout::columns / quant::panel_group;
    prefetch_ahead<Layout::bytes / groups>(panel + group * (Layout::bytes / groups));
    const std::byte* block = panel + group / groups * Layout::bytes;
    if constexpr (quant::coded_layout<Layout>) {
        alignas(64) std::uint8_t room[quant::panel_codes];
        quant::group_scales scales;
        const std::uint8_t* codes = Layout::codes(block, group % groups, room);
        Layout::scales(block, group % groups, scales);
        decode_codes<Isa, typename Layout::kind, Layout::has_offsets>(codes, scales, values);
    } else {
        Layout::decode(block, values);
    }
}

/// One panel times one row of x, in f32: numbers go from the panel to the sums without a stop in memory.
template <class Isa, class Layout>
FRUGAL_ALWAYS_INLINE void multiply_floats_by_row(const std::byte* panel, const prepared_activations& x, std::size_t row,
                                                 float* sums) {
    constexpr std::size_t width = simd::width<Isa>, registers = quant::panel_rows / width;
    using simd::detail::unrolled;
    simd::vec<Isa> total[1][registers];
    unrolled<registers>([&](auto v) __attribute__((always_inline)) { total[0][v] = simd::vec<Isa>{}; });
    for (std::size_t g = 0; g < x.groups; ++g) {
        const float* const from[1] = {x.values + row * x.stride + g * quant::panel_group};
        if constexpr (quant::coded_layout<Layout>) {
            alignas(64) float values[quant::panel_group][quant::panel_rows];
            decode_group<Isa, Layout>(panel, g, values);
            add_float_group<Isa, 1>(values, from, total);
        } else {
            static_assert(Layout::columns == quant::panel_group);
            // Each line of memory has the one to come fetched: all of a group's at once would wait for one another.
            constexpr std::size_t line = 64, together = line * quant::panel_group / Layout::bytes;  // columns of a line
            const std::byte* const block = panel + g * Layout::bytes;
            simd::vec<Isa> dots[registers];
            unrolled<registers>([&](auto v) __attribute__((always_inline)) { dots[v] = simd::vec<Isa>{}; });
            for (std::size_t at = 0; at < Layout::bytes; at += line) {
                prefetch_ahead<line>(block + at);
                unrolled<together>([&](auto i) __attribute__((always_inline)) {
                    const std::size_t k = at / line * together + i;
                    const simd::vec<Isa> value = simd::broadcast<Isa>(from[0][k]);
                    unrolled<registers>([&](auto v) __attribute__((always_inline)) {
                        dots[v] =
                            simd::multiply_add<Isa>(Layout::template column<simd::vec<Isa>>(block, v * width, k), value, dots[v]);
                    });
                });
            }
            unrolled<registers>([&](auto v) __attribute__((always_inline)) { total[0][v] += dots[v]; });
        }
    }
    unrolled<registers>([&](auto v) __attribute__((always_inline)) { simd::store<Isa>(sums + v * width, total[0][v]); });
}

/// One panel times all rows of x, in f32.
template <class Isa, class Layout>
FRUGAL_KERNEL FRUGAL_ALWAYS_INLINE void multiply_floats(const std::byte* panel, const prepared_activations& x, std::size_t row,
                                                        std::size_t rows, float* sums) {
    if (rows == 1) return multiply_floats_by_row<Isa, Layout>(panel, x, row, sums);
    float_groups w;
    for (std::size_t first = 0; first < x.groups; first += float_groups::most) {
        const std::size_t left = x.groups - first, count = left < float_groups::most ? left : float_groups::most;
        for (std::size_t g = 0; g < count; ++g) decode_group<Isa, Layout>(panel, first + g, w.values[g]);
        for_each_tile<6>(rows, [&](auto tokens, std::size_t t) {
            float_tile<Isa, decltype(tokens)::value>(w, count, x, row + t, first, sums + t * quant::panel_rows);
        });
    }
}

/// One panel times all rows of x, in bfloat16.
template <class Isa, class Layout, class Tiles>
FRUGAL_KERNEL FRUGAL_ALWAYS_INLINE void multiply_pairs(const Tiles& tiles, const std::byte* panel, const prepared_activations& x,
                                                       std::size_t row, std::size_t rows, float* sums) {
    using scaling = pair_scaling<Layout>;
    constexpr std::size_t groups = Layout::columns / quant::panel_group;
    // What is not AMX must give its bits: it knows no denormal numbers.
    const device::flush_denormals flush;
    pair_groups w;
    for (std::size_t first = 0; first < x.groups; first += pair_groups::most) {
        const std::size_t left = x.groups - first, count = left < pair_groups::most ? left : pair_groups::most;
        for (std::size_t g = 0; g < count; ++g) {
            const std::byte* block = panel + (first + g) / groups * Layout::bytes;
            prefetch_ahead<Layout::bytes / groups>(panel + (first + g) * (Layout::bytes / groups));
            w.pairs[g] = block;
            if constexpr (quant::coded_layout<Layout>) {
                alignas(64) std::uint8_t room[quant::panel_codes];
                pair_codes<Isa, typename Layout::kind>(Layout::codes(block, (first + g) % groups, room), w.room[g]);
                w.pairs[g] = w.room[g];
                Layout::scales(block, (first + g) % groups, w.scales[g]);
            }
        }
        std::size_t done = 0;
        if constexpr (!std::is_same_v<Tiles, no_tiles>)
            for (; done + 16 <= rows; done += 16)
                pair_block<Isa, scaling>(tiles, w, count, x, row + done, first, sums + done * quant::panel_rows);
        for_each_tile<6>(rows - done, [&](auto tokens, std::size_t t) {
            pair_tile<Isa, scaling, decltype(tokens)::value>(w, count, x, row + done + t, first,
                                                             sums + (done + t) * quant::panel_rows);
        });
    }
}

template <class Isa, class Format, class Activations, class Tiles>
FRUGAL_ALWAYS_INLINE void multiply_panel(const Tiles& tiles, const std::byte* panel, std::size_t first_row, std::size_t rows,
                                         const prepared_activations& x, matrix_view<float> y, float* sums) {
    using layout = quant::panel_of<Format>;
    const std::size_t count = rows - first_row < quant::panel_rows ? rows - first_row : quant::panel_rows;
    for (std::size_t begin = 0; begin < x.rows; begin += matmul_slice) {
        const std::size_t n = x.rows - begin < matmul_slice ? x.rows - begin : matmul_slice;
        std::memset(sums, 0, n * quant::panel_rows * sizeof(float));
        if constexpr (reads_codes<Activations, layout>)
            multiply_codes<Isa, layout>(tiles, panel, x, begin, n, sums);
        else if constexpr (reads_rounded<Activations, layout>)
            multiply_pairs<Isa, layout>(tiles, panel, x, begin, n, sums);
        else
            multiply_floats<Isa, layout>(panel, x, begin, n, sums);
        for (std::size_t t = 0; t < n; ++t)
            std::memcpy(y.row(begin + t) + first_row, sums + t * quant::panel_rows, count * sizeof(float));
    }
}

/// Calls f(unit of tiles) with the one that this instruction set has on this machine, if products can use it.
template <class Isa, class Format, class Activations, class F>
FRUGAL_ALWAYS_INLINE void with_tiles(const prepared_activations& x, const F& f) {
    // A tile's 16 rows: with fewer, vector registers take no longer.
    using layout = quant::panel_of<Format>;
    if constexpr (Isa::vector_bytes == 64 && reads_codes<Activations, layout>)
        if (x.rows >= 16 && simd::amx_tiles::available()) return f(simd::amx_tiles());
    if constexpr (Isa::vector_bytes == 64 && reads_rounded<Activations, layout>)
        if (x.rows >= 16 && simd::amx_bf16_tiles::available()) return f(simd::amx_bf16_tiles());
    f(no_tiles());
}

}  // namespace detail

template <class Isa, class Format, class Activations>
void matmul_panels(const quant::panel_view& w, const prepared_activations& x, matrix_view<float> y, std::size_t panel_begin,
                   std::size_t panel_end, float* scratch) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    detail::with_tiles<Isa, Format, Activations>(
        x, [&](const auto& tiles) __attribute__((always_inline)) {
            for (std::size_t p = panel_begin; p < panel_end; ++p)
                detail::multiply_panel<Isa, Format, Activations>(tiles, w.panel(p), p * quant::panel_rows, w.rows, x, y, scratch);
        });
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
