#pragma once
/// The library's formats: code, kernels, tests and benchmarks are generated from the list here.
/// A new format = one file in quant/formats/, and here its include and its line.
#include <type_traits>

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

/// X(format): every format of the library.
#define FRUGAL_FORMATS(X) \
    X(f32)                \
    X(f16)                \
    X(bf16)               \
    X(q8_0)               \
    X(q4_0)               \
    X(q4_1)               \
    X(q5_0)               \
    X(q5_1)               \
    X(q4_k)               \
    X(q5_k)               \
    X(q6_k)               \
    X(iq4_nl)             \
    X(iq4_xs)             \
    X(mxfp4)

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

#define FRUGAL_CHECK_FORMAT(format) \
    static_assert(std::is_same_v<format::library_format, format>, "a format of the library names itself");
FRUGAL_FORMATS(FRUGAL_CHECK_FORMAT)
#undef FRUGAL_CHECK_FORMAT

}  // namespace quant

FRUGAL_NAMESPACE_END
