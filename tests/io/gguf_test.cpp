#include "frugal/io/gguf.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "gguf_builder.hpp"
#include "gguf_editor.hpp"
#include "temporary_directory.hpp"

namespace io = frugal::io;
namespace quant = frugal::quant;
using frugal::errc;
using test::gguf_builder;

namespace {

/// Parses a copy whose end is the end of an allocation, so that a sanitizer sees every byte read beyond it.
struct parsed {
    explicit parsed(std::string_view text) : bytes(test::as_bytes(text).begin(), test::as_bytes(text).end()) {
        file.emplace(io::gguf_file::parse(bytes, "memory.gguf"));
    }
    std::vector<std::byte> bytes;
    std::optional<frugal::result<io::gguf_file>> file;
    bool ok() const { return file->has_value(); }
    const io::gguf_file& value() const { return file->value(); }
    const frugal::error& error() const { return file->error(); }
};

void expect_error(const std::string& text, std::string_view part, errc code = errc::malformed_file) {
    CAPTURE(std::string(part));
    const parsed got(text);
    REQUIRE_FALSE(got.ok());
    CHECK(got.error().code == code);
    CHECK(test::contains(got.error().message, "memory.gguf: "));
    CHECK_MESSAGE(test::contains(got.error().message, part), got.error().message);
}

/// Reads everything that a file offers: whatever parse accepts must be safe to use.
std::size_t read_all(const io::gguf_file& file) {
    std::size_t sum = 0;
    for (const auto& entry : file.metadata()) {
        sum += file.has(entry.key) + entry.key.size();
        if (const auto value = file.u32(entry.key)) sum += *value;
        if (const auto value = file.i64(entry.key)) sum += static_cast<std::size_t>(*value);
        if (const auto value = file.f32(entry.key)) sum += *value > 0;
        if (const auto value = file.boolean(entry.key)) sum += *value;
        if (const auto value = file.string(entry.key)) sum += value->empty() ? 0 : static_cast<unsigned char>(value->back());
        if (const auto value = file.u64_list(entry.key)) sum += value->size();
        if (const auto value = file.bool_list(entry.key)) sum += value->size();
        if (const auto value = file.f32_list(entry.key)) sum += value->size();
        if (const auto value = file.string_list(entry.key))
            for (const auto text : *value) sum += text.empty() ? 0 : static_cast<unsigned char>(text.back());
    }
    for (const auto& tensor : file.tensors())
        if (const auto bytes = file.bytes(tensor))
            for (const auto byte : *bytes) sum += static_cast<std::size_t>(byte);
    return sum;
}

}  // namespace

TEST_CASE("metadata of every type, widened where nothing is lost") {
    const parsed got(test::small_gguf());
    REQUIRE(got.ok());
    const auto& file = got.value();
    CHECK(file.version() == 3);
    CHECK(file.metadata().size() == 17);
    CHECK(*file.u32("a.u8") == 200);
    CHECK(*file.u32("a.u16") == 60000);
    CHECK(*file.u32("a.u32") == 4000000000u);
    CHECK(*file.u32("a.i32") == 7);
    CHECK(*file.u64("a.u32") == 4000000000u);
    CHECK(*file.u64("a.u64") == std::uint64_t{1} << 45);
    CHECK(*file.i32("a.i8") == -5);
    CHECK(*file.i32("a.i16") == -300);
    CHECK(*file.i64("a.i64") == -1);
    CHECK(*file.i64("a.u64") == std::int64_t{1} << 45);
    CHECK(*file.f32("a.f32") == 1.5f);
    CHECK(*file.f32("a.f64") == 0.25f);
    CHECK(*file.boolean("a.bool"));
    CHECK(*file.string("a.string") == "text");
    CHECK(*file.u64_list("a.u64s") == std::vector<std::uint64_t>{35184372088891u, 2});
    CHECK(*file.u64_list("a.i32s") == std::vector<std::uint64_t>{11, 11, 10, 0});
    CHECK(*file.i64_list("a.i32s") == std::vector<std::int64_t>{11, 11, 10, 0});
    CHECK(*file.bool_list("a.bools") == std::vector<bool>{true, false, true});
    CHECK(*file.string_list("a.strings") == std::vector<std::string_view>{"one", "", "three"});
    CHECK(*file.f32_list("a.f32s") == std::vector<float>{1.0f, 2.0f});
    // A scalar stands for a list of one.
    CHECK(*file.u64_list("a.u8") == std::vector<std::uint64_t>{200});
    CHECK(*file.i64_list("a.i64") == std::vector<std::int64_t>{-1});
    CHECK(*file.bool_list("a.bool") == std::vector<bool>{true});
    CHECK(*file.u32_or("none", 4) == 4);
    CHECK(*file.u32_or("a.u8", 4) == 200);
    CHECK(*file.f32_or("none", 0.5f) == 0.5f);
    CHECK(*file.boolean_or("none", true));
    CHECK(*file.string_or("none", "x") == "x");
}

