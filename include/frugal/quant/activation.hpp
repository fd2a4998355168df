#pragma once
/// 8-bit activations for integer dot products.
#include <bit>
#include <cstddef>
#include <cstdint>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// Activations in blocks of `Size` values: value = scale * code, codes -127 … 127, scale = (largest magnitude) / 127.
///
/// Error per value: at most scale / 2 plus rounding. A block whose largest magnitude is below 2^-120 becomes zeros; a block
/// with a NaN or an infinity gets a NaN scale and codes of 0, so that every product with it is NaN and nothing is hidden.
/// The codes are the same on every instruction set (ties to even, in the default rounding mode).
template <std::size_t Size>
struct q8_activation {
    static_assert(Size % 16 == 0, "frugal: blocks of q8_activation hold a multiple of 16 values");
    static constexpr std::size_t block_size = Size;
    /// Values in each partial sum; formats with an offset multiply it by these sums.
    static constexpr std::size_t sum_size = 16;

    struct block {
        float scale;
        std::int16_t sums[Size / sum_size];  ///< sums of 16 consecutive codes
        std::int8_t codes[Size];
    };

    /// Reads `Size` floats at any address that floats may have.
    FRUGAL_ALWAYS_INLINE static void quantize(const float* x, block& out) noexcept {
        // Magnitudes of floats order like their bits, with NaN above infinity above everything finite.
        std::int32_t most = 0;
        for (std::size_t i = 0; i < Size; ++i) {
            const auto magnitude = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu);
            most = magnitude > most ? magnitude : most;
        }
        constexpr std::int32_t infinity_bits = 0x7F800000, least_bits = (127 - 120) << 23;
        if (most >= infinity_bits || most < least_bits) {
            out.scale = most >= infinity_bits ? std::bit_cast<float>(0x7FC00000u) : 0.0f;
            for (std::size_t i = 0; i < Size; ++i) out.codes[i] = 0;
            for (std::size_t i = 0; i < Size / sum_size; ++i) out.sums[i] = 0;
            return;
        }
        const float largest = std::bit_cast<float>(most);
        out.scale = largest / 127.0f;
        const auto inverse = static_cast<double>(127.0f / largest);
        // The product of two floats is exact in double, so fusing it with the addition changes nothing; adding 1.5 * 2^52
        // rounds to an integer in the low bits.
        for (std::size_t i = 0; i < Size; ++i) {
            const double shifted = static_cast<double>(x[i]) * inverse + 6755399441055744.0;
            out.codes[i] = static_cast<std::int8_t>(static_cast<std::uint8_t>(std::bit_cast<std::uint64_t>(shifted) & 0xFFu));
        }
        for (std::size_t i = 0; i < Size / sum_size; ++i) {
            std::int32_t sum = 0;
            for (std::size_t j = 0; j < sum_size; ++j) sum += out.codes[i * sum_size + j];
            out.sums[i] = static_cast<std::int16_t>(sum);
        }
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END
