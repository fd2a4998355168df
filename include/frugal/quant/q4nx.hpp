#pragma once
/// The 4-bit tile of AMD NPU runtimes (FastFlowLM's Q4NX): 32 rows x 256 columns in 5120 bytes.
///
/// | bytes | hold |
/// |---|---|
/// | 0 … 511 | 256 scales, bfloat16, one for 32 columns of a row |
/// | 512 … 1023 | 256 offsets, bfloat16 |
/// | 1024 … 5119 | 8192 codes of 4 bits |
///
/// The order inside these parts and the algebra differ between programs: q4nx/conventions.hpp.
/// Layout after the packers of FastFlowLM's converter (model_converter.py) and mlir-air (proj_qmm_pack.py).
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/core/config.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/quant/block.hpp"
#include "frugal/quant/formats/q4_0.hpp"
#include "frugal/quant/formats/q4_1.hpp"
#include "frugal/quant/q4nx/conventions.hpp"
#include "frugal/quant/q4nx/fit.hpp"
#include "frugal/quant/q4nx/transpose.hpp"
#include "frugal/quant/tiles.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// A 4-bit tile before its parts are put into an order: low four bits of `codes` only, `scales` and `offsets` [row][group].
struct q4nx_codes {
    std::uint8_t codes[32][256];
    bfloat16 scales[32][8], offsets[32][8];
};

/// Encoding finite weights, per group of 32 columns of a row with least value lo and greatest hi:
/// - unsigned, additive: offset = lo rounded down to bfloat16, scale = (hi - offset) / 15 rounded, codes to the nearest.
///   |error| <= (hi - lo + |lo| / 128) / 30 * (1 + 1/256) + 2^-23 * max|w|;
/// - unsigned, subtractive: scale = (max(hi, 0) - min(lo, 0)) / 15, zero point a whole number 0 … 15.
///   |error| <= 9/16 of the scale;
/// - signed: scale = the value of largest magnitude / -8, offset 0. |error| <= max|w| / 8 * (1 + 1/128): the value opposite to
///   the largest has no code of its own.
/// Weights beyond 2^-100 in magnitude are meant; nearer to zero scales lose bits. Groups that have exact codes get them: where
/// all w - lo (all w, if subtractive or signed) are whole multiples, in range, of one bfloat16, and lo is a bfloat16 (if
/// additive), decoding returns the very weights.
template <class Convention = q4nx_additive>
struct q4nx {
    static_assert(q4nx_convention<Convention>,
                  "frugal: q4nx<Convention> needs a convention: quant::q4nx_additive, q4nx_subtractive, q4nx_signed, "
                  "q4nx_signed_row_scales, q4nx_row_major, or a struct with static name, algebra, sign, scales and codes");

    using convention = Convention;
    using codes_type = q4nx_codes;
    static constexpr std::string_view name = Convention::name;
    static constexpr std::size_t tile_rows = 32, tile_cols = 256, tile_bytes = 5120, group_size = 32;
    static constexpr bool has_signed_codes = Convention::sign == code_sign::signed_codes;
    static constexpr bool is_additive = Convention::algebra == tile_algebra::additive;

    FRUGAL_ALWAYS_INLINE static void encode_tile(const float* w, std::size_t stride, std::byte* tile) noexcept {
        codes_type codes;
        quantize(w, stride, codes);
        pack_codes(codes, tile);
    }
    FRUGAL_ALWAYS_INLINE static void decode_tile(const std::byte* tile, float* out, std::size_t stride) noexcept {
        codes_type codes;
        unpack_codes(tile, codes);
        dequantize(codes, out, stride);
    }

