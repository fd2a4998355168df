// Views, buffers, the workspace and the byte encoding of states.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "frugal/tensor/buffer.hpp"
#include "frugal/tensor/bytes.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

using frugal::buffer;
using frugal::byte_reader;
using frugal::byte_writer;
using frugal::errc;
using frugal::matrix_view;
using frugal::workspace;

namespace {
bool aligned(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 64 == 0; }
}  // namespace

TEST_CASE("matrix_view: strides, ranges of rows and of columns, constant views") {
    std::vector<float> data(5 * 7);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
    const matrix_view<float> view(data.data(), 5, 4, 7);
    CHECK(view(2, 3) == 17.0f);
    CHECK(view.row(4) == data.data() + 28);
    CHECK(view.row_span(1).size() == 4);
    const matrix_view<float> rows = view.rows_range(1, 3);
    CHECK(rows.rows() == 3);
    CHECK(rows(0, 0) == 7.0f);
    CHECK(rows.stride() == 7);
    const matrix_view<const float> part = rows.cols_range(2, 2);
    CHECK(part.cols() == 2);
    CHECK(part(2, 1) == 24.0f);
    CHECK(matrix_view<float>(data.data(), 5, 7).stride() == 7);
    CHECK(matrix_view<float>().rows() == 0);
}

TEST_CASE("buffer: aligned, zero, movable; impossible sizes are errors") {
    auto made = buffer<float>::allocate(1000);
    REQUIRE(made);
    CHECK(aligned(made->data()));
    for (const float value : made->span()) REQUIRE(value == 0.0f);
    (*made)[999] = 3.0f;
    buffer<float> moved = std::move(*made);
    CHECK(made->size() == 0);
    CHECK(made->data() == nullptr);
    CHECK(moved[999] == 3.0f);
    buffer<float>& alias = moved;
    moved = std::move(alias);
    CHECK(moved.size() == 1000);
    moved = buffer<float>();
    CHECK(moved.size() == 0);
    CHECK(buffer<std::int64_t>::allocate(0)->data() == nullptr);
    CHECK(buffer<float>::allocate(std::numeric_limits<std::size_t>::max()).error().code == errc::out_of_memory);
    CHECK(buffer<double>::allocate(std::numeric_limits<std::size_t>::max() / 8).error().code == errc::out_of_memory);
    CHECK(buffer<float>::allocate(std::numeric_limits<std::size_t>::max() / 16).error().code == errc::out_of_memory);
}

TEST_CASE("buffer: one that fills a huge page begins with one") {
    constexpr std::size_t page = std::size_t{2} << 20;
    for (const std::size_t bytes : {page, 2 * page - page / 2, 100 * page + 1}) {
        const auto made = buffer<std::byte>::allocate(bytes);
        REQUIRE(made);
        CHECK(reinterpret_cast<std::uintptr_t>(made->data()) % page == 0);
        CHECK(made->span().back() == std::byte{});
    }
}

TEST_CASE("workspace: nested scopes give memory back, blocks never move, growth is reused") {
    workspace scratch;
    float* first = nullptr;
    {
        workspace::scope outer(scratch);
        const auto a = scratch.matrix(3, 5);
        REQUIRE(a);
        first = a->data();
        CHECK(aligned(first));
        CHECK(a->stride() == 5);
        for (std::size_t i = 0; i < 15; ++i) first[i] = 1.0f;
        float* inner_data = nullptr;
        {
            workspace::scope inner(scratch);
            inner_data = *scratch.floats(7);
            CHECK(aligned(inner_data));
            CHECK(inner_data >= first + 15);
            const auto big = scratch.floats(1u << 20);  // larger than a block
            REQUIRE(big);
            for (std::size_t i = 0; i < (1u << 20); ++i) (*big)[i] = 2.0f;
        }
        for (std::size_t i = 0; i < 15; ++i) REQUIRE(first[i] == 1.0f);
        CHECK(*scratch.floats(7) == inner_data);
        struct pair {
            std::int8_t codes[3];
            float scale;
        };
        const auto array = scratch.array<pair>(9);
        REQUIRE(array);
        CHECK(array->size() == 9);
        CHECK(aligned(array->data()));
        CHECK(reinterpret_cast<float*>(array->data()) >= inner_data + 7);
    }
    const std::size_t held = scratch.bytes();
    CHECK(held >= (1u << 22));
    for (int pass = 0; pass < 5; ++pass) {
        workspace::scope scope(scratch);
        CHECK(*scratch.floats(15) == first);
        REQUIRE(scratch.floats(1u << 20));
    }
    CHECK(scratch.bytes() == held);
    CHECK(scratch.matrix(std::numeric_limits<std::size_t>::max(), 2).error().code == errc::out_of_memory);
    CHECK(scratch.floats(std::numeric_limits<std::size_t>::max()).error().code == errc::out_of_memory);
    CHECK(scratch.array<double>(std::numeric_limits<std::size_t>::max()).error().code == errc::out_of_memory);
    CHECK(scratch.matrix(std::numeric_limits<std::size_t>::max(), 0));
}

TEST_CASE("bytes: what is written is read, and every way to be cut short is an error") {
    byte_writer writer;
    writer.write(std::uint32_t{7});
    writer.write_span(std::span<const float>(std::vector<float>{1.5f, -2.0f, 3.0f}));
    writer.write_span(std::span<const std::int64_t>());
    writer.write(std::uint8_t{9});
    const std::vector<std::byte> bytes = std::move(writer).take();
    CHECK(bytes.size() == 4 + 8 + 12 + 8 + 1);

    const auto read_all = [&](std::size_t size) -> frugal::status {
        byte_reader reader(std::span<const std::byte>(bytes).first(size));
        std::uint32_t number = 0;
        std::vector<float> floats(3);
        std::uint8_t last = 0;
        FRUGAL_TRY(reader.read(number));
        FRUGAL_TRY(reader.read_span(std::span<float>(floats)));
        FRUGAL_TRY(reader.read_span(std::span<std::int64_t>()));
        FRUGAL_TRY(reader.read(last));
        CHECK(number == 7);
        CHECK(floats == std::vector<float>{1.5f, -2.0f, 3.0f});
        CHECK(last == 9);
        CHECK(reader.remaining() == 0);
        return {};
    };
    CHECK(read_all(bytes.size()));
    for (std::size_t size = 0; size < bytes.size(); ++size) CHECK(read_all(size).error().code == errc::malformed_file);

    byte_reader other(bytes);
    std::uint32_t number = 0;
    REQUIRE(other.read(number));
    std::vector<float> four(4);
    CHECK(other.read_span(std::span<float>(four)).error().code == errc::shape_mismatch);
}
