// Vocabularies that are broken, or ask for what this tokenizer does not do: errors that say which.
#include <doctest/doctest.h>

#include "frugal/io/tokenizer.hpp"
#include "temporary_directory.hpp"
#include "tiny_vocabulary.hpp"

namespace io = frugal::io;
using frugal::errc;

namespace {

void expect(const frugal::result<io::tokenizer>& got, std::string_view part, errc code) {
    CAPTURE(std::string(part));
    REQUIRE_FALSE(got.has_value());
    CHECK_MESSAGE(test::contains(got.error().message, part), got.error().message);
    CHECK(got.error().code == code);
}

void expect_gguf(const std::string& text, std::string_view part, errc code = errc::malformed_file) {
    const auto file = io::gguf_file::parse(test::as_bytes(text), "memory.gguf");
    REQUIRE(file.has_value());
    expect(io::tokenizer::from_gguf(*file), part, code);
}

void expect_json(const nlohmann::json& json, std::string_view part, errc code = errc::malformed_file,
                 std::string_view config = {}) {
    expect(io::tokenizer::from_tokenizer_json(json.dump(), config), part, code);
}

}  // namespace

TEST_CASE("GGUF vocabularies") {
    const test::vocabulary good;
    {
        auto bad = good;
        bad.tokens[65] = "something";
        expect_gguf(bad.gguf(), "no token for byte 65");
    }
    {
        auto bad = good;
        bad.add("a");
        expect_gguf(bad.gguf(), "tokens 97 and 256 are both 'a'");
    }
    {
        auto bad = good;
        bad.merges.emplace_back("a", "b");
        expect_gguf(bad.gguf(), "merge 0 of 'a' and 'b' names a token that the vocabulary does not hold");
        bad.merges[0] = {"a", "zz"};
        expect_gguf(bad.gguf(), "merge 0");
        bad.merges[0] = {"", "a"};
        expect_gguf(bad.gguf(), "empty part");
        bad.merges[0] = {"a", ""};
        expect_gguf(bad.gguf(), "empty part");
    }
    {
        auto bad = good;
        bad.types.pop_back();
        expect_gguf(bad.gguf(), "255 token types for 256 tokens");
        bad = good;
        bad.add("", 3);
        expect_gguf(bad.gguf(), "added token 256 has no text");
        bad = good;
        bad.add("\xff\xfe");
        expect_gguf(bad.gguf(), "is not valid UTF-8");
    }
    expect_gguf(good.gguf("llama-bpe"), "pre-tokenizer 'llama-bpe'", errc::unsupported);
    expect_gguf(good.gguf("qwen2", "llama"), "tokenizer model 'llama'", errc::unsupported);
    expect_gguf(test::gguf_builder().header(0, 0).text, "tokenizer.ggml.model", errc::not_found);
    test::gguf_builder lines;
    lines.header(0, 4).string_value("tokenizer.ggml.model", "gpt2").string_value("tokenizer.ggml.pre", "qwen2");
    lines.string_array("tokenizer.ggml.tokens", good.tokens).string_array("tokenizer.ggml.merges", {"ab"});
    expect_gguf(lines.text, "merge 'ab' is not two tokens");
    test::gguf_builder ends;
    ends.header(0, 5).string_value("tokenizer.ggml.model", "gpt2").string_value("tokenizer.ggml.pre", "qwen2");
    ends.string_array("tokenizer.ggml.tokens", good.tokens).string_array("tokenizer.ggml.merges", {});
    ends.value("tokenizer.ggml.eos_token_id", 4, std::uint32_t{256});
    expect_gguf(ends.text, "end-of-text id 256 is not in the vocabulary");
}

TEST_CASE("a token in front of or behind every text: named, and there") {
    test::vocabulary good;
    good.add("<|endoftext|>", 3);
    const auto with = [&](std::uint64_t keys, const std::function<void(test::gguf_builder&)>& more) {
        return good.gguf("qwen35", "gpt2", keys, more);
    };
    expect_gguf(with(1, [](auto& out) { out.value("tokenizer.ggml.add_bos_token", 7, std::uint8_t{1}); }),
                "tokenizer.ggml.bos_token_id", errc::not_found);
    expect_gguf(with(1, [](auto& out) { out.value("tokenizer.ggml.add_eos_token", 7, std::uint8_t{1}); }), "add_eos_token",
                errc::unsupported);
    const auto json = good.json(io::qwen35_pattern);
    expect_json(json, "'<s>'", errc::malformed_file, R"({"add_bos_token":true,"bos_token":"<s>"})");
    expect_json(json, "add_bos_token", errc::malformed_file, R"({"add_bos_token":"yes"})");
    for (const std::string key : {"add_eos_token", "add_prefix_space", "split_special_tokens", "do_lower_case"})
        expect_json(json, key, errc::unsupported, "{\"" + key + "\":true}");
    // As in transformers: a wish without a token to put there, and one for nothing.
    for (const char* config :
         {R"({"add_bos_token":true,"bos_token":null})", R"({"add_eos_token":null,"add_prefix_space":false})"}) {
        const auto made = io::tokenizer::from_tokenizer_json(json.dump(), config);
        REQUIRE(made.has_value());
        CHECK_FALSE(made->first_id().has_value());
    }

    for (const char* key : {"add_sep_token", "add_space_prefix", "normalizer.lowercase", "normalizer.strip_accents"})
        for (const bool wanted : {false, true}) {
            const std::string text = with(
                1, [&](auto& out) { out.value(std::string("tokenizer.ggml.") + key, 7, static_cast<std::uint8_t>(wanted)); });
            if (wanted) expect_gguf(text, key, errc::unsupported);
            const auto file = io::gguf_file::parse(test::as_bytes(text), "memory.gguf");
            CHECK(io::tokenizer::from_gguf(*file).has_value() == !wanted);
        }
    expect_gguf(with(1, [](auto& out) { out.value("tokenizer.ggml.new_setting", 4, 1u); }), "new_setting", errc::unsupported);
}

