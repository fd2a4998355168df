#pragma once
#include "frugal/device/cpu/pack_panels.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

template <class Isa, class Format>
void pack_panels(const quant::weight_view& w, std::size_t first, std::size_t last, std::byte* out) noexcept {
    FRUGAL_REQUIRE_ISA_FLAGS(Isa);
    for (; first < last; ++first, out += quant::panel_bytes<Format>(w.cols)) quant::pack_panel<Format>(w, first, out);
}

}  // namespace device

FRUGAL_NAMESPACE_END
