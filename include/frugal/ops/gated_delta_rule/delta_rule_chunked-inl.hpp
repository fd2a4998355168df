#pragma once
/// The gated delta rule some tokens at a time. With D(t, s) the decay from token s to token t and D(t, -1) that from the
/// chunk's start, the corrections of a chunk solve
///   delta_t = beta_t (v_t - D(t, -1) S' k_t - sum over s < t of D(t, s) (k_t . k_s) delta_s),
/// and its outputs and the state behind it are
///   out_t = D(t, -1) S' q_t + sum over s <= t of D(t, s) (q_t . k_s) delta_s,
///   S = D(n - 1, -1) S + sum over s of D(n - 1, s) k_s delta_s'.
/// Source: Yang, Wang, Zhang, Shen, Kim 2024 (arXiv:2406.06484); Yang, Kautz, Hatamizadeh 2024 (arXiv:2412.06464).
#include <math.h>

#include <cstring>
#include <utility>

#include "frugal/device/cpu/flush_denormals.hpp"
#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// Tile of a product: rows times two registers of columns, as many as the registers hold beside the operands. Matrices that
/// are read along their columns lie in panels as wide as a tile, row by row, the last one filled with zeros.
template <class Isa>
struct delta_tile {
    static constexpr std::size_t rows = simd::width<Isa> == 16 ? 8 : simd::width<Isa> == 8 ? 6 : 4;
    static constexpr std::size_t panel = 2 * simd::width<Isa>;
    static_assert(delta_rule_widest_panel % panel == 0);
};

/// Rows x 2 running registers.
template <class Isa, std::size_t Rows>
using delta_sums = simd::vec<Isa>[Rows][2];

template <class Isa, std::size_t Rows>
FRUGAL_ALWAYS_INLINE void clear(delta_sums<Isa, Rows>& sums) noexcept {
#pragma GCC unroll 16
    for (std::size_t m = 0; m < Rows; ++m) sums[m][0] = sums[m][1] = simd::vec<Isa>{};
}

/// sums[m] += sum over p < depth, in this order, of a(m, p) * b[p], where a(m, p) = a[m * a_row + p * a_step] and b is a panel.
template <class Isa, std::size_t Rows>
FRUGAL_ALWAYS_INLINE void multiply_add(const float* a, std::size_t a_row, std::size_t a_step, const float* b, std::size_t depth,
                                       delta_sums<Isa, Rows>& sums) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    for (std::size_t p = 0; p < depth; ++p, a += a_step, b += 2 * width) {
        const simd::vec<Isa> b0 = simd::load<Isa>(b), b1 = simd::load<Isa>(b + width);
#pragma GCC unroll 16
        for (std::size_t m = 0; m < Rows; ++m) {
            const simd::vec<Isa> as = simd::broadcast<Isa>(a[m * a_row]);
            sums[m][0] = simd::multiply_add<Isa>(as, b0, sums[m][0]);
            sums[m][1] = simd::multiply_add<Isa>(as, b1, sums[m][1]);
        }
    }
}

template <class Isa, std::size_t Rows>
FRUGAL_ALWAYS_INLINE void scale_rows(const float* factors, delta_sums<Isa, Rows>& sums) noexcept {
#pragma GCC unroll 16
    for (std::size_t m = 0; m < Rows; ++m)
#pragma GCC unroll 16
        for (std::size_t r = 0; r < 2; ++r) sums[m][r] = simd::rounded<Isa>(sums[m][r] * simd::broadcast<Isa>(factors[m]));
}

/// Calls body(constant<Rows>, first row) for tiles that cover rows 0 … n - 1 in order.
template <std::size_t Rows, class Body>
FRUGAL_ALWAYS_INLINE void for_row_tiles(std::size_t n, const Body& body, std::size_t from = 0) noexcept {
    for (; from + Rows <= n; from += Rows) body.template operator()<Rows>(from);
    if constexpr (Rows > 1) {
        if (from < n) for_row_tiles<(Rows > 4 ? 4 : Rows / 2)>(n, body, from);
    }
}

