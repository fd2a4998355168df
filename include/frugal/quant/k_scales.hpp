#pragma once
/// The 12 bytes of 6-bit scales and offsets that Q4_K and Q5_K share.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "frugal/core/config.hpp"
#include "frugal/quant/block.hpp"
#include "frugal/quant/panel/layout.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant::detail {

/// Eight scales and eight minima of six bits. Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits;
/// scales 4-7 and minima 4-7 have their low four bits in bytes 8-11 (low and high nibble) and their top two in the top of
/// bytes 0-3 and 4-7.
FRUGAL_ALWAYS_INLINE void load_k_scales(const std::byte* from, std::uint8_t (&scales)[8], std::uint8_t (&minima)[8]) noexcept {
    std::uint8_t packed[12];
    std::memcpy(packed, from, sizeof(packed));
    for (std::size_t j = 0; j < 4; ++j) {
        scales[j] = packed[j] & 63;
        minima[j] = packed[j + 4] & 63;
        scales[j + 4] = static_cast<std::uint8_t>((packed[j + 8] & 0xF) | ((packed[j] >> 6) << 4));
        minima[j + 4] = static_cast<std::uint8_t>((packed[j + 8] >> 4) | ((packed[j + 4] >> 6) << 4));
    }
}

/// All fields of a Q4_K or Q5_K block but its codes.
FRUGAL_ALWAYS_INLINE void load_k_fields(const std::byte* block, block_fields<256, 32>& out) noexcept {
    out.scale = static_cast<std::uint16_t>(load_u16(block));
    out.offset_scale = static_cast<std::uint16_t>(load_u16(block + 2));
    std::uint8_t scales[8];
    load_k_scales(block + 4, scales, out.run_offsets);
    for (std::size_t g = 0; g < 8; ++g) out.run_scales[g] = static_cast<std::int8_t>(scales[g]);
}

/// 32 bytes of nibbles: 32 low ones, then 32 high ones.
FRUGAL_ALWAYS_INLINE void load_pair(const std::byte* from, std::uint8_t* out) noexcept {
    for (std::size_t j = 0; j < 32; j += 16) {
        const bytes_16 packed = load_bytes(from + j);
        store_bytes(out + j, packed & 0xF);
        store_bytes(out + 32 + j, packed >> 4);
    }
}

}  // namespace quant::detail

FRUGAL_NAMESPACE_END
