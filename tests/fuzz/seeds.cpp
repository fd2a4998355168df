// Writes the seed corpus of a fuzz target: `fuzz_seeds TARGET FOLDER`.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "frugal/io/pre_tokenizer.hpp"
#include "gguf_builder.hpp"
#include "tiny_vocabulary.hpp"

namespace {

std::string safetensors(const std::string& header, std::size_t data) {
    const std::uint64_t size = header.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(data, 'd');
}

/// One of two files of a model of two tensors.
std::string gguf_part(std::uint16_t number) {
    return test::gguf_builder()
        .header(1, 3)
        .value("split.no", 2, number)
        .value("split.count", 2, std::uint16_t{2})
        .value("split.tensors.count", 5, std::int32_t{2})
        .tensor(number == 0 ? "a" : "b", {4}, 0, 0)
        .pad()
        .data(32)
        .text;
}

std::vector<std::string> seeds(const std::string& target) {
    if (target == "gguf")
        return {test::small_gguf(), test::gguf_builder().header(0, 0).text,
                test::gguf_builder().header(2, 1).value("general.alignment", 4, std::uint32_t{64}).tensor("a", {4, 4}, 1, 0)
                    .tensor("b", {256, 2}, 12, 64).pad(64).data(64 + 288).text,
                gguf_part(0) + gguf_part(1)};
    if (target == "safetensors")
        return {safetensors("{}", 0),
                safetensors(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
                            R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 30)};
    if (target == "tokenizer") {
        std::vector<std::string> out;
        for (const char* text : {"the aaaa <|im_start|>user\nx<|im_end|>",
                                 "e\u0301 q\u0307\u0323 \u1100\u1161 '\u017f 12\r\n\r\n  x", "\xff\xe2\x82 \xf0\x9f\x98\x80"})
            for (const char choice : {'\0', '\1'}) out.push_back(std::string(1, choice) + text);
        test::vocabulary vocabulary;
        vocabulary.merge("a", "a");
        vocabulary.add("<|im_end|>", 3);
        out.push_back('\2' + vocabulary.gguf());
        out.push_back('\2' + vocabulary.gguf("qwen2"));
        auto json = vocabulary.json(frugal::io::qwen35_pattern);
        out.push_back('\3' + json.dump());
        json["model"]["ignore_merges"] = true;
        json["model"]["merges"] = {"a a"};
        out.push_back('\3' + json.dump());
        return out;
    }
    return {};
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        std::fprintf(stderr, "usage: fuzz_seeds TARGET FOLDER\n");
        return 2;
    }
    const auto all = seeds(arguments[1]);
    std::filesystem::create_directories(arguments[2]);
    for (std::size_t i = 0; i < all.size(); ++i)
        std::ofstream(std::string(arguments[2]) + "/seed-" + std::to_string(i), std::ios::binary) << all[i];
    return all.empty() ? 1 : 0;
}
