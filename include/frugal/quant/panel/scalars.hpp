#pragma once
/// Panels of floating point numbers.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "frugal/core/config.hpp"
#include "frugal/quant/block.hpp"
#include "frugal/quant/panel/layout.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// Scalars: column after column; bfloat16 in pairs of columns, as their dot products take them. Columns that the matrix lacks
/// are zeros. Formats of other widths are decoded while packing: so is any format without a layout of its own, to f32.
template <class Scalar>
struct scalar_panel {
    static constexpr std::size_t columns = panel_group, pair = std::is_same_v<Scalar, bfloat16> ? 2 : 1;
    static constexpr std::size_t bytes = panel_codes * sizeof(Scalar);

    /// Where column k of row r lies, in scalars.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static constexpr std::size_t index(std::size_t r, std::size_t k) noexcept {
        return k / pair * (pair * panel_rows) + pair * r + k % pair;
    }

    template <class Format>
    FRUGAL_ALWAYS_INLINE static void pack(const std::byte* const (&rows)[panel_rows], std::size_t cols, std::byte* out) noexcept {
        constexpr bool same = Format::block_size == 1 && Format::block_bytes == sizeof(Scalar);
        static_assert(same || std::is_same_v<Scalar, float>, "frugal: formats are decoded into panels of f32");
        std::size_t begin = 0;
        if constexpr (same && pair * sizeof(Scalar) == 4) {
            // Four columns (or pairs) of four rows at a time, turned in registers.
            bool whole = true;
            for (const std::byte* row : rows) whole = whole && row != nullptr;
            constexpr std::size_t step = 4 * pair;
            for (; whole && begin + step <= cols; begin += step)
                for (std::size_t r = 0; r < panel_rows; r += 4) transpose(rows + r, begin * sizeof(Scalar), r, begin, out);
        }
        for (std::size_t r = 0; r < panel_rows; ++r) {
            if (rows[r] == nullptr) continue;
            for (std::size_t c = begin; c < cols; c += Format::block_size) {
                const std::byte* block = rows[r] + c / Format::block_size * Format::block_bytes;
                if constexpr (same) {
                    std::memcpy(out + index(r, c) * sizeof(Scalar), block, sizeof(Scalar));
                } else {
                    float values[Format::block_size];
                    Format::decode(block, values);
                    for (std::size_t i = 0; i < Format::block_size; ++i)
                        std::memcpy(out + index(r, c + i) * sizeof(Scalar), values + i, sizeof(Scalar));
                }
            }
        }
    }

    /// The weights of a group: out[k][r].
    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float (&out)[panel_group][panel_rows]) noexcept {
        if constexpr (std::is_same_v<Scalar, bfloat16>) {
            // Little-endian pairs: the upper half of a word is the odd column, the lower half the even one.
            for (std::size_t k = 0; k < panel_group; k += 2)
                for (std::size_t r = 0; r < panel_rows; r += 4) {
                    typedef std::uint32_t words_4 __attribute__((vector_size(16)));
                    words_4 words;
                    std::memcpy(&words, block + index(r, k) * sizeof(Scalar), sizeof(words));
                    const words_4 even = words << 16, odd = words & 0xFFFF0000u;
                    std::memcpy(out[k] + r, &even, sizeof(even));
                    std::memcpy(out[k + 1] + r, &odd, sizeof(odd));
                }
        } else if constexpr (std::is_same_v<Scalar, half>) {
            for (std::size_t k = 0; k < panel_group; ++k) detail::load_halves(block + index(0, k) * sizeof(Scalar), out[k]);
        } else {
            for (std::size_t k = 0; k < panel_group; ++k)
                for (std::size_t r = 0; r < panel_rows; ++r) {
                    Scalar value;
                    std::memcpy(&value, block + index(r, k) * sizeof(Scalar), sizeof(value));
                    out[k][r] = to_float(value);
                }
        }
    }

    /// Column k of a group for as many rows, from r on, as a register of floats holds: decode() without a stop in memory.
    template <class Floats>
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static Floats column(const std::byte* block, std::size_t r, std::size_t k) noexcept {
        constexpr std::size_t rows = sizeof(Floats) / sizeof(float);
        Floats out;
        if constexpr (std::is_same_v<Scalar, float>) {
            std::memcpy(&out, block + index(r, k) * sizeof(Scalar), sizeof(out));
        } else if constexpr (std::is_same_v<Scalar, bfloat16>) {
            typedef std::uint32_t words __attribute__((vector_size(sizeof(Floats))));
            words pairs;
            std::memcpy(&pairs, block + index(r, k & ~std::size_t{1}) * sizeof(Scalar), sizeof(pairs));
            const words bits = k % 2 == 0 ? pairs << 16 : pairs & 0xFFFF0000u;
            std::memcpy(&out, &bits, sizeof(out));
        } else {
            float values[rows];
            if constexpr (std::is_same_v<Scalar, half>) {
                detail::load_halves<rows>(block + index(r, k) * sizeof(Scalar), values);
            } else {
                for (std::size_t i = 0; i < rows; ++i) {
                    Scalar value;
                    std::memcpy(&value, block + index(r + i, k) * sizeof(Scalar), sizeof(value));
                    values[i] = to_float(value);
                }
            }
            std::memcpy(&out, values, sizeof(out));
        }
        return out;
    }

private:
    /// 4 x 4 words from `offset` bytes on in four rows to columns (or pairs) from k on of rows from r on.
    FRUGAL_ALWAYS_INLINE static void transpose(const std::byte* const* rows, std::size_t offset, std::size_t r, std::size_t k,
                                               std::byte* out) noexcept {
        typedef std::uint32_t words __attribute__((vector_size(16)));
        words in[4];
        for (std::size_t i = 0; i < 4; ++i) std::memcpy(&in[i], rows[i] + offset, sizeof(words));
        const words a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5), b = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
        const words c = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5), d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
        const words turned[4] = {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                                 __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
        for (std::size_t i = 0; i < 4; ++i) std::memcpy(out + index(r, k + i * pair) * sizeof(Scalar), &turned[i], sizeof(words));
    }
};

namespace detail {
template <class F>
struct panel_of {
    using type = scalar_panel<float>;
};
template <class F>
    requires requires { typename F::panel; }
struct panel_of<F> {
    using type = typename F::panel;
};
}  // namespace detail

/// The layout of a format's panels: its member `panel`, else f32.
template <class F>
using panel_of = typename detail::panel_of<F>::type;

/// Whether the layout holds integer codes, which 8-bit activations can be multiplied with.
template <class Layout>
concept coded_layout = requires {
    typename Layout::kind;
};

/// Whether the layout holds bfloat16 in pairs of columns.
template <class Layout>
concept paired_layout = std::same_as<Layout, scalar_panel<bfloat16>>;

}  // namespace quant

FRUGAL_NAMESPACE_END
