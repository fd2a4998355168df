// fails ODD_PRODUCT: frugal: integer dot products cover a multiple of 32 codes
// fails ODD_COUNT: frugal: codes are decoded eight at a time
// flags: -mavx2 -mfma -mf16c
#include <cstddef>
#include <cstdint>

#include "frugal/quant/vectors.hpp"

namespace quant = frugal::quant;

#if defined(ODD_PRODUCT)
inline constexpr std::size_t product = 40;
#else
inline constexpr std::size_t product = 64;
#endif
#if defined(ODD_COUNT)
inline constexpr std::size_t count = 12;
#else
inline constexpr std::size_t count = 16;
#endif

std::int32_t multiply(const std::uint8_t (&a)[product], const std::int8_t (&b)[product]) {
    return quant::detail::sum_of_products(a, b);
}
void decode(const std::uint8_t* codes, float* out) { quant::detail::decode_codes<count>(codes, out, 1.0f); }
