#pragma once
/// MXFP4 in tiles of 32 rows x 128 columns, 2560 bytes, as FastFlowLM's converter packs the experts of gpt-oss.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/core/config.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/quant/formats/mxfp4.hpp"
#include "frugal/quant/q4nx/transpose.hpp"
#include "frugal/quant/tiles.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// An MXFP4 tile before its parts are put into an order; `exponents` [row][group].
struct mxfp4_tile_codes {
    std::uint8_t codes[32][128];
    std::uint8_t exponents[32][4];
};

/// 128 exponent bytes E8M0 [4 groups][32 rows] | 384 bytes that are not weights, written as zeros | codes E2M1 in lanes (see
/// code_order::lanes). w = E2M1 value * 2^(byte - 127), minus zero included. Encodes as quant::mxfp4 does, whose blocks keep
/// their codes; weights that MXFP4 can hold come back exactly.
struct mxfp4_tile {
    using codes_type = mxfp4_tile_codes;
    static constexpr std::string_view name = "mxfp4_tile";
    static constexpr std::size_t tile_rows = 32, tile_cols = 128, tile_bytes = 2560, group_size = 32;

    FRUGAL_ALWAYS_INLINE static void encode_tile(const float* w, std::size_t stride, std::byte* tile) noexcept {
        codes_type codes;
        quantize(w, stride, codes);
        pack_codes(codes, tile);
    }
    FRUGAL_ALWAYS_INLINE static void decode_tile(const std::byte* tile, float* out, std::size_t stride) noexcept {
        constexpr float levels[16] = {0.0f,  1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                      -0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};
        codes_type codes;
        unpack_codes(tile, codes);
        for (std::size_t r = 0; r < tile_rows; ++r)
            for (std::size_t c = 0; c < tile_cols; ++c)
                out[r * stride + c] = levels[codes.codes[r][c]] * mxfp4::scale_of(codes.exponents[r][c / group_size]);
    }
    FRUGAL_ALWAYS_INLINE static void quantize(const float* w, std::size_t stride, codes_type& out) noexcept {
        for (std::size_t r = 0; r < tile_rows; ++r)
            for (std::size_t g = 0; g < groups; ++g) {
                std::byte block[mxfp4::block_bytes];
                mxfp4::encode(w + r * stride + g * group_size, block);
                repack(type_tag<mxfp4>{}, block, out, r, g);
            }
    }
    FRUGAL_ALWAYS_INLINE static void pack_codes(const codes_type& from, std::byte* tile) noexcept {
        std::memset(tile, 0, 512);
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t r = 0; r < tile_rows; ++r) tile[g * tile_rows + r] = static_cast<std::byte>(from.exponents[r][g]);
        detail::pack_lanes(from.codes, tile + 512);
    }
    FRUGAL_ALWAYS_INLINE static void unpack_codes(const std::byte* tile, codes_type& out) noexcept {
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t r = 0; r < tile_rows; ++r) out.exponents[r][g] = static_cast<std::uint8_t>(tile[g * tile_rows + r]);
        detail::unpack_lanes(tile + 512, out.codes);
    }
    /// From exponent byte 253 up large codes overflow.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* tile) noexcept {
        bool every = true;
        for (std::size_t i = 0; i < tile_rows * groups; ++i) every &= tile[i] < std::byte{253};
        return every;
    }
    /// Moves a block of GGUF MXFP4 as it is.
    FRUGAL_ALWAYS_INLINE static void repack(type_tag<mxfp4>, const std::byte* block, codes_type& to, std::size_t row,
                                            std::size_t group) noexcept {
        to.exponents[row][group] = static_cast<std::uint8_t>(block[0]);
        const detail::bytes_16 packed = detail::load_bytes(block + 1);
        detail::store_bytes(to.codes[row] + group * group_size, packed & 15);
        detail::store_bytes(to.codes[row] + group * group_size + 16, packed >> 4);
    }

private:
    static constexpr std::size_t groups = tile_cols / group_size;
};

static_assert(repacks<mxfp4_tile, mxfp4>);

}  // namespace quant

FRUGAL_NAMESPACE_END