/// A row of n floats into row `at` of panels of `rows` rows, zeros behind it; and back.
template <class Isa>
FRUGAL_ALWAYS_INLINE void pack_row(const float* row, std::size_t n, std::size_t rows, std::size_t at, float* panels) noexcept {
    constexpr std::size_t panel = delta_tile<Isa>::panel;
    std::size_t c = 0;
    for (; c + panel <= n; c += panel) std::memcpy(panels + c * rows + at * panel, row + c, panel * sizeof(float));
    for (std::size_t i = 0; c < n && i < panel; ++i) panels[c * rows + at * panel + i] = c + i < n ? row[c + i] : 0.0f;
}
template <class Isa>
FRUGAL_ALWAYS_INLINE void unpack_row(const float* panels, std::size_t rows, std::size_t at, float* row, std::size_t n) noexcept {
    constexpr std::size_t panel = delta_tile<Isa>::panel;
    std::size_t c = 0;
    for (; c + panel <= n; c += panel) std::memcpy(row + c, panels + c * rows + at * panel, panel * sizeof(float));
    for (std::size_t i = 0; c + i < n; ++i) row[c + i] = panels[c * rows + at * panel + i];
}

/// A chunk of tokens of one head. What it reads lies far apart in its matrices, a few cache lines a row: it is copied.
template <class Isa>
struct delta_chunk {
    static constexpr std::size_t width = simd::width<Isa>, panel = delta_tile<Isa>::panel;

    std::size_t key_dim, value_dim, chunk, stride;
    float* state;                // panels of [key dim]
    float *q, *k;                // [tokens, key dim]
    float* k_turned;             // panels of [key dim], a column a token
    float *key_key, *query_key;  // [t][s], rows `stride` apart: D(t, s) (k_t . k_s), s < t; D(t, s) (q_t . k_s), s <= t
    float* delta;                // panels of [tokens]: the values, then the corrections
    float* out;                  // panels of [tokens]
    float *from_start, *to_end;  // D(t, -1); D(n - 1, s)

    delta_chunk(std::size_t key, std::size_t value, std::size_t tokens, float* room) noexcept
        : key_dim(key), value_dim(value), chunk(tokens), stride(delta_rule_padded(tokens)) {
        const auto take = [&](std::size_t floats) { return std::exchange(room, room + floats); };
        state = take(key * delta_rule_padded(value));
        q = take(chunk * key), k = take(chunk * key);
        k_turned = take(key * stride);
        key_key = take(chunk * stride), query_key = take(chunk * stride);
        delta = take(chunk * delta_rule_padded(value)), out = take(chunk * delta_rule_padded(value));
        from_start = take(stride), to_end = take(stride);
    }

    /// Copies tokens begin … begin + n - 1, and computes what all columns share.
    void prepare(const delta_rule_head& head, std::size_t begin, std::size_t n) noexcept {
        for (std::size_t t = 0; t < n; ++t) {
            std::memcpy(q + t * key_dim, head.q.row(begin + t), key_dim * sizeof(float));
            std::memcpy(k + t * key_dim, head.k.row(begin + t), key_dim * sizeof(float));
            pack_row<Isa>(head.v.row(begin + t), value_dim, chunk, t, delta);
        }
        for (std::size_t s = 0; s < (n + panel - 1) / panel * panel; ++s) {
            float* const column = k_turned + s / panel * panel * key_dim + s % panel;
            for (std::size_t i = 0; i < key_dim; ++i) column[i * panel] = s < n ? k[s * key_dim + i] : 0.0f;
        }
        for_row_tiles<delta_tile<Isa>::rows>(n, [&]<std::size_t Rows>(std::size_t t) {
            for (std::size_t s = 0; s < t + Rows; s += panel) {
                dots<Rows>(k, t, s, key_key);
                dots<Rows>(q, t, s, query_key);
            }
        });
        // Decays are running products of exp(g) <= 1, as in the token rule. Exponents of differences of a cumulative sum would
        // lose digits beside a large |g|, be NaN beside -inf, and overflow if factored.
        for (std::size_t t = 0; t < n; ++t) {
            const float decay = ::expf(head.g[(begin + t) * head.gate_stride]);
            from_start[t] = t == 0 ? decay : from_start[t - 1] * decay;
            float *const keys = key_key + t * stride, *const queries = query_key + t * stride;
            for (std::size_t s = 0; s < t; ++s) {
                const float since = to_end[s] * decay;
                to_end[s] = since;
                keys[s] *= since;
                queries[s] *= since;
            }
            to_end[t] = 1;
        }
    }

