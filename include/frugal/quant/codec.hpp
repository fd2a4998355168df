#pragma once
/// Whole rows and matrices of quantised weights to floats and back. For kernels see ops/matmul; this is for loaders and tests.
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/quant/weight.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// Decodes `n` weights, a multiple of F::block_size, into `out`.
template <format F>
FRUGAL_ALWAYS_INLINE void decode_row(const std::byte* row, std::size_t n, float* out) noexcept {
    const std::size_t blocks = n / F::block_size;
    for (std::size_t b = 0; b < blocks; ++b) F::decode(row + b * F::block_bytes, out + b * F::block_size);
}

/// Whether every scale in a row of `n` weights (every value, in formats without scales) is neither NaN nor infinite.
/// One bad scale turns all logits into NaN, so loaders of untrusted files ask first.
template <checkable_format F>
[[nodiscard]] FRUGAL_FLAGGED bool all_finite(const std::byte* row, std::size_t n) noexcept {
    const std::size_t blocks = n / F::block_size;
    for (std::size_t b = 0; b < blocks; ++b)
        if (!F::finite(row + b * F::block_bytes)) return false;
    return true;
}

/// Encodes a row with the format's reference encoder. `out` has exactly the bytes of the row. Formats without blocks keep NaN
/// and infinity as they are. Errors: shape_mismatch; for formats in blocks, not_finite where a value is NaN or infinite or
/// beyond what a scale can hold (`out` is then unspecified but holds no NaN scale).
template <encodable_format F>
[[nodiscard]] status encode_row(std::span<const float> in, std::span<std::byte> out) {
    if (in.size() % F::block_size != 0)
        return fail(errc::shape_mismatch, "a row of ", in.size(), " weights cannot be ", F::name, ": its blocks hold ",
                    F::block_size);
    const std::size_t blocks = in.size() / F::block_size;
    if (out.size() / F::block_bytes != blocks || out.size() % F::block_bytes != 0)
        return fail(errc::shape_mismatch, blocks, " blocks of ", F::name, " are ", blocks * F::block_bytes, " bytes, not ",
                    out.size());
    if constexpr (F::block_size > 1) {
        for (std::size_t i = 0; i < in.size(); ++i)
            if (!(in[i] - in[i] == 0.0f)) return fail(errc::not_finite, "value ", i, " of the row is ", in[i]);
    }
    for (std::size_t b = 0; b < blocks; ++b) {
        std::byte* block = out.data() + b * F::block_bytes;
        F::encode(in.data() + b * F::block_size, block);
        if constexpr (F::block_size > 1 && checkable_format<F>) {
            if (!F::finite(block))
                return fail(errc::not_finite, "block ", b, " of the row has magnitudes beyond the range of ", F::name);
        }
    }
    return {};
}

/// Name of the format of the list with this type. Errors: unsupported_format.
template <class Formats>
[[nodiscard]] result<std::string_view> name_of(type_id type) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    std::string_view name;
    FRUGAL_TRY(visit<Formats>(type, [&]<class F>(type_tag<F>) { name = F::name; }));
    return name;
}

/// Whether every scale of the matrix is finite; formats that cannot tell are decoded and their values looked at.
/// Errors: unsupported_format, shape_mismatch, not_finite (names the first bad row).
template <class Formats>
[[nodiscard]] status check_finite(const weight_view& w) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    FRUGAL_TRY(check_weight_view<Formats>(w));
    status found;
    FRUGAL_TRY(visit<Formats>(w.type, [&]<class F>(type_tag<F>) {
        for (std::size_t r = 0; r < w.rows; ++r) {
            bool finite = true;
            if constexpr (checkable_format<F>) {
                finite = all_finite<F>(w.row(r), w.cols);
            } else {
                float values[F::block_size];
                for (std::size_t b = 0; b < w.cols / F::block_size; ++b) {
                    F::decode(w.row(r) + b * F::block_bytes, values);
                    for (const float value : values) finite = finite && value - value == 0.0f;
                }
            }
            if (!finite) {
                found = fail(errc::not_finite, "row ", r, " of a ", F::name, " matrix has a scale or value that is not finite");
                return;
            }
        }
    }));
    return found;
}

/// All weights of a matrix as floats, row after row. Errors: unsupported_format, shape_mismatch, out_of_memory (the number of
/// weights is beyond the address space).
template <class Formats>
[[nodiscard]] result<std::vector<float>> dequantize(const weight_view& w) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    FRUGAL_TRY(check_weight_view<Formats>(w));
    if (w.cols != 0 && w.rows > (std::numeric_limits<std::size_t>::max)() / sizeof(float) / 2 / w.cols)
        return fail(errc::out_of_memory, w.rows, " x ", w.cols, " floats are beyond the address space");
    std::vector<float> out(w.rows * w.cols);
    FRUGAL_TRY(visit<Formats>(w.type, [&]<class F>(type_tag<F>) {
        for (std::size_t r = 0; r < w.rows; ++r) decode_row<F>(w.row(r), w.cols, out.data() + r * w.cols);
    }));
    return out;
}

}  // namespace quant

FRUGAL_NAMESPACE_END
