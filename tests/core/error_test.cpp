#include "frugal/core/error.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace {

using frugal::errc;
using frugal::error;
using frugal::fail;
using frugal::result;
using frugal::status;

result<int> half(int value) {
    if (value % 2 != 0) return fail(errc::invalid_argument, value, " is odd");
    return value / 2;
}

result<int> quarter(int value) {
    FRUGAL_TRY_ASSIGN(const int once, half(value));
    FRUGAL_TRY_ASSIGN(const int twice, half(once));
    return twice;
}

status all_even(const std::vector<int>& values, int& seen) {
    for (int value : values) {
        FRUGAL_TRY(half(value));
        ++seen;
    }
    return {};
}

}  // namespace

TEST_CASE("result holds a value or an error") {
    const auto good = half(10);
    REQUIRE(good);
    CHECK(good.has_value());
    CHECK(*good == 5);
    CHECK(good.value() == 5);

    const auto bad = half(7);
    REQUIRE_FALSE(bad);
    CHECK_FALSE(bad.has_value());
    CHECK(bad.error().code == errc::invalid_argument);
    CHECK(bad.error().message == "7 is odd");
}

TEST_CASE("result tells an empty value from an error") {
    const result<std::string> empty = std::string();
    REQUIRE(empty);
    CHECK(empty->empty());
    const result<std::string> failed = error{errc::io, ""};
    CHECK_FALSE(failed);
}

TEST_CASE("result moves what cannot be copied") {
    const auto make = []() -> result<std::unique_ptr<int>> { return std::make_unique<int>(3); };
    auto held = make();
    REQUIRE(held);
    const std::unique_ptr<int> taken = *std::move(held);
    CHECK(*taken == 3);

    const auto through = [&]() -> result<int> {
        FRUGAL_TRY_ASSIGN(const std::unique_ptr<int> inner, make());
        return *inner;
    };
    CHECK(*through() == 3);
}

TEST_CASE("FRUGAL_TRY and FRUGAL_TRY_ASSIGN pass the first error on and stop") {
    CHECK(*quarter(20) == 5);
    const auto first = quarter(7);
    REQUIRE_FALSE(first);
    CHECK(first.error().message == "7 is odd");
    const auto second = quarter(10);
    REQUIRE_FALSE(second);
    CHECK(second.error().message == "5 is odd");

    int seen = 0;
    CHECK(all_even({2, 4, 6}, seen));
    CHECK(seen == 3);
    seen = 0;
    const status stopped = all_even({2, 5, 6}, seen);
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().message == "5 is odd");
    CHECK(seen == 1);
}

TEST_CASE("status is success unless it is made from an error") {
    CHECK(status());
    const status bad = fail(errc::io, "cannot open ", "a file");
    REQUIRE_FALSE(bad);
    CHECK(bad.error().code == errc::io);
    CHECK(bad.error().message == "cannot open a file");
}

TEST_CASE("results must be looked at") {
    // [[nodiscard]] is a warning and cannot be asserted here; that testing is explicit can.
    static_assert(!std::is_convertible_v<result<int>, bool> && !std::is_convertible_v<status, bool>);
    static_assert(std::is_constructible_v<bool, result<int>> && std::is_constructible_v<bool, status>);
    static_assert(!std::is_default_constructible_v<result<int>>);
}

TEST_CASE("concat joins strings, characters and numbers") {
    CHECK(frugal::concat() == "");
    CHECK(frugal::concat("a", std::string("b"), std::string_view("c"), 'd') == "abcd");
    CHECK(frugal::concat(std::numeric_limits<std::uint64_t>::max()) == "18446744073709551615");
    CHECK(frugal::concat(std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
    CHECK(frugal::concat("row ", std::size_t{3}, " of ", -4) == "row 3 of -4");
    const std::string with_zero("a\0b", 3);
    CHECK(frugal::concat(with_zero, with_zero).size() == 6);
}

TEST_CASE("every kind of error has a name of its own") {
    std::set<std::string_view> names;
    int count = 0;
    for (errc code : {errc::invalid_argument, errc::shape_mismatch, errc::unsupported_format, errc::unsupported, errc::out_of_memory,
                      errc::context_overflow, errc::cannot_rollback, errc::not_found, errc::io, errc::malformed_file,
                      errc::not_finite}) {
        names.insert(frugal::to_string(code));
        ++count;
    }
    CHECK(names.size() == static_cast<std::size_t>(count));
    CHECK(names.count("error") == 0);
    CHECK(frugal::to_string(static_cast<errc>(200)) == "error");
}
