#include "frugal/io/mapped_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "temporary_directory.hpp"

namespace io = frugal::io;
using frugal::errc;

namespace {

/// Bytes of the pages of a mapping that this process has.
std::size_t resident(std::span<const std::byte> bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<std::uint64_t> entries((bytes.size() + page - 1) / page);
    const int file = ::open("/proc/self/pagemap", O_RDONLY);
    REQUIRE(file >= 0);
    const auto offset = reinterpret_cast<std::uintptr_t>(bytes.data()) / page * sizeof(std::uint64_t);
    const std::size_t size = entries.size() * sizeof(std::uint64_t);
    REQUIRE(::pread(file, entries.data(), size, static_cast<::off_t>(offset)) == static_cast<::ssize_t>(size));
    ::close(file);
    return page *
           static_cast<std::size_t>(std::count_if(entries.begin(), entries.end(), [](std::uint64_t e) { return e >> 63; }));
}

}  // namespace

TEST_CASE("pages are given back while the file is read: those that reads nearby bring in again too") {
    const test::temporary_directory folder;
    constexpr std::size_t size = std::size_t{16} << 20, part = 24000;
    // Written in pieces, for a system that keeps it in large ones maps and drops those as a whole.
    std::FILE* const file = std::fopen(folder.path("file").c_str(), "wb");
    REQUIRE(file != nullptr);
    const std::string piece(4096, 'x');
    for (std::size_t i = 0; i < size; i += piece.size()) {
        REQUIRE(std::fwrite(piece.data(), 1, piece.size(), file) == piece.size());
        REQUIRE(std::fflush(file) == 0);
    }
    REQUIRE(std::fclose(file) == 0);
    const auto opened = io::mapped_file::open(folder.path("file"));
    REQUIRE(opened.has_value());
    const auto bytes = opened->bytes();
    io::page_return pages;
    std::size_t read = 0, most = 0;
    for (std::size_t begin = 0; begin < size; begin += part) {
        const auto now = bytes.subspan(begin, std::min(part, size - begin));
        for (const std::byte b : now) read += b == std::byte{'x'};
        pages(now);
        if (begin / part % 16 == 0) most = std::max(most, resident(bytes));
    }
    CHECK(read == size);
    CHECK(most < size / 2);
    pages.finish();
    CHECK(resident(bytes) < size / 64);  // of parts that were the last ones once
    CHECK(bytes.back() == std::byte{'x'});
}

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
