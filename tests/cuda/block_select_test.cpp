// Scores of blocks and their choice on the emulator, against sums in double and the rule written down naively.
#include "frugal/ops/block_select/block_select_cuda.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "../ops/block_select_support.hpp"
#include "golden.hpp"
#include "mutation.hpp"
#include "simt_data.hpp"

namespace fg = frugal;
namespace gpu = frugal::ops::cuda;
namespace ops = frugal::ops;
using test::device_matrix;
using test::indices;

namespace {

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// The kernels that choose, on scores given: at once, or from what segments of so many leave.
indices chosen_of(const std::vector<float>& scores, std::size_t top, std::size_t segment = 0) {
    const std::size_t segments = segment == 0 ? 0 : (scores.size() + segment - 1) / segment;
    std::vector<gpu::select_row<float>> row(1);
    row[0].complete = static_cast<std::uint32_t>(scores.size());
    simt::device_array<gpu::select_row<float>> rows(row);
    simt::device_array<float> in(scores);
    simt::device_array<std::uint32_t> out(top + 1), count(1), candidates(segments * top + 1);
    if (segments != 0) {
        const cudaError_t started = fg::device::gpu::launch(
            gpu::choose_in_segments<float, 256>, dim3(static_cast<unsigned>(segments)), dim3(256), 0, nullptr, in.data(),
            scores.size(), rows.data(), static_cast<int>(top), static_cast<int>(segment), candidates.data());
        REQUIRE(started == cudaSuccess);
    }
    const cudaError_t started =
        fg::device::gpu::launch(gpu::choose_blocks<float, 256>, dim3(1), dim3(256), 0, nullptr, in.data(), scores.size(),
                                rows.data(), static_cast<int>(top), static_cast<int>(segment), static_cast<int>(segments),
                                segments == 0 ? nullptr : candidates.data(), out.data(), count.data());
    REQUIRE(started == cudaSuccess);
    auto got = out.to_host();
    got.resize(count.to_host()[0]);
    return got;
}

/// Block keys of a precision on the device, in chunks of 8.
template <class Scalar>
struct device_keys {
    test::stored_keys<Scalar> stored;
    std::vector<std::unique_ptr<simt::device_array<Scalar>>> chunks;
    std::vector<std::unique_ptr<simt::device_array<float>>> scales;
    std::unique_ptr<simt::device_array<const Scalar*>> starts;
    std::unique_ptr<simt::device_array<const float*>> scale_starts;
    ops::block_key_view<Scalar> view;

    device_keys(const std::vector<float>& keys, std::size_t dim) : stored(keys, dim) {
        const auto from = stored.view();
        std::vector<const Scalar*> pointers;
        std::vector<const float*> scale_pointers;
        for (std::size_t b = 0; b < stored.blocks(); b += 8) {
            const std::size_t n = std::min<std::size_t>(8, stored.blocks() - b);
            chunks.push_back(
                std::make_unique<simt::device_array<Scalar>>(std::vector<Scalar>(from.keys[b / 8], from.keys[b / 8] + n * dim)));
            pointers.push_back(chunks.back()->data());
            if constexpr (std::is_same_v<Scalar, std::int8_t>) {
                scales.push_back(
                    std::make_unique<simt::device_array<float>>(std::vector<float>(from.scales[b / 8], from.scales[b / 8] + n)));
                scale_pointers.push_back(scales.back()->data());
            }
        }
        starts = std::make_unique<simt::device_array<const Scalar*>>(pointers);
        if constexpr (std::is_same_v<Scalar, std::int8_t>) {
            scale_starts = std::make_unique<simt::device_array<const float*>>(scale_pointers);
            view = {starts->data(), scale_starts->data(), 3, dim};
        } else {
            view = {starts->data(), 3, dim};
        }
    }
};

std::vector<float> normals(std::size_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& x : out) x = normal(generator);
    return out;
}

}  // namespace

TEST_CASE("C26 the choice equals a sort by the rule: ties, zeros of either sign, NaN last") {
    CHECK(chosen_of({0, 0, 0, 0}, 2) == indices{0, 1});
    CHECK(chosen_of(std::vector<float>(1500, 0.0f), 3) == indices{0, 1, 2});
    CHECK(chosen_of({2, 3, 3, 3, 1}, 2) == indices{1, 2});
    CHECK(chosen_of({-1, -0.0f, 0.0f, -0.0f}, 2) == indices{1, 2});
    CHECK(chosen_of({quiet_nan, -infinity, quiet_nan, 0}, 2) == indices{1, 3});
    CHECK(chosen_of({quiet_nan, -quiet_nan, quiet_nan}, 2) == indices{0, 1});
    CHECK(chosen_of({-quiet_nan, 1e-45f, 0, -1e-45f}, 2) == indices{1, 2});
    CHECK(chosen_of({1, infinity, 3e38f, -infinity}, 2) == indices{1, 2});
    std::mt19937 generator(7);
    for (int round = 0; round < 40; ++round) {
        const std::vector<float> scores = test::random_scores(generator, 700);
        const std::size_t top = generator() % (scores.size() + 3);
        simt::for_each_schedule([&] { CHECK(chosen_of(scores, top) == test::by_rule(scores, top)); }, 1);
    }
}

