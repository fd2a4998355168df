#include "frugal/io/tokenizer.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "temporary_directory.hpp"
#include "tiny_vocabulary.hpp"

namespace io = frugal::io;
using ids = std::vector<std::int32_t>;

namespace {

const std::vector<std::string> models = {"tiny-qwen35", "tiny-qwen4exp"};

std::string golden_folder(const std::string& model) { return FRUGAL_TEST_DATA "/" + model; }

io::tokenizer from_gguf(const std::string& path) {
    const auto file = io::gguf_file::open(path);
    REQUIRE_MESSAGE(file.has_value(), path);
    auto made = io::tokenizer::from_gguf(*file);
    REQUIRE_MESSAGE(made.has_value(), (made.has_value() ? "" : made.error().message));
    return std::move(*made);  // needs nothing of the file any more
}

io::tokenizer from_text(const std::string& gguf) {
    const auto file = io::gguf_file::parse(test::as_bytes(gguf), "memory.gguf");
    REQUIRE(file.has_value());
    auto made = io::tokenizer::from_gguf(*file);
    REQUIRE_MESSAGE(made.has_value(), (made.has_value() ? "" : made.error().message));
    return std::move(*made);
}

/// Both sources of a model's tokenizer.
std::vector<io::tokenizer> both(const std::string& model) {
    std::vector<io::tokenizer> out;
    out.push_back(from_gguf(FRUGAL_EXAMPLE_MODELS "/" + model + "-Q4_K_M.gguf"));
    const std::string folder = golden_folder(models[0]);  // both models were trained with the same tokenizer files
    auto json = io::tokenizer::from_tokenizer_json(test::read_file(folder + "/tokenizer.json"),
                                                   test::read_file(folder + "/tokenizer_config.json"));
    REQUIRE_MESSAGE(json.has_value(), (json.has_value() ? "" : json.error().message));
    out.push_back(std::move(*json));
    return out;
}

/// Merging by the definition: join the leftmost pair of least rank until none is left.
ids merge_slowly(const test::vocabulary& vocabulary, const std::string& piece) {
    std::vector<std::string> parts;
    for (const char c : piece) parts.push_back(io::spell_byte(static_cast<std::uint8_t>(c)));
    for (;;) {
        std::size_t best = vocabulary.merges.size(), where = 0;
        for (std::size_t i = 0; i + 1 < parts.size(); ++i)
            for (std::size_t rank = 0; rank < best; ++rank)
                if (vocabulary.merges[rank] == std::pair(parts[i], parts[i + 1])) best = rank, where = i;
        if (best == vocabulary.merges.size()) break;
        parts[where] += parts[where + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
    ids out;
    for (const auto& part : parts)
        out.push_back(static_cast<std::int32_t>(std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), part) -
                                                vocabulary.tokens.begin()));
    return out;
}

}  // namespace

TEST_CASE("golden texts of both models, from GGUF and from tokenizer.json") {
    for (const auto& model : models) {
        const auto cases = nlohmann::json::parse(test::read_file(golden_folder(model) + "/golden/tokenizer_cases.json"));
        for (const auto& tokenizer : both(model)) {
            CHECK(tokenizer.size() == 2048);
            CHECK(ids(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end()) == ids{2045, 2047});
            CHECK_FALSE(tokenizer.first_id().has_value());
            int seen = 0;
            for (const auto& one : cases) {
                const auto text = one["text"].get<std::string>();
                CAPTURE(text);
                const auto got = tokenizer.encode(text);
                REQUIRE(got.has_value());
                CHECK(*got == one["ids"].get<ids>());
                const auto normal = io::nfc(text);
                REQUIRE(normal.has_value());
                CHECK(tokenizer.decode(*got) == *normal);
                ++seen;
            }
            CHECK(seen >= 40);
        }
    }
}

TEST_CASE("held-out text of both models") {
    for (const auto& model : models) {
        const std::string text = test::read_file(golden_folder(model) + "/golden/heldout.txt");
        std::istringstream list(test::read_file(golden_folder(model) + "/golden/heldout_ids.txt"));
        ids want;
        for (std::int32_t id = 0; list >> id;) want.push_back(id);
        REQUIRE(want.size() == 4096);
        for (const auto& tokenizer : both(model)) {
            CHECK(tokenizer.decode(want) == text);
            const auto got = tokenizer.encode(text);
            REQUIRE(got.has_value());
            CHECK(*got == want);
        }
    }
}