TEST_CASE("a getter for another type is an error that names key, wanted and found") {
    const parsed got(test::small_gguf());
    REQUIRE(got.ok());
    const auto& file = got.value();
    const auto expect = [](const auto& value, std::vector<std::string_view> parts, errc code = errc::invalid_argument) {
        REQUIRE_FALSE(value.has_value());
        CHECK(value.error().code == code);
        for (const auto part : parts) CHECK_MESSAGE(test::contains(value.error().message, part), value.error().message);
    };
    expect(file.u32("none"), {"'none'", "memory.gguf"}, errc::not_found);
    expect(file.u32("a.string"), {"'a.string'", "u32", "string 'text'"});
    expect(file.u32("a.i8"), {"'a.i8'", "u32", "i8 -5"});
    expect(file.u32("a.u64"), {"'a.u64'", "u32", "u64 35184372088832"});
    expect(file.i32("a.u32"), {"i32", "u32 4000000000"});
    expect(file.u64("a.i64"), {"u64", "i64 -1"});
    expect(file.u32("a.f32"), {"u32", "f32"});
    expect(file.u32("a.bool"), {"u32", "bool"});
    expect(file.u32("a.i32s"), {"u32", "array of 4 i32"});
    expect(file.f32("a.i32"), {"f32", "i32 7"});
    expect(file.boolean("a.u8"), {"bool", "u8 200"});
    expect(file.string("a.strings"), {"string", "array of 3 string"});
    expect(file.string_list("a.string"), {"list of string", "string 'text'"});
    expect(file.u64_list("a.strings"), {"list of u64", "array of 3 string"});
    expect(file.u64_list("a.f32s"), {"list of u64", "array of 2 f32"});
    expect(file.u64_list("a.string"), {"list of u64"});
    expect(file.bool_list("a.i32s"), {"list of bool"});
    expect(file.u32_or("a.string", 1), {"u32"});
}

TEST_CASE("the tensor table: dims, bytes, and a type that is not known") {
    const parsed got(test::small_gguf());
    REQUIRE(got.ok());
    const auto& file = got.value();
    REQUIRE(file.tensors().size() == 3);
    const auto* first = file.find("first");
    REQUIRE(first != nullptr);
    CHECK(first->n_dims == 2);
    CHECK(first->dims == std::array<std::uint64_t, 4>{3, 2, 1, 1});
    CHECK(first->elements() == 6);
    const auto bytes = file.bytes(*first);
    REQUIRE(bytes.has_value());
    CHECK(bytes->size() == 24);
    CHECK(static_cast<int>((*bytes)[5]) == 5);
    const auto second = file.bytes(*file.find("second"));
    REQUIRE(second.has_value());
    CHECK(second->size() == 34);
    CHECK(static_cast<int>((*second)[0]) == 32);
    CHECK(file.find("fourth") == nullptr);
    // Unknown type: the file opens, and only the use of the tensor is refused.
    const auto third = file.bytes(*file.find("third"));
    REQUIRE_FALSE(third.has_value());
    CHECK(third.error().code == errc::unsupported_format);
    CHECK(test::contains(third.error().message, "'third' has type 999"));
    CHECK(file.bytes(*file.find("third"), 4)->size() == 4);
    CHECK_FALSE(file.bytes(*file.find("third"), 5).has_value());
}

