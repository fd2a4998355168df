#pragma once
/// CPU kernel that packs panels: images are made of them, and products from a file's blocks make some at a time.
#include <cstddef>

#include "frugal/device/cpu/isa.hpp"
#include "frugal/quant/panels.hpp"
#include "frugal/quant/weight.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// Packs panels first <= p < last of w (see quant::pack_panel), one after the other from `out` on, which holds zeros.
template <class Isa, class Format>
FRUGAL_KERNEL void pack_panels(const quant::weight_view& w, std::size_t first, std::size_t last, std::byte* out) noexcept;

}  // namespace device

FRUGAL_NAMESPACE_END

#if !defined(FRUGAL_EXTERN_KERNELS)
#include "frugal/device/cpu/pack_panels-inl.hpp"
#endif
