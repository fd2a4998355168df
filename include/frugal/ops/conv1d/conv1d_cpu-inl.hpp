#pragma once
#include <cstring>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/conv1d/conv1d_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// sum[c] += w[c] * x[c], c < n.
template <class Isa>
FRUGAL_ALWAYS_INLINE void add_tap(const float* w, const float* x, float* sum, std::size_t n) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    std::size_t c = 0;
    for (; c + width <= n; c += width)
        simd::store<Isa>(sum + c, simd::load<Isa>(sum + c) + simd::load<Isa>(w + c) * simd::load<Isa>(x + c));
    if (c < n) {
        const simd::vec<Isa> more = simd::load_some<Isa>(w + c, n - c) * simd::load_some<Isa>(x + c, n - c);
        simd::store_some<Isa>(sum + c, simd::load_some<Isa>(sum + c, n - c) + more, n - c);
    }
}

/// The column of tap `tap` for n channels, out of weights that lie channel by channel.
FRUGAL_ALWAYS_INLINE void gather_taps(const float* w, std::size_t kernel, std::size_t tap, std::size_t n, float* out) noexcept {
    for (std::size_t c = 0; c < n; ++c) out[c] = w[c * kernel + tap];
}

}  // namespace detail

template <class Isa, class Activation>
void causal_conv1d_channels(matrix_view<const float> x, const float* w, std::size_t kernel, std::size_t dilation,
                            matrix_view<float> state, matrix_view<float> y, std::size_t channel_begin, std::size_t channel_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t kept = 16;  // taps whose weights are turned once a tile; longer kernels turn the rest for every token
    const std::size_t history = state.rows();
    const std::size_t tokens = x.rows();
    float taps[kept][conv1d_tile];
    float turned[conv1d_tile];
    for (std::size_t first = channel_begin; first < channel_end; first += conv1d_tile) {
        const std::size_t n = channel_end - first < conv1d_tile ? channel_end - first : conv1d_tile;
        const float* weights = w + first * kernel;
        for (std::size_t k = 0; k < kernel && k < kept; ++k) detail::gather_taps(weights, kernel, k, n, taps[k]);
        for (std::size_t t = 0; t < tokens; ++t) {
            float sum[conv1d_tile] = {};
            for (std::size_t k = 0; k < kernel; ++k) {
                const std::size_t at = t + k * dilation;  // row of [history, x]; the newest tap reads history + t
                const float* in = at < history ? state.row(at) + first : x.row(at - history) + first;
                if (k >= kept) detail::gather_taps(weights, kernel, k, n, turned);
                detail::add_tap<Isa>(k < kept ? taps[k] : turned, in, sum, n);
            }
            float* out = y.row(t) + first;
            for (std::size_t c = 0; c < n; ++c) out[c] = Activation::apply(sum[c]);
        }
        // The last `history` rows of [history, x], oldest first: every row moves down by `tokens`.
        for (std::size_t row = 0; row < history; ++row) {
            const std::size_t at = row + tokens;
            const float* from = at < history ? state.row(at) + first : x.row(at - history) + first;
            if (tokens != 0) std::memcpy(state.row(row) + first, from, n * sizeof(float));
        }
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
