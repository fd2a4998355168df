#pragma once
/// The library's formats: code, kernels, tests and benchmarks are generated from the list in quant/compiled.hpp.
/// A new format = one file in quant/formats/, its include here and its line there.
#include "frugal/quant/compiled.hpp"
#include "frugal/quant/formats/bf16.hpp"
#include "frugal/quant/formats/f16.hpp"
#include "frugal/quant/formats/f32.hpp"
#include "frugal/quant/formats/iq4_nl.hpp"
#include "frugal/quant/formats/iq4_xs.hpp"
#include "frugal/quant/formats/mxfp4.hpp"
#include "frugal/quant/formats/q4_0.hpp"
#include "frugal/quant/formats/q4_1.hpp"
#include "frugal/quant/formats/q4_k.hpp"
#include "frugal/quant/formats/q5_0.hpp"
#include "frugal/quant/formats/q5_1.hpp"
#include "frugal/quant/formats/q5_k.hpp"
#include "frugal/quant/formats/q6_k.hpp"
#include "frugal/quant/formats/q8_0.hpp"
#include "frugal/quant/list.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

namespace detail {
template <class, class... F>
using list_without_first = list<F...>;
}  // namespace detail

#define FRUGAL_LIST_FORMAT(format) , format
/// Every format of the library.
using all = detail::list_without_first<void FRUGAL_FORMATS(FRUGAL_LIST_FORMAT)>;
#undef FRUGAL_LIST_FORMAT

}  // namespace quant

FRUGAL_NAMESPACE_END
