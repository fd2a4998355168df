#pragma once
#include "frugal/ops/embedding/embedding_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa, class Format>
void embedding_rows(const quant::weight_view& table, const std::int32_t* rows, matrix_view<float> y, std::size_t begin,
                    std::size_t end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    const std::size_t blocks = table.cols / Format::block_size;
    for (std::size_t i = begin; i < end; ++i) {
        const std::byte* row = table.row(rows == nullptr ? i : static_cast<std::size_t>(rows[i]));
        float* out = y.row(i);
        for (std::size_t b = 0; b < blocks; ++b) Format::decode(row + b * Format::block_bytes, out + b * Format::block_size);
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