TEST_CASE("special tokens: parsed on request, plain text otherwise, longest first") {
    const auto tokenizer = from_gguf(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf");
    CHECK(tokenizer.id_of("<|im_end|>") == 2047);
    CHECK(tokenizer.id_of("no such token") == std::nullopt);
    CHECK(tokenizer.is_special(2047));
    CHECK(tokenizer.is_added(2047));
    CHECK(tokenizer.is_eos(2047));
    CHECK_FALSE(tokenizer.is_eos(2046));
    CHECK_FALSE(tokenizer.is_special(64));
    CHECK_FALSE(tokenizer.is_special(-1));
    CHECK_FALSE(tokenizer.is_special(2048));
    CHECK(tokenizer.text_of(2047) == "<|im_end|>");
    CHECK(tokenizer.text_of(220) == " ");
    const auto plain = tokenizer.encode("<|im_end|>", false);
    REQUIRE(plain.has_value());
    CHECK(plain->size() > 1);
    CHECK(std::none_of(plain->begin(), plain->end(), [&](auto id) { return tokenizer.is_added(id); }));
    CHECK(tokenizer.decode(*plain) == "<|im_end|>");
    CHECK(tokenizer.decode(ids{64, 2047, 65}) == "a<|im_end|>b");
    CHECK(tokenizer.decode(ids{64, 2047, 65}, true) == "ab");
    CHECK(tokenizer.decode(ids{-1, 99999}) == "\xEF\xBF\xBD\xEF\xBF\xBD");

    test::vocabulary vocabulary;
    const auto shorter = vocabulary.add("<a>", 3), longer = vocabulary.add("<a>b", 4), tag = vocabulary.add("<think>", 1);
    const auto inner = vocabulary.add("x", 0) + 0;
    vocabulary.tokens.back() = "ax>";  // of type 0, which is read as normal: no merge makes it, and it is no tag
    const auto made = from_text(vocabulary.gguf());
    CHECK(*made.encode("<a>c") == ids{shorter, *made.id_of("c")});
    CHECK(*made.encode("<a>bc") == ids{longer, *made.id_of("c")});
    CHECK(*made.encode("<<a><a>b") == ids{*made.id_of("<"), shorter, longer});
    CHECK(*made.encode("<think>") == ids{tag});  // unmarked in the file, yet found as a whole
    CHECK_FALSE(made.is_special(tag));
    CHECK(made.is_special(shorter));
    CHECK_FALSE(made.is_special(longer));
    CHECK(made.encode("ax>")->size() == 3);
    CHECK(made.text_of(inner) == "ax>");
    CHECK(made.encode("<think>", false)->size() == 7);
}

TEST_CASE("N10: generation ends at every id that any file names") {
    test::vocabulary vocabulary;
    const auto end = vocabulary.add("<|endoftext|>", 3), turn = vocabulary.add("<|im_end|>", 3);
    const auto other = vocabulary.add("<stop>", 3);
    const std::string text = vocabulary.gguf("qwen35", "gpt2", 2, [&](test::gguf_builder& out) {
        out.value("tokenizer.ggml.eos_token_id", 4, std::uint32_t{10}).value("tokenizer.ggml.eot_token_id", 4, std::uint32_t{20});
    });
    auto tokenizer = from_text(text);
    const auto all = [&] { return ids(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end()); };
    CHECK(all() == ids{10, 20, end, turn});
    CHECK_FALSE(tokenizer.is_eos(other));
    tokenizer.also_end_at(ids{other, 10, 7, 5000});
    CHECK(all() == ids{7, 10, 20, end, turn, other, 5000});
    for (const auto id : all()) CHECK(tokenizer.is_eos(id));
}

TEST_CASE("N15: a first token that the file asks for stands in front of a prompt") {
    test::vocabulary vocabulary;
    const auto first = vocabulary.add("<s>", 3);
    const auto check = [&](const io::tokenizer& tokenizer, bool asked) {
        const auto plain = *tokenizer.encode("eight id");
        CHECK(plain.size() == 8);
        auto want = plain;
        if (asked) want.insert(want.begin(), first);
        CHECK(*tokenizer.encode_prompt("eight id") == want);
        CHECK(*tokenizer.encode_prompt("") == (asked ? ids{first} : ids{}));
    };
    for (const bool asked : {true, false}) {
        check(from_text(vocabulary.gguf("qwen35", "gpt2", 2,
                                        [&](test::gguf_builder& out) {
                                            out.value("tokenizer.ggml.bos_token_id", 4, static_cast<std::uint32_t>(first))
                                                .value("tokenizer.ggml.add_bos_token", 7, std::uint8_t{asked});
                                        })),
              asked);
        const auto json = vocabulary.json(io::qwen35_pattern).dump();
        for (const char* token : {R"("<s>")", R"({"content":"<s>"})"}) {
            const auto made = io::tokenizer::from_tokenizer_json(
                json, std::string(R"({"add_bos_token":)") + (asked ? "true" : "false") + R"(,"bos_token":)" + token + "}");
            REQUIRE(made.has_value());
            check(*made, asked);
        }
    }
}

TEST_CASE("a tag that merges do make stays an ordinary token") {
    test::vocabulary vocabulary;
    vocabulary.merge("<", "b");
    const auto made = vocabulary.merge("<b", ">");
    const auto tokenizer = from_text(vocabulary.gguf());
    CHECK_FALSE(tokenizer.is_added(made));
}

TEST_CASE("added tokens marked as normalized are sought after normalisation") {
    test::vocabulary vocabulary;
    auto json = vocabulary.json(io::qwen35_pattern);
    json["added_tokens"] = {{{"id", 256}, {"content", "e\u0301!"}, {"special", false}, {"normalized", true}},
                            {{"id", 257}, {"content", "u\u0308!"}, {"special", false}, {"normalized", false}}};
    const auto made = io::tokenizer::from_tokenizer_json(json.dump());
    REQUIRE_MESSAGE(made.has_value(), (made.has_value() ? "" : made.error().message));
    CHECK(*made->encode("\u00e9!") == ids{256});
    CHECK(*made->encode("e\u0301!") == ids{256});
    CHECK(*made->encode("u\u0308!") == ids{257});
    CHECK(made->encode("\u00fc!")->size() == 3);
    CHECK(made->encode("\u00e9!", false)->size() == 3);
}

TEST_CASE("the splitter: contractions, marks, digits, line ends, white space") {
    const auto split = [](std::string_view pattern, std::string_view text) {
        const auto made = io::pre_tokenizer::compile(pattern);
        REQUIRE(made.has_value());
        std::vector<std::string> out;
        REQUIRE(made->split(text, [&](std::string_view piece) { out.emplace_back(piece); }).has_value());
        return out;
    };
    using pieces = std::vector<std::string>;
    CHECK(split(io::qwen35_pattern, "I'LL don't 's x'v") == pieces{"I", "'LL", " don", "'t", " '", "s", " x", "'v"});
    CHECK(split(io::qwen35_pattern, "'\u017f") == pieces{"'\u017f"});  // long s folds to s
    CHECK(split(io::qwen35_pattern, "12 3") == pieces{"1", "2", " ", "3"});
    CHECK(split(io::qwen35_pattern, "a!?\r\n\nb") == pieces{"a", "!?\r\n\n", "b"});
    CHECK(split(io::qwen35_pattern, "a  \n \n  b  ") == pieces{"a", "  \n \n", " ", " b", "  "});
    CHECK(split(io::qwen35_pattern, "q\u0307x \u0301") == pieces{"q\u0307x", " \u0301"});
    CHECK(split(io::qwen2_pattern, "q\u0307x \u0301") == pieces{"q", "\u0307x", " \u0301"});
    CHECK(split(io::qwen35_pattern, "(a") == pieces{"(a"});
    // U+180E is no White_Space, though PCRE2's \s takes it; U+0085 and U+3000 are.
    CHECK(split(io::qwen35_pattern, "!\u180e!") == pieces{"!\u180e!"});
    CHECK(split(io::qwen35_pattern, "!\u0085\u3000!") == pieces{"!", "\u0085", "\u3000", "!"});
    CHECK(split("b+", "aabbabc") == pieces{"aa", "bb", "a", "b", "c"});
    CHECK(split("x*", "aa") == pieces{"aa"});
    for (const char* bad : {"(", "[\\S]", "[a[b]]", "[]a]", "[a&&b]", "\\C", "a{9999999}"}) {
        CAPTURE(std::string(bad));
        const auto made = io::pre_tokenizer::compile(bad);
        REQUIRE_FALSE(made.has_value());
        CHECK(made.error().code == frugal::errc::unsupported);
    }
    CHECK_FALSE(io::pre_tokenizer::compile(std::string(5000, 'a')).has_value());
    // A pattern that runs away is stopped.
    const auto evil = io::pre_tokenizer::compile("(a+)+(a+)+(a+)+[bc]");
    REQUIRE(evil.has_value());
    CHECK_FALSE(evil->split(std::string(200, 'a'), [](std::string_view) {}).has_value());
}

TEST_CASE("normalisation: composed, reordered, Hangul, NUL, and what NFC leaves alone") {
    CHECK(*io::nfc("e\u0301") == "\u00e9");
    CHECK(*io::nfc("e\u0323\u0302") == "\u1ec7");
    CHECK(*io::nfc("q\u0307\u0323") == "q\u0323\u0307");
    CHECK(*io::nfc("\u1100\u1161\u11a8") == "\uac01");
    CHECK(*io::nfc("\u212b\ufb01\u2460") == "\u00c5\ufb01\u2460");
    CHECK(*io::nfc("\u0958") == "\u0915\u093c");  // excluded from composition
    CHECK(*io::nfc(std::string_view("a\0e\u0301", 5)) == std::string_view("a\0\u00e9", 4));
    CHECK(*io::nfc("") == "");
    CHECK_FALSE(io::nfc("\xcc").has_value());
    CHECK_FALSE(io::nfc("\xed\xa0\x80").has_value());
    // Against utf8proc's own call, on runs of marks in random order.
    std::mt19937 random(1);
    const std::vector<std::string> parts = {"a",      "e",      "\u0301", "\u0323", "\u0327", "\u0345",    "\u1100",
                                            "\u1161", "\u00e9", "\u0f73", "\u3099", "\u304b", "\U0001d15e"};
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        for (int i = 0; i < 12; ++i) text += parts[random() % parts.size()];
        auto* reference = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
        REQUIRE(reference != nullptr);
        CHECK(*io::nfc(text) == reinterpret_cast<const char*>(reference));
        std::free(reference);
    }
}

