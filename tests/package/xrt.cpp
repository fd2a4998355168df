// Without a device, opening one is an error to return.
#include "frugal/device/xrt/xrt.hpp"

int main() {
    const auto device = frugal::device::xrt<>::open(0, frugal::device::xrt_options{});
    return device ? 1 : 0;
}
