#pragma once
/// The 8-bit companions of the 4-bit tile (quant/q4nx.hpp), for tensors that 4 bits would hurt: w = scale * code.
///
/// q8nx has the size of the 4-bit tile, so nothing in a file tells one from the other: the tensor's name and the model's
/// configuration do. FastFlowLM containers of Qwen3.5 use it for `lm_head`, `ssm_alpha`, `ssm_beta` and `ssm_out`.
/// Layouts after FastFlowLM's converter (_pack_q8nx) and, for q8nx_row_major, the reader of 1bit-MONSTER (dequant_q4nx.cpp).
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/core/config.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/quant/block.hpp"
#include "frugal/quant/formats/q8_0.hpp"
#include "frugal/quant/q4nx/fit.hpp"
#include "frugal/quant/q4nx/transpose.hpp"
#include "frugal/quant/tiles.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// An 8-bit tile before its parts are put into an order; `scales` [row][group].
template <std::size_t Cols>
struct q8nx_codes {
    std::int8_t codes[32][Cols];
    bfloat16 scales[32][Cols / 32];
};

namespace detail {

/// What 8-bit tiles have in common. Encoding: scale = max|w| / 127 of 32 columns, rounded to bfloat16, codes to the nearest,
/// -127 … 127; |error| <= scale / 2. Where the greatest magnitude of a group is 127 bfloat16 steps and the others are whole
/// steps, decoding returns the very weights.
template <class Tile, std::size_t Cols>
struct q8nx_base {
    using codes_type = q8nx_codes<Cols>;
    static constexpr std::size_t tile_rows = 32, tile_cols = Cols, group_size = 32, groups = Cols / 32;

    FRUGAL_ALWAYS_INLINE static void encode_tile(const float* w, std::size_t stride, std::byte* tile) noexcept {
        codes_type codes;
        quantize(w, stride, codes);
        Tile::pack_codes(codes, tile);
    }
    FRUGAL_ALWAYS_INLINE static void decode_tile(const std::byte* tile, float* out, std::size_t stride) noexcept {
        codes_type codes;
        Tile::unpack_codes(tile, codes);
        for (std::size_t r = 0; r < tile_rows; ++r)
            for (std::size_t g = 0; g < groups; ++g) {
                const float scale = to_float(codes.scales[r][g]);
                for (std::size_t i = 0; i < group_size; ++i)
                    out[r * stride + g * group_size + i] = scale * static_cast<float>(codes.codes[r][g * group_size + i]);
            }
    }
    FRUGAL_ALWAYS_INLINE static void quantize(const float* w, std::size_t stride, codes_type& out) noexcept {
        for (std::size_t r = 0; r < tile_rows; ++r)
            for (std::size_t g = 0; g < groups; ++g) {
                const float* in = w + r * stride + g * group_size;
                const group_range range = range_of_group(in);
                const float magnitude = -range.least > range.most ? -range.least : range.most;
                out.scales[r][g] = to_bfloat16(magnitude / 127.0f);
                float multiples[group_size];
                bounded_multiples(in, 0.0f, inverse_scale(to_float(out.scales[r][g])), -127.0f, 127.0f, multiples);
                for (std::size_t i = 0; i < group_size; ++i)
                    out.codes[r][g * group_size + i] =
                        static_cast<std::int8_t>(static_cast<std::int32_t>(multiples[i] + 127.5f) - 127);
            }
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* tile) noexcept {
        bool every = true;
        for (std::size_t i = 0; i < tile_rows * groups; ++i) every &= (load_u16(tile + 2 * i) & 0x7F80u) != 0x7F80u;
        return every;
    }
    /// Moves a block of Q8_0: the codes stay, the scale is rounded to bfloat16.
    FRUGAL_ALWAYS_INLINE static void repack(type_tag<q8_0>, const std::byte* block, codes_type& to, std::size_t row,
                                            std::size_t group) noexcept {
        const auto from = q8_0::unpack(block);
        to.scales[row][group] = to_bfloat16(from.scale);
        std::memcpy(to.codes[row] + group * group_size, from.codes, group_size);
    }

protected:
    FRUGAL_ALWAYS_INLINE static void store_scales(const codes_type& from, std::byte* to) noexcept {
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t r = 0; r < tile_rows; ++r) std::memcpy(to + 2 * (g * tile_rows + r), &from.scales[r][g], 2);
    }
    FRUGAL_ALWAYS_INLINE static void load_scales(const std::byte* from, codes_type& to) noexcept {
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t r = 0; r < tile_rows; ++r) std::memcpy(&to.scales[r][g], from + 2 * (g * tile_rows + r), 2);
    }
};

}  // namespace detail

/// 32 rows x 128 columns in 5120 bytes: 128 scales [4 groups][32 rows] | the same again | codes [2 lanes][128 columns][16 rows]
/// | 512 zero bytes. The second copy of the scales is not read.
struct q8nx : detail::q8nx_base<q8nx, 128> {
    static constexpr std::string_view name = "q8nx";
    static constexpr std::size_t tile_bytes = 5120;

    FRUGAL_ALWAYS_INLINE static void pack_codes(const codes_type& from, std::byte* tile) noexcept {
        store_scales(from, tile);
        store_scales(from, tile + 256);
        for (std::size_t lane = 0; lane < 2; ++lane)
            for (std::size_t c = 0; c < tile_cols; c += 16) {
                detail::bytes_16 rows[16];
                for (std::size_t j = 0; j < 16; ++j) rows[j] = detail::load_bytes(from.codes[16 * lane + j] + c);
                detail::rows_to_columns(rows);
                for (std::size_t j = 0; j < 16; ++j) detail::store_bytes(tile + 512 + (lane * tile_cols + c + j) * 16, rows[j]);
            }
        std::memset(tile + 4608, 0, 512);
    }
    FRUGAL_ALWAYS_INLINE static void unpack_codes(const std::byte* tile, codes_type& out) noexcept {
        load_scales(tile, out);
        for (std::size_t lane = 0; lane < 2; ++lane)
            for (std::size_t c = 0; c < tile_cols; c += 16) {
                detail::bytes_16 rows[16];
                for (std::size_t j = 0; j < 16; ++j) rows[j] = detail::load_bytes(tile + 512 + (lane * tile_cols + c + j) * 16);
                detail::columns_to_rows(rows);
                for (std::size_t j = 0; j < 16; ++j) detail::store_bytes(out.codes[16 * lane + j] + c, rows[j]);
            }
    }
};

/// 32 rows x 256 columns in 8704 bytes: 256 scales [8 groups][32 rows] | codes [32 rows][256 columns].
struct q8nx_row_major : detail::q8nx_base<q8nx_row_major, 256> {
    static constexpr std::string_view name = "q8nx_row_major";
    static constexpr std::size_t tile_bytes = 8704;

    FRUGAL_ALWAYS_INLINE static void pack_codes(const codes_type& from, std::byte* tile) noexcept {
        store_scales(from, tile);
        std::memcpy(tile + 512, from.codes, sizeof(from.codes));
    }
    FRUGAL_ALWAYS_INLINE static void unpack_codes(const std::byte* tile, codes_type& out) noexcept {
        load_scales(tile, out);
        std::memcpy(out.codes, tile + 512, sizeof(out.codes));
    }
};

static_assert(repacks<q8nx, q8_0> && repacks<q8nx_row_major, q8_0>);

}  // namespace quant

FRUGAL_NAMESPACE_END