    /// The panel of columns from `first` on over n tokens: corrections, outputs, state.
    void advance(const delta_rule_head& head, std::size_t begin, std::size_t n, std::size_t first) noexcept {
        float *const own_state = state + first * key_dim, *const own_delta = delta + first * chunk;
        float* const own_out = out + first * chunk;
        for_row_tiles<delta_tile<Isa>::rows>(n, [&]<std::size_t Rows>(std::size_t t) {
            correct<Rows>(own_state, head.beta + (begin + t) * head.gate_stride, head.gate_stride, t, own_delta);
            read<Rows>(own_state, own_delta, t, head.scale, own_out);
        });
        for (std::size_t s = 0; s < n; ++s) {
            const simd::vec<Isa> decay = simd::broadcast<Isa>(to_end[s]);
            for (float* at = own_delta + s * panel; at != own_delta + (s + 1) * panel; at += width)
                simd::store<Isa>(at, simd::load<Isa>(at) * decay);
        }
        const simd::vec<Isa> decay = simd::broadcast<Isa>(from_start[n - 1]);
        for_row_tiles<delta_tile<Isa>::rows>(key_dim, [&]<std::size_t Rows>(std::size_t i) {
            delta_sums<Isa, Rows> sums;
#pragma GCC unroll 16
            for (std::size_t m = 0; m < Rows; ++m)
#pragma GCC unroll 16
                for (std::size_t r = 0; r < 2; ++r) sums[m][r] = simd::load<Isa>(own_state + (i + m) * panel + r * width) * decay;
            multiply_add<Isa>(k + i, 1, key_dim, own_delta, n, sums);
            store_rows<Rows>(sums, own_state + i * panel, panel);
        });
    }

    /// The head's state into panels, and back.
    void load_state(const delta_rule_head& head) noexcept {
        if (head.value_stride == 1) {
            for (std::size_t i = 0; i < key_dim; ++i)
                pack_row<Isa>(head.state + i * head.key_stride, value_dim, key_dim, i, state);
            return;
        }
        for (std::size_t c = 0; c < (value_dim + panel - 1) / panel * panel; ++c)
            for (std::size_t i = 0; i < key_dim; ++i)
                *at(i, c) = c < value_dim ? head.state[i * head.key_stride + c * head.value_stride] : 0.0f;
    }
    void store_state(const delta_rule_head& head) const noexcept {
        if (head.value_stride == 1) {
            for (std::size_t i = 0; i < key_dim; ++i)
                unpack_row<Isa>(state, key_dim, i, head.state + i * head.key_stride, value_dim);
            return;
        }
        for (std::size_t c = 0; c < value_dim; ++c)
            for (std::size_t i = 0; i < key_dim; ++i) head.state[i * head.key_stride + c * head.value_stride] = *at(i, c);
    }

private:
    [[nodiscard]] float* at(std::size_t i, std::size_t c) const noexcept {
        return state + c / panel * panel * key_dim + i * panel + c % panel;
    }

    template <std::size_t Rows>
    FRUGAL_ALWAYS_INLINE static void store_rows(const delta_sums<Isa, Rows>& sums, float* to, std::size_t row) noexcept {
#pragma GCC unroll 16
        for (std::size_t m = 0; m < Rows; ++m)
#pragma GCC unroll 16
            for (std::size_t r = 0; r < 2; ++r) simd::store<Isa>(to + m * row + r * width, sums[m][r]);
    }

    /// Products of `Rows` vectors of `from` from t on with a panel of keys from s on.
    template <std::size_t Rows>
    FRUGAL_ALWAYS_INLINE void dots(const float* from, std::size_t t, std::size_t s, float* to) const noexcept {
        delta_sums<Isa, Rows> sums;
        clear<Isa>(sums);
        multiply_add<Isa>(from + t * key_dim, key_dim, 1, k_turned + s * key_dim, key_dim, sums);
        store_rows<Rows>(sums, to + t * stride + s, stride);
    }