TEST_CASE("block sizes agree with the golden vectors of every format") {
    int seen = 0;
    for (const auto& item : std::filesystem::directory_iterator(FRUGAL_TEST_DATA "/gguf")) {
        if (item.path().extension() != ".safetensors") continue;
        const std::string text = test::read_file(item.path().string());
        std::uint64_t size = 0;
        std::memcpy(&size, text.data(), 8);
        const auto header = nlohmann::json::parse(text.substr(8, size));
        const auto params = nlohmann::json::parse(header["__metadata__"]["params"].get<std::string>());
        if (!params.contains("ggml_type")) continue;
        CAPTURE(item.path().string());
        const auto* type = io::find_gguf_tensor_type(quant::type_id{params["ggml_type"].get<std::uint32_t>()});
        REQUIRE(type != nullptr);
        CHECK(type->name == item.path().stem().string());
        CHECK(type->block_size == params["block_elements"].get<std::uint32_t>());
        CHECK(type->block_bytes == params["block_bytes"].get<std::uint32_t>());
        ++seen;
    }
    CHECK(seen >= 10);
    CHECK(io::find_gguf_tensor_type(quant::type_id{4}) == nullptr);
    CHECK(io::find_gguf_tensor_type(quant::type_id{0x10000}) == nullptr);
}

TEST_CASE("real files") {
    const std::string models = FRUGAL_EXAMPLE_MODELS;
    for (const auto& [name, architecture, tensors] :
         {std::tuple("tiny-qwen35", "qwen35", 108), std::tuple("tiny-qwen4exp", "qwen4exp", 213)}) {
        const std::string path = models + "/" + name + "-Q4_K_M.gguf";
        auto opened = io::gguf_file::open(path);
        REQUIRE(opened.has_value());
        const io::gguf_file file = std::move(*opened);  // views stay valid
        CHECK(*file.string("general.architecture") == architecture);
        CHECK(file.tensors().size() == static_cast<std::size_t>(tensors));
        CHECK(file.string_list("tokenizer.ggml.tokens")->size() == 2048);
        for (const auto& tensor : file.tensors()) CHECK(file.bytes(tensor).has_value());
        CHECK(*file.byte_size(*file.find("token_embd.weight")) == 256 / 256 * 210 * 2048);
    }
    const auto qwen4exp = io::gguf_file::open(models + "/tiny-qwen4exp-Q4_K_M.gguf");
    REQUIRE(qwen4exp.has_value());
    CHECK(qwen4exp->u64_list("qwen4exp.ple.layer_multipliers")->size() == 3);
    CHECK(qwen4exp->u64_list("qwen4exp.ple.layers")->size() == 1);
}

TEST_CASE("N06: a type has a name, also one that the format took back") {
    CHECK(io::describe_gguf_type(quant::type_id{11}) == "q3_k");
    CHECK(io::describe_gguf_type(quant::type_id{33}) == "q4_0_8_8 (removed from the format)");
    CHECK(io::describe_gguf_type(quant::type_id{999}) == "999");
    for (const auto& removed : io::gguf_removed_types) CHECK(io::find_gguf_tensor_type(quant::type_id{removed.number}) == nullptr);
    const parsed got(gguf_builder().header(1, 0).tensor("t", {32}, 4, 0).pad().data(64).text);
    REQUIRE(got.ok());
    CHECK(test::contains(got.value().bytes(got.value().tensors()[0]).error().message, "'t' has type q4_2 (removed"));
}