TEST_CASE("what segments leave gives the choice among all: ties across segments, the last one short, a row of one segment") {
    CHECK(chosen_of(std::vector<float>(300, 1.0f), 5, 64) == indices{0, 1, 2, 3, 4});
    std::vector<float> rising(300);
    for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<float>(i / 70);
    CHECK(chosen_of(rising, 22, 64) == test::by_rule(rising, 22));
    CHECK(chosen_of(rising, 300, 300) == test::by_rule(rising, 300));
    std::mt19937 generator(11);
    for (int round = 0; round < 40; ++round) {
        const std::size_t segment = 32 + generator() % 200, top = 1 + generator() % segment;
        const std::vector<float> scores = test::random_scores(generator, 700);
        CAPTURE(segment);
        CAPTURE(top);
        simt::for_each_schedule([&] { CHECK(chosen_of(scores, top, segment) == test::by_rule(scores, top)); }, 1);
    }
}

TEST_CASE("few rows of many blocks are chosen from in segments, with the choice of a row among many rows") {
    constexpr std::size_t dim = 32, blocks = gpu::select_segment + 700, top = 40;
    static_assert(gpu::select_candidates(1, blocks, top) == 2 * top && gpu::select_candidates(65, blocks, top) == 0);
    const device_keys<float> keys(normals(blocks * dim, 3), dim);
    const std::vector<std::uint32_t> complete = {blocks, gpu::select_segment, gpu::select_segment + 9, 12};
    const auto q = normals(complete.size() * dim, 4);
    std::vector<gpu::select_row<float>> specs;
    for (const std::uint32_t each : complete) specs.push_back({keys.view, each});
    simt::device_array<gpu::select_row<float>> rows(specs);
    device_matrix queries(q, dim);
    simt::device_array<float> scores(complete.size() * blocks);
    simt::device_array<std::uint32_t> chosen(complete.size() * top), counts(complete.size()),
        candidates(gpu::select_candidates(complete.size(), blocks, top));
    const cudaError_t started = gpu::select_blocks<float>(queries, 1, rows.data(), blocks, top, scores.data(), candidates.data(),
                                                          chosen.data(), counts.data(), nullptr);
    REQUIRE(started == cudaSuccess);
    const auto all = scores.to_host();
    const auto got = chosen.to_host(), count = counts.to_host();
    for (std::size_t r = 0; r < complete.size(); ++r) {
        CAPTURE(r);
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * blocks);
        std::vector<float> own(begin, begin + complete[r]);
        if (own.size() <= top) own.assign(own.size(), 0.0f);  // none is scored
        const auto first = got.begin() + static_cast<std::ptrdiff_t>(r * top);
        CHECK(indices(first, first + count[r]) == test::by_rule(own, top));
    }
}

TEST_CASE("C28 fewer candidates than places: all of them") {
    CHECK(chosen_of({}, 3).empty());
    CHECK(chosen_of({quiet_nan}, 3) == indices{0});
    CHECK(chosen_of({1, 2, 3}, 3) == indices{0, 1, 2});
    CHECK(chosen_of({1, 2, 3}, 0).empty());
}

