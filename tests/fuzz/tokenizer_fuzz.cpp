// The first byte chooses: text for a fixed vocabulary (GGUF or JSON), or a vocabulary (GGUF or JSON) that, if it is
// accepted, must then encode and decode.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "frugal/io/chat.hpp"
#include "frugal/io/tokenizer.hpp"
#include "tiny_vocabulary.hpp"

namespace io = frugal::io;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

test::vocabulary fixed() {
    test::vocabulary out;
    const std::string space = "\u0120";
    out.merge("t", "h");
    out.merge("th", "e");
    out.merge(space, "the");
    out.merge("a", "a");
    out.merge("aa", "aa");
    out.merge(space, space);
    out.merge("\u00cc", "\u0123");
    out.add("<|endoftext|>", 3);
    out.add("<|im_start|>", 3);
    out.add("<|im_end|>", 3);
    out.add("<think>", 4);
    return out;
}

void require(bool truth) {
    if (!truth) std::abort();
}

/// What holds for every text and every vocabulary.
void check_text(const io::tokenizer& tokenizer, std::string_view text) {
    for (const bool parse_special : {true, false}) {
        const auto ids = tokenizer.encode(text, parse_special);
        if (!ids) {
            require(!ids.error().message.empty());
            continue;
        }
        io::stream_decoder decoder(tokenizer);
        std::string streamed;
        for (const auto id : *ids) {
            require(id >= 0 && static_cast<std::size_t>(id) < tokenizer.size());
            streamed += decoder.push(id);
        }
        streamed += decoder.finish();
        require(streamed == io::repair_utf8(tokenizer.decode(*ids)));
    }
}

void check_fixed(const io::tokenizer& tokenizer, std::string_view text) {
    check_text(tokenizer, text);
    const auto plain = tokenizer.encode(text, false);
    require(plain.has_value());
    require(tokenizer.decode(*plain) == *io::nfc(io::repair_utf8(text)));
    for (const auto id : *plain) require(!tokenizer.is_added(id));
    const auto chat = io::chat_template::create(tokenizer);
    require(chat.has_value());
    const std::vector<io::chat_turn> turns = {{"user", "?"}, {"user", std::string(text)}, {"assistant", std::string(text)}};
    const auto rendered = chat->render(turns);
    require(rendered.has_value());
    std::size_t starts = 0;
    for (const auto id : *rendered) starts += id == *tokenizer.id_of("<|im_start|>");
    require(starts == 4);
}

void check_vocabulary(const frugal::result<io::tokenizer>& made, std::string_view text) {
    if (!made) {
        require(!made.error().message.empty());
        return;
    }
    check_text(*made, "the <|im_end|> aaaa\xcc\x81 12 '\xff\n\n");
    check_text(*made, text.substr(0, 2000));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const io::tokenizer from_gguf = [] {
        const std::string text = fixed().gguf();
        const auto file = io::gguf_file::parse(bytes_of(text), "fixed");
        return std::move(io::tokenizer::from_gguf(*file)).value();
    }();
    static const io::tokenizer from_json =
        std::move(io::tokenizer::from_tokenizer_json(fixed().json(io::qwen2_pattern).dump())).value();
    if (size == 0) return 0;
    const std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
    static_cast<void>(io::recognise_chat_format(text));
    switch (data[0] % 4) {
        case 0: check_fixed(from_gguf, text); break;
        case 1: check_fixed(from_json, text); break;
        case 2:
            if (const auto file = io::gguf_file::parse(bytes_of(text), "fuzz"))
                check_vocabulary(io::tokenizer::from_gguf(*file), text);
            break;
        default: check_vocabulary(io::tokenizer::from_tokenizer_json(text, "", "fuzz"), text);
    }
    return 0;
}
