#include "frugal/io/safetensors.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <random>

#include "golden.hpp"
#include "temporary_directory.hpp"

namespace io = frugal::io;
using frugal::errc;

namespace {

std::string with_header(const std::string& header, std::size_t data) {
    const std::uint64_t size = header.size();
    std::string out(reinterpret_cast<const char*>(&size), 8);
    out += header;
    for (std::size_t i = 0; i < data; ++i) out += static_cast<char>(i);
    return out;
}

struct parsed {
    explicit parsed(std::string_view text) : bytes(test::as_bytes(text).begin(), test::as_bytes(text).end()) {
        file.emplace(io::safetensors_file::parse(bytes, "memory.safetensors"));
    }
    std::vector<std::byte> bytes;
    std::optional<frugal::result<io::safetensors_file>> file;
    bool ok() const { return file->has_value(); }
    const io::safetensors_file& value() const { return file->value(); }
    const frugal::error& error() const { return file->error(); }
};

void expect_error(const std::string& text, std::string_view part) {
    CAPTURE(std::string(part));
    const parsed got(text);
    REQUIRE_FALSE(got.ok());
    CHECK(got.error().code == errc::malformed_file);
    CHECK_MESSAGE(test::contains(got.error().message, part), got.error().message);
    CHECK(test::contains(got.error().message, "memory.safetensors: "));
}

/// One tensor `a`, spelled by its fields.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets, std::size_t data) {
    return with_header(R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data);
}

const std::string small =
    R"({"__metadata__":{"format":"pt","x":"y"},)"
    R"("b":{"data_offsets":[24,30],"dtype":"BF16","shape":[3]},)"
    R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("c":{"dtype":"I64","shape":[],"data_offsets":[30,38]}, "e":{"dtype":"U8","shape":[0,7],"data_offsets":[38,38]}}  )";

}  // namespace

TEST_CASE("tensors, shapes, metadata") {
    const parsed got(with_header(small, 38));
    REQUIRE(got.ok());
    const auto& file = got.value();
    CHECK(file.tensors().size() == 4);
    CHECK(file.metadata().at("format") == "pt");
    const auto* a = file.find("a");
    REQUIRE(a != nullptr);
    CHECK(a->shape == std::vector<std::uint64_t>{2, 3});
    CHECK(a->elements() == 6);
    CHECK(a->bytes.size() == 24);
    CHECK(static_cast<std::uint32_t>(*io::quant_type_of(*a)) == 0);
    const auto* b = file.find("b");
    CHECK(static_cast<int>(b->bytes[0]) == 24);
    CHECK(static_cast<std::uint32_t>(*io::quant_type_of(*b)) == 30);
    CHECK(file.find("c")->elements() == 1);
    CHECK(file.find("e")->elements() == 0);
    CHECK(file.find("d") == nullptr);
    const auto refused = io::quant_type_of(*file.find("c"));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == errc::unsupported_format);
    CHECK(test::contains(refused.error().message, "'c' has dtype 'I64'"));
    CHECK(static_cast<std::uint32_t>(*io::quant_type_of({"h", "F16", {}, {}})) == 1);
}

TEST_CASE("golden files read as the independent reader of the tests reads them") {
    int seen = 0;
    for (const auto& item : std::filesystem::directory_iterator(FRUGAL_TEST_DATA "/gdn")) {
        if (item.path().extension() != ".safetensors" || seen == 10) continue;
        CAPTURE(item.path().string());
        const auto file = io::safetensors_file::open(item.path().string());
        REQUIRE(file.has_value());
        const test::golden golden("", item.path().string());
        REQUIRE(file->tensors().size() == golden.tensors().size());
        for (const auto& name : golden.tensors()) {
            const auto* tensor = file->find(name);
            REQUIRE(tensor != nullptr);
            CHECK(tensor->dtype == golden.dtype(name));
            const auto bytes = golden.get<char>(name);
            CHECK(std::equal(bytes.begin(), bytes.end(), reinterpret_cast<const char*>(tensor->bytes.data())));
        }
        ++seen;
    }
    CHECK(seen > 0);
}

TEST_CASE("C53 hostile header lengths") {
    expect_error("", "too few");
    expect_error("1234567", "too few");
    for (const std::uint64_t length :
         {~std::uint64_t{0}, ~std::uint64_t{0} - 7, std::uint64_t{1} << 63, std::uint64_t{100'000'001}}) {
        std::string text(reinterpret_cast<const char*>(&length), 8);
        expect_error(text + "{}", "at most 100000000 are allowed");
    }
    for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{100'000'000}}) {
        std::string text(reinterpret_cast<const char*>(&length), 8);
        expect_error(text + "{}", "the file ends after 2");
    }
    expect_error(with_header("", 0), "does not start with '{'");
    expect_error(with_header(" {}", 0), "does not start with '{'");
    expect_error(with_header("[]", 0), "does not start with '{'");
    CHECK(parsed(with_header("{}", 0)).ok());
    CHECK(parsed(with_header("{}    ", 0)).ok());
}

