#include "frugal/ops/block_select/block_select.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "block_select_support.hpp"
#include "frugal/tensor/scalar.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "sanitizer.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using fg::matrix_view;
using test::by_rule;
using test::indices;

namespace {

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

indices chosen_of(const std::vector<float>& scores, std::size_t top) {
    indices out(top, 77777u);
    out.resize(ops::top_indices(scores, top, out.data()));
    return out;
}

/// Rows over one set of block keys cut into chunks of 4.
struct problem {
    std::size_t heads, dim;
    std::vector<float> queries, keys;
    std::vector<const float*> chunks;
    ops::block_key_view<float> view;
    std::vector<ops::block_row<float>> rows;

    problem(std::size_t heads_, std::size_t dim_, std::size_t blocks, const std::vector<std::size_t>& complete, unsigned seed)
        : heads(heads_), dim(dim_), queries(complete.size() * heads_ * dim_), keys(blocks * dim_) {
        std::mt19937 generator(seed);
        std::normal_distribution<float> normal;
        for (float& value : queries) value = normal(generator);
        for (float& value : keys) value = normal(generator);
        for (std::size_t b = 0; b < blocks; b += 4) chunks.push_back(&keys[b * dim]);
        view = {chunks.data(), 2, dim};
        for (const std::size_t c : complete) rows.push_back({&view, c});
    }
    [[nodiscard]] matrix_view<const float> q() const { return {queries.data(), rows.size(), heads * dim}; }
};

template <class Device>
std::vector<indices> select(Device& dev, const problem& p, std::size_t top, std::size_t first = 0,
                            std::size_t count = ~std::size_t{0}) {
    count = std::min(count, p.rows.size() - first);
    fg::workspace scratch;
    {  // What the workspace hands out may hold anything.
        fg::workspace::scope scope(scratch);
        float* junk = scratch.floats(100000).value();
        std::fill(junk, junk + 100000, quiet_nan);
    }
    indices chosen(count * top, 77777u);
    std::vector<std::size_t> counts(count);
    REQUIRE(ops::select_blocks(dev, scratch, p.q().rows_range(first, count),
                               std::span<const ops::block_row<float>>(p.rows).subspan(first, count), p.heads, top, chosen,
                               counts));
    std::vector<indices> out;
    for (std::size_t r = 0; r < count; ++r)
        out.emplace_back(chosen.begin() + static_cast<std::ptrdiff_t>(r * top),
                         chosen.begin() + static_cast<std::ptrdiff_t>(r * top + counts[r]));
    return out;
}

}  // namespace

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("C26 among equal scores the lower index is taken") {
    CHECK(chosen_of({0, 0, 0, 0}, 2) == indices{0, 1});
    CHECK(chosen_of(std::vector<float>(5000, 0.0f), 3) == indices{0, 1, 2});
    CHECK(chosen_of({0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0}, 4) == indices{0, 1, 2, 7});
    CHECK(chosen_of({2, 3, 3, 3, 1}, 2) == indices{1, 2});
    CHECK(chosen_of({1, 3, 2, 3, 2, 2}, 3) == indices{1, 2, 3});
}

TEST_CASE("C26 zeros of either sign are equal, NaN ranks last, infinities order") {
    CHECK(chosen_of({-0.0f, 0.0f, 0.0f}, 1) == indices{0});
    CHECK(chosen_of({-1, -0.0f, 0.0f, -0.0f}, 2) == indices{1, 2});
    CHECK(chosen_of({quiet_nan, -infinity, quiet_nan, 0}, 2) == indices{1, 3});
    CHECK(chosen_of({quiet_nan, -quiet_nan, quiet_nan}, 2) == indices{0, 1});
    CHECK(chosen_of({-quiet_nan, 1e-45f, 0, -1e-45f}, 2) == indices{1, 2});
    CHECK(chosen_of({1, infinity, 3e38f, -infinity}, 2) == indices{1, 2});
}

TEST_CASE("C26 the choice equals a sort by the rule") {
    std::mt19937 generator(7);
    for (int round = 0; round < 2000; ++round) {
        const std::vector<float> scores = test::random_scores(generator, 70);
        const std::size_t top = generator() % (scores.size() + 3);
        REQUIRE(chosen_of(scores, top) == by_rule(scores, top));
    }
}

TEST_CASE("C28 fewer candidates than places: all of them, and junk beyond is not read") {
    CHECK(chosen_of({}, 3).empty());
    CHECK(chosen_of({quiet_nan}, 3) == indices{0});
    CHECK(chosen_of({1, 2, 3}, 3) == indices{0, 1, 2});
    CHECK(chosen_of({1, 2, 3}, 0).empty());
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        problem p(2, 16, 40, {0, 1, 2, 3, 30}, 3);
        // Blocks beyond what any row may see, and those only the last row sees.
        std::fill(p.keys.begin() + 30 * 16, p.keys.end(), quiet_nan);
        fg::device::cpu<Isa> dev;
        const auto got = select(dev, p, 2);
        CHECK(got[0].empty());
        CHECK(got[1] == indices{0});
        CHECK(got[2] == indices{0, 1});
        CHECK(got[3].size() == 2);
        CHECK(got[4].size() == 2);
        CHECK(got[4].back() < 30);
    });
}

