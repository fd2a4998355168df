// fails ODD_BLOCK: frugal: blocks of q8_activation hold a multiple of 16 values
#include <cstddef>

#include "frugal/quant/activation.hpp"

#if defined(ODD_BLOCK)
inline constexpr std::size_t size = 24;
#else
inline constexpr std::size_t size = 32;
#endif
static_assert(frugal::quant::q8_activation<size>::block_size == size);