TEST_CASE("N02: a model in several files opens by any of them") {
    const std::string one = FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf";
    const auto whole = io::gguf_file::open(one);
    REQUIRE(whole.has_value());
    const auto parts = test::gguf_editor(*whole).parts(3);
    const test::temporary_directory directory;
    std::vector<std::string> paths;
    for (std::uint32_t i = 0; i < 3; ++i)
        paths.push_back(directory.write("model" + io::gguf_part_ending(i, 3), parts[i]));
    CHECK(paths[1] == directory.path("model-00002-of-00003.gguf"));
    for (const std::string& path : paths) {
        CAPTURE(path);
        auto opened = io::gguf_file::open(path);
        REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
        const io::gguf_file file = *std::move(opened);  // views stay valid
        CHECK(file.is_whole());
        CHECK(*file.string("general.architecture") == "qwen35");
        REQUIRE(file.tensors().size() == whole->tensors().size());
        for (const auto& tensor : whole->tensors()) {
            const auto* found = file.find(tensor.name);
            REQUIRE(found != nullptr);
            CHECK(found->dims == tensor.dims);
            const auto got = file.bytes(*found), want = whole->bytes(tensor);
            REQUIRE(got.has_value());
            CHECK(std::equal(got->begin(), got->end(), want->begin(), want->end()));
        }
    }

    const auto fails = [&](const std::string& path, errc code, std::vector<std::string_view> said) {
        const auto got = io::gguf_file::open(path);
        REQUIRE_FALSE(got.has_value());
        CHECK(got.error().code == code);
        for (const auto part : said) CHECK_MESSAGE(test::contains(got.error().message, part), got.error().message);
    };
    SUBCASE("a part that is missing is named") {
        std::filesystem::remove(paths[1]);
        fails(paths[2], errc::not_found, {"part 2 of 3", "model-00002-of-00003.gguf"});
        fails(paths[0], errc::not_found, {"part 2 of 3", "model-00002-of-00003.gguf"});
    }
    SUBCASE("a part under another name cannot find the others") {
        std::filesystem::rename(paths[1], directory.path("renamed.gguf"));
        fails(directory.path("renamed.gguf"), errc::invalid_argument, {"part 2 of 3", "-00002-of-00003.gguf"});
    }
    SUBCASE("a part in another's place") {
        directory.write("model-00002-of-00003.gguf", parts[2]);
        fails(paths[0], errc::malformed_file, {"part 3 of 3", "part 2 of 3 belongs", "model-00002-of-00003.gguf"});
    }
    SUBCASE("parts of another model") {
        test::gguf_editor other(*whole);
        other.tensors.pop_back();
        directory.write("model-00002-of-00003.gguf", other.parts(3)[1]);
        fails(paths[0], errc::malformed_file, {"model-00002-of-00003.gguf", "split.tensors.count", "different models"});
        directory.write("model-00002-of-00003.gguf", other.parts(2)[1]);
        fails(paths[0], errc::malformed_file, {"part 2 of 2", "part 2 of 3 belongs"});
    }
    SUBCASE("a part that lost a tensor, or says that it is of another architecture") {
        const parsed second(parts[1]);
        test::gguf_editor changed(second.value());
        changed.tensors.pop_back();
        directory.write("model-00002-of-00003.gguf", changed.whole());
        fails(paths[0], errc::malformed_file, {"its 3 parts hold 107 tensors", "split.tensors.count is 108"});
        directory.write("model-00002-of-00003.gguf", changed.set_text("general.architecture", "llama").whole());
        fails(paths[0], errc::malformed_file, {"model-00002-of-00003.gguf", "'llama'", "'qwen35'", "different models"});
    }
    SUBCASE("a tensor that is there twice") {
        test::gguf_editor twice(*whole);
        twice.tensors[50].name = twice.tensors[0].name;
        directory.write("model-00002-of-00003.gguf", twice.parts(3)[1]);
        fails(paths[0], errc::malformed_file, {"model-00002-of-00003.gguf", std::string(whole->tensors()[0].name), "earlier part"});
    }
    SUBCASE("a broken part is named") {
        directory.write("model-00003-of-00003.gguf", parts[2].substr(0, parts[2].size() - 100));
        fails(paths[0], errc::malformed_file, {"part 3 of 3", "model-00003-of-00003.gguf", "past the end"});
    }
}

TEST_CASE("N02: what a file says of its parts must be possible") {
    const auto with = [](std::uint16_t number, std::uint16_t count) {
        return gguf_builder().header(0, 2).value("split.no", 2, number).value("split.count", 2, count).pad().text;
    };
    expect_error(with(3, 3), "split.no is 3 in a model of 3 files");
    expect_error(gguf_builder().header(0, 1).value("split.count", 4, 70000u).text, "split.count is 70000");
    expect_error(gguf_builder().header(0, 1).string_value("split.count", "3").text, "wanted as u32", errc::invalid_argument);
    // One file, whatever it counts itself as.
    for (const std::uint16_t count : {std::uint16_t{0}, std::uint16_t{1}}) {
        const parsed one(with(0, count));
        REQUIRE(one.ok());
        CHECK(one.value().is_whole());
    }
    const parsed part(with(1, 3));
    REQUIRE(part.ok());
    CHECK_FALSE(part.value().is_whole());
    CHECK_FALSE(io::gguf_file::join({}).has_value());
}