    /// Corrections of `Rows` tokens from t on, by forward substitution.
    template <std::size_t Rows>
    FRUGAL_ALWAYS_INLINE void correct(const float* own_state, const float* beta, std::size_t beta_stride, std::size_t t,
                                      float* own_delta) const noexcept {
        delta_sums<Isa, Rows> sums;
        clear<Isa>(sums);
        multiply_add<Isa>(k + t * key_dim, key_dim, 1, own_state, key_dim, sums);
        scale_rows<Isa>(from_start + t, sums);
        multiply_add<Isa>(key_key + t * stride, stride, 1, own_delta, t, sums);
#pragma GCC unroll 16
        for (std::size_t m = 0; m < Rows; ++m) {
#pragma GCC unroll 16
            for (std::size_t r = 0; r < 2; ++r) {
                float* const value = own_delta + (t + m) * panel + r * width;
                sums[m][r] = (simd::load<Isa>(value) - sums[m][r]) * simd::broadcast<Isa>(beta[m * beta_stride]);
                simd::store<Isa>(value, sums[m][r]);
            }
#pragma GCC unroll 16
            for (std::size_t later = m + 1; later < Rows; ++later) {
                const simd::vec<Isa> weight = simd::broadcast<Isa>(key_key[(t + later) * stride + t + m]);
#pragma GCC unroll 16
                for (std::size_t r = 0; r < 2; ++r) sums[later][r] = simd::multiply_add<Isa>(weight, sums[m][r], sums[later][r]);
            }
        }
    }

    /// Outputs of `Rows` tokens from t on.
    template <std::size_t Rows>
    FRUGAL_ALWAYS_INLINE void read(const float* own_state, const float* own_delta, std::size_t t, float scale,
                                   float* own_out) const noexcept {
        delta_sums<Isa, Rows> sums;
        clear<Isa>(sums);
        multiply_add<Isa>(q + t * key_dim, key_dim, 1, own_state, key_dim, sums);
        scale_rows<Isa>(from_start + t, sums);
        multiply_add<Isa>(query_key + t * stride, stride, 1, own_delta, t, sums);
#pragma GCC unroll 16
        for (std::size_t s = 0; s < Rows; ++s)
#pragma GCC unroll 16
            for (std::size_t m = s; m < Rows; ++m) {
                const simd::vec<Isa> weight = simd::broadcast<Isa>(query_key[(t + m) * stride + t + s]);
#pragma GCC unroll 16
                for (std::size_t r = 0; r < 2; ++r)
                    sums[m][r] =
                        simd::multiply_add<Isa>(weight, simd::load<Isa>(own_delta + (t + s) * panel + r * width), sums[m][r]);
            }
#pragma GCC unroll 16
        for (std::size_t m = 0; m < Rows; ++m)
#pragma GCC unroll 16
            for (std::size_t r = 0; r < 2; ++r) sums[m][r] *= simd::broadcast<Isa>(scale);
        store_rows<Rows>(sums, own_out + t * panel, panel);
    }
};

}  // namespace detail

template <class Isa>
void delta_rule_chunked(const delta_rule_head& head, std::size_t chunk, float* scratch) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const device::flush_denormals flush;
    const std::size_t value_dim = head.v.cols();
    const std::size_t tokens = head.q.rows();
    detail::delta_chunk<Isa> work(head.q.cols(), value_dim, chunk, scratch);
    work.load_state(head);
    for (std::size_t begin = 0; begin < tokens; begin += chunk) {
        const std::size_t n = tokens - begin < chunk ? tokens - begin : chunk;
        work.prepare(head, begin, n);
        for (std::size_t first = 0; first < value_dim; first += work.panel) work.advance(head, begin, n, first);
        for (std::size_t t = 0; t < n; ++t) detail::unpack_row<Isa>(work.out, chunk, t, head.out.row(begin + t), value_dim);
    }
    work.store_state(head);
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
