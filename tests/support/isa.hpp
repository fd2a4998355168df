#pragma once
/// Runs a test body on every instruction set that this machine has.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "frugal/device/cpu/isa.hpp"

namespace test {

/// Whether this machine can run kernels of `Isa`.
template <class Isa>
[[nodiscard]] bool supported() {
#define FRUGAL_TEST_ISA(tag, bytes, compiled, probe) \
    if constexpr (std::is_same_v<Isa, frugal::isa::tag>) return probe;
    FRUGAL_CPU_ISAS(FRUGAL_TEST_ISA)
#undef FRUGAL_TEST_ISA
    return false;
}

/// Calls `body(type_tag<Isa>{})` for every instruction set of the machine, from the least to the most able.
template <class Body>
void for_each_isa(Body&& body) {
    const auto one = [&]<class Isa>(frugal::type_tag<Isa> tag) {
        if (!supported<Isa>()) return;
        CAPTURE(std::string(Isa::name));
        body(tag);
    };
    [&]<class... Isa>(frugal::type_list<Isa...>) { (one(frugal::type_tag<Isa>{}), ...); }(frugal::isa::all{});
}

}  // namespace test
