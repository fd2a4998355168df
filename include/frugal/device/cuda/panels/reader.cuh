#pragma once
/// Reading panels (quant/panel/) on a GPU: by 16 bytes a lane, decoded in registers.
///
/// A warp takes two groups of 32 columns of a panel at once. Lane l reads rows 4 * (l % 4) … + 3, of group l / 16 its columns 4
/// * q … 4 * q + 3 and 16 more on, with q = l / 4 % 4. This is the same for every layout, so sums over columns are made in the
/// same order whatever the format.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/quant/panel/coded.hpp"
#include "frugal/quant/panel/scalars.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu::panels {

/// Where a lane is within a pair of groups.
struct lane_place {
    int quad, part;  ///< rows 4 * quad …, columns 4 * part …
};

FRUGAL_DEVICE uint4 stream_16(const std::byte* from) { return __ldcs(reinterpret_cast<const uint4*>(from)); }
FRUGAL_DEVICE uint2 stream_8(const std::byte* from) { return __ldcs(reinterpret_cast<const uint2*>(from)); }
FRUGAL_DEVICE std::uint32_t stream_4(const std::byte* from) { return __ldcs(reinterpret_cast<const unsigned*>(from)); }

FRUGAL_DEVICE float half_at(uint2 four, int i) {
    const unsigned word = i < 2 ? four.x : four.y;
    return __half2float(__ushort_as_half(static_cast<unsigned short>(i % 2 == 0 ? word & 0xFFFFu : word >> 16)));
}
FRUGAL_DEVICE unsigned byte_at(std::uint32_t four, int i) { return four >> (8 * i) & 0xFFu; }
FRUGAL_DEVICE float signed_byte_at(std::uint32_t four, int i) {
    return static_cast<float>(static_cast<std::int8_t>(static_cast<std::uint8_t>(byte_at(four, i))));
}

/// A lane's codes: word r holds four columns of row 4 * quad + r, one code a byte.
struct code_words {
    std::uint32_t low[4], high[4];  ///< columns 4 * part …, columns 16 + 4 * part …
};

/// Codes of one row, one a byte.
struct row_words {
    std::uint32_t low, high;  ///< columns 4 * part …, columns 16 + 4 * part …
};

/// How a lane loads and unpacks the codes of a group, of four rows or of one: for each way that panels store codes
/// (quant/panel/codes.hpp).
template <class Codes>
struct code_reader;

template <>
struct code_reader<quant::byte_codes> {
    struct raw {
        uint4 low, high;
    };
    FRUGAL_DEVICE static raw load(const std::byte* codes, lane_place at) {
        const std::byte* const from = codes + 64 * at.part + 16 * at.quad;
        return {stream_16(from), stream_16(from + 256)};
    }
    FRUGAL_DEVICE static code_words unpack(const raw& r, lane_place) {
        return {{r.low.x, r.low.y, r.low.z, r.low.w}, {r.high.x, r.high.y, r.high.z, r.high.w}};
    }
    FRUGAL_DEVICE static row_words load_row(const std::byte* codes, int row, int part) {
        const std::byte* const from = codes + 64 * part + 4 * row;
        return {stream_4(from), stream_4(from + 256)};
    }
};

template <std::size_t HighBits>
struct code_reader<quant::plane_codes<HighBits>> {
    struct raw {
        uint4 nibbles, above;
    };
    FRUGAL_DEVICE static raw load(const std::byte* codes, lane_place at) {
        raw out{stream_16(codes + 64 * at.part + 16 * at.quad), {}};
        if constexpr (HighBits == 1) out.above = stream_16(codes + 256 + 16 * at.quad);
        if constexpr (HighBits == 2) out.above = stream_16(codes + 256 + 64 * (at.part % 2) + 16 * at.quad);
        return out;
    }
    FRUGAL_DEVICE static code_words unpack(const raw& r, lane_place at) {
        const std::uint32_t nibbles[4] = {r.nibbles.x, r.nibbles.y, r.nibbles.z, r.nibbles.w};
        const std::uint32_t above[4] = {r.above.x, r.above.y, r.above.z, r.above.w};
        code_words out;
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) {
            const row_words row = unpack_row(nibbles[i], above[i], at.part);
            out.low[i] = row.low;
            out.high[i] = row.high;
        }
        return out;
    }
    FRUGAL_DEVICE static row_words load_row(const std::byte* codes, int row, int part) {
        std::uint32_t above = 0;
        if constexpr (HighBits == 1) above = stream_4(codes + 256 + 4 * row);
        if constexpr (HighBits == 2) above = stream_4(codes + 256 + 64 * (part % 2) + 4 * row);
        return unpack_row(stream_4(codes + 64 * part + 4 * row), above, part);
    }

