// fails NO_CONVENTION: frugal: q4nx<Convention> needs a convention: quant::q4nx_additive, q4nx_subtractive, q4nx_signed, q4nx_signed_row_scales, q4nx_row_major, or a struct with static name, algebra, sign, scales and codes
// fails HALF_A_CONVENTION: frugal: q4nx<Convention> needs a convention: quant::q4nx_additive, q4nx_subtractive
#include "frugal/quant/q4nx.hpp"

namespace quant = frugal::quant;

#if defined(NO_CONVENTION)
struct mine {};
#elif defined(HALF_A_CONVENTION)
struct mine {
    static constexpr const char* name = "mine";
    static constexpr quant::tile_algebra algebra = quant::tile_algebra::additive;
    static constexpr quant::scale_order scales = quant::scale_order::by_row;
    static constexpr quant::code_order codes = quant::code_order::lanes;
};
#else
struct mine : quant::q4nx_additive {
    static constexpr quant::scale_order scales = quant::scale_order::by_row;
};
#endif

void encode(const float* w, std::byte* tile) { quant::q4nx<mine>::encode_tile(w, quant::q4nx<mine>::tile_cols, tile); }
