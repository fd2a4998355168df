#pragma once
#include <math.h>

#include <cstring>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// One token for `Registers` registers of columns. The state lies key feature by key feature, `stride` apart.
/// Two running sums a column, over the even and the odd key features, keep the multipliers busy.
template <class Isa, std::size_t Registers>
FRUGAL_ALWAYS_INLINE void delta_step(float* state, std::size_t stride, const float* q, const float* k, const float* v,
                                     float decay, float beta, std::size_t key_dim, float scale, float* out) noexcept {
    using vec = simd::vec<Isa>;
    constexpr std::size_t width = simd::width<Isa>;
    const vec decays = simd::broadcast<Isa>(decay);
    vec sums[Registers][2] = {};
    std::size_t i = 0;
    for (; i + 2 <= key_dim; i += 2)
        for (std::size_t odd = 0; odd < 2; ++odd) {
            const vec ks = simd::broadcast<Isa>(k[i + odd]);
            for (std::size_t r = 0; r < Registers; ++r)
                sums[r][odd] += (simd::load<Isa>(state + (i + odd) * stride + r * width) * decays) * ks;
        }
    if (i < key_dim) {
        const vec ks = simd::broadcast<Isa>(k[i]);
        for (std::size_t r = 0; r < Registers; ++r) sums[r][0] += (simd::load<Isa>(state + i * stride + r * width) * decays) * ks;
    }
    vec delta[Registers];
    for (std::size_t r = 0; r < Registers; ++r) {
        delta[r] = (simd::load<Isa>(v + r * width) - (sums[r][0] + sums[r][1])) * simd::broadcast<Isa>(beta);
        sums[r][0] = sums[r][1] = vec{};
    }
    const auto update = [&](std::size_t feature, std::size_t odd) {
        const vec ks = simd::broadcast<Isa>(k[feature]), qs = simd::broadcast<Isa>(q[feature]);
        for (std::size_t r = 0; r < Registers; ++r) {
            float* at = state + feature * stride + r * width;
            const vec next = simd::load<Isa>(at) * decays + ks * delta[r];
            simd::store<Isa>(at, next);
            sums[r][odd] += next * qs;
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
FRUGAL_ALWAYS_INLINE void delta_step_scalar(float* state, std::size_t stride, const float* q, const float* k, float v,
                                            float decay, float beta, std::size_t key_dim, float scale, float* out) noexcept {
    float predicted = 0;
    for (std::size_t i = 0; i < key_dim; ++i) predicted += (state[i * stride] * decay) * k[i];
    const float delta = (v - predicted) * beta;
    float read = 0;
    for (std::size_t i = 0; i < key_dim; ++i) {
        const float next = state[i * stride] * decay + k[i] * delta;
        state[i * stride] = next;
        read += next * q[i];
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

/// c[m][j] += sum over p < depth of a(m, p) * b[p][j], for Rows rows of c and Registers registers of columns.
/// a(m, p) = a[m * a_row + p * a_step]. The order of additions is p's, whatever the tile.
template <class Isa, std::size_t Rows, std::size_t Registers>
FRUGAL_ALWAYS_INLINE void delta_multiply_tile(const float* a, std::size_t a_row, std::size_t a_step, const float* b,
                                              std::size_t b_row, std::size_t depth, float* c, std::size_t c_row) noexcept {
    using vec = simd::vec<Isa>;
    constexpr std::size_t width = simd::width<Isa>;
    vec sums[Rows][Registers];
    for (std::size_t m = 0; m < Rows; ++m)
        for (std::size_t r = 0; r < Registers; ++r) sums[m][r] = simd::load<Isa>(c + m * c_row + r * width);
    for (std::size_t p = 0; p < depth; ++p) {
        vec bs[Registers];
        for (std::size_t r = 0; r < Registers; ++r) bs[r] = simd::load<Isa>(b + p * b_row + r * width);
        for (std::size_t m = 0; m < Rows; ++m) {
            const vec as = simd::broadcast<Isa>(a[m * a_row + p * a_step]);
            for (std::size_t r = 0; r < Registers; ++r) sums[m][r] += as * bs[r];
        }
    }
    for (std::size_t m = 0; m < Rows; ++m)
        for (std::size_t r = 0; r < Registers; ++r) simd::store<Isa>(c + m * c_row + r * width, sums[m][r]);
}

template <class Isa, std::size_t Rows>
FRUGAL_ALWAYS_INLINE void delta_multiply_rows(const float* a, std::size_t a_row, std::size_t a_step, const float* b,
                                              std::size_t b_row, std::size_t depth, std::size_t cols, float* c,
                                              std::size_t c_row) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    std::size_t j = 0;
    for (; j + 2 * width <= cols; j += 2 * width)
        delta_multiply_tile<Isa, Rows, 2>(a, a_row, a_step, b + j, b_row, depth, c + j, c_row);
    for (; j + width <= cols; j += width) delta_multiply_tile<Isa, Rows, 1>(a, a_row, a_step, b + j, b_row, depth, c + j, c_row);
    for (; j < cols; ++j)
        for (std::size_t m = 0; m < Rows; ++m) {
            float sum = c[m * c_row + j];
            for (std::size_t p = 0; p < depth; ++p) sum += a[m * a_row + p * a_step] * b[p * b_row + j];
            c[m * c_row + j] = sum;
        }
}

/// c[m][j] += sum over p of a(m, p) * b[p][j].
template <class Isa>
FRUGAL_ALWAYS_INLINE void delta_multiply_add(const float* a, std::size_t a_row, std::size_t a_step, const float* b,
                                             std::size_t b_row, std::size_t rows, std::size_t depth, std::size_t cols, float* c,
                                             std::size_t c_row) noexcept {
    std::size_t m = 0;
    for (; m + 4 <= rows; m += 4)
        delta_multiply_rows<Isa, 4>(a + m * a_row, a_row, a_step, b, b_row, depth, cols, c + m * c_row, c_row);
    for (; m < rows; ++m) delta_multiply_rows<Isa, 1>(a + m * a_row, a_row, a_step, b, b_row, depth, cols, c + m * c_row, c_row);
}

FRUGAL_ALWAYS_INLINE void delta_multiply_by(float factor, float* values, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) values[i] *= factor;
}

}  // namespace detail

template <class Isa>
void delta_rule_recurrent(const delta_rule_head& head, std::size_t col_begin, std::size_t col_end, float* scratch) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
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
        for (std::size_t t = 0; t < tokens; ++t) {
            const float decay = ::expf(head.g[t * head.gate_stride]);
            const float beta = head.beta[t * head.gate_stride];
            const float* q = head.q.row(t);
            const float* k = head.k.row(t);
            const float* v = head.v.row(t) + first;
            float* out = head.out.row(t) + first;
            std::size_t c = 0;
            for (; c + 4 * width <= n; c += 4 * width)
                detail::delta_step<Isa, 4>(state + c, stride, q, k, v + c, decay, beta, key_dim, head.scale, out + c);
            for (; c + width <= n; c += width)
                detail::delta_step<Isa, 1>(state + c, stride, q, k, v + c, decay, beta, key_dim, head.scale, out + c);
            for (; c < n; ++c)
                detail::delta_step_scalar(state + c, stride, q, k, v[c], decay, beta, key_dim, head.scale, out + c);
        }
        if (!in_place) detail::panel_to_state(head, key_dim, first, n, scratch);
    }
}