TEST_CASE("C53 hostile offsets and shapes") {
    expect_error(one("F32", "[1]", "[4,0]", 4), "'a' begins at 4 and ends before that, at 0");
    expect_error(one("F32", "[1]", "[-4,0]", 4), "the number -4 does not belong in tensor 'a'");
    expect_error(one("F32", "[-1]", "[0,4]", 4), "the number -1");
    expect_error(one("F32", "[1.0]", "[0,4]", 4), "the number '1.0'");
    expect_error(one("F32", "[1e3]", "[0,4]", 4), "the number '1e3'");
    expect_error(one("F32", "[1]", "[0,8]", 4), "past the end of the data of 4 bytes");
    expect_error(one("F32", "[1]", "[18446744073709551612,18446744073709551615]", 4), "past the end");
    expect_error(one("F32", "[1]", "[0,18446744073709551616]", 4), "the number '18446744073709551616'");
    expect_error(one("F32", "[2]", "[0,4]", 4), "needs 8 bytes by its shape but has 4");
    expect_error(one("F32", "[1]", "[0,8]", 8), "needs 4 bytes by its shape but has 8");
    expect_error(one("F32", "[]", "[0,0]", 0), "needs 4 bytes by its shape but has 0");
    expect_error(one("F32", "[0]", "[0,4]", 4), "needs 0 bytes");
    for (const char* shape : {"[9223372036854775807,2]", "[18446744073709551615]", "[4294967296,4294967296]",
                              "[0,9223372036854775807,2]", "[65536,65536,65536,65536]"})
        expect_error(one("U8", shape, "[0,4]", 4), "the shape of tensor 'a' overflows");
    expect_error(one("F64", "[4611686018427387904]", "[0,4]", 4), "the size of tensor 'a' overflows");
    expect_error(one("F4", "[3]", "[0,2]", 2), "whole bytes");
    CHECK(parsed(one("F4", "[4]", "[0,2]", 2)).ok());
    expect_error(one("Q9", "[1]", "[0,4]", 4), "unknown dtype 'Q9'");
    expect_error(one("F32", "[1]", "[0]", 4), "pair of data_offsets");
    expect_error(one("F32", "[1]", "[0,4,4]", 4), "a third offset");
    expect_error(one("F32", "[1]", "[]", 4), "pair of data_offsets");
    // Bytes of nobody, and bytes of two.
    expect_error(one("F32", "[1]", "[0,4]", 5), "bytes 4 to 5 at the end belong to no tensor");
    expect_error(one("F32", "[1]", "[4,8]", 8), "bytes 0 to 4 before tensor 'a' belong to no tensor");
    const auto two = [](const char* first, const char* second, std::size_t data) {
        return with_header(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
                               R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                           data);
    };
    expect_error(two("[0,4]", "[2,6]", 6), "overlaps another");
    expect_error(two("[0,4]", "[0,4]", 4), "overlaps another");
    expect_error(two("[5,9]", "[0,4]", 9), "bytes 4 to 5");
    CHECK(parsed(two("[4,8]", "[0,4]", 8)).ok());
}

