#pragma once
#include <cstring>
#include <type_traits>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation_cpu.hpp"
#include "frugal/ops/conv1d/conv1d_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// Weights of a strip of channels, tap by tap. Rows of a strip are a page long where the kernel is short, so that memory is
/// read in order; the weights stay in the first cache.
struct conv1d_taps {
    static constexpr std::size_t room = 4096;
    static constexpr std::size_t most = room / conv1d_tile;  // longer kernels have the rest of their weights gathered each time

    alignas(64) float kept[room];
    const float* weights;  // of the strip's first channel, channel by channel
    std::size_t kernel, strip;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static constexpr std::size_t strip_of(std::size_t kernel) noexcept {
        return kernel >= most ? conv1d_tile : room / kernel / conv1d_tile * conv1d_tile;
    }

    FRUGAL_ALWAYS_INLINE void turn(const float* from, std::size_t taps, std::size_t channels) noexcept {
        weights = from;
        kernel = taps;
        strip = strip_of(taps);
        for (std::size_t c = 0; c < channels; ++c)
            for (std::size_t k = 0; k < (taps < most ? taps : most); ++k) kept[k * strip + c] = from[c * taps + k];
    }

    /// Tap k of the n <= width channels from c on; zeros behind them.
    template <class Isa>
    [[nodiscard]] FRUGAL_ALWAYS_INLINE simd::vec<Isa> load(std::size_t k, std::size_t c, std::size_t n) const noexcept {
        if (k < most && n == simd::width<Isa>) return simd::load<Isa>(kept + k * strip + c);
        float lanes[simd::width<Isa>] = {};
        for (std::size_t i = 0; i < n; ++i) lanes[i] = weights[(c + i) * kernel + k];
        return simd::load<Isa>(lanes);
    }
};

/// Outputs of Tokens tokens for the first n channels of a strip. rows[k * dilation + i] is what tap k of token i reads, and
/// Kernel is the kernel where the compiler may know it, else 0.
template <class Isa, class Activation, std::size_t Kernel, std::size_t Tokens, class Row>
FRUGAL_ALWAYS_INLINE void convolve_strip(const conv1d_taps& taps, const Row& row, std::size_t dilation, std::size_t n,
                                         float* const (&out)[Tokens]) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    const std::size_t kernel = Kernel != 0 ? Kernel : taps.kernel;
    const float* in[Kernel != 0 ? Kernel : 1][Tokens];
    if constexpr (Kernel != 0)
        for (std::size_t k = 0; k < Kernel; ++k)
            for (std::size_t i = 0; i < Tokens; ++i) in[k][i] = row(k * dilation + i);
    std::size_t c = 0;
    simd::vec<Isa> sums[Tokens];
    for (; c + width <= n; c += width) {
        for (std::size_t i = 0; i < Tokens; ++i) sums[i] = simd::vec<Isa>{};
        for (std::size_t k = 0; k < kernel; ++k) {
            const simd::vec<Isa> tap = taps.template load<Isa>(k, c, width);
            for (std::size_t i = 0; i < Tokens; ++i)
                sums[i] = simd::multiply_add<Isa>(
                    tap, simd::load<Isa>((Kernel != 0 ? in[Kernel != 0 ? k : 0][i] : row(k * dilation + i)) + c), sums[i]);
        }
        activate<Isa, Activation>(sums);
        for (std::size_t i = 0; i < Tokens; ++i) simd::store<Isa>(out[i] + c, sums[i]);
    }
    if (c == n) return;
    for (std::size_t i = 0; i < Tokens; ++i) sums[i] = simd::vec<Isa>{};
    for (std::size_t k = 0; k < kernel; ++k) {
        const simd::vec<Isa> tap = taps.template load<Isa>(k, c, n - c);
        for (std::size_t i = 0; i < Tokens; ++i)
            sums[i] = simd::multiply_add<Isa>(tap, simd::load_some<Isa>(row(k * dilation + i) + c, n - c), sums[i]);
    }
    activate<Isa, Activation>(sums);
    for (std::size_t i = 0; i < Tokens; ++i) simd::store_some<Isa>(out[i] + c, sums[i], n - c);
}

}  // namespace detail

template <class Isa, class Activation>
void causal_conv1d_channels(matrix_view<const float> x, const float* w, std::size_t kernel, std::size_t dilation,
                            matrix_view<float> state, matrix_view<float> y, std::size_t channel_begin, std::size_t channel_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t block = 128;  // tokens for which a strip's weights are turned once
    const std::size_t history = state.rows();
    const std::size_t tokens = x.rows();
    const std::size_t strip = detail::conv1d_taps::strip_of(kernel);
    detail::conv1d_taps taps;
    // Row `at` of [history, x]; the newest tap of token t reads row history + t.
    const auto row = [&](std::size_t at) -> const float* { return at < history ? state.row(at) : x.row(at - history); };
    for (std::size_t begin = 0; begin < tokens; begin += block) {
        const std::size_t end = tokens - begin < block ? tokens : begin + block;
        for (std::size_t first = channel_begin; first < channel_end; first += strip) {
            const std::size_t n = channel_end - first < strip ? channel_end - first : strip;
            taps.turn(w + first * kernel, kernel, n);
            const auto convolve = [&]<std::size_t Tokens>(std::integral_constant<std::size_t, Tokens>, std::size_t t) {
                float* out[Tokens];
                for (std::size_t i = 0; i < Tokens; ++i) out[i] = y.row(t + i) + first;
                const auto of_strip = [&](std::size_t at) { return row(t + at) + first; };
                if (kernel == 4)
                    detail::convolve_strip<Isa, Activation, 4>(taps, of_strip, dilation, n, out);
                else
                    detail::convolve_strip<Isa, Activation, 0>(taps, of_strip, dilation, n, out);
            };
            std::size_t t = begin;
            for (; t + 2 <= end; t += 2) convolve(std::integral_constant<std::size_t, 2>{}, t);
            if (t < end) convolve(std::integral_constant<std::size_t, 1>{}, t);
        }
    }
    // The last `history` rows of [history, x], oldest first: every row moves down by `tokens`.
    for (std::size_t to = 0; to < history && tokens != 0; ++to)
        std::memcpy(state.row(to) + channel_begin, row(to + tokens) + channel_begin,
                    (channel_end - channel_begin) * sizeof(float));
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
