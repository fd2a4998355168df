#include "frugal/io/progress.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "frugal/io/printable.hpp"

namespace io = frugal::io;

namespace {
template <class Work>
std::string drawn(bool terminal, std::chrono::milliseconds patience, Work work) {
    std::FILE* file = std::tmpfile();
    REQUIRE(file != nullptr);
    {
        io::progress_bar bar("loading", file, terminal, patience);
        work(bar);
    }
    std::string out(static_cast<std::size_t>(std::ftell(file)), '\0');
    std::rewind(file);
    CHECK(std::fread(out.data(), 1, out.size(), file) == out.size());
    std::fclose(file);
    return out;
}
}  // namespace

TEST_CASE("numbers for readers") {
    CHECK(io::format_bytes(0) == "0 B");
    CHECK(io::format_bytes(999) == "999 B");
    CHECK(io::format_bytes(3743104) == "3.7 MB");
    CHECK(io::format_bytes(28.8e9) == "28.8 GB");
    CHECK(io::format_bytes(5e15) == "5000 TB");
    CHECK(io::format_duration(8.2) == "8s");
    CHECK(io::format_duration(59.9) == "1m00s");
    CHECK(io::format_duration(125) == "2m05s");
    CHECK(io::format_duration(3720) == "1h02m");
    CHECK(io::format_duration(-1) == "0s");
    CHECK(io::format_progress("load", 50, 100, 2) == "load [############............]  50%  50 B of 100 B  25 B/s  2s left");
    CHECK(io::format_progress("load", 200, 100, 0) == "load [########################] 100%  100 B of 100 B");
    CHECK(io::format_progress("load", 0, 0, 1) == "load [########################] 100%  0 B of 0 B");
}

TEST_CASE("the bar is drawn on a terminal only, for slow work only, and wiped at the end") {
    const auto steps = [](io::progress_bar& bar) {
        for (std::uint64_t i = 0; i <= 100; ++i) bar(i, 100);
    };
    CHECK(drawn(false, std::chrono::milliseconds(0), steps).empty());
    CHECK(drawn(true, std::chrono::minutes(1), steps).empty());
    const std::string slow = drawn(true, std::chrono::milliseconds(0), steps);
    CHECK(slow.starts_with("\rloading ["));
    CHECK(slow.ends_with(" \r"));
    CHECK(slow.size() < 400);  // not once a step
    // Left unfinished, it is wiped all the same.
    const std::string left = drawn(true, std::chrono::milliseconds(0), [](io::progress_bar& bar) { bar(1, 2); });
    CHECK(left.ends_with(" \r"));
}

TEST_CASE("text from files is shown without what a terminal would obey") {
    CHECK(io::printable("blk.0") == "'blk.0'");
    CHECK(io::printable(std::string_view("\x1b[2J\0\xff", 6)) == "'\\x1b[2J\\x00\\xff'");
    CHECK(io::printable(std::string(1000, 'a')).size() == 105);
}
