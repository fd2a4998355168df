// flags: -mno-avx
// fails NEEDS_AVX2: frugal: isa::avx2 kernels need -mavx2 -mfma -mf16c in this translation unit; add the flags, use isa::native, or link frugal::kernels and choose at run time
// fails NEEDS_AVX512: frugal: isa::avx512 kernels need -march=x86-64-v4 -mavx512vnni in this translation unit; add the flags, use isa::native, or link frugal::kernels and choose at run time
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats.hpp"

namespace fg = frugal;

#if defined(NEEDS_AVX2)
using device = fg::device::cpu<fg::isa::avx2>;
#elif defined(NEEDS_AVX512)
using device = fg::device::cpu<fg::isa::avx512>;
#else
using device = fg::device::cpu<>;
#endif

fg::status product(device& dev, fg::workspace& scratch, const fg::quant::weight_view& w, fg::matrix_view<const float> x,
                   fg::matrix_view<float> y) {
    return fg::ops::matmul<fg::quant::list<fg::quant::q8_0>>(dev, scratch, w, x, y);
}
