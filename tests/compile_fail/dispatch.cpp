// fails RETURNS_VALUE: frugal: the function given to device::dispatch returns void or status
#include "frugal/device/cpu/dispatch.hpp"

namespace fg = frugal;

fg::status choose() {
    return fg::device::dispatch([]<class Isa>(fg::type_tag<Isa>) {
#if defined(RETURNS_VALUE)
        return Isa::vector_bytes;
#endif
    });
}
