#pragma once
#include <math.h>

#include <cstring>

#include "frugal/device/cpu/flush_denormals.hpp"
#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/gated_delta_rule/delta_rule_chunked-inl.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// One token for `Registers` registers of columns. The state lies key feature by key feature, `stride` apart.
/// Two running sums a column, over the even and the odd key features, keep the multipliers busy. Where Ahead, as many
/// floats from `ahead` on come from memory meanwhile.
template <class Isa, std::size_t Registers, bool Ahead>
FRUGAL_KERNEL FRUGAL_ALWAYS_INLINE void delta_step(float* state, std::size_t stride, const float* q, const float* k,
                                                   const float* v, float decay, float beta, std::size_t key_dim, float scale,
                                                   float* out, [[maybe_unused]] const float* ahead) noexcept {
    using vec = simd::vec<Isa>;
    constexpr std::size_t width = simd::width<Isa>;
    const vec decays = simd::broadcast<Isa>(decay);
    vec sums[Registers][2];
    for (std::size_t r = 0; r < Registers; ++r) sums[r][0] = sums[r][1] = vec{};
    [[maybe_unused]] constexpr std::size_t lines = Registers * width / 16;  // for a key feature, in both passes
    std::size_t i = 0;
    for (; i + 2 <= key_dim; i += 2)
        for (std::size_t odd = 0; odd < 2; ++odd) {
            if constexpr (Ahead)  // not by a function: g++ drops calls of those that only fetch
                for (std::size_t line = 0; line < lines / 2; ++line)
                    __builtin_prefetch(ahead + (line * key_dim + i + odd) * 16, 0, 2);
            const vec ks = simd::broadcast<Isa>(k[i + odd]);
            for (std::size_t r = 0; r < Registers; ++r)
                sums[r][odd] = simd::multiply_add<Isa>(simd::load<Isa>(state + (i + odd) * stride + r * width) * decays, ks,
                                                       sums[r][odd]);
        }
    if (i < key_dim) {
        const vec ks = simd::broadcast<Isa>(k[i]);
        for (std::size_t r = 0; r < Registers; ++r)
            sums[r][0] = simd::multiply_add<Isa>(simd::load<Isa>(state + i * stride + r * width) * decays, ks, sums[r][0]);
    }
    vec delta[Registers];
    for (std::size_t r = 0; r < Registers; ++r) {
        delta[r] = (simd::load<Isa>(v + r * width) - (sums[r][0] + sums[r][1])) * simd::broadcast<Isa>(beta);
        sums[r][0] = sums[r][1] = vec{};
    }
    const auto update = [&](std::size_t feature, std::size_t odd) {
        if constexpr (Ahead)
            for (std::size_t line = lines / 2; line < lines; ++line)
                __builtin_prefetch(ahead + (line * key_dim + feature) * 16, 0, 2);
        const vec ks = simd::broadcast<Isa>(k[feature]), qs = simd::broadcast<Isa>(q[feature]);
        for (std::size_t r = 0; r < Registers; ++r) {
            float* at = state + feature * stride + r * width;
            const vec next = simd::multiply_add<Isa>(ks, delta[r], simd::load<Isa>(at) * decays);
            simd::store<Isa>(at, next);
            sums[r][odd] = simd::multiply_add<Isa>(next, qs, sums[r][odd]);
        }
    };
    for (i = 0; i + 2 <= key_dim; i += 2) {
        update(i, 0);
        update(i + 1, 1);
    }
    if (i < key_dim) update(i, 0);
    for (std::size_t r = 0; r < Registers; ++r)
        simd::store<Isa>(out + r * width, (sums[r][0] + sums[r][1]) * simd::broadcast<Isa>(scale));
}

/// One token for one column.
template <class Isa>
FRUGAL_ALWAYS_INLINE void delta_step_scalar(float* state, std::size_t stride, const float* q, const float* k, float v,
                                            float decay, float beta, std::size_t key_dim, float scale, float* out) noexcept {
    float predicted = 0;
    for (std::size_t i = 0; i < key_dim; ++i) predicted = simd::multiply_add<Isa>(state[i * stride] * decay, k[i], predicted);
    const float delta = (v - predicted) * beta;
    float read = 0;
    for (std::size_t i = 0; i < key_dim; ++i) {
        const float next = simd::multiply_add<Isa>(k[i], delta, state[i * stride] * decay);
        state[i * stride] = next;
        read = simd::multiply_add<Isa>(next, q[i], read);
    }
    *out = read * scale;
}