TEST_CASE("invalid UTF-8 reads as one U+FFFD for each longest prefix of a character") {
    const std::string mark = "\xEF\xBF\xBD";
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"a\xffz", "a" + mark + "z"},
        {"\xc3", mark},
        {"\xe2\x82", mark},
        {"\xe2\x82z", mark + "z"},
        {"\xf0\x9f\x98", mark},
        {"\xf0\x9f\x98\xe2\x82\xac", mark + "\xe2\x82\xac"},
        {"\xc0\xaf", mark + mark},                      // overlong
        {"\xe0\x80\xaf", mark + mark + mark},           // overlong
        {"\xed\xa0\x80", mark + mark + mark},           // surrogate
        {"\xf4\x90\x80\x80", mark + mark + mark + mark},  // above U+10FFFF
        {"\xf5\x80", mark + mark},
        {"\x80\x80", mark + mark},
    };
    const auto tokenizer = from_gguf(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf");
    for (const auto& [broken, repaired] : cases) {
        CHECK(io::repair_utf8(broken) == repaired);
        CHECK(*tokenizer.encode(broken) == *tokenizer.encode(repaired));
    }
    std::string all;
    for (char32_t point = 0; point < 0x110000; ++point)
        if (point < 0xD800 || point > 0xDFFF) io::append_utf8(all, point);
    CHECK(io::valid_utf8_prefix(all) == all.size());
    std::size_t at = 0;
    for (char32_t point = 0; point < 0x110000; ++point) {
        if (point >= 0xD800 && point <= 0xDFFF) continue;
        const auto next = io::next_utf8(std::string_view(all).substr(at));
        if (next.code_point != point || next.what != io::utf8_sequence::kind::valid)
            FAIL("code point ", static_cast<unsigned>(point));
        at += next.length;
    }
}

