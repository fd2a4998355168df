#include "frugal/core/type_list.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <type_traits>

#include "frugal/core/version.hpp"

TEST_CASE("type_list knows its size and members") {
    using list = frugal::type_list<int, float, int>;
    static_assert(list::size == 3 && frugal::type_list<>::size == 0);
    static_assert(list::contains<int> && list::contains<float>);
    static_assert(!list::contains<double> && !list::contains<const int> && !frugal::type_list<>::contains<int>);
    static_assert(std::is_empty_v<list>);
    CHECK(list::size == 3);
}

TEST_CASE("type_tag carries a type through a generic lambda") {
    const auto size = []<class T>(frugal::type_tag<T>) { return sizeof(T); };
    CHECK(size(frugal::type_tag<char>{}) == 1);
    CHECK(size(frugal::type_tag<double>{}) == sizeof(double));
    static_assert(std::is_same_v<frugal::type_tag<int>::type, int>);
}

TEST_CASE("dependent_false is false for every type") {
    static_assert(!frugal::dependent_false<> && !frugal::dependent_false<int> && !frugal::dependent_false<int, void>);
    CHECK_FALSE(frugal::dependent_false<int>);
}

TEST_CASE("the version in the header is the one in the namespace") {
    // FRUGAL_ABI names the interface: a new minor version must come with a new name.
#define FRUGAL_TEST_TEXT_OF(x) #x
#define FRUGAL_TEST_TEXT(x) FRUGAL_TEST_TEXT_OF(x)
    const std::string_view abi = FRUGAL_TEST_TEXT(FRUGAL_ABI);
    const std::string expected = "v" FRUGAL_TEST_TEXT(FRUGAL_VERSION_MAJOR) "_" FRUGAL_TEST_TEXT(FRUGAL_VERSION_MINOR);
    CHECK(abi.substr(0, expected.size()) == expected);
    CHECK((abi.size() == expected.size() || abi.substr(expected.size()) == "_checked"));
}
