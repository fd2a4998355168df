// Run while the build is configured: prints the instruction sets of this machine as a list of types.
#include <cstdio>
#include <string>

#include "frugal/device/cpu/dispatch.hpp"

int main() {
    std::string out = "frugal::isa::";
    for (const char c : frugal::device::supported_isas()) out += c == ' ' ? std::string(",frugal::isa::") : std::string(1, c);
    std::fputs(out.c_str(), stdout);
}
