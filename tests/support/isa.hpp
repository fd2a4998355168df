#pragma once
/// Runs a test body on every instruction set that this machine has.
#include <doctest/doctest.h>

#include <string>

#include "frugal/device/cpu/isa.hpp"

namespace test {

/// The instruction sets of the machine that configured the build, from the least to the most able: `isa::avx2` and so on in
/// FRUGAL_TEST_ISAS. Others are not compiled, because nothing here could run them.
using machine_isas = frugal::type_list<FRUGAL_TEST_ISAS>;

/// Calls `body(type_tag<Isa>{})` for every instruction set of the machine, from the least to the most able.
template <class Body>
void for_each_isa(Body&& body) {
    const auto one = [&]<class Isa>(frugal::type_tag<Isa> tag) {
        REQUIRE_MESSAGE(frugal::isa::supported<Isa>(), "configured on another machine; configure again");
        CAPTURE(std::string(Isa::name));
        body(tag);
    };
    [&]<class... Isa>(frugal::type_list<Isa...>) { (one(frugal::type_tag<Isa>{}), ...); }(machine_isas{});
}

}  // namespace test