TEST_CASE("scores equal a sum in double and the choice follows them, for every precision, width and number of heads") {
    test::for_each_key_scalar([]<class Scalar>(fg::type_tag<Scalar>) {
        for (const auto& shape : {std::pair<std::size_t, std::size_t>{1, 32}, {4, 128}, {9, 45}, {16, 130}}) {
            const std::size_t heads = shape.first, dim = shape.second;
            CAPTURE(heads);
            constexpr std::size_t blocks = 61, top = 9;
            const device_keys<Scalar> keys(normals(blocks * dim, static_cast<unsigned>(dim)), dim);
            const auto worth = keys.stored.decoded();
            const auto q = normals(3 * heads * dim, static_cast<unsigned>(heads));
            const std::vector<std::uint32_t> complete = {static_cast<std::uint32_t>(blocks), 5, 30};
            const auto run = [&](std::size_t first, std::size_t count, std::vector<float>* scores_out) {
                std::vector<gpu::select_row<Scalar>> specs;
                for (std::size_t r = first; r < first + count; ++r) specs.push_back({keys.view, complete[r]});
                simt::device_array<gpu::select_row<Scalar>> rows(specs);
                device_matrix queries({q.begin() + static_cast<std::ptrdiff_t>(first * heads * dim),
                                       q.begin() + static_cast<std::ptrdiff_t>((first + count) * heads * dim)},
                                      heads * dim);
                simt::device_array<float> scores(count * blocks);
                simt::device_array<std::uint32_t> chosen(count * top), counts(count);
                const cudaError_t started = gpu::select_blocks<Scalar>(queries, heads, rows.data(), blocks, top, scores.data(),
                                                                       nullptr, chosen.data(), counts.data(), nullptr);
                REQUIRE(started == cudaSuccess);
                if (scores_out != nullptr) *scores_out = scores.to_host();
                std::vector<indices> out;
                for (std::size_t r = 0; r < count; ++r) {
                    const auto all = chosen.to_host();
                    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * top);
                    out.emplace_back(begin, begin + counts.to_host()[r]);
                }
                return out;
            };
            std::vector<float> scores;
            const auto chosen = run(0, 3, &scores);
            for (std::size_t r = 0; r < 3; ++r) {
                std::vector<float> own(scores.begin() + static_cast<std::ptrdiff_t>(r * blocks),
                                       scores.begin() + static_cast<std::ptrdiff_t>(r * blocks + complete[r]));
                if (complete[r] > top) {
                    std::vector<float> want(own.size());
                    for (std::size_t b = 0; b < own.size(); ++b) {
                        double sum = 0;
                        for (std::size_t h = 0; h < heads; ++h) {
                            double dot = 0;
                            for (std::size_t d = 0; d < dim; ++d)
                                dot +=
                                    static_cast<double>(q[(r * heads + h) * dim + d]) * static_cast<double>(worth[b * dim + d]);
                            sum += std::max(dot, 0.0);
                        }
                        want[b] = static_cast<float>(sum / std::sqrt(static_cast<double>(dim)));
                    }
                    test::check_close(own, want, {2e-6, 2e-6}, "scores");
                } else {
                    own.assign(own.size(), 0.0f);  // none is scored
                }
                CHECK(chosen[r] == test::by_rule(own, top));
                std::vector<float> alone;
                CHECK(run(r, 1, &alone)[0] == chosen[r]);
            }
            CHECK(simt::same_under_all_schedules([&] {
                std::vector<float> out;
                run(0, 1, &out);
                return out;
            }));
        }
    });
}

TEST_CASE("the tokens of chosen blocks, then those behind the last complete block") {
    constexpr std::size_t top = 3, ratio = 4, stride = top * ratio + ratio - 1;
    const std::vector<std::uint32_t> chosen = {0, 2, 7, 1, 0, 0, 0, 0, 0}, counts = {3, 1, 0}, complete = {9, 2, 0},
                                     visible = {39, 8, 2};
    simt::for_each_schedule([&] {
        simt::device_array<std::uint32_t> blocks(chosen), count(counts), whole(complete), seen(visible), lists(3 * stride);
        simt::device_array<gpu::split_row<float>> rows(std::vector<gpu::split_row<float>>(3));
        const cudaError_t started = gpu::attend_chosen<float>(blocks.data(), count.data(), top, ratio, whole.data(), seen.data(),
                                                              3, lists.data(), rows.data(), nullptr);
        REQUIRE(started == cudaSuccess);
        const auto got = lists.to_host();
        const auto specs = rows.to_host();
        const std::vector<indices> want = {{0, 1, 2, 3, 8, 9, 10, 11, 28, 29, 30, 31, 36, 37, 38}, {4, 5, 6, 7}, {0, 1}};
        for (std::size_t r = 0; r < 3; ++r) {
            CHECK(specs[r].visible == want[r].size());
            CHECK(specs[r].list == lists.data() + r * stride);
            CHECK(std::equal(want[r].begin(), want[r].end(), got.begin() + static_cast<std::ptrdiff_t>(r * stride)));
        }
    });
}

TEST_CASE("a removed __syncthreads is noticed") {
    if (!simt::access_checks_active()) return;  // a wild store is stopped there alone
    auto scores = normals(700, 9);
    CHECK(test::unnoticed_barriers([&] { return chosen_of(scores, 100); }) == std::vector<std::string>{});
    CHECK(test::unnoticed_barriers([&] { return chosen_of(scores, 100, 300); }) == std::vector<std::string>{});
}
