#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/quant/block.hpp"
#include "frugal/quant/codes.hpp"
#include "frugal/quant/encode.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/panel/coded.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// GGUF MXFP4: scale byte E8M0 | 16 bytes of nibbles, E2M1 codes; w = 2^(byte - 127) * E2M1 value.
///
/// Levels are the doubled E2M1 values, so the scale is 2^(byte - 128). Code 8 (minus zero) decodes to plus zero. The OCP text
/// makes scale byte 255 a NaN; this library follows gguf-py and ggml, where it is one more power of two (2^128): no byte is a
/// NaN, but from byte 253 up large levels overflow to infinity.
struct mxfp4 : from_codes<mxfp4, scaled_codes<32, std::int8_t>> {
    using library_format = mxfp4;
    static constexpr std::string_view name = "mxfp4";
    static constexpr type_id type{39};
    static constexpr std::size_t block_bytes = 17;
    static constexpr std::int8_t levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    using panel = coded_panel<table_codes<levels, 12>, power_scales, false, 24, 12>;

    /// Bits of n * 2^-128 for the n that occur below.
    static constexpr std::uint32_t tiny_bits[25] = {
        0x00000000u, 0x00200000u, 0x00400000u, 0x00600000u, 0x00800000u, 0, 0x00C00000u, 0,           0x01000000u,
        0,           0,           0,           0x01400000u, 0,           0, 0,           0x01800000u, 0,
        0,           0,           0,           0,           0,           0, 0x01C00000u};

    /// 2^(byte - 128); subnormal for bytes 0 and 1.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static constexpr float scale_of(std::uint32_t byte) noexcept {
        return std::bit_cast<float>(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        codes_type out;
        out.scale = scale_of(static_cast<std::uint32_t>(block[0]));
        detail::load_levels(block + 1, levels, out.codes);
        return out;
    }
    /// Scale = 2^(floor(log2 of the largest magnitude) - 2), codes to the nearest level, ties to the smaller one.
    ///
    /// Below 2^-125 the reference's exponent goes negative and wraps around to a huge scale with codes of 0; here such a
    /// block has scale byte 0 and codes of 0: the same values. NaN and infinity count as 0.
    FRUGAL_ALWAYS_INLINE static void encode(const float* in, std::byte* block) noexcept {
        std::uint32_t most = 0;
        for (std::size_t i = 0; i < 32; ++i) {
            const std::uint32_t bits = std::bit_cast<std::uint32_t>(in[i]) & 0x7FFFFFFFu;
            if (bits < 0x7F800000u && bits > most) most = bits;
        }
        const std::uint32_t exponent = most >> 23;  // 127 + floor(log2) of normal numbers
        std::uint8_t codes[32] = {};
        const std::uint32_t byte = exponent >= 2 ? exponent - 2 : 0;
        if (exponent >= 2) {
            const float scale = scale_of(byte);
            for (std::size_t i = 0; i < 32; ++i) {
                float least = 0.0f;
                for (std::uint8_t code = 0; code < 16; ++code) {
                    const float difference = scale * static_cast<float>(levels[code]) - in[i];
                    const float distance = difference < 0.0f ? -difference : difference;
                    if (code == 0 || distance < least) least = distance, codes[i] = code;
                }
            }
        }
        block[0] = static_cast<std::byte>(byte);
        detail::store_nibbles(block + 1, codes);
    }
    /// Scale bytes 0 and 1 give subnormal numbers; they come from a table, right even where arithmetic flushes them.
    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float* out) noexcept {
        const codes_type codes = unpack(block);
        const auto byte = static_cast<std::uint32_t>(block[0]);
        if (byte >= 2) return codes.decode(out);
        // Doubled E2M1 magnitudes 1 2 3 4 6 8 12 times 2^-128, as bits; 2^-127 is the same times two.
        for (std::size_t i = 0; i < 32; ++i) {
            const int level = codes.codes[i];
            const std::uint32_t magnitude = static_cast<std::uint32_t>(level < 0 ? -level : level) << byte;
            const std::uint32_t bits = tiny_bits[magnitude];
            const std::uint32_t value = bits | (level < 0 ? 0x80000000u : 0u);
            std::memcpy(out + i, &value, sizeof(value));
        }
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<32, 32> fields(const std::byte* block) noexcept {
        block_fields<32, 32> out;
        out.scale = static_cast<std::uint16_t>(block[0]);
        detail::load_nibbles(block + 1, out.codes);
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte*) noexcept { return true; }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
