// fails CONVOLUTION: frugal: an activation or gate is a type; write ops::activation::silu, sigmoid or identity, or one of your own with a name and static float apply(float) noexcept
// fails NORM: frugal: an activation or gate is a type
// fails LAYER: frugal: an activation or gate is a type
// fails MAY_THROW: frugal: an activation or gate is a type
#include <cstddef>
#include <span>
#include <string_view>

#include "frugal/attention/gdn/gdn.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/norm/norm.hpp"

namespace fg = frugal;

struct relu {
    static constexpr std::string_view name = "relu";
#if defined(MAY_THROW)
    static float apply(float x) { return x > 0 ? x : 0; }
#else
    static float apply(float x) noexcept { return x > 0 ? x : 0; }
#endif
};

using wrong = fg::device::q8_activations;
#if defined(CONVOLUTION)
using of_convolution = wrong;
#else
using of_convolution = fg::ops::activation::silu;
#endif
#if defined(NORM)
using of_norm = wrong;
#else
using of_norm = relu;
#endif
#if defined(LAYER)
using of_layer = fg::ops::scan::recurrent;
#else
using of_layer = fg::ops::activation::sigmoid;
#endif

fg::status convolve(fg::device::cpu<>& dev, fg::matrix_view<const float> x, std::span<const float> w,
                    fg::matrix_view<float> state, fg::matrix_view<float> y) {
    return fg::ops::causal_conv1d<of_convolution>(dev, w, x, std::size_t{4}, std::size_t{1}, state, y);
}
fg::status normalize(fg::device::cpu<>& dev, fg::matrix_view<const float> x, std::span<const float> w, fg::matrix_view<float> y) {
    return fg::ops::gated_rms_norm<of_norm>(dev, w, x, x, 1e-6f, y);
}
static_assert(fg::attention::gdn<fg::ops::head_pairing::tiled, of_layer>::name == "gdn");
