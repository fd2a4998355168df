// flags OWN: -DFRUGAL_EXTERN_KERNELS
// fails OWN: frugal: frugal::kernels (FRUGAL_EXTERN_KERNELS) has no kernels for a format of your own; link frugal::frugal in this target, or instantiate them and specialise quant::has_compiled_kernels
// flags OWN_TABLE: -DFRUGAL_EXTERN_KERNELS
// fails OWN_TABLE: frugal: frugal::kernels (FRUGAL_EXTERN_KERNELS) has no kernels for a format of your own
// flags OWN_ROWS: -DFRUGAL_EXTERN_KERNELS
// fails OWN_ROWS: frugal: frugal::kernels (FRUGAL_EXTERN_KERNELS) has no kernels for a format of your own
// flags OWN_DERIVED: -DFRUGAL_EXTERN_KERNELS
// fails OWN_DERIVED: frugal: frugal::kernels (FRUGAL_EXTERN_KERNELS) has no kernels for a format of your own
#include <cstdint>

#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats.hpp"

namespace fg = frugal;

struct signs {
    static constexpr std::string_view name = "signs";
    static constexpr fg::quant::type_id type{0x10000};
    static constexpr std::size_t block_size = 8, block_bytes = 1;
    static void decode(const std::byte* block, float* out) noexcept {
        for (int i = 0; i < 8; ++i) out[i] = (std::to_integer<int>(*block) >> i & 1) != 0 ? 1.0f : -1.0f;
    }
};

struct renamed : fg::quant::q8_0 {
    static constexpr fg::quant::type_id type{0x10001};
};
using formats = fg::quant::list<signs, fg::quant::q8_0>;
using compiled = fg::quant::all;

fg::status compiled_product(fg::device::cpu<>& dev, fg::workspace& scratch, const fg::quant::weight_view& w,
                            fg::matrix_view<const float> x, fg::matrix_view<float> y) {
    return fg::ops::matmul<compiled>(dev, scratch, w, x, y);
}
#if defined(OWN) || !defined(FRUGAL_EXTERN_KERNELS)
fg::status product(fg::device::cpu<>& dev, fg::workspace& scratch, const fg::quant::weight_view& w, fg::matrix_view<const float> x,
                   fg::matrix_view<float> y) {
    return fg::ops::matmul<formats>(dev, scratch, w, x, y);
}
#endif
#if defined(OWN_ROWS) || !defined(FRUGAL_EXTERN_KERNELS)
fg::status look_up(fg::device::cpu<>& dev, const fg::quant::weight_view& w, fg::matrix_view<float> y) {
    return fg::ops::embedding_rows<formats>(dev, w, {}, y);
}
#endif
#if defined(OWN_DERIVED) || !defined(FRUGAL_EXTERN_KERNELS)
fg::status derived_rows(fg::device::cpu<>& dev, const fg::quant::weight_view& w, fg::matrix_view<float> y) {
    return fg::ops::dequantize<fg::quant::list<renamed>>(dev, w, y);
}
#endif
#if defined(OWN_TABLE) || !defined(FRUGAL_EXTERN_KERNELS)
fg::status all_rows(fg::device::cpu<>& dev, const fg::quant::weight_view& w, fg::matrix_view<float> y) {
    return fg::ops::dequantize<formats>(dev, w, y);
}
#endif