    /// Chooses scales, offsets and codes for 32 x 256 weights.
    FRUGAL_ALWAYS_INLINE static void quantize(const float* w, std::size_t stride, codes_type& out) noexcept {
        for (std::size_t r = 0; r < tile_rows; ++r)
            for (std::size_t g = 0; g < groups; ++g) {
                const float* in = w + r * stride + g * group_size;
                const group_fit fit = fit_group(in);
                out.scales[r][g] = to_bfloat16(fit.scale);  // both are bfloat16 already
                out.offsets[r][g] = to_bfloat16(fit.offset);
                // Codes are (w - base) / scale + shift, between 0 and 15, to the nearest.
                const float base = is_additive ? fit.offset : 0.0f, inverse = detail::inverse_scale(fit.scale);
                const float shift = has_signed_codes ? 8.0f : is_additive ? 0.0f : fit.offset;
                float multiples[group_size];
                detail::bounded_multiples(in, base, inverse, -shift, 15.0f - shift, multiples);
                std::uint8_t* codes = out.codes[r] + g * group_size;
                for (std::size_t i = 0; i < group_size; ++i) {
                    const auto code = static_cast<std::uint8_t>(static_cast<std::int32_t>(multiples[i] + (shift + 0.5f)));
                    codes[i] = has_signed_codes ? static_cast<std::uint8_t>(code ^ 8u) : code;
                }
            }
    }

    /// Values of the codes: exact products, one rounding of the sum (two roundings if subtractive).
    FRUGAL_ALWAYS_INLINE static void dequantize(const codes_type& from, float* out, std::size_t stride) noexcept {
        for (std::size_t r = 0; r < tile_rows; ++r)
            for (std::size_t g = 0; g < groups; ++g) {
                const float scale = to_float(from.scales[r][g]), offset = to_float(from.offsets[r][g]);
                const std::uint8_t* codes = from.codes[r] + g * group_size;
                float* to = out + r * stride + g * group_size;
                for (std::size_t i = 0; i < group_size; ++i) {
                    const auto code = static_cast<float>(has_signed_codes ? (codes[i] ^ 8) - 8 : static_cast<int>(codes[i]));
                    to[i] = is_additive ? scale * code + offset : scale * (code - offset);
                }
            }
    }

    /// Puts given codes, scales and offsets into the bytes of a tile.
    FRUGAL_ALWAYS_INLINE static void pack_codes(const codes_type& from, std::byte* tile) noexcept {
        store_group_values(from.scales, tile);
        store_group_values(from.offsets, tile + 512);
        std::byte* to = tile + 1024;
        if constexpr (Convention::codes == code_order::by_row) {
            for (std::size_t r = 0; r < tile_rows; ++r)
                for (std::size_t c = 0; c < tile_cols / 2; ++c)
                    to[r * tile_cols / 2 + c] =
                        static_cast<std::byte>((from.codes[r][2 * c] & 15) | (from.codes[r][2 * c + 1] << 4));
        } else {
            detail::pack_lanes(from.codes, to);
        }
    }

    /// The inverse of pack_codes.
    FRUGAL_ALWAYS_INLINE static void unpack_codes(const std::byte* tile, codes_type& out) noexcept {
        load_group_values(tile, out.scales);
        load_group_values(tile + 512, out.offsets);
        const std::byte* from = tile + 1024;
        if constexpr (Convention::codes == code_order::by_row) {
            for (std::size_t r = 0; r < tile_rows; ++r)
                for (std::size_t c = 0; c < tile_cols / 2; ++c) {
                    const auto pair = static_cast<std::uint8_t>(from[r * tile_cols / 2 + c]);
                    out.codes[r][2 * c] = pair & 15;
                    out.codes[r][2 * c + 1] = static_cast<std::uint8_t>(pair >> 4);
                }
        } else {
            detail::unpack_lanes(from, out.codes);
        }
    }

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* tile) noexcept {
        bool every = true;
        for (std::size_t i = 0; i < 2 * tile_rows * groups; ++i) every &= (detail::load_u16(tile + 2 * i) & 0x7F80u) != 0x7F80u;
        return every;
    }

    /// Moves a block of Q4_1: the codes stay, scale and minimum are rounded to bfloat16.
    FRUGAL_ALWAYS_INLINE static void repack(type_tag<q4_1>, const std::byte* block, codes_type& to, std::size_t row,
                                            std::size_t group) noexcept requires(is_additive && !has_signed_codes) {
        const auto from = q4_1::unpack(block);
        put(from.codes, 0, from.scale, from.offset_scale, to, row, group);
    }
    /// Moves a block of Q4_0: the codes stay, the scale is rounded to bfloat16. Unsigned tiles get codes 8 greater and an offset
    /// that takes it back, exactly.
    FRUGAL_ALWAYS_INLINE static void repack(type_tag<q4_0>, const std::byte* block, codes_type& to, std::size_t row,
                                            std::size_t group) noexcept {
        const auto from = q4_0::unpack(block);
        const float scale = to_float(to_bfloat16(from.scale));
        const float offset = has_signed_codes ? 0.0f : is_additive ? -8.0f * scale : 8.0f;
        put(from.codes, has_signed_codes ? 0 : 8, scale, offset, to, row, group);
    }