template <class Isa>
void delta_rule_chunked(const delta_rule_head& head, std::size_t chunk, float* scratch) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const std::size_t key_dim = head.q.cols();
    const std::size_t value_dim = head.v.cols();
    const std::size_t tokens = head.q.rows();
    const bool in_place = head.value_stride == 1;
    float* panel = scratch;
    float* key_key = panel + key_dim * delta_rule_panel;   // [t][s]: decay from s to t times k_t . k_s, s < t
    float* query_key = key_key + chunk * chunk;            // [t][s]: decay from s to t times q_t . k_s, s <= t
    float* delta = query_key + chunk * chunk;              // [t]: what token t adds to the state along its key
    float* from_start = delta + chunk * delta_rule_panel;  // [t]: decay of the chunk's first state until t
    float* to_end = from_start + chunk;                    // [s]: decay of what token s added until the chunk's end
    for (std::size_t begin = 0; begin < tokens; begin += chunk) {
        const std::size_t n = tokens - begin < chunk ? tokens - begin : chunk;
        // Decays are running products of exp(g) <= 1, as in the token rule. Exponents of differences of a cumulative sum would
        // lose digits beside a large |g|, be NaN beside -inf, and overflow if factored.
        for (std::size_t t = 0; t < n; ++t) {
            const float decay = ::expf(head.g[(begin + t) * head.gate_stride]);
            from_start[t] = t == 0 ? decay : from_start[t - 1] * decay;
            for (std::size_t s = 0; s < t; ++s) to_end[s] *= decay;
            to_end[t] = 1;
            const float* q = head.q.row(begin + t);
            const float* k = head.k.row(begin + t);
            for (std::size_t s = 0; s < t; ++s)
                key_key[t * chunk + s] = to_end[s] * simd::dot<Isa>(k, head.k.row(begin + s), key_dim);
            for (std::size_t s = 0; s <= t; ++s)
                query_key[t * chunk + s] = to_end[s] * simd::dot<Isa>(q, head.k.row(begin + s), key_dim);
        }
        for (std::size_t first = 0; first < value_dim; first += delta_rule_panel) {
            const std::size_t cols = value_dim - first < delta_rule_panel ? value_dim - first : delta_rule_panel;
            if (!in_place) detail::state_to_panel(head, key_dim, first, cols, panel);
            float* state = in_place ? head.state + first : panel;
            const std::size_t stride = in_place ? head.key_stride : delta_rule_panel;
            const matrix_view<const float> q = head.q.rows_range(begin, n), k = head.k.rows_range(begin, n);
            const matrix_view<float> out = head.out.rows_range(begin, n).cols_range(first, cols);
            // What the state at the chunk's start contributes to every prediction and every output.
            for (std::size_t t = 0; t < n; ++t) {
                std::memset(delta + t * delta_rule_panel, 0, cols * sizeof(float));
                std::memset(out.row(t), 0, cols * sizeof(float));
            }
            detail::delta_multiply_add<Isa>(k.data(), k.stride(), 1, state, stride, n, key_dim, cols, delta, delta_rule_panel);
            detail::delta_multiply_add<Isa>(q.data(), q.stride(), 1, state, stride, n, key_dim, cols, out.data(), out.stride());
            // Forward substitution: token t's prediction also sees what the tokens before it in the chunk added.
            for (std::size_t t = 0; t < n; ++t) {
                float* row = delta + t * delta_rule_panel;
                detail::delta_multiply_by(from_start[t], row, cols);
                detail::delta_multiply_add<Isa>(key_key + t * chunk, chunk, 1, delta, delta_rule_panel, 1, t, cols, row,
                                                delta_rule_panel);
                const float* v = head.v.row(begin + t) + first;
                const float beta = head.beta[(begin + t) * head.gate_stride];
                for (std::size_t c = 0; c < cols; ++c) row[c] = (v[c] - row[c]) * beta;
                detail::delta_multiply_by(from_start[t], out.row(t), cols);
                detail::delta_multiply_add<Isa>(query_key + t * chunk, chunk, 1, delta, delta_rule_panel, 1, t + 1, cols,
                                                out.row(t), out.stride());
                detail::delta_multiply_by(head.scale, out.row(t), cols);
            }
            for (std::size_t t = 0; t < n; ++t) detail::delta_multiply_by(to_end[t], delta + t * delta_rule_panel, cols);
            for (std::size_t i = 0; i < key_dim; ++i) detail::delta_multiply_by(from_start[n - 1], state + i * stride, cols);
            detail::delta_multiply_add<Isa>(k.data(), 1, k.stride(), delta, delta_rule_panel, key_dim, n, cols, state, stride);
            if (!in_place) detail::panel_to_state(head, key_dim, first, cols, panel);
        }
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
