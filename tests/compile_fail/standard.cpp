// fails OLD_STANDARD: frugal: C++20 is required; compile with -std=c++20 (CMake: target_link_libraries(app frugal::frugal) sets it)
// flags OLD_STANDARD: -std=c++17
#include "frugal/core/config.hpp"

int main() {}