private:
    FRUGAL_DEVICE static row_words unpack_row(std::uint32_t nibbles, std::uint32_t above, int part) {
        row_words out{nibbles & 0x0F0F0F0Fu, nibbles >> 4 & 0x0F0F0F0Fu};
        if constexpr (HighBits == 1) {
            out.low |= (above >> part & 0x01010101u) << 4;
            out.high |= (above >> (part + 4) & 0x01010101u) << 4;
        }
        if constexpr (HighBits == 2) {
            const int shift = part / 2 * 2;
            out.low |= (above >> shift & 0x03030303u) << 4;
            out.high |= (above >> (shift + 4) & 0x03030303u) << 4;
        }
        return out;
    }
};

template <const std::int8_t (&Table)[16], int Offset>
struct code_reader<quant::table_codes<Table, Offset>> {
    using raw = uint4;
    FRUGAL_DEVICE static raw load(const std::byte* codes, lane_place at) {
        return stream_16(codes + 64 * at.part + 16 * at.quad);
    }
    FRUGAL_DEVICE static code_words unpack(const raw& r, lane_place) {
        const std::uint32_t nibbles[4] = {r.x, r.y, r.z, r.w};
        code_words out;
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) {
            const row_words row = unpack_row(nibbles[i]);
            out.low[i] = row.low;
            out.high[i] = row.high;
        }
        return out;
    }
    FRUGAL_DEVICE static row_words load_row(const std::byte* codes, int row, int part) {
        return unpack_row(stream_4(codes + 64 * part + 4 * row));
    }

private:
    [[nodiscard]] static constexpr std::uint32_t levels(int word) {
        std::uint32_t out = 0;
        for (int i = 0; i < 4; ++i)
            out |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(Table[4 * word + i] + Offset)) << (8 * i);
        return out;
    }
    static constexpr std::uint32_t level_0 = levels(0), level_4 = levels(1), level_8 = levels(2), level_12 = levels(3);
    FRUGAL_DEVICE static row_words unpack_row(std::uint32_t nibbles) {
        // Bytes low, high, low, high … of the packed ones, two of these at a time.
        const std::uint32_t first = look_up(nibbles), second = look_up(nibbles >> 16);
        return {__byte_perm(first, second, 0x6420), __byte_perm(first, second, 0x7531)};
    }
    /// The levels of the four lowest nibbles: bytes picked from each half of the table, then from these two by the nibbles' top
    /// bits.
    FRUGAL_DEVICE static std::uint32_t look_up(std::uint32_t nibbles) {
        const std::uint32_t index = nibbles & 0x7777u, half = 0x3210u | (nibbles & 0x8888u) >> 1;
        return __byte_perm(__byte_perm(level_0, level_4, index), __byte_perm(level_8, level_12, index), half);
    }
};

/// A lane's scales: row 4 * quad + r; `scale[1]` where columns 16 … 31 have their own.
struct lane_scales {
    float scale[2][4], offset[4];
};

/// The scales of one row.
struct row_scales {
    float scale[2], offset;
};

FRUGAL_DEVICE float stream_half(const std::byte* from) {
    return __half2float(__ushort_as_half(__ldcs(reinterpret_cast<const unsigned short*>(from))));
}
FRUGAL_DEVICE unsigned stream_byte(const std::byte* from) { return __ldcs(reinterpret_cast<const unsigned char*>(from)); }

/// How a lane loads and decodes the scales of a group, of four rows or of one: for each way that panels store them
/// (quant/panel/scales.hpp).
template <class Scales>
struct scale_reader;

template <>
struct scale_reader<quant::half_scales> {
    using raw = uint2;
    FRUGAL_DEVICE static raw load(const std::byte*, const std::byte* group, lane_place at) {
        return stream_8(group + 8 * at.quad);
    }
    FRUGAL_DEVICE static void decode(const raw& r, lane_scales& out) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) out.scale[0][i] = half_at(r, i);
    }
    FRUGAL_DEVICE static void load_row(const std::byte*, const std::byte* group, int row, row_scales& out) {
        out.scale[0] = stream_half(group + 2 * row);
    }
};

