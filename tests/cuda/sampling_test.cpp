// The choice of tokens on the emulated GPU beside the host's.
#if defined(FRUGAL_CUDA_EMULATOR)
#include "frugal/ops/sampling/sampling_cuda.cuh"
#else  // on a GPU they are linked: nvcc does not read the header of the host's sampler
#include "frugal/ops/sampling/sampling_cuda.hpp"
#endif

#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/ops/sampling/sampling.hpp"
#include "layer_data.hpp"
#include "mutation.hpp"
#include "simt_data.hpp"

namespace gpu = frugal::ops::cuda;
namespace ops = frugal::ops;
using test::device_matrix;
using test::normal_numbers;
using test::started;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

/// A token for each row, all of the same logits.
std::vector<std::int32_t> drawn(const std::vector<float>& logits, const std::vector<gpu::sampling_draw>& draws) {
    std::vector<float> all;
    for (std::size_t r = 0; r < draws.size(); ++r) all.insert(all.end(), logits.begin(), logits.end());
    device_matrix in(all, logits.size());
    simt::device_array<gpu::sampling_draw> how(draws);
    simt::device_array<std::int32_t> out(draws.size());
    started(gpu::sample(in, how.data(), out.data(), nullptr));
    return out.to_host();
}

}  // namespace

TEST_CASE("greedy takes the greatest logit, the lowest id among equals, and says where there is none") {
    std::vector<std::vector<float>> rows = {
        {1, 3, 2},         {1, 3, 3},         {0, 0, 0},        {-infinity, -5, -5},
        {-0.0f, 0.0f, -1}, {1, nan_value, 2}, {1, 2, infinity}, {-infinity, -infinity, -infinity}};
    std::vector<float> all;
    for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
    simt::for_each_schedule([&] {
        device_matrix in(all, 3);
        simt::device_array<std::int32_t> out(rows.size());
        started(gpu::greedy(in, out.data(), nullptr));
        const auto got = out.to_host();
        for (std::size_t r = 0; r < rows.size(); ++r) {
            const auto want = ops::greedy(rows[r]);
            CHECK(got[r] == (want ? *want : -1));
        }
    });
    auto logits = normal_numbers(5000, 7);
    logits[4321] = logits[77] = 9.0f;
    const auto run = [&] {
        device_matrix in(logits, 5000);
        simt::device_array<std::int32_t> out(1);
        started(gpu::greedy(in, out.data(), nullptr));
        return out.to_host();
    };
    CHECK(run() == std::vector<std::int32_t>{77});
    logits[77] = 0.0f;
    CHECK(test::unnoticed_barriers(run) == std::vector<std::string>{});
}

TEST_CASE("draws are those of the host's sampler: cuts by rank and share, ties, tokens ruled out, rows shorter than the cut") {
    std::mt19937 generator(5);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (const std::size_t size : {std::size_t{1}, std::size_t{5}, std::size_t{300}, std::size_t{3000}})
        for (const bool ties : {false, true}) {
            CAPTURE(size);
            CAPTURE(ties);
            std::vector<float> logits(size);
            for (float& l : logits)
                l = !ties ? normal(generator) : generator() % 9 == 0 ? -infinity : static_cast<float>(generator() % 40) * 0.1f;
            logits[size / 2] = 1.0f;
            std::vector<gpu::sampling_draw> draws;
            std::vector<std::int32_t> want;
            for (const std::uint32_t top_k : {1u, 3u, 40u, 1024u})
                for (const float top_p : {1.0f, 0.9f, 0.2f})
                    for (const float temperature : {0.7f, 1.5f, 0.0f}) {
                        const std::uint64_t seed = generator();
                        auto sampler = ops::sampler::create({temperature, top_k, top_p, seed}).value();
                        draws.push_back({ops::random_generator(seed).uniform(), temperature, top_p, top_k});
                        want.push_back(static_cast<std::int32_t>(*sampler.sample(logits)));
                    }
            CHECK(drawn(logits, draws) == want);
        }
    // More logits than threads, and as many candidates as there are logits.
    const auto many = normal_numbers(1500, 3), few = normal_numbers(400, 4);
    for (const auto& [logits, top_k] : {std::pair(&many, 50u), std::pair(&few, 400u)}) {
        const auto run = [&row = *logits, most = top_k] {
            const auto tokens = drawn(row, {{0.3, 1.0f, 0.95f, most}, {0.9, 1.0f, 1.0f, most}});
            return std::vector<float>(tokens.begin(), tokens.end());
        };
        CHECK(simt::same_under_all_schedules(run));
        if (simt::access_checks_active()) CHECK(test::unnoticed_barriers(run) == std::vector<std::string>{});
    }
}

TEST_CASE("there is no draw from logits that are no numbers, or between more tokens than a block ranks") {
    const gpu::sampling_draw draw{0.5, 1.0f, 1.0f, 2};
    for (const std::vector<float>& logits : {std::vector<float>{1, nan_value, 2}, std::vector<float>{1, 2, infinity},
                                             std::vector<float>{-infinity, -infinity, -infinity}})
        CHECK(drawn(logits, {draw}) == std::vector<std::int32_t>{-1});
    CHECK(drawn({1, 2, 3}, {{0.5, 1.0f, 1.0f, 0}, {0.5, 1.0f, 1.0f, gpu::sample_most + 1}, {0.5, 0.0f, 1.0f, 0}}) ==
          std::vector<std::int32_t>{-1, -1, 2});
}