private:
    static constexpr std::size_t groups = tile_cols / group_size;

    struct group_fit {
        float scale, offset;  // both are bfloat16 values
    };

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static group_fit fit_group(const float* in) noexcept {
        const detail::group_range range = detail::range_of_group(in);
        if constexpr (has_signed_codes) {
            const float extreme = -range.least > range.most ? range.least : range.most;
            const float magnitude = extreme < 0.0f ? -extreme : extreme;
            const float exact = detail::exact_scale<-8, 7>(in, 0.0f, 0.0f, magnitude, 0x01FEu);
            return {exact != 0.0f ? exact : to_float(to_bfloat16(extreme / -8.0f)), 0.0f};
        } else if constexpr (is_additive) {
            const float offset = to_float(detail::bfloat16_below(range.least));
            const float width = range.most - offset;
            const float exact = offset == range.least ? detail::exact_scale<0, 15>(in, offset, offset, width, 0xFFFEu) : 0.0f;
            return {exact != 0.0f ? exact : to_float(to_bfloat16(width / 15.0f)), offset};
        } else {
            const float least = range.least < 0.0f ? range.least : 0.0f, most = range.most > 0.0f ? range.most : 0.0f;
            const float exact = detail::exact_scale<-15, 15>(in, 0.0f, least, most - least, 0xFFFEu);
            const float scale = exact != 0.0f ? exact : to_float(to_bfloat16((most - least) / 15.0f));
            return {scale, detail::nearest(-least * detail::inverse_scale(scale))};
        }
    }

    FRUGAL_ALWAYS_INLINE static void put(const std::int8_t (&codes)[32], int shift, float scale, float offset, codes_type& to,
                                         std::size_t row, std::size_t group) noexcept {
        to.scales[row][group] = to_bfloat16(scale);
        to.offsets[row][group] = to_bfloat16(offset);
        for (std::size_t i = 0; i < group_size; ++i)
            to.codes[row][group * group_size + i] = static_cast<std::uint8_t>((codes[i] + shift) & 15);
    }

    static constexpr std::size_t place(std::size_t row, std::size_t group) noexcept {
        return 2 * (Convention::scales == scale_order::by_group ? group * tile_rows + row : row * groups + group);
    }
    FRUGAL_ALWAYS_INLINE static void store_group_values(const bfloat16 (&from)[32][8], std::byte* to) noexcept {
        for (std::size_t r = 0; r < tile_rows; ++r)
            for (std::size_t g = 0; g < groups; ++g) std::memcpy(to + place(r, g), &from[r][g], sizeof(bfloat16));
    }
    FRUGAL_ALWAYS_INLINE static void load_group_values(const std::byte* from, bfloat16 (&to)[32][8]) noexcept {
        for (std::size_t r = 0; r < tile_rows; ++r)
            for (std::size_t g = 0; g < groups; ++g) std::memcpy(&to[r][g], from + place(r, g), sizeof(bfloat16));
    }
};

static_assert(coded_tile_format<q4nx<>> && repacks<q4nx<>, q4_1> && repacks<q4nx<q4nx_signed>, q4_0> &&
              !repacks<q4nx<q4nx_signed>, q4_1>);

}  // namespace quant

FRUGAL_NAMESPACE_END
