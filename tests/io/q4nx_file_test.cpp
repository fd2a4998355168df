#include "frugal/io/q4nx_file.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "frugal/quant/q4nx.hpp"
#include "frugal/quant/q4nx/q8nx.hpp"
#include "golden.hpp"
#include "temporary_directory.hpp"

namespace io = frugal::io;
namespace quant = frugal::quant;
using frugal::errc;
using frugal::matrix_view;

namespace {

const std::string example = FRUGAL_TEST_DATA "/q4nx/container_example.q4nx";

template <class T>
void expect_error(const frugal::result<T>& got, errc code, std::string_view part) {
    REQUIRE_FALSE(got.has_value());
    CHECK(got.error().code == code);
    CHECK_MESSAGE(test::contains(got.error().message, part), got.error().message);
}

/// A tensor in memory, as a file might hold it.
io::safetensor tensor(std::string dtype, std::vector<std::uint64_t> shape, std::span<const std::byte> bytes) {
    return {"w", std::move(dtype), std::move(shape), bytes};
}

}  // namespace

TEST_CASE("a container's tensors have the golden values") {
    const auto file = io::safetensors_file::open(example);
    REQUIRE_MESSAGE(file, file.error().message);
    const test::golden want("q4nx/container_example_expected");
    std::size_t matrices = 0;
    for (const std::string& name : want.tensors()) {
        CAPTURE(name);
        const io::safetensor* found = file->find(name);
        REQUIRE(found != nullptr);
        const auto values = want.f32(name);
        if (found->dtype != "I8") {
            const auto got = io::floats_of(*found);
            REQUIRE(got);
            CHECK(*got == values);
            continue;
        }
        ++matrices;
        const auto shape = want.shape(name);
        const auto tiles = io::tiles_of<quant::q4nx<>>(*found, shape.at(0), shape.at(1));
        REQUIRE_MESSAGE(tiles, tiles.error().message);
        std::vector<float> got(values.size());
        REQUIRE(quant::unpack_tiles<quant::q4nx<>>(*tiles, shape[0], shape[1], {got.data(), shape[0], shape[1]}));
        CHECK(got == values);
    }
    CHECK(matrices >= 1);
    CHECK(want.tensors().size() >= 6);
}

TEST_CASE("both shapes of tiles are read, with and without padding") {
    std::vector<std::byte> bytes(6 * 5120);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 5120 < 1024 ? 0x3E : i * 7 % 251);
    using tile = quant::q4nx<>;
    for (const auto& [rows, cols] : {std::pair{96u, 512u}, std::pair{65u, 257u}}) {
        const auto three = io::tiles_of<tile>(tensor("I8", {3, 2, 5120}, bytes), rows, cols);
        const auto two = io::tiles_of<tile>(tensor("I8", {6, 5120}, bytes), rows, cols);
        REQUIRE(three);
        REQUIRE(two);
        CHECK(three->data() == bytes.data());
        CHECK(two->size() == bytes.size());
    }
    const auto refused = [&](std::vector<std::uint64_t> shape, std::size_t rows, std::size_t cols, std::string_view part) {
        expect_error(io::tiles_of<tile>(tensor("I8", std::move(shape), bytes), rows, cols), errc::shape_mismatch, part);
    };
    refused({2, 3, 5120}, 96, 512, "'w' of 30720 bytes is not a matrix [96, 512] in tiles of q4nx");
    refused({6, 2, 2560}, 96, 512, "[96, 512]");
    refused({6 * 5120}, 96, 512, "[96, 512]");
    refused({3, 2, 5120}, 97, 512, "[97, 512]");
    refused({3, 2, 5120}, 96, 513, "[96, 513]");
    refused({6, 5120}, ~std::size_t{0}, ~std::size_t{0}, "'w'");
    expect_error(io::tiles_of<tile>(tensor("I8", {6, 5120}, {bytes.data(), 5 * 5120}), 96, 512), errc::shape_mismatch,
                 "of 25600 bytes");
    expect_error(io::tiles_of<tile>(tensor("U8", {6, 5120}, bytes), 96, 512), errc::unsupported_format, "has dtype 'U8'");
    // The 8-bit tile of the same size counts other columns.
    CHECK(io::tiles_of<quant::q8nx>(tensor("I8", {3, 2, 5120}, bytes), 96, 256));
    expect_error(io::tiles_of<quant::q8nx>(tensor("I8", {3, 2, 5120}, bytes), 96, 512), errc::shape_mismatch, "tiles of q8nx");
}

