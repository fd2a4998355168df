#include "frugal/io/mapped_file.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "temporary_directory.hpp"

namespace io = frugal::io;
using frugal::errc;

TEST_CASE("a mapping holds the bytes of the file, and survives a move") {
    const test::temporary_directory folder;
    std::string content(10000, 'x');
    content[9999] = 'y';
    const auto path = folder.write("file", content);
    auto opened = io::mapped_file::open(path);
    REQUIRE(opened.has_value());
    const auto before = opened->bytes();
    io::mapped_file moved = std::move(*opened);
    CHECK(moved.bytes().data() == before.data());
    CHECK(opened->bytes().empty());
    io::mapped_file assigned;
    assigned = std::move(moved);
    const auto bytes = assigned.bytes();
    REQUIRE(bytes.size() == content.size());
    for (const auto how : {io::access::sequential, io::access::random, io::access::soon, io::access::done, io::access::normal}) {
        assigned.advise(how);
        io::mapped_file::advise(bytes.subspan(5000, 100), how);
        CHECK(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == content);
    }
    io::mapped_file::advise({}, io::access::soon);
}

TEST_CASE("what cannot be mapped is an error that names the path") {
    const test::temporary_directory folder;
    const auto expect = [](const std::string& path, errc code) {
        const auto opened = io::mapped_file::open(path);
        REQUIRE_FALSE(opened.has_value());
        CHECK(opened.error().code == code);
        CHECK(test::contains(opened.error().message, path));
    };
    expect(folder.path("missing"), errc::not_found);
    expect(folder.write("empty", ""), errc::malformed_file);
    expect(folder.path(), errc::invalid_argument);
    CHECK(test::contains(io::mapped_file::open(folder.path()).error().message, "is a directory"));
    expect(folder.path("empty/below"), errc::not_found);
    REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
    expect(folder.path("pipe"), errc::invalid_argument);
    expect("/dev/null", errc::invalid_argument);
    CHECK_FALSE(io::mapped_file::open(std::string("a\0b", 3)).has_value());
}
