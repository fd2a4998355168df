#pragma once
#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/matmul/matmul_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

namespace detail {

/// Rows x tokens dot products at once, so that each loaded register is used several times. One running register a sum:
/// the order of additions is the same in every tile shape.
template <class Isa, std::size_t Rows, std::size_t Tokens>
FRUGAL_ALWAYS_INLINE void dot_tile(const float* const (&w)[Rows], const float* const (&x)[Tokens], std::size_t cols,
                                   float (&out)[Rows][Tokens]) noexcept {
    constexpr std::size_t width = simd::width<Isa>;
    simd::vec<Isa> sums[Rows][Tokens] = {};
    std::size_t c = 0;
    for (; c + width <= cols; c += width) {
        simd::vec<Isa> xs[Tokens];
        for (std::size_t t = 0; t < Tokens; ++t) xs[t] = simd::load<Isa>(x[t] + c);
        for (std::size_t r = 0; r < Rows; ++r) {
            const simd::vec<Isa> ws = simd::load<Isa>(w[r] + c);
            for (std::size_t t = 0; t < Tokens; ++t) sums[r][t] += ws * xs[t];
        }
    }
    if (c < cols)
        for (std::size_t r = 0; r < Rows; ++r)
            for (std::size_t t = 0; t < Tokens; ++t)
                sums[r][t] += simd::load_some<Isa>(w[r] + c, cols - c) * simd::load_some<Isa>(x[t] + c, cols - c);
    for (std::size_t r = 0; r < Rows; ++r)
        for (std::size_t t = 0; t < Tokens; ++t) out[r][t] = simd::sum<Isa>(sums[r][t]);
}

template <class Isa, std::size_t Rows>
FRUGAL_ALWAYS_INLINE void rows_by_all_tokens(const float* scratch, std::size_t cols, matrix_view<const float> x,
                                             matrix_view<float> y, std::size_t row) noexcept {
    const float* w[Rows];
    for (std::size_t r = 0; r < Rows; ++r) w[r] = scratch + r * cols;
    std::size_t t = 0;
    constexpr std::size_t tile = 2;
    for (; t + tile <= x.rows(); t += tile) {
        const float* const xs[tile] = {x.row(t), x.row(t + 1)};
        float out[Rows][tile];
        dot_tile<Isa, Rows, tile>(w, xs, cols, out);
        for (std::size_t r = 0; r < Rows; ++r)
            for (std::size_t k = 0; k < tile; ++k) y(t + k, row + r) = out[r][k];
    }
    for (; t < x.rows(); ++t) {
        const float* const xs[1] = {x.row(t)};
        float out[Rows][1];
        dot_tile<Isa, Rows, 1>(w, xs, cols, out);
        for (std::size_t r = 0; r < Rows; ++r) y(t, row + r) = out[r][0];
    }
}

template <class Format>
FRUGAL_ALWAYS_INLINE void decode_row(const std::byte* row, std::size_t cols, float* out) noexcept {
    for (std::size_t c = 0; c < cols; c += Format::block_size, row += Format::block_bytes) Format::decode(row, out + c);
}

}  // namespace detail

template <class Isa, class Format>
void matmul_rows(const quant::weight_view& w, matrix_view<const float> x, matrix_view<float> y, std::size_t row_begin,
                 std::size_t row_end, float* scratch) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    std::size_t r = row_begin;
    for (; r + 4 <= row_end; r += 4) {
        for (std::size_t i = 0; i < 4; ++i) detail::decode_row<Format>(w.row(r + i), w.cols, scratch + i * w.cols);
        detail::rows_by_all_tokens<Isa, 4>(scratch, w.cols, x, y, r);
    }
    for (; r < row_end; ++r) {
        detail::decode_row<Format>(w.row(r), w.cols, scratch);
        detail::rows_by_all_tokens<Isa, 1>(scratch, w.cols, x, y, r);
    }
}

template <class Isa, class Format>
void matmul_interleaved(const quant::interleaved_view& w, matrix_view<const float> x, matrix_view<float> y,
                        std::size_t group_begin, std::size_t group_end, float* scratch) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t group = quant::interleaved_view::group;
    static_assert(group == 4);
    for (std::size_t g = group_begin; g < group_end; ++g) {
        const std::byte* block = w.group_data(g);
        const std::size_t rows = w.rows - g * group < group ? w.rows - g * group : group;
        for (std::size_t c = 0; c < w.cols; c += Format::block_size, block += group * Format::block_bytes)
            for (std::size_t r = 0; r < rows; ++r) Format::decode(block + r * Format::block_bytes, scratch + r * w.cols + c);
        if (rows == group)
            detail::rows_by_all_tokens<Isa, group>(scratch, w.cols, x, y, g * group);
        else
            for (std::size_t r = 0; r < rows; ++r)
                detail::rows_by_all_tokens<Isa, 1>(scratch + r * w.cols, w.cols, x, y, g * group + r);
    }
}

template <class Isa, class Activation, class Block>
void quantize_rows(matrix_view<const float> x, Block* out, std::size_t row_begin, std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const std::size_t blocks = x.cols() / Activation::block_size;
    for (std::size_t r = row_begin; r < row_end; ++r)
        for (std::size_t b = 0; b < blocks; ++b) Activation::quantize(x.row(r) + b * Activation::block_size, out[r * blocks + b]);
}

template <class Isa, class Format, class Block>
void matmul_q8_rows(const quant::weight_view& w, const Block* x, std::size_t tokens, matrix_view<float> y, std::size_t row_begin,
                    std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    if constexpr (quant::integer_dot_format<Format>) {
        const std::size_t blocks = w.cols / Format::block_size;
        constexpr std::size_t tile = 16;  // tokens that share one unpacking of a block
        for (std::size_t r = row_begin; r < row_end; ++r)
            for (std::size_t first = 0; first < tokens; first += tile) {
                const std::size_t count = tokens - first < tile ? tokens - first : tile;
                double sums[tile] = {};
                for (std::size_t b = 0; b < blocks; ++b) {
                    const auto codes = Format::unpack(w.row(r) + b * Format::block_bytes);
                    for (std::size_t t = 0; t < count; ++t) sums[t] += codes.dot(x[(first + t) * blocks + b]);
                }
                for (std::size_t t = 0; t < count; ++t) y(first + t, r) = static_cast<float>(sums[t]);
            }
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
