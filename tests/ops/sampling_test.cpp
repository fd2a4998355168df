#include "frugal/ops/sampling/sampling.hpp"

#include "frugal/ops/sampling/penalties.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fg = frugal;
namespace ops = frugal::ops;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

ops::sampler make(float temperature, std::size_t top_k, float top_p, std::uint64_t seed) {
    auto out = ops::sampler::create({temperature, top_k, top_p, seed});
    REQUIRE(out);
    return std::move(out).value();
}

/// How often each token comes up.
std::map<std::int64_t, double> shares(ops::sampler sampler, const std::vector<float>& logits, int draws) {
    std::map<std::int64_t, double> out;
    for (int i = 0; i < draws; ++i) {
        const auto token = sampler.sample(logits);
        REQUIRE(token);
        out[*token] += 1.0 / draws;
    }
    return out;
}

}  // namespace

TEST_CASE("greedy takes the greatest logit, the lowest id among equals") {
    CHECK(*ops::greedy(std::vector<float>{1, 3, 2}) == 1);
    CHECK(*ops::greedy(std::vector<float>{1, 3, 3, 3}) == 1);
    CHECK(*ops::greedy(std::vector<float>{0, 0, 0}) == 0);
    CHECK(*ops::greedy(std::vector<float>{-infinity, -5, -5}) == 1);
    CHECK(*ops::greedy(std::vector<float>{-0.0f, 0.0f}) == 0);
    // A temperature of 0 is greedy, whatever else is asked for.
    auto sampler = make(0, 3, 0.5f, 1);
    CHECK(*sampler.sample(std::vector<float>{2, 1, 2}) == 0);
    CHECK(sampler.random().state() == 1);
}

TEST_CASE("greedy finds the first of the greatest in rows of any length, and what is no number") {
    for (const std::size_t length : {15u, 16u, 17u, 1023u, 1024u, 1025u, 2063u, 4100u})
        for (std::size_t at = 0; at < length; at += length < 20 ? 1 : 61) {
            std::vector<float> logits(length);
            for (std::size_t i = 0; i < length; ++i) logits[i] = static_cast<float>(i * 7919 % 1000) - 999.5f;
            logits[at] = 0.25f;
            for (std::size_t i = at; i < length; i += 997) logits[i] = 0.25f;
            REQUIRE(*ops::greedy(logits) == static_cast<std::int64_t>(at));
            logits[length - 1 - at / 2] = infinity;
            logits[at] = nan_value;
            const auto got = ops::greedy(logits);
            REQUIRE(!got);
            CHECK(got.error().message.find("token " + std::to_string(std::min(at, length - 1 - at / 2)) + " is") !=
                  std::string::npos);
            logits.assign(length, -infinity);
            CHECK(ops::greedy(logits).error().code == fg::errc::not_finite);
            logits[at] = -3e38f;
            CHECK(*ops::greedy(logits) == static_cast<std::int64_t>(at));
        }
}

TEST_CASE("logits that are not numbers are errors, wherever they stand") {
    auto drawing = make(1, 0, 1, 5);
    auto cutting = make(0.7f, 2, 0.9f, 5);
    for (std::size_t at = 0; at < 9; ++at)
        for (const float bad : {nan_value, infinity}) {
            std::vector<float> logits(9, 1.0f);
            logits[at] = bad;
            for (const auto& got : {ops::greedy(logits), drawing.sample(logits), cutting.sample(logits)}) {
                REQUIRE(!got);
                CHECK(got.error().code == fg::errc::not_finite);
                CHECK(got.error().message.find(std::to_string(at)) != std::string::npos);
            }
        }
    CHECK(ops::greedy(std::vector<float>(3, -infinity)).error().code == fg::errc::not_finite);
    CHECK(ops::greedy({}).error().code == fg::errc::invalid_argument);
    CHECK(drawing.sample({}).error().code == fg::errc::invalid_argument);
    CHECK(drawing.random().state() == 5);  // errors draw nothing
}

TEST_CASE("options outside their range are refused by name") {
    const auto refused = [](ops::sampling_options options, const char* name) {
        const auto got = ops::sampler::create(options);
        REQUIRE(!got);
        CHECK(got.error().code == fg::errc::invalid_argument);
        CHECK(got.error().message.find(name) != std::string::npos);
    };
    refused({-0.1f, 0, 1, 0}, "temperature");
    refused({nan_value, 0, 1, 0}, "temperature");
    refused({infinity, 0, 1, 0}, "temperature");
    refused({1, 0, 0, 0}, "top-p");
    refused({1, 0, 1.01f, 0}, "top-p");
    refused({1, 0, -1, 0}, "top-p");
    refused({1, 0, nan_value, 0}, "top-p");
    refused({.min_p = -0.1f}, "min-p");
    refused({.min_p = 1.1f}, "min-p");
    refused({.min_p = nan_value}, "min-p");
    CHECK(ops::sampler::create({1, 1u << 30, 1, 0}));
}

