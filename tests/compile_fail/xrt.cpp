// fails NO_EXCEPTIONS: frugal: device/xrt needs exceptions, because XRT throws; compile what includes it without -fno-exceptions
// flags NO_EXCEPTIONS: -fno-exceptions
// fails NO_XRT: frugal: device/xrt needs the headers of XRT and libuuid; install libxrt-dev and uuid-dev and link frugal::xrt
#if defined(NO_EXCEPTIONS) || defined(NO_XRT)
#include "frugal/device/xrt/xrt.hpp"
#endif

int main() {}
