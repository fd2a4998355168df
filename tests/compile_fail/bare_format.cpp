// fails PRODUCT: frugal: a list of formats is needed here, even of a single one; write quant::list<quant::q4_k>, with all formats that the file may hold, or quant::all
// fails ROWS: frugal: a list of formats is needed here
// fails DECODED: frugal: a list of formats is needed here
// fails VIEW: frugal: a list of formats is needed here
// fails VISIT: frugal: a list of formats is needed here
// fails CONSTANT_RESULT: frugal: a matrix_view of constant elements cannot be written to; pass a matrix_view<float> here (of an operator's matrices the results come last)
#include <cstddef>
#include <span>

#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats.hpp"

namespace fg = frugal;
using listed = fg::quant::list<fg::quant::q4_k>;

#if defined(PRODUCT)
using of_product = fg::quant::q4_k;
#else
using of_product = listed;
#endif
#if defined(ROWS)
using of_rows = fg::quant::q4_k;
#else
using of_rows = listed;
#endif
#if defined(DECODED)
using of_decoded = fg::quant::q4_k;
#else
using of_decoded = listed;
#endif
#if defined(VIEW)
using of_view = fg::quant::q4_k;
#else
using of_view = listed;
#endif
#if defined(VISIT)
using of_visit = fg::quant::q4_k;
#else
using of_visit = listed;
#endif

fg::status product(fg::device::cpu<>& dev, fg::workspace& scratch, const fg::quant::weight_view& w,
                   fg::matrix_view<const float> x, fg::matrix_view<float> y) {
#if defined(CONSTANT_RESULT)
    return fg::ops::matmul<of_product>(dev, scratch, w, y, x);
#else
    return fg::ops::matmul<of_product>(dev, scratch, w, x, y);
#endif
}
fg::status look_up(fg::device::cpu<>& dev, const fg::quant::weight_view& w, fg::matrix_view<float> y) {
    return fg::ops::embedding_rows<of_rows>(dev, w, {}, y);
}
fg::status all_rows(fg::device::cpu<>& dev, const fg::quant::weight_view& w, fg::matrix_view<float> y) {
    return fg::ops::dequantize<of_decoded>(dev, w, y);
}
fg::result<fg::quant::weight_view> view(std::span<const std::byte> bytes) {
    return fg::quant::make_weight_view<of_view>(fg::quant::q4_k::type, bytes, 1, 256);
}
fg::status visit(fg::quant::type_id type) {
    return fg::quant::visit<of_visit>(type, [](auto) {});
}
