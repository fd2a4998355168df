#pragma once
/// CPU kernels of the gated delta rule: some columns of one value head over all tokens of one sequence.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// State columns (value features) that are worked on together. Column ranges of delta_rule_recurrent begin at multiples of it.
inline constexpr std::size_t delta_rule_panel = 64;

/// One value head of one sequence. Views have one row a token; g and beta point at the head's element of the first token.
struct delta_rule_head {
    matrix_view<const float> q, k;  ///< [tokens, key dim], of unit length; q not yet scaled
    matrix_view<const float> v;     ///< [tokens, value dim]
    const float* g;                 ///< log decay, <= 0; -inf forgets everything
    const float* beta;              ///< in [0, 1]
    std::size_t gate_stride;        ///< from one token's g and beta to the next
    float* state;  ///< the element of key feature i and value feature c is state[i * key_stride + c * value_stride]
    std::size_t key_stride, value_stride;  ///< value_stride or key_stride is 1
    matrix_view<float> out;                ///< [tokens, value dim]
    float scale;                           ///< of q: 1 / sqrt(key dim)
};

/// Floats of scratch of delta_rule_recurrent.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t delta_rule_recurrent_scratch(std::size_t key_dim) noexcept {
    return key_dim * delta_rule_panel;
}

/// Token by token over columns col_begin … col_end - 1. Each column's arithmetic depends on nothing but its own number.
/// ahead: memory of the size of these columns that a later call works on, or null; it is fetched meanwhile.
template <class Isa>
FRUGAL_KERNEL void delta_rule_recurrent(const delta_rule_head& head, std::size_t col_begin, std::size_t col_end,
                                        const float* ahead, float* scratch);

/// Columns of the widest panel that delta_rule_chunked works on, in any instruction set.
inline constexpr std::size_t delta_rule_widest_panel = 32;

/// Columns that panels of any width cover.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t delta_rule_padded(std::size_t columns) noexcept {
    return (columns + delta_rule_widest_panel - 1) / delta_rule_widest_panel * delta_rule_widest_panel;
}

/// Floats of scratch of delta_rule_chunked: the head's state, a chunk's queries and keys, and their products.
[[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t delta_rule_chunked_scratch(std::size_t key_dim, std::size_t value_dim,
                                                                                    std::size_t chunk) noexcept {
    const std::size_t tokens = delta_rule_padded(chunk);
    return key_dim * delta_rule_padded(value_dim) + 2 * chunk * key_dim + key_dim * tokens + 2 * chunk * tokens +
           2 * chunk * delta_rule_padded(value_dim) + 2 * tokens;
}

/// All columns, `chunk` tokens at a time.
template <class Isa>
FRUGAL_KERNEL void delta_rule_chunked(const delta_rule_head& head, std::size_t chunk, float* scratch);

/// g[t][h] = a_neg_exp[h] * softplus(a[t][h] + dt_bias[h]) and beta[t][h] = sigmoid(b[t][h]) for row_begin <= t < row_end.
template <class Isa>
FRUGAL_KERNEL void delta_gates_rows(matrix_view<const float> a, matrix_view<const float> b, const float* a_neg_exp,
                                    const float* dt_bias, matrix_view<float> g, matrix_view<float> beta, std::size_t row_begin,
                                    std::size_t row_end);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cpu-inl.hpp"
#endif
