#pragma once
#include <math.h>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/ops/activation/activation_cpu.hpp"
#include "frugal/ops/norm/norm_cpu.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cpu {

template <class Isa, class NormWeight>
void rms_norm_rows(matrix_view<const float> x, const float* w, std::size_t group, float eps, matrix_view<float> y,
                   std::size_t row_begin, std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t r = row_begin; r < row_end; ++r)
        for (std::size_t first = 0; first < x.cols(); first += group) {
            const float* in = x.row(r) + first;
            const float* weight = w + first;
            float* out = y.row(r) + first;
            const float scale = 1.0f / ::sqrtf(simd::dot<Isa>(in, in, group) / static_cast<float>(group) + eps);
            for (std::size_t c = 0; c < group; ++c) out[c] = in[c] * scale * NormWeight::factor(weight[c]);
        }
}

template <class Isa>
void l2_norm_rows(matrix_view<const float> x, std::size_t group, float eps, matrix_view<float> y, std::size_t row_begin,
                  std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t r = row_begin; r < row_end; ++r)
        for (std::size_t first = 0; first < x.cols(); first += group) {
            const float* in = x.row(r) + first;
            float* out = y.row(r) + first;
            const float scale = 1.0f / ::sqrtf(simd::dot<Isa>(in, in, group) + eps);
            for (std::size_t c = 0; c < group; ++c) out[c] = in[c] * scale;
        }
}

template <class Isa, class Gate>
void gated_rms_norm_rows(matrix_view<const float> x, matrix_view<const float> gate, const float* w, float eps,
                         matrix_view<float> y, std::size_t row_begin, std::size_t row_end) {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (std::size_t r = row_begin; r < row_end; ++r) {
        const float* in = x.row(r);
        const float* open = gate.row(r);
        float* out = y.row(r);
        const float scale = 1.0f / ::sqrtf(simd::dot<Isa>(in, in, x.cols()) / static_cast<float>(x.cols()) + eps);
        constexpr std::size_t width = simd::width<Isa>;
        for (std::size_t c = 0; c < x.cols(); c += width) {
            const std::size_t left = x.cols() - c < width ? x.cols() - c : width;
            simd::vec<Isa> gates[1] = {simd::load_some<Isa>(open + c, left)};
            activate<Isa, Gate>(gates);
            const simd::vec<Isa> normed = simd::load_some<Isa>(in + c, left) * simd::broadcast<Isa>(scale);
            simd::store_some<Isa>(out + c, normed * simd::load_some<Isa>(w + c, left) * gates[0], left);
        }
    }
}

}  // namespace ops::cpu

FRUGAL_NAMESPACE_END
