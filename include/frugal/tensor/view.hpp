#pragma once
/// Non-owning row-major views.
#include <cstddef>
#include <span>
#include <type_traits>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

/// A row-major matrix somebody else owns: `rows` x `cols` elements, `stride` elements from one row to the next.
template <class T>
class matrix_view {
public:
    constexpr matrix_view() noexcept = default;
    FRUGAL_ALWAYS_INLINE constexpr matrix_view(T* data, std::size_t rows, std::size_t cols) noexcept
        : matrix_view(data, rows, cols, cols) {}
    FRUGAL_ALWAYS_INLINE constexpr matrix_view(T* data, std::size_t rows, std::size_t cols, std::size_t stride) noexcept
        : data_(data), rows_(rows), cols_(cols), stride_(stride) {}
    /// A view of mutable elements serves where constant ones are asked for.
    template <class U>
        requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
    FRUGAL_ALWAYS_INLINE constexpr matrix_view(matrix_view<U> other) noexcept
        : data_(other.data()), rows_(other.rows()), cols_(other.cols()), stride_(other.stride()) {}
    /// The reverse is a mistake, most often an input in the place of an output.
    template <class U>
        requires(std::is_same_v<U, const T> && !std::is_const_v<T>)
    constexpr matrix_view(matrix_view<U>) noexcept {
        static_assert(!std::is_same_v<U, const T>,
                      "frugal: a matrix_view of constant elements cannot be written to; pass a matrix_view<float> here (of an "
                      "operator's matrices the results come last)");
    }

    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr T* data() const noexcept { return data_; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t cols() const noexcept { return cols_; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t stride() const noexcept { return stride_; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr T* row(std::size_t r) const noexcept { return data_ + r * stride_; }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr T& operator()(std::size_t r, std::size_t c) const noexcept {
        return data_[r * stride_ + c];
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::span<T> row_span(std::size_t r) const noexcept { return {row(r), cols_}; }
    /// Rows first … first + count - 1.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr matrix_view rows_range(std::size_t first, std::size_t count) const noexcept {
        return {data_ + first * stride_, count, cols_, stride_};
    }
    /// Columns first … first + count - 1 of every row.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr matrix_view cols_range(std::size_t first, std::size_t count) const noexcept {
        return {data_ + first, rows_, count, stride_};
    }

private:
    T* data_ = nullptr;
    std::size_t rows_ = 0, cols_ = 0, stride_ = 0;
};

FRUGAL_NAMESPACE_END