template <>
struct scale_reader<quant::half_scales_and_offsets> {
    struct raw {
        uint2 scales, offsets;
    };
    FRUGAL_DEVICE static raw load(const std::byte*, const std::byte* group, lane_place at) {
        return {stream_8(group + 8 * at.quad), stream_8(group + 32 + 8 * at.quad)};
    }
    FRUGAL_DEVICE static void decode(const raw& r, lane_scales& out) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) {
            out.scale[0][i] = half_at(r.scales, i);
            out.offset[i] = half_at(r.offsets, i);
        }
    }
    FRUGAL_DEVICE static void load_row(const std::byte*, const std::byte* group, int row, row_scales& out) {
        out.scale[0] = stream_half(group + 2 * row);
        out.offset = stream_half(group + 32 + 2 * row);
    }
};

template <std::size_t Run>
struct scale_reader<quant::byte_scales<Run>> {
    static constexpr int runs = static_cast<int>(quant::panel_group / Run);
    struct raw {
        uint2 factors;
        std::uint32_t bytes[runs];
    };
    FRUGAL_DEVICE static raw load(const std::byte* header, const std::byte* group, lane_place at) {
        raw out;
        out.factors = stream_8(header + 8 * at.quad);
        FRUGAL_UNROLL
        for (int run = 0; run < runs; ++run) out.bytes[run] = stream_4(group + 16 * run + 4 * at.quad);
        return out;
    }
    FRUGAL_DEVICE static void decode(const raw& r, lane_scales& out) {
        FRUGAL_UNROLL
        for (int run = 0; run < runs; ++run) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) out.scale[run][i] = half_at(r.factors, i) * signed_byte_at(r.bytes[run], i);
        }
    }
    FRUGAL_DEVICE static void load_row(const std::byte* header, const std::byte* group, int row, row_scales& out) {
        const float factor = stream_half(header + 2 * row);
        FRUGAL_UNROLL
        for (int run = 0; run < runs; ++run)
            out.scale[run] =
                factor *
                static_cast<float>(static_cast<std::int8_t>(static_cast<std::uint8_t>(stream_byte(group + 16 * run + row))));
    }
};

template <>
struct scale_reader<quant::byte_scales_and_minima> {
    struct raw {
        uint2 factors, minimum_factors;
        std::uint32_t scales, minima;
    };
    FRUGAL_DEVICE static raw load(const std::byte* header, const std::byte* group, lane_place at) {
        return {stream_8(header + 8 * at.quad), stream_8(header + 32 + 8 * at.quad), stream_4(group + 4 * at.quad),
                stream_4(group + 16 + 4 * at.quad)};
    }
    FRUGAL_DEVICE static void decode(const raw& r, lane_scales& out) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) {
            out.scale[0][i] = half_at(r.factors, i) * static_cast<float>(byte_at(r.scales, i));
            out.offset[i] = half_at(r.minimum_factors, i) * static_cast<float>(byte_at(r.minima, i));
        }
    }
    FRUGAL_DEVICE static void load_row(const std::byte* header, const std::byte* group, int row, row_scales& out) {
        out.scale[0] = stream_half(header + 2 * row) * static_cast<float>(stream_byte(group + row));
        out.offset = stream_half(header + 32 + 2 * row) * static_cast<float>(stream_byte(group + 16 + row));
    }
};

template <>
struct scale_reader<quant::power_scales> {
    using raw = std::uint32_t;
    FRUGAL_DEVICE static raw load(const std::byte*, const std::byte* group, lane_place at) {
        return stream_4(group + 4 * at.quad);
    }
    FRUGAL_DEVICE static void decode(const raw& r, lane_scales& out) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) {
            const unsigned byte = byte_at(r, i);
            out.scale[0][i] = __uint_as_float(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
        }
    }
    FRUGAL_DEVICE static void load_row(const std::byte*, const std::byte* group, int row, row_scales& out) {
        const unsigned byte = stream_byte(group + row);
        out.scale[0] = __uint_as_float(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
    }
};

/// A layout on the device: `load` starts the loads of a lane's share of a group, `weights` makes floats of it: the decoded
/// weights, [column: 4 low ones, 4 high ones][row].
template <class Layout>
struct panel_reader;

