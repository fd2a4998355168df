// This unit is compiled with -fno-exceptions and -fno-rtti: the readers must report errors of JSON without either.
#define DOCTEST_CONFIG_NO_EXCEPTIONS_BUT_WITH_ALL_ASSERTS
#include <doctest/doctest.h>

#include <string>

#include "frugal/io/chat.hpp"
#include "frugal/io/progress.hpp"
#include "frugal/io/safetensors.hpp"
#include "frugal/io/tokenizer.hpp"

namespace io = frugal::io;

TEST_CASE("broken JSON is a returned error without exceptions") {
    for (const std::string text : {"", "{", "[1,", "{\"a\":1e999999}", "\xff", "{\"a\" 1}", "nul"}) {
        CAPTURE(text);
        CHECK_FALSE(io::parse_json(text, "x.json").has_value());
        CHECK_FALSE(io::tokenizer::from_tokenizer_json(text).has_value());
        const std::uint64_t size = text.size();
        const std::string file = std::string(reinterpret_cast<const char*>(&size), 8) + text;
        CHECK_FALSE(io::safetensors_file::parse(std::as_bytes(std::span(file)), "x.safetensors").has_value());
    }
    CHECK(io::parse_json("{\"a\":[1,2]}", "x.json").has_value());
    CHECK_FALSE(io::gguf_file::open("/no/such/file").has_value());
    CHECK_FALSE(io::safetensors_directory::open("/no/such/folder").has_value());
}