/// Copies columns first … first + n - 1 of a head's state into a panel whose rows are delta_rule_panel apart, or back.
FRUGAL_ALWAYS_INLINE void state_to_panel(const delta_rule_head& head, std::size_t key_dim, std::size_t first, std::size_t n,
                                         float* panel) noexcept {
    for (std::size_t c = 0; c < n; ++c)
        for (std::size_t i = 0; i < key_dim; ++i)
            panel[i * delta_rule_panel + c] = head.state[i * head.key_stride + (first + c) * head.value_stride];
}
FRUGAL_ALWAYS_INLINE void panel_to_state(const delta_rule_head& head, std::size_t key_dim, std::size_t first, std::size_t n,
                                         const float* panel) noexcept {
    for (std::size_t c = 0; c < n; ++c)
        for (std::size_t i = 0; i < key_dim; ++i)
            head.state[i * head.key_stride + (first + c) * head.value_stride] = panel[i * delta_rule_panel + c];
}

}  // namespace detail

template <class Isa>
void delta_rule_recurrent(const delta_rule_head& head, std::size_t col_begin, std::size_t col_end, const float* ahead,
                          float* scratch) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const device::flush_denormals flush;
    constexpr std::size_t width = simd::width<Isa>;
    const std::size_t key_dim = head.q.cols();
    const std::size_t tokens = head.q.rows();
    // A state whose columns are contiguous is worked on where it lies, any other in a panel.
    const bool in_place = head.value_stride == 1;
    for (std::size_t first = col_begin; first < col_end; first += delta_rule_panel) {
        const std::size_t n = col_end - first < delta_rule_panel ? col_end - first : delta_rule_panel;
        if (!in_place) detail::state_to_panel(head, key_dim, first, n, scratch);
        float* state = in_place ? head.state + first : scratch;
        const std::size_t stride = in_place ? head.key_stride : delta_rule_panel;
        const auto decay = [&](std::size_t t) { return ::expf(head.g[t * head.gate_stride]); };
        const auto step = [&]<std::size_t Registers, bool Ahead>(std::size_t t, std::size_t c, const float* next) {
            detail::delta_step<Isa, Registers, Ahead>(state + c, stride, head.q.row(t), head.k.row(t), head.v.row(t) + first + c,
                                                      decay(t), head.beta[t * head.gate_stride], key_dim, head.scale,
                                                      head.out.row(t) + first + c, next);
        };
        // Columns that stay in the first cache, through all tokens.
        std::size_t c = 0;
        for (; c + 4 * width <= n; c += 4 * width) {
            for (std::size_t t = 0; t + 1 < tokens; ++t) step.template operator()<4, false>(t, c, nullptr);
            if (tokens != 0 && ahead != nullptr)
                step.template operator()<4, true>(tokens - 1, c, ahead + (first - col_begin + c) * key_dim);
            else if (tokens != 0)
                step.template operator()<4, false>(tokens - 1, c, nullptr);
        }
        for (; c + width <= n; c += width)
            for (std::size_t t = 0; t < tokens; ++t) step.template operator()<1, false>(t, c, nullptr);
        for (; c < n; ++c)
            for (std::size_t t = 0; t < tokens; ++t)
                detail::delta_step_scalar<Isa>(state + c, stride, head.q.row(t), head.k.row(t), head.v.row(t)[first + c],
                                               decay(t), head.beta[t * head.gate_stride], key_dim, head.scale,
                                               head.out.row(t) + first + c);
        if (!in_place) detail::panel_to_state(head, key_dim, first, n, scratch);
    }
}

template <class Isa>
void delta_gates_rows(matrix_view<const float> a, matrix_view<const float> b, const float* a_neg_exp, const float* dt_bias,
                      matrix_view<float> g, matrix_view<float> beta, std::size_t row_begin, std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t t = row_begin; t < row_end; ++t)
        for (std::size_t h = 0; h < a.cols(); ++h) {
            g(t, h) = a_neg_exp[h] * ops::softplus(a(t, h) + dt_bias[h]);
            beta(t, h) = ops::sigmoid(b(t, h));
        }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