TEST_CASE("draws follow the softmax of the divided logits") {
    const std::vector<float> logits = {0, 1, -1, 2, -infinity, 0.5f};
    for (const float temperature : {0.5f, 1.0f, 2.0f}) {
        double total = 0;
        for (const float l : logits) total += std::exp(static_cast<double>(l / temperature));
        auto got = shares(make(temperature, 0, 1, 11), logits, 40000);
        CHECK(got.count(4) == 0);
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const double want = std::exp(static_cast<double>(logits[i] / temperature)) / total;
            CHECK(std::abs(got[static_cast<std::int64_t>(i)] - want) < 5 * std::sqrt(0.25 / 40000));
        }
    }
}

TEST_CASE("top-k and top-p cut by probability, equal logits by id") {
    const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.2f), std::log(0.1f)};
    const auto kept = [&](std::size_t top_k, float top_p) {
        std::set<std::int64_t> out;
        for (const auto& [token, share] : shares(make(1, top_k, top_p, 3), logits, 3000)) out.insert(token);
        return out;
    };
    CHECK(kept(1, 1) == std::set<std::int64_t>{1});
    CHECK(kept(2, 1) == std::set<std::int64_t>{1, 2});
    CHECK(kept(3, 1) == std::set<std::int64_t>{1, 2, 3});
    CHECK(kept(4, 1) == std::set<std::int64_t>{0, 1, 2, 3});
    CHECK(kept(0, 1) == std::set<std::int64_t>{0, 1, 2, 3, 4});
    CHECK(kept(9, 1) == std::set<std::int64_t>{0, 1, 2, 3, 4});
    CHECK(kept(0, 0.3f) == std::set<std::int64_t>{1});
    CHECK(kept(0, 0.5f) == std::set<std::int64_t>{1, 2});
    CHECK(kept(0, 0.7f) == std::set<std::int64_t>{1, 2, 3});
    CHECK(kept(0, 1e-9f) == std::set<std::int64_t>{1});
    CHECK(kept(2, 0.6f) == std::set<std::int64_t>{1});  // of 0.4 and 0.2, the first is two thirds
    CHECK(kept(2, 0.7f) == std::set<std::int64_t>{1, 2});
}

TEST_CASE("a tiny temperature is greedy, and a cut to one token draws it") {
    std::mt19937 generator(5);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 50; ++i) {
        std::vector<float> logits(100);
        for (float& l : logits) l = normal(generator);
        const auto want = *ops::greedy(logits);
        auto cold = make(1e-30f, 0, 1, 7), one = make(5, 1, 1, 7);
        CHECK(*cold.sample(logits) == want);
        CHECK(*one.sample(logits) == want);
    }
}

TEST_CASE("one seed gives one sequence, another seed another") {
    std::vector<float> logits(300);
    std::mt19937 generator(1);
    for (float& l : logits) l = static_cast<float>(generator() % 1000) / 500;
    const auto run = [&](ops::sampler sampler) {
        std::vector<std::int64_t> out;
        for (int i = 0; i < 40; ++i) out.push_back(*sampler.sample(logits));
        return out;
    };
    const auto first = run(make(1, 50, 0.9f, 123));
    CHECK(first == run(make(1, 50, 0.9f, 123)));
    CHECK(first != run(make(1, 50, 0.9f, 124)));
    // A stored generator resumes where it was.
    auto sampler = make(1, 50, 0.9f, 123);
    for (int i = 0; i < 15; ++i) CHECK(*sampler.sample(logits) == first[static_cast<std::size_t>(i)]);
    auto resumed = make(1, 50, 0.9f, 0);
    resumed.random().set_state(sampler.random().state());
    for (int i = 15; i < 40; ++i) CHECK(*resumed.sample(logits) == first[static_cast<std::size_t>(i)]);
    // Cuts that cut nothing change nothing.
    CHECK(run(make(1, 0, 1, 9)) == run(make(1, 300, 1, 9)));
}

