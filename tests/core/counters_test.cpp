#include "frugal/core/counters.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

using frugal::counter;

TEST_CASE("counters_on counts from any thread and forgets on reset") {
    frugal::counters_on counters;
    static_assert(frugal::counters_on::enabled);
    constexpr int threads = 4, times = 1000;
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i)
        running.emplace_back([&] {
            for (int k = 0; k < times; ++k) counters.add(counter::tokens, 2);
        });
    for (std::thread& thread : running) thread.join();
    CHECK(counters.read(counter::tokens) == 2u * threads * times);
    for (std::size_t i = 0; i < frugal::counter_count; ++i) {
        const auto which = static_cast<counter>(i);
        if (which != counter::tokens) CHECK(counters.read(which) == 0);
    }
    counters.reset();
    CHECK(counters.read(counter::tokens) == 0);
}

TEST_CASE("counters_off costs nothing and reads as zero") {
    static_assert(!frugal::counters_off::enabled && std::is_empty_v<frugal::counters_off>);
    frugal::counters_off counters;
    counters.add(counter::tokens, 7);
    CHECK(counters.read(counter::tokens) == 0);
}

TEST_CASE("every counter has a name of its own") {
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < frugal::counter_count; ++i) names.insert(frugal::to_string(static_cast<counter>(i)));
    CHECK(names.size() == frugal::counter_count);
    CHECK(names.count("") == 0);
    CHECK(frugal::to_string(counter::tokens) == "tokens");
    CHECK(frugal::to_string(counter::weight_bytes_read) == "weight_bytes_read");
}
