#pragma once
/// Small vocabularies for tests: the 256 bytes, some merges, special tokens; as a GGUF file, a tokenizer.json, or parts.
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "frugal/io/byte_level.hpp"
#include "gguf_builder.hpp"

namespace test {

struct vocabulary {
    std::vector<std::string> tokens;
    std::vector<std::int32_t> types;  // GGUF numbers
    std::vector<std::pair<std::string, std::string>> merges;

    vocabulary() {
        for (int byte = 0; byte < 256; ++byte) add(frugal::io::spell_byte(static_cast<std::uint8_t>(byte)));
    }
    std::int32_t add(const std::string& token, std::int32_t type = 1) {
        tokens.push_back(token);
        types.push_back(type);
        return static_cast<std::int32_t>(tokens.size() - 1);
    }
    std::int32_t merge(const std::string& left, const std::string& right) {
        merges.emplace_back(left, right);
        return add(left + right);
    }
    /// `more` adds `keys` further keys.
    std::string gguf(const std::string& pre = "qwen35", const std::string& model = "gpt2", std::uint64_t keys = 0,
                     const std::function<void(gguf_builder&)>& more = {}) const {
        gguf_builder out;
        std::vector<std::string> lines;
        for (const auto& [left, right] : merges) lines.push_back(left + " " + right);
        out.header(0, 5 + keys).string_value("tokenizer.ggml.model", model).string_value("tokenizer.ggml.pre", pre);
        out.string_array("tokenizer.ggml.tokens", tokens).array("tokenizer.ggml.token_type", 5, types);
        out.string_array("tokenizer.ggml.merges", lines);
        if (more) more(out);
        return out.text;
    }
    nlohmann::json json(std::string_view pattern) const {
        nlohmann::json out;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            if (types[i] == 3 || types[i] == 4)
                out["added_tokens"].push_back(
                    {{"id", i}, {"content", tokens[i]}, {"special", types[i] == 3}, {"normalized", false}});
            else
                out["model"]["vocab"][tokens[i]] = i;
        }
        out["model"]["type"] = "BPE";
        out["model"]["merges"] = nlohmann::json::array();
        for (const auto& [left, right] : merges) out["model"]["merges"].push_back({left, right});
        out["normalizer"]["type"] = "NFC";
        const nlohmann::json split = {
            {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
        const nlohmann::json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
        out["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", nlohmann::json::array({split, bytes})}};
        return out;
    }
};

}  // namespace test