TEST_CASE("scores equal a double-precision sum, whatever the chunks") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const std::size_t heads : {1u, 3u, 4u, 9u})
            for (const std::size_t dim : {32u, 45u, 128u}) {
                const problem p(heads, dim, 21, {21}, static_cast<unsigned>(heads * dim));
                std::vector<float> got(21), want(21);
                ops::cpu::score_blocks<Isa>(p.queries.data(), heads, dim, p.view, std::sqrt(static_cast<float>(dim)), 0, 21,
                                            got.data());
                for (std::size_t b = 0; b < 21; ++b) {
                    double sum = 0;
                    for (std::size_t h = 0; h < heads; ++h) {
                        double dot = 0;
                        for (std::size_t d = 0; d < dim; ++d)
                            dot += static_cast<double>(p.queries[h * dim + d]) * static_cast<double>(p.keys[b * dim + d]);
                        sum += std::max(0.0, dot);
                    }
                    want[b] = static_cast<float>(sum / std::sqrt(static_cast<double>(dim)));
                }
                test::check_close(got, want, {5e-6, 2e-6}, "scores");
                std::vector<float> pieces(21);
                for (std::size_t b = 0; b < 21; b += 3)
                    ops::cpu::score_blocks<Isa>(p.queries.data(), heads, dim, p.view, std::sqrt(static_cast<float>(dim)), b,
                                                b + 3, pieces.data());
                CHECK(pieces == got);
                // A key that is NaN gives NaN, not the 0 of max(0, .).
                std::vector<float> broken(dim, quiet_nan);
                const float* chunk = broken.data();
                float score = 0;
                ops::cpu::score_blocks<Isa>(p.queries.data(), heads, dim, ops::block_key_view<float>{&chunk, 2, dim}, 1.0f, 0, 1,
                                            &score);
                CHECK(std::isnan(score));
            }
    });
}

TEST_CASE("half keys score as their values") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        problem p(4, 37, 9, {9}, 5);
        std::vector<fg::half> halves;
        for (float& value : p.keys) {
            halves.push_back(fg::to_half(value));
            value = fg::to_float(halves.back());
        }
        std::vector<const fg::half*> chunks;
        for (std::size_t b = 0; b < 9; b += 4) chunks.push_back(&halves[b * 37]);
        std::vector<float> got(9), want(9);
        ops::cpu::score_blocks<Isa>(p.queries.data(), 4, 37, ops::block_key_view<fg::half>{chunks.data(), 2, 37}, 2.0f, 0, 9,
                                    got.data());
        ops::cpu::score_blocks<Isa>(p.queries.data(), 4, 37, p.view, 2.0f, 0, 9, want.data());
        CHECK(got == want);
    });
}

TEST_SUITE_END();

TEST_CASE("C26 the same blocks for any number of threads and any split of the rows") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        std::vector<std::size_t> complete;
        for (std::size_t r = 0; r < 23; ++r) complete.push_back(r * 60);
        problem p(1, 27, 1400, complete, 11);  // one head: half of the scores are exactly 0
        fg::device::cpu<Isa> serial;
        const auto want = select(serial, p, 40);
        std::vector<float> scores(1400);
        for (std::size_t r = 0; r < complete.size(); ++r) {
            ops::cpu::score_blocks<Isa>(p.q().row(r), 1, 27, p.view, std::sqrt(27.0f), 0, complete[r], scores.data());
            CHECK(want[r] == by_rule({scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(complete[r])}, 40));
        }
        for (const std::size_t count : {2u, 3u, 64u}) {
            test::threads pool(count);
            fg::device::cpu<Isa> many{pool};
            CHECK(select(many, p, 40) == want);
            for (const std::size_t r : {0u, 1u, 9u, 22u}) CHECK(select(many, p, 40, r, 1).front() == want[r]);
        }
    });
}

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("wrong shapes are errors") {
    fg::device::cpu<fg::isa::baseline> dev;
    fg::workspace scratch;
    const problem p(2, 8, 4, {4, 4}, 1);
    indices chosen(4);
    std::vector<std::size_t> counts(2);
    const std::span<const ops::block_row<float>> rows(p.rows);
    CHECK(ops::select_blocks(dev, scratch, p.q(), rows, 3, 2, chosen, counts).error().code == fg::errc::shape_mismatch);
    CHECK(ops::select_blocks(dev, scratch, p.q(), rows.first(1), 2, 2, chosen, counts).error().code == fg::errc::shape_mismatch);
    CHECK(ops::select_blocks(dev, scratch, p.q(), rows, 2, 3, chosen, counts).error().code == fg::errc::shape_mismatch);
    CHECK(ops::select_blocks(dev, scratch, p.q(), rows, 2, 2, chosen, std::span(counts).first(1)).error().code ==
          fg::errc::shape_mismatch);
    CHECK(ops::select_blocks(dev, scratch, p.q(), rows, 2, 2, chosen, counts));
}

TEST_SUITE_END();