TEST_CASE("long rows draw what sorting all tokens draws") {
    std::mt19937 generator(11);
    for (const std::size_t size : {std::size_t{70}, std::size_t{300}, std::size_t{5000}, std::size_t{40000}})
        for (const bool ties : {false, true}) {
            // With ties there are a few hundred values only, and some tokens are ruled out.
            std::vector<float> logits(size);
            std::normal_distribution<float> normal(0.0f, 2.0f);
            for (float& l : logits)
                l = !ties ? normal(generator) : generator() % 9 == 0 ? -infinity : static_cast<float>(generator() % 301) * 0.01f;
            std::vector<std::size_t> order(size);
            for (std::size_t i = 0; i < size; ++i) order[i] = i;
            std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
            // Shares that need a few tokens, or nearly all; three of those that have the greatest logit.
            for (const auto& [top_k, top_p] :
                 {std::pair(std::size_t{0}, 1.0f), std::pair(std::size_t{0}, 0.3f), std::pair(std::size_t{0}, 0.99f),
                  std::pair(std::size_t{3}, 1.0f), std::pair(std::size_t{40}, 1.0f), std::pair(std::size_t{1500}, 0.9f)}) {
                auto sampler = make(1, top_k, top_p, 77);
                ops::random_generator random(77);
                for (int draw = 0; draw < 20; ++draw) {
                    const std::size_t most = top_k == 0 ? size : std::min(top_k, size);
                    const auto weight = [&](std::size_t rank) {
                        return std::exp(static_cast<double>(logits[order[rank]]) - static_cast<double>(logits[order[0]]));
                    };
                    double total = 0, cut = 0;
                    for (std::size_t i = 0; i < most; ++i) total += weight(i);
                    std::size_t count = 0;
                    for (; count < most && (count == 0 || cut < static_cast<double>(top_p) * total); ++count)
                        cut += weight(count);
                    const double target = random.uniform() * (top_p < 1 ? cut : total);
                    double sum = 0;
                    std::size_t rank = 0;
                    for (; rank + 1 < (top_p < 1 ? count : most); ++rank) {
                        sum += weight(rank);
                        if (target < sum) break;
                    }
                    CHECK(*sampler.sample(logits) == static_cast<std::int64_t>(order[rank]));
                }
            }
        }
}

TEST_CASE("N11: min-p cuts what is less probable than its share of the most probable token, before the temperature") {
    // Relative to the most probable token: 1/4, 1, 1/2, 1/2, 1/8.
    const std::vector<float> logits = {std::log(0.25f), std::log(1.0f), std::log(0.5f), std::log(0.5f), std::log(0.125f)};
    const auto kept = [&](float temperature, std::size_t top_k, float top_p, float min_p) {
        std::set<std::int64_t> out;
        auto sampler = ops::sampler::create({temperature, top_k, top_p, 3, min_p});
        REQUIRE(sampler);
        for (const auto& [token, share] : shares(*sampler, logits, 3000)) out.insert(token);
        return out;
    };
    using tokens = std::set<std::int64_t>;
    CHECK(kept(1, 0, 1, 0) == tokens{0, 1, 2, 3, 4});
    CHECK(kept(1, 0, 1, 0.1f) == tokens{0, 1, 2, 3, 4});
    CHECK(kept(1, 0, 1, 0.2f) == tokens{0, 1, 2, 3});
    CHECK(kept(1, 0, 1, 0.3f) == tokens{1, 2, 3});
    CHECK(kept(1, 0, 1, 0.6f) == tokens{1});
    CHECK(kept(1, 0, 1, 1) == tokens{1});
    // A high temperature makes unlikely tokens come, but lets none pass that were cut.
    CHECK(kept(3, 0, 1, 0.3f) == tokens{1, 2, 3});
    // The closest cut counts.
    CHECK(kept(1, 2, 1, 0.3f) == tokens{1, 2});
    CHECK(kept(1, 0, 0.5f, 0.3f) == tokens{1, 2});
    // Those left are drawn by their own shares.
    auto sampler = ops::sampler::create({.seed = 8, .min_p = 0.3f});
    auto got = shares(*sampler, logits, 40000);
    for (const auto& [token, want] : {std::pair(1, 0.5), std::pair(2, 0.25), std::pair(3, 0.25)})
        CHECK(std::abs(got[token] - want) < 5 * std::sqrt(0.25 / 40000));
}