TEST_CASE("merging agrees with its definition on random vocabularies") {
    std::mt19937 random(7);
    for (int round = 0; round < 60; ++round) {
        test::vocabulary vocabulary;
        std::vector<std::string> known = {"a", "b", "c"};
        for (int i = 0; i < 25; ++i) {
            const auto& left = known[random() % known.size()];
            const auto& right = known[random() % known.size()];
            if (std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), left + right) == vocabulary.tokens.end()) {
                vocabulary.merge(left, right);
                known.push_back(vocabulary.tokens.back());
            }
        }
        const auto tokenizer = from_text(vocabulary.gguf());
        for (int i = 0; i < 20; ++i) {
            std::string piece;
            for (std::size_t n = random() % 60; n > 0; --n) piece += static_cast<char>('a' + random() % 3);
            CAPTURE(piece);
            CHECK(*tokenizer.encode(piece) == merge_slowly(vocabulary, piece));
        }
    }
}

TEST_CASE("long pieces take no quadratic time") {
    test::vocabulary vocabulary;
    std::string run = "a";
    while (run.size() < 512) {
        vocabulary.merge(run, run);
        run += run;
    }
    const auto tokenizer = from_text(vocabulary.gguf());
    const auto start = std::chrono::steady_clock::now();
    const auto merged = tokenizer.encode(std::string(1 << 20, 'a'));
    REQUIRE(merged.has_value());
    CHECK(merged->size() == (1 << 20) / 512);
    for (const std::string part : {" ", "\n", "!", "<", "1", " \n", "\xCC\x81\xCC\xA3", "\xff", "'"}) {
        std::string text;
        while (text.size() < 500'000) text += part;
        CHECK(tokenizer.encode("a" + text + "b").has_value());
    }
    // Quadratic work on any of these would take minutes.
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("any bytes survive encoding and decoding, in one piece or as a stream") {
    const auto tokenizer = from_gguf(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf");
    std::mt19937 random(11);
    for (int round = 0; round < 300; ++round) {
        ids tokens;
        for (std::size_t n = random() % 40; n > 0; --n) tokens.push_back(static_cast<std::int32_t>(random() % 2048));
        io::stream_decoder decoder(tokenizer);
        std::string streamed;
        for (const auto id : tokens) {
            const std::string part = decoder.push(id);
            CHECK(io::valid_utf8_prefix(part) == part.size());
            streamed += part;
        }
        streamed += decoder.finish();
        CHECK(streamed == io::repair_utf8(tokenizer.decode(tokens)));
    }
    std::string text;
    for (int round = 0; round < 3000; ++round) io::append_utf8(text, static_cast<char32_t>(random() % 0xD000));
    text = *io::nfc(text);
    CHECK(tokenizer.decode(*tokenizer.encode(text)) == text);
    std::string bytes;
    for (int byte = 0; byte < 256; ++byte)
        bytes += tokenizer.text_of(static_cast<std::int32_t>(*tokenizer.id_of(std::string(1, static_cast<char>(byte)))));
    for (int byte = 0; byte < 256; ++byte) CHECK(static_cast<unsigned char>(bytes[static_cast<std::size_t>(byte)]) == byte);
}

TEST_CASE("the stream holds an incomplete character back") {
    const auto tokenizer = from_gguf(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf");
    const auto token = [&](char byte) { return *tokenizer.id_of(std::string(1, byte)); };
    io::stream_decoder decoder(tokenizer, true);
    CHECK(decoder.push(token('\xf0')).empty());
    CHECK(decoder.push(token('\x9f')).empty());
    CHECK(decoder.push(token('\x98')).empty());
    CHECK(decoder.push(token('\x80')) == "\U0001F600");
    CHECK(decoder.push(2047).empty());  // special, skipped
    CHECK(decoder.push(token('\xe2')).empty());
    CHECK(decoder.push(token('a')) == "\xEF\xBF\xBD" "a");
    CHECK(decoder.push(token('\xe2')).empty());
    CHECK(decoder.finish() == "\xEF\xBF\xBD");
    CHECK(decoder.finish().empty());
}
