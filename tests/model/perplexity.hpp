#pragma once
/// Perplexity of the trained models, and the figures to compare with. Windows of 512 tokens, each from an empty state, every token
/// of a window but its first.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "model_support.hpp"

namespace test {

inline std::string data(const std::string& path) { return std::string(FRUGAL_TEST_DATA "/") + path; }

inline constexpr std::size_t window = 512;

/// The text that the figures are about: eight windows.
inline std::vector<std::int32_t> heldout(const std::string& name) {
    std::ifstream in(data(name + "/golden/heldout_ids.txt"));
    std::vector<std::int32_t> ids{std::istream_iterator<std::int32_t>(in), {}};
    REQUIRE(ids.size() / window == 8);
    return ids;
}

template <class Model>
double perplexity(Model& m, std::span<const std::int32_t> tokens) {
    double total = 0;
    std::size_t count = 0;
    for (std::size_t begin = 0; begin + window <= tokens.size(); begin += window) {
        const auto part = tokens.subspan(begin, window);
        m.state.clear(sequence_id{0});
        const auto logits = m.run(part);
        for (std::size_t t = 0; t + 1 < window; ++t) {
            const auto row = std::span(logits).subspan(t * m.vocabulary(), m.vocabulary());
            double highest = -INFINITY, sum = 0;
            for (const float x : row) highest = std::max(highest, static_cast<double>(x));
            for (const float x : row) sum += std::exp(static_cast<double>(x) - highest);
            total += highest + std::log(sum) - static_cast<double>(row[static_cast<std::size_t>(part[t + 1])]);
            ++count;
        }
    }
    REQUIRE(count == tokens.size() / window * (window - 1));
    REQUIRE(count != 0);
    return std::exp(total / static_cast<double>(count));
}

/// llama.cpp's figure: "4088 predictions, mean nll 2.592965, perplexity 13.3694".
inline double llama_cpp(const std::string& name, const std::string& format) {
    std::ifstream in(data(name + "/llama_cpp.json"));
    const auto report = nlohmann::json::parse(in);
    const std::string text = report.at(name + "-" + format + ".gguf").at("nll");
    return std::strtod(text.c_str() + text.rfind(' '), nullptr);
}

inline double transformers(const std::string& name) {
    std::ifstream in(data(name + "/golden/golden.json"));
    return nlohmann::json::parse(in).at("perplexity").at("perplexity");
}

inline void check_within(double got, double want, double share) {
    INFO("perplexity ", got, ", reference ", want, ", difference ", (got / want - 1) * 100, " %");
    CHECK(std::abs(got / want - 1) <= share);
}

}  // namespace test
