// fails RUN: frugal: columns of a panel share a scale in runs of 16 or 32
// fails SIGNED_OFFSET: frugal: signed codes of a panel have no offset
// fails BITS: frugal: codes of a panel have 4, 5, 6 or 8 bits
// fails BLOCK: frugal: a panel's layout covers one block of its format
// fails SCALAR: frugal: formats are decoded into panels of f32
#include <cstddef>

#include "frugal/quant/formats/q4_0.hpp"
#include "frugal/quant/formats/q4_k.hpp"
#include "frugal/quant/panels.hpp"

namespace quant = frugal::quant;

#if defined(RUN)
inline constexpr std::size_t run = 8;
#else
inline constexpr std::size_t run = 16;
#endif
#if defined(SIGNED_OFFSET)
inline constexpr int offset = 8;
#else
inline constexpr int offset = 0;
#endif
static_assert(quant::code_kind<true, 127, offset, run>::most == 127);

#if defined(BITS)
inline constexpr std::size_t above = 3;
#else
inline constexpr std::size_t above = 2;
#endif
static_assert(quant::plane_codes<above>::low_bytes == 256);

#if defined(BLOCK)
using packed = quant::q4_k;
#else
using packed = quant::q4_0;
#endif
#if defined(SCALAR)
using scalar = frugal::bfloat16;
#else
using scalar = float;
#endif
void pack(const std::byte* const (&rows)[quant::panel_rows], std::byte* out) {
    quant::q4_0::panel::pack<packed>(rows, 256, out);
    quant::scalar_panel<scalar>::pack<quant::q4_0>(rows, 256, out);
}
