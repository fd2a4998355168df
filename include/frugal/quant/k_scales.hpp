#pragma once
/// The 12 bytes of 6-bit scales and offsets that Q4_K and Q5_K share.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "frugal/core/config.hpp"

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

}  // namespace quant::detail

FRUGAL_NAMESPACE_END
