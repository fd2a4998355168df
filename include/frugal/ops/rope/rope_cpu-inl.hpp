#pragma once
#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/rope/rope_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa>
void rotate_rows(matrix_view<const float> angles, matrix_view<float> x, std::size_t heads, std::size_t head_stride,
                 std::size_t row_begin, std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    constexpr std::size_t width = simd::width<Isa>;
    const std::size_t half = angles.cols() / 2;
    for (std::size_t r = row_begin; r < row_end; ++r) {
        const float* cosines = angles.row(r);
        const float* sines = cosines + half;
        for (std::size_t h = 0; h < heads; ++h) {
            float* first = x.row(r) + h * head_stride;
            float* second = first + half;
            std::size_t j = 0;
            for (; j + width <= half; j += width) {
                const simd::vec<Isa> c = simd::load<Isa>(cosines + j), s = simd::load<Isa>(sines + j);
                const simd::vec<Isa> a = simd::load<Isa>(first + j), b = simd::load<Isa>(second + j);
                simd::store<Isa>(first + j, simd::multiply_add<Isa>(a, c, -(b * s)));
                simd::store<Isa>(second + j, simd::multiply_add<Isa>(b, c, a * s));
            }
            for (; j < half; ++j) {
                const float a = first[j], b = second[j];
                first[j] = simd::multiply_add<Isa>(a, cosines[j], -(b * sines[j]));
                second[j] = simd::multiply_add<Isa>(b, cosines[j], a * sines[j]);
            }
        }
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
