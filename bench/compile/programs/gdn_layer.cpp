// A Gated DeltaNet layer whose weights have one format.
#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/quant/formats/q4_k.hpp"
#include "frugal/quant/list.hpp"

namespace fg = frugal;
using layer = fg::attention::gdn<fg::ops::head_pairing::tiled>;

fg::status step(fg::device::cpu<>& device, fg::workspace& scratch, const layer::dims& dims, const layer::weights& weights,
                layer::state& state, const fg::attention::batch& batch, fg::matrix_view<const float> x, fg::matrix_view<float> y) {
    return layer::forward<fg::quant::list<fg::quant::q4_k>>(device, scratch, dims, weights, state, batch, x, y);
}
