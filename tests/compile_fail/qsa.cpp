// fails NO_TOKENS: frugal: a QSA block needs at least one token: write qsa<4, ops::norm_weight::zero_centred>
#include "frugal/attention/qsa/qsa.hpp"

#if defined(NO_TOKENS)
using sparse = frugal::attention::qsa<0, frugal::ops::norm_weight::plain>;
#else
using sparse = frugal::attention::qsa<8, frugal::ops::norm_weight::plain>;
#endif
static_assert(sparse::name == "qsa");