TEST_CASE("C53 hostile JSON") {
    expect_error(with_header("{", 0), "not valid JSON");
    expect_error(with_header("{}x", 0), "not valid JSON");
    expect_error(with_header("{\"a\xff\":{}}", 0), "not valid JSON");
    expect_error(with_header(R"({"a":1})", 0), "the number 1 does not belong as the value of 'a'");
    expect_error(with_header(R"({"a":null})", 0), "null");
    expect_error(with_header(R"({"a":[]})", 0), "an array");
    expect_error(with_header(R"({"a":{}})", 0), "lacks its dtype, shape or pair of data_offsets");
    expect_error(with_header(R"({"a":{"dtype":"U8","shape":[]}})", 0), "lacks");
    expect_error(with_header(R"({"a":{"dtype":{}}})", 0), "an object does not belong in tensor 'a'");
    expect_error(with_header(R"({"a":{"shape":[[1]]}})", 0), "an array does not belong in tensor 'a'");
    expect_error(with_header(R"({"a":{"shape":["1"]}})", 0), "the text '1'");
    expect_error(with_header(R"({"a":{"shape":true}})", 0), "a boolean");
    expect_error(with_header(R"({"a":{"more":1}})", 0), "the key 'more'");
    expect_error(with_header(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0), "has dtype twice");
    expect_error(with_header(R"({"__metadata__":{"a":1}})", 0), "in __metadata__");
    expect_error(with_header(R"({"__metadata__":"a"})", 0), "in __metadata__");
    expect_error(
        with_header(
            R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
        "'a' occurs twice");
    const std::string deep(5'000'000, '[');
    expect_error(with_header(R"({"a":)" + deep, 0), "an array");
    expect_error(with_header(R"({"a":{"shape":)" + deep, 0), "an array");
    std::string objects = "{";
    for (int i = 0; i < 200'000; ++i) objects += R"("a":{)";
    expect_error(with_header(objects, 0), "the key 'a'");
}

TEST_CASE("C53 a file cut at any byte is an error, and no byte of it can do harm") {
    const std::string whole = with_header(small, 38);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        CAPTURE(size);
        CHECK_FALSE(parsed(whole.substr(0, size)).ok());
    }
    std::mt19937 random(53);
    std::size_t accepted = 0, sum = 0;
    for (int round = 0; round < 20000; ++round) {
        std::string bad = whole;
        for (int flips = static_cast<int>(random() % 4); flips >= 0; --flips) {
            const std::size_t at = random() % (bad.size());
            bad[at] =
                random() % 2 == 0 ? static_cast<char>(bad[at] ^ (1 << (random() % 8))) : "0123456789[]{}\",:-e"[random() % 19];
        }
        if (const parsed got(bad); got.ok()) {
            ++accepted;
            for (const auto& tensor : got.value().tensors())
                for (const auto byte : tensor.bytes) sum += static_cast<std::size_t>(byte);
        }
    }
    CHECK(accepted > 0);
    CHECK(sum > 0);
}

TEST_CASE("a model directory: one file, or shards behind an index") {
    const test::temporary_directory folder;
    const auto missing = io::safetensors_directory::open(folder.path());
    REQUIRE_FALSE(missing.has_value());
    CHECK(missing.error().code == errc::not_found);
    CHECK(test::contains(missing.error().message, "model.safetensors.index.json"));
    CHECK(test::contains(missing.error().message, folder.path()));

    const auto shard = [](const std::string& name, std::size_t elements) {
        return with_header(R"({")" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(elements) +
                               R"(],"data_offsets":[0,)" + std::to_string(elements) + "]}}",
                           elements);
    };
    folder.write("model-00001-of-00002.safetensors", shard("first", 3));
    folder.write("model-00002-of-00002.safetensors", shard("second", 5));
    folder.write("config.json", R"({"hidden_size": 8})");
    const auto index = [&](const std::string& map) {
        folder.write("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
    };
    const auto expect = [&](std::string_view part, errc code = errc::malformed_file) {
        const auto opened = io::safetensors_directory::open(folder.path());
        REQUIRE_FALSE(opened.has_value());
        CHECK_MESSAGE(test::contains(opened.error().message, part), opened.error().message);
        CHECK(opened.error().code == code);
    };
    index(R"({"first":"model-00001-of-00002.safetensors","second":"model-00002-of-00002.safetensors"})");
    {
        auto opened = io::safetensors_directory::open(folder.path());
        REQUIRE(opened.has_value());
        const io::safetensors_directory directory = std::move(*opened);
        CHECK(directory.files().size() == 2);
        CHECK(directory.tensors().size() == 2);
        REQUIRE(directory.find("second") != nullptr);
        CHECK(directory.find("second")->bytes.size() == 5);
        CHECK(directory.find("third") == nullptr);
        CHECK(*directory.config() == R"({"hidden_size": 8})");
        const auto none = directory.read_text("tokenizer.json");
        REQUIRE_FALSE(none.has_value());
        CHECK(none.error().code == errc::not_found);
        for (const char* name : {"../x", "/etc/passwd", "..", ".", "", "a/b"}) CHECK_FALSE(directory.read_text(name).has_value());
    }
    for (const char* bad : {"../model-00001-of-00002.safetensors", "/tmp/x.safetensors", "..", ".", "", "sub/x.safetensors",
                            "a\\\\b", "a\\u0000b"}) {
        CAPTURE(std::string(bad));
        index(std::string(R"({"first":")") + bad + "\"}");
        expect("not the name of a file in the directory");
    }
    index(R"({"first":"model-00003-of-00003.safetensors"})");
    expect("model-00003-of-00003.safetensors", errc::not_found);
    index(R"({"other":"model-00001-of-00002.safetensors"})");
    expect("'other' is said to lie in 'model-00001-of-00002.safetensors', which does not hold it");
    index(R"({"first":7})");
    expect("is not a string");
    index(R"([])");
    expect("no object 'weight_map'");
    folder.write("model.safetensors.index.json", "[1,2");
    expect("not valid JSON");
    folder.write("model.safetensors.index.json", std::string(100000, '[') + std::string(100000, ']'));
    expect("nested deeper");
    folder.write("model-00002-of-00002.safetensors", shard("first", 5));
    index(R"({"first":"model-00001-of-00002.safetensors"})");
    CHECK(io::safetensors_directory::open(folder.path()).has_value());  // only shards that the index names are opened

    folder.write("model.safetensors", shard("single", 2));
    const auto single = io::safetensors_directory::open(folder.path());
    REQUIRE(single.has_value());
    CHECK(single->find("single") != nullptr);
    folder.write("model.safetensors", "broken");
    expect("model.safetensors: not a safetensors file");
}