TEST_CASE("N11: penalties and biases change logits by llama.cpp's formulas") {
    const auto made = [](ops::penalty_options options) {
        auto out = ops::penalties::create(std::move(options));
        REQUIRE(out);
        return std::move(out).value();
    };
    const auto applied = [](const ops::penalties& by, std::vector<float> logits) {
        REQUIRE(by.apply(logits));
        return logits;
    };
    const std::vector<float> logits = {4, -4, 0, 3, 1};
    auto all = made({.repeat = 2, .presence = 0.5f, .frequency = 0.25f, .last_n = 3});
    CHECK(applied(all, logits) == logits);
    for (const std::int32_t token : {0, 1, 1}) all.accept(token);
    // 4 / 2 - 0.25 - 0.5; -4 * 2 - 2 * 0.25 - 0.5.
    CHECK(applied(all, logits) == std::vector<float>{1.25f, -9, 0, 3, 1});
    all.accept(2);  // and 0 is no longer among the three newest
    CHECK(applied(all, logits) == std::vector<float>{4, -9, -0.75f, 3, 1});
    for (const std::int32_t token : {3, 3, 3, 3}) all.accept(token);
    CHECK(applied(all, logits) == std::vector<float>{4, -4, 0, 0.25f, 1});
    all.clear();
    CHECK(applied(all, logits) == logits);
    // A penalty that looks back at nothing, or that is none.
    for (auto none : {made({.repeat = 2, .last_n = 0}), made({})}) {
        none.accept(0);
        CHECK(applied(none, logits) == logits);
    }
    // Biases come first, so a penalty sees the logit with them; those of one token add up.
    auto biased = made({.repeat = 2, .biases = {{4, -2}, {0, 1}, {0, 3}, {3, -infinity}}});
    CHECK(applied(biased, logits) == std::vector<float>{8, -4, 0, -infinity, -1});
    biased.accept(4);
    biased.accept(0);
    CHECK(applied(biased, logits) == std::vector<float>{4, -4, 0, -infinity, -2});
    CHECK(*ops::greedy(applied(made({.biases = {{0, -infinity}}}), logits)) == 3);
}

TEST_CASE("N11: penalties of long texts are those of their newest tokens, counted anew") {
    std::mt19937 generator(3);
    for (const std::size_t last_n : {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::numeric_limits<std::size_t>::max()}) {
        auto by = *ops::penalties::create({.repeat = 1.25f, .presence = 0.5f, .frequency = -0.125f, .last_n = last_n});
        std::vector<std::int32_t> text;
        for (int i = 0; i < 300; ++i) {
            text.push_back(static_cast<std::int32_t>(generator() % 20));
            by.accept(text.back());
            std::vector<float> got(20), want(20);
            for (std::size_t t = 0; t < 20; ++t) {
                got[t] = want[t] = static_cast<float>(generator() % 1000) * 0x1p-7f - 4;
                const std::size_t seen = std::min(text.size(), last_n);
                const auto count =
                    std::count(text.end() - static_cast<std::ptrdiff_t>(seen), text.end(), static_cast<std::int32_t>(t));
                if (count == 0) continue;
                want[t] = want[t] > 0 ? want[t] / 1.25f : want[t] * 1.25f;
                want[t] -= static_cast<float>(count) * -0.125f + 0.5f;
            }
            REQUIRE(by.apply(got));
            CHECK(got == want);
        }
    }
}

TEST_CASE("N11: penalties outside their range, and tokens beyond the logits, are refused by name") {
    const auto refused = [](ops::penalty_options options, const char* name) {
        const auto got = ops::penalties::create(std::move(options));
        REQUIRE(!got);
        CHECK(got.error().code == fg::errc::invalid_argument);
        CHECK(got.error().message.find(name) != std::string::npos);
    };
    for (const float bad : {0.0f, -1.0f, 1e-45f, infinity, nan_value}) refused({.repeat = bad}, "repeat penalty");
    for (const float bad : {infinity, -infinity, nan_value}) {
        refused({.presence = bad}, "presence penalty");
        refused({.frequency = bad}, "frequency penalty");
        if (!(bad < 0)) refused({.biases = {{7, bad}}}, "token 7");
    }
    refused({.biases = {{-1, 1}}}, "token -1");
    std::vector<float> logits(7, 1.0f);
    auto biased = *ops::penalties::create({.biases = {{3, 1}, {7, 1}}});
    CHECK(biased.apply(logits).error().code == fg::errc::invalid_argument);
    auto come = *ops::penalties::create({.repeat = 2});
    come.accept(3);
    come.accept(-2);
    CHECK(come.apply(logits).error().code == fg::errc::invalid_argument);
    CHECK(logits == std::vector<float>(7, 1.0f));
}

TEST_CASE("the generator's numbers are the published ones") {
    // SplitMix64 from seed 1234567, as listed by its authors' reference implementation.
    ops::random_generator random(1234567);
    for (const std::uint64_t want :
         {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u, 16408922859458223821u})
        CHECK(random.next() == want);
    for (int i = 0; i < 1000; ++i) {
        const double u = random.uniform();
        CHECK((u >= 0 && u < 1));
    }
}