TEST_CASE("dtype Q4NX is read as subtractive tiles and nothing else") {
    const test::golden golden("q4nx/dtype_q4nx_subtractive");
    const auto raw = golden.get<char>("raw");
    const std::string header = R"({"w":{"dtype":"Q4NX","shape":[96,512],"data_offsets":[0,30720]}})";
    const std::uint64_t size = header.size();
    std::string text(reinterpret_cast<const char*>(&size), 8);
    text += header;
    text.append(raw.data(), raw.size());
    const test::temporary_directory folder;
    const auto file = io::safetensors_file::open(folder.write("old.q4nx", text));
    REQUIRE_MESSAGE(file, file.error().message);
    using subtractive = quant::q4nx<quant::q4nx_subtractive>;
    const auto tiles = io::tiles_of<subtractive>(*file->find("w"), 96, 512);
    REQUIRE_MESSAGE(tiles, tiles.error().message);
    CHECK(std::memcmp(tiles->data(), raw.data(), raw.size()) == 0);
    expect_error(io::tiles_of<quant::q4nx<>>(*file->find("w"), 96, 512), errc::unsupported_format, "zero point");
    expect_error(io::tiles_of<quant::q8nx>(*file->find("w"), 96, 512), errc::unsupported_format, "not q8nx");
    expect_error(io::tiles_of<subtractive>(*file->find("w"), 512, 96), errc::shape_mismatch, "[512, 96]");
    // A matrix that is not whole tiles cannot have this dtype's size.
    const auto part = file->find("w")->bytes.first(30400);
    expect_error(io::tiles_of<subtractive>(tensor("Q4NX", {95, 512}, part), 95, 512), errc::shape_mismatch, "[95, 512]");
}

TEST_CASE("a hostile container is refused") {
    std::string text = test::read_file(example);
    // One scale of one tile is infinite.
    const auto clean = io::safetensors_file::open(example);
    REQUIRE(clean);
    const auto* matrix = clean->find("model.layers.0.self_attn.gate_proj.weight");
    REQUIRE(matrix != nullptr);
    const std::size_t at = text.find(std::string(reinterpret_cast<const char*>(matrix->bytes.data()), 64));
    REQUIRE(at != std::string::npos);
    text[at + 5120] = '\x80';
    text[at + 5121] = '\x7F';
    const test::temporary_directory folder;
    const auto broken = io::safetensors_file::open(folder.write("broken.q4nx", text));
    REQUIRE(broken);
    expect_error(io::tiles_of<quant::q4nx<>>(*broken->find(matrix->name), 64, 256), errc::not_finite,
                 "'model.layers.0.self_attn.gate_proj.weight': the tile at row 32, column 0");
    // Cut anywhere, it is an error that says so, and nothing is read past the end.
    for (const std::size_t length : {text.size() - 1, text.size() / 2, std::size_t{500}, std::size_t{9}, std::size_t{7}}) {
        const auto cut = io::safetensors_file::open(folder.write("cut.q4nx", std::string_view(text).substr(0, length)));
        expect_error(cut, errc::malformed_file, "cut.q4nx");
    }
    // Tensors that are not floats.
    expect_error(io::floats_of(*clean->find(matrix->name)), errc::unsupported_format, "has dtype 'I8'");
    CHECK(io::floats_of(tensor("F32", {0}, {}))->empty());
}
