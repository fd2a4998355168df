// Instantiates the packing of panels for every format of the library and the instruction set of this object.
#include "frugal/device/cpu/pack_panels-inl.hpp"
#include "frugal/quant/formats.hpp"

FRUGAL_NAMESPACE_BEGIN
namespace device {
#define FRUGAL_INSTANTIATE(format)                                                                                        \
    template void pack_panels<isa::FRUGAL_KERNEL_ISA, quant::format>(const quant::weight_view&, std::size_t, std::size_t, \
                                                                     std::byte*) noexcept;
FRUGAL_FORMATS(FRUGAL_INSTANTIATE)
#undef FRUGAL_INSTANTIATE
}  // namespace device
FRUGAL_NAMESPACE_END
