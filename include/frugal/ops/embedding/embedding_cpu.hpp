#pragma once
/// CPU kernel of ops::embedding_rows: a range of look-ups.
#include <cstddef>
#include <cstdint>

#include "frugal/device/cpu/isa.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

/// y[i] = decoded row rows[i] of the table, begin <= i < end; row i if `rows` is null. Every rows[i] must be a row of the table.
template <class Isa, class Format>
FRUGAL_KERNEL void embedding_rows(const quant::weight_view& table, const std::int32_t* rows, matrix_view<float> y,
                                  std::size_t begin, std::size_t end);

/// An instance of embedding_rows.
using row_decoder = void (*)(const quant::weight_view& table, const std::int32_t* rows, matrix_view<float> y, std::size_t begin,
                             std::size_t end);

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/ops/embedding/embedding_cpu-inl.hpp"
#endif