TEST_CASE("C52 hostile header: magic, version, counts") {
    expect_error("", "not a GGUF file");
    expect_error("GGU", "not a GGUF file");
    expect_error("GGML" + std::string(100, '\0'), "not a GGUF file");
    expect_error(gguf_builder().header(0, 0, 1).text, "version 1", errc::unsupported);
    expect_error(gguf_builder().header(0, 0, 4).text, "version 4", errc::unsupported);
    expect_error(gguf_builder().header(0, 0, 0x03000000).text, "big-endian", errc::unsupported);
    CHECK(parsed(gguf_builder().header(0, 0, 2).text).ok());
    CHECK(parsed(gguf_builder().header(0, 0).text).ok());
    for (const std::uint64_t count : {std::uint64_t{1} << 62, std::numeric_limits<std::uint64_t>::max(), std::uint64_t{10}}) {
        expect_error(gguf_builder().header(count, 0).text, "cannot hold them");
        expect_error(gguf_builder().header(0, count).text, "cannot hold them");
    }
}

TEST_CASE("C52 hostile metadata: lengths, counts, types, duplicates") {
    constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
    for (const std::uint64_t length : {std::uint64_t{1} << 63, huge, huge - 7, std::uint64_t{200}}) {
        expect_error(gguf_builder().header(0, 1).u64(length).data(32).text, "a metadata key at byte 24 claims");
        expect_error(gguf_builder().header(0, 1).key("k", 8).u64(length).data(16).text,
                     "the value of metadata key 'k' at byte 37 claims");
        expect_error(gguf_builder().header(0, 1).key("k", 9).u32(8).u64(1).u64(length).data(16).text,
                     "string 0 of metadata key 'k'");
    }
    // An array of 2^30 and more in a file of about 160 bytes, of every element type.
    for (std::uint32_t type = 0; type < 13; ++type) {
        if (type == 9) continue;
        for (const std::uint64_t count : {std::uint64_t{1} << 30, std::uint64_t{1} << 61, std::uint64_t{1} << 63, huge})
            expect_error(gguf_builder().header(0, 1).key("k", 9).u32(type).u64(count).data(110).text, "metadata key 'k' at byte");
    }
    expect_error(gguf_builder().header(0, 1).key("k", 9).u32(9).u64(1).u32(0).u64(0).data(16).text, "array of arrays",
                 errc::unsupported);
    expect_error(gguf_builder().header(0, 1).key("k", 13).data(16).text, "'k' has unknown type 13");
    expect_error(gguf_builder().header(0, 1).key("k", huge & 0xFFFFFFFFu).data(16).text, "unknown type");
    expect_error(gguf_builder().header(0, 1).key("k", 9).u32(13).u64(0).data(16).text, "unknown element type 13");
    expect_error(gguf_builder().header(0, 1).value("k", 7, std::uint8_t{2}).data(16).text, "neither 0 nor 1");
    expect_error(gguf_builder().header(0, 1).array<std::uint8_t>("k", 7, {0, 1, 255}).data(16).text, "neither 0 nor 1");
    expect_error(gguf_builder().header(0, 2).value("k", 0, 'a').value("k", 0, 'b').data(16).text, "'k' occurs twice");
    expect_error(gguf_builder().header(0, 1).value("", 0, 'a').data(16).text, "has 0 bytes");
    expect_error(gguf_builder().header(0, 1).value(std::string(65536, 'k'), 0, 'a').data(16).text, "has 65536 bytes");
    // A key that would upset a terminal is shown escaped.
    expect_error(gguf_builder().header(0, 1).key("\x1b[31m\n", 99).data(16).text, "'\\x1b[31m\\x0a'");
}