template <class Codes, class Scales, bool Signed, int Most, int Offset>
struct panel_reader<quant::coded_panel<Codes, Scales, Signed, Most, Offset>> {
    using layout = quant::coded_panel<Codes, Scales, Signed, Most, Offset>;
    using kind = typename layout::kind;
    static constexpr bool coded = true, has_offsets = layout::has_offsets;
    static constexpr int runs = static_cast<int>(quant::panel_group / kind::run), offset = Offset;
    struct raw {
        typename code_reader<Codes>::raw codes;
        typename scale_reader<Scales>::raw scales;
    };

    FRUGAL_DEVICE static raw load(const std::byte* panel, int group, lane_place at) {
        const std::byte* const own = group_of(panel, group);
        return {code_reader<Codes>::load(own + Scales::group_bytes, at),
                scale_reader<Scales>::load(block_of(panel, group), own, at)};
    }
    /// The codes alone of four rows, and those of one row; the scales of one row.
    FRUGAL_DEVICE static typename code_reader<Codes>::raw load_codes(const std::byte* panel, int group, lane_place at) {
        return code_reader<Codes>::load(group_of(panel, group) + Scales::group_bytes, at);
    }
    FRUGAL_DEVICE static code_words unpack(const typename code_reader<Codes>::raw& r, lane_place at) {
        return code_reader<Codes>::unpack(r, at);
    }
    FRUGAL_DEVICE static row_words row_codes(const std::byte* panel, int group, int row, int part) {
        return code_reader<Codes>::load_row(group_of(panel, group) + Scales::group_bytes, row, part);
    }
    FRUGAL_DEVICE static row_scales scales_of_row(const std::byte* panel, int group, int row) {
        row_scales out{};
        scale_reader<Scales>::load_row(block_of(panel, group), group_of(panel, group), row, out);
        return out;
    }

    FRUGAL_DEVICE static void weights(const raw& r, lane_place at, float (&out)[8][4]) {
        const code_words words = code_reader<Codes>::unpack(r.codes, at);
        lane_scales by;
        scale_reader<Scales>::decode(r.scales, by);
        FRUGAL_UNROLL
        for (int c = 0; c < 8; ++c) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) {
                const float level = level_of(c < 4 ? words.low[i] : words.high[i], c % 4);
                const float scale = by.scale[runs == 2 && c >= 4 ? 1 : 0][i];
                // The product is exact, so this rounds once, as decoding does.
                if constexpr (has_offsets)
                    out[c][i] = fmaf(scale, level, by.offset[i]);
                else
                    out[c][i] = scale * level;
            }
        }
    }

    /// The decoded weights of one row: columns 4 * part …, then 16 + 4 * part ….
    FRUGAL_DEVICE static void row_weights(const std::byte* panel, int group, int row, int part, float (&out)[8]) {
        const row_words words = row_codes(panel, group, row, part);
        const row_scales by = scales_of_row(panel, group, row);
        FRUGAL_UNROLL
        for (int c = 0; c < 8; ++c) {
            const float level = level_of(c < 4 ? words.low : words.high, c % 4), scale = by.scale[runs == 2 && c >= 4 ? 1 : 0];
            out[c] = has_offsets ? fmaf(scale, level, by.offset) : scale * level;
        }
    }

private:
    static constexpr int groups = static_cast<int>(layout::groups);
    FRUGAL_DEVICE static const std::byte* block_of(const std::byte* panel, int group) {
        return panel + static_cast<std::size_t>(group / groups) * layout::bytes;
    }
    FRUGAL_DEVICE static const std::byte* group_of(const std::byte* panel, int group) {
        return block_of(panel, group) + Scales::header_bytes + static_cast<std::size_t>(group % groups) * layout::group_bytes;
    }
    /// Code i of the word, less the offset, as a float: put into the low bits of 2^23, which is then taken off. Two
    /// instructions at full rate, where a conversion has a quarter of it.
    FRUGAL_DEVICE static float level_of(std::uint32_t word, int i) {
        constexpr std::uint32_t flip = Signed ? 0x80808080u : 0u;
        constexpr float base = 8388608.0f + static_cast<float>(Signed ? 128 : Offset);
        return __uint_as_float(__byte_perm(word ^ flip, 0x4B000000u, 0x7440u + static_cast<unsigned>(i))) - base;
    }
};