TEST_CASE("unused tokens have no text and may repeat") {
    test::vocabulary vocabulary;
    const auto first = vocabulary.add("[PAD]", 5);
    vocabulary.add("[PAD]", 5);
    const std::string text = vocabulary.gguf();
    const auto file = io::gguf_file::parse(test::as_bytes(text), "memory.gguf");
    const auto made = io::tokenizer::from_gguf(*file);
    REQUIRE(made.has_value());
    CHECK(made->size() == 258);
    CHECK(made->text_of(first).empty());
    CHECK(made->id_of("[PAD]") == std::nullopt);
}

TEST_CASE("tokenizer.json: the same merges in both spellings, and settings that are refused") {
    test::vocabulary vocabulary;
    const auto pair = vocabulary.merge("a", "b");
    const auto end = vocabulary.add("<|endoftext|>", 3);
    const auto good = vocabulary.json(io::qwen35_pattern);
    auto made = io::tokenizer::from_tokenizer_json(good.dump());
    REQUIRE_MESSAGE(made.has_value(), (made.has_value() ? "" : made.error().message));
    CHECK(*made->encode("ab") == std::vector<std::int32_t>{pair});
    CHECK(made->eos_ids().size() == 1);
    auto json = good;
    json["model"]["merges"] = {"a b"};
    made = io::tokenizer::from_tokenizer_json(json.dump(), R"({"eos_token":{"content":"<|endoftext|>"}})");
    REQUIRE(made.has_value());
    CHECK(*made->encode("ab") == std::vector<std::int32_t>{pair});
    CHECK(made->is_eos(end));
    expect_json(good, "'<|nothing|>'", errc::malformed_file, R"({"eos_token":"<|nothing|>"})");
    expect_json(good, "tokenizer_config.json: not valid JSON at line 1, column 2", errc::malformed_file, "{");

    const auto with = [&](const char* pointer, const nlohmann::json& value) {
        auto out = good;
        out[nlohmann::json::json_pointer(pointer)] = value;
        return out;
    };
    expect_json(with("/model/type", "WordPiece"), "'WordPiece'", errc::unsupported);
    expect_json(with("/model/dropout", 0.1), "dropout", errc::unsupported);
    expect_json(with("/model/byte_fallback", true), "byte_fallback", errc::unsupported);
    expect_json(with("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix", errc::unsupported);
    expect_json(with("/normalizer/type", "NFKC"), "'NFKC'", errc::unsupported);
    expect_json(with("/pre_tokenizer/type", "Whitespace"), "pre-tokenizer", errc::unsupported);
    expect_json(with("/pre_tokenizer/pretokenizers/0/behavior", "Removed"), "Isolated", errc::unsupported);
    expect_json(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "("), "pattern '('", errc::unsupported);
    expect_json(with("/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}), "regular expression", errc::unsupported);
    expect_json(with("/pre_tokenizer/pretokenizers/1/add_prefix_space", true), "ByteLevel", errc::unsupported);
    expect_json(with("/post_processor", {{"type", "RobertaProcessing"}}), "'RobertaProcessing'", errc::unsupported);
    expect_json(with("/post_processor", {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "x"}}}}}}}),
                "adds tokens", errc::unsupported);
    expect_json(with("/added_tokens/0/lstrip", true), "has lstrip", errc::unsupported);
    expect_json(with("/added_tokens/0/content", ""), "no content");
    expect_json(with("/added_tokens/0/id", 97), "has the id 97 of 'a'");
    expect_json(with("/added_tokens/0/id", 4000000000u), "far beyond");
    expect_json(with("/model/vocab/zz", 18446744073709551615u), "far beyond");
    expect_json(with("/model/vocab/zz", -1), "has no id");
    expect_json(with("/model/vocab/zz", 97), "have the same id 97");
    expect_json(with("/model/vocab", 1), "model.vocab");
    expect_json(with("/model/merges", 1), "model.merges");
    expect_json(with("/model/merges/0", 1), "merge 0 is not a pair");
    expect_json(with("/model/merges/0", "ab"), "'ab' is not two tokens");
    expect_json(with("/model/merges/0", {"a", "q"}), "does not hold");
    expect_json(with("/model", 1), "no object 'model'");
    expect_json(nlohmann::json::array(), "not an object");

    const std::string twice = R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"a":2},"merges":[]}})";
    expect(io::tokenizer::from_tokenizer_json(twice), "key 'model.vocab.a' is there twice", errc::malformed_file);
    const std::string deep = std::string(3'000'000, '[') + std::string(3'000'000, ']');
    expect(io::tokenizer::from_tokenizer_json(deep), "nested deeper", errc::malformed_file);
    expect(io::tokenizer::from_tokenizer_json(std::string(3'000'000, '[')), "tokenizer.json: ", errc::malformed_file);
    std::string objects;
    for (int i = 0; i < 300'000; ++i) objects += R"({"model":)";
    expect(io::tokenizer::from_tokenizer_json(objects), "tokenizer.json: ", errc::malformed_file);
}

TEST_CASE("whole pieces before merges, where the file says so") {
    test::vocabulary vocabulary;
    vocabulary.merge("a", "b");
    const auto whole = vocabulary.add("abc");
    auto json = vocabulary.json(io::qwen2_pattern);
    CHECK(io::tokenizer::from_tokenizer_json(json.dump())->encode("abc")->size() == 2);
    json["model"]["ignore_merges"] = true;
    CHECK(*io::tokenizer::from_tokenizer_json(json.dump())->encode("abc") == std::vector<std::int32_t>{whole});
}