TEST_CASE("C52 hostile tensors: dimensions, offsets, alignment, duplicates") {
    constexpr std::uint64_t big = std::numeric_limits<std::int64_t>::max();
    const auto with = [](const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset) {
        return gguf_builder().header(1, 0).tensor("t", dims, type, offset).pad().data(64).text;
    };
    for (const auto& dims : std::vector<std::vector<std::uint64_t>>{{big, 2},
                                                                    {2, big},
                                                                    {big + 1},
                                                                    {1ull << 32, 1ull << 32},
                                                                    {big, big, big, big},
                                                                    {0, big, 2},
                                                                    {big, 2, 0},
                                                                    {1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16}})
        expect_error(with(dims, 0, 0), "the dimensions of tensor 't' overflow");
    expect_error(with({big}, 0, 0), "the size of tensor 't' overflows");
    expect_error(with({big}, 24, 0), "goes past the end");
    expect_error(with({17}, 0, 0), "goes past the end");
    for (const std::uint32_t n_dims : {5u, 0xFFFFFFFFu})
        expect_error(gguf_builder().header(1, 0).string("t").u32(n_dims).data(100).text, "at most 4 are allowed");
    for (const std::uint64_t length : {std::uint64_t{1} << 63, std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1000}})
        expect_error(gguf_builder().header(1, 0).u64(length).data(100).text, "a tensor name at byte 24 claims");
    expect_error(with({16}, 0, 32), "goes past the end");
    expect_error(with({1}, 0, 1u << 30), "goes past the end");
    expect_error(with({1}, 0, std::numeric_limits<std::uint64_t>::max() - 31),
                 "goes past the end");  // would wrap into the header
    expect_error(with({1}, 999, 1u << 30), "goes past the end");
    expect_error(with({1}, 0, 4), "not a multiple of the alignment 32");
    for (const std::uint32_t type : {12u, 14u, 23u}) expect_error(with({32}, type, 0), "needs a multiple of 256");
    expect_error(with({33}, 2, 0), "needs a multiple of 32");
    expect_error(gguf_builder().header(2, 0).tensor("t", {1}, 0, 0).tensor("t", {1}, 0, 32).pad().data(64).text,
                 "'t' occurs twice");
    expect_error(gguf_builder().header(2, 0).tensor("a", {16}, 0, 0).tensor("b", {1}, 0, 32).pad().data(64).text,
                 "'a' and 'b' overlap");
    expect_error(gguf_builder().header(2, 0).tensor("a", {1}, 0, 0).tensor("b", {1}, 0, 0).pad().data(64).text, "overlap");
    expect_error(gguf_builder().header(1, 0).tensor("", {1}, 0, 0).pad().data(64).text, "empty name");
    // Sizes that are right: no dimension, and a zero among them.
    CHECK(*parsed(with({}, 0, 0)).value().byte_size({"t", quant::type_id{0}, 0, {1, 1, 1, 1}, 0}) == 4);
    const parsed empty(with({0, 5}, 0, 0));
    REQUIRE(empty.ok());
    CHECK(empty.value().bytes(empty.value().tensors()[0])->empty());

    const auto aligned = [](std::uint32_t alignment) {
        return gguf_builder().header(1, 1).value("general.alignment", 4, alignment).tensor("t", {1}, 0, 0).pad(64).data(64).text;
    };
    for (const std::uint32_t alignment : {0u, 3u, 33u, 0xFFFFFFFFu}) expect_error(aligned(alignment), "power of two");
    expect_error(aligned(1u << 31), "goes past the end");
    CHECK(parsed(aligned(64)).ok());
    CHECK(parsed(aligned(64)).value().data_offset() % 64 == 0);
    expect_error(gguf_builder().header(0, 1).string_value("general.alignment", "32").data(8).text, "wanted as u32",
                 errc::invalid_argument);
}

TEST_CASE("C52 a file cut at any byte is an error, and no byte of it can do harm") {
    const std::string whole = test::small_gguf();
    REQUIRE(parsed(whole).ok());
    // The last byte that a tensor needs is the first of the four of the unknown type.
    const std::size_t needed = whole.size() - 3;
    for (std::size_t size = 0; size < needed; ++size) {
        CAPTURE(size);
        const parsed cut(whole.substr(0, size));
        REQUIRE_FALSE(cut.ok());
        CHECK_FALSE(cut.error().message.empty());
    }
    std::size_t accepted = 0, sum = 0;
    for (std::size_t at = 0; at < whole.size(); ++at)
        for (const int value : {0, 1, 0x7F, 0x80, 0xFF}) {
            std::string bad = whole;
            bad[at] = static_cast<char>(value);
            if (const parsed got(bad); got.ok()) ++accepted, sum += read_all(got.value());
        }
    std::mt19937 random(52);
    for (int round = 0; round < 4000; ++round) {
        std::string bad = whole;
        for (int flips = static_cast<int>(random() % 8); flips >= 0; --flips)
            bad[random() % bad.size()] ^= static_cast<char>(1u << (random() % 8));
        if (const parsed got(bad); got.ok()) ++accepted, sum += read_all(got.value());
    }
    CHECK(accepted > 0);
    CHECK(sum > 0);
}

TEST_CASE("C52 a real file cut short is an error") {
    const std::string whole = test::read_file(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf");
    for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t{100000}, std::size_t{1000}, std::size_t{25}}) {
        const auto got = io::gguf_file::parse(test::as_bytes(whole).first(size), "cut.gguf");
        REQUIRE_FALSE(got.has_value());
        CHECK(got.error().code == errc::malformed_file);
    }
}