template <>
struct panel_reader<quant::scalar_panel<float>> {
    static constexpr bool coded = false;
    struct raw {
        float4 columns[8];
    };
    FRUGAL_DEVICE static raw load(const std::byte* panel, int group, lane_place at) {
        const std::byte* const from = panel + static_cast<std::size_t>(group) * 2048 + 256 * at.part + 16 * at.quad;
        raw out;
        FRUGAL_UNROLL
        for (int c = 0; c < 8; ++c)
            out.columns[c] = __ldcs(reinterpret_cast<const float4*>(from + 64 * (c % 4) + 1024 * (c / 4)));
        return out;
    }
    FRUGAL_DEVICE static void weights(const raw& r, lane_place, float (&out)[8][4]) {
        FRUGAL_UNROLL
        for (int c = 0; c < 8; ++c) {
            out[c][0] = r.columns[c].x;
            out[c][1] = r.columns[c].y;
            out[c][2] = r.columns[c].z;
            out[c][3] = r.columns[c].w;
        }
    }
    FRUGAL_DEVICE static void row_weights(const std::byte* panel, int group, int row, int part, float (&out)[8]) {
        const std::byte* const from = panel + static_cast<std::size_t>(group) * 2048 + 256 * part + 4 * row;
        FRUGAL_UNROLL
        for (int c = 0; c < 8; ++c) out[c] = __uint_as_float(stream_4(from + 64 * (c % 4) + 1024 * (c / 4)));
    }
};

template <>
struct panel_reader<quant::scalar_panel<half>> {
    static constexpr bool coded = false;
    struct raw {
        uint2 columns[8];
    };
    FRUGAL_DEVICE static raw load(const std::byte* panel, int group, lane_place at) {
        const std::byte* const from = panel + static_cast<std::size_t>(group) * 1024 + 128 * at.part + 8 * at.quad;
        raw out;
        FRUGAL_UNROLL
        for (int c = 0; c < 8; ++c) out.columns[c] = stream_8(from + 32 * (c % 4) + 512 * (c / 4));
        return out;
    }
    FRUGAL_DEVICE static void weights(const raw& r, lane_place, float (&out)[8][4]) {
        FRUGAL_UNROLL
        for (int c = 0; c < 8; ++c) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) out[c][i] = half_at(r.columns[c], i);
        }
    }
    FRUGAL_DEVICE static void row_weights(const std::byte* panel, int group, int row, int part, float (&out)[8]) {
        const std::byte* const from = panel + static_cast<std::size_t>(group) * 1024 + 128 * part + 2 * row;
        FRUGAL_UNROLL
        for (int c = 0; c < 8; ++c) out[c] = stream_half(from + 32 * (c % 4) + 512 * (c / 4));
    }
};

template <>
struct panel_reader<quant::scalar_panel<bfloat16>> {
    static constexpr bool coded = false;
    struct raw {
        uint4 pairs[4];
    };
    FRUGAL_DEVICE static raw load(const std::byte* panel, int group, lane_place at) {
        const std::byte* const from = panel + static_cast<std::size_t>(group) * 1024 + 128 * at.part + 16 * at.quad;
        raw out;
        FRUGAL_UNROLL
        for (int p = 0; p < 4; ++p) out.pairs[p] = stream_16(from + 64 * (p % 2) + 512 * (p / 2));
        return out;
    }
    FRUGAL_DEVICE static void weights(const raw& r, lane_place, float (&out)[8][4]) {
        FRUGAL_UNROLL
        for (int p = 0; p < 4; ++p) {
            const std::uint32_t rows[4] = {r.pairs[p].x, r.pairs[p].y, r.pairs[p].z, r.pairs[p].w};
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) {
                out[2 * p][i] = __uint_as_float(rows[i] << 16);
                out[2 * p + 1][i] = __uint_as_float(rows[i] & 0xFFFF0000u);
            }
        }
    }
    FRUGAL_DEVICE static void row_weights(const std::byte* panel, int group, int row, int part, float (&out)[8]) {
        const std::byte* const from = panel + static_cast<std::size_t>(group) * 1024 + 128 * part + 4 * row;
        FRUGAL_UNROLL
        for (int p = 0; p < 4; ++p) {
            const std::uint32_t two = stream_4(from + 64 * (p % 2) + 512 * (p / 2));
            out[2 * p] = __uint_as_float(two << 16);
            out[2 * p + 1] = __uint_as_float(two & 0xFFFF0000u);
        }
    }
};

/// The reader of a format's panels.
template <class Format>
using reader_of = panel_reader<quant::panel_of<Format>>;

}  // namespace device::gpu::panels

FRUGAL_NAMESPACE_END
