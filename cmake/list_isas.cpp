// Run while the build is configured: prints the names of this machine's instruction sets, from the least to the most able.
#include <cstdio>

#include "frugal/device/cpu/dispatch.hpp"

int main() { std::fputs(frugal::device::supported_isas().c_str(), stdout); }
