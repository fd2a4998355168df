// Selection as the blocks are scored: any size, any number of threads, any precision of keys, against the naive rule.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "block_select_support.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using test::by_rule;
using test::indices;

namespace {

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t piece = ops::detail::selection_plan::piece;

/// What the scores of a case look like.
enum class kind { normal, zeros, few_values, rising, falling, some_nan, mostly_nan, all_nan };

struct values {
    std::size_t rows, heads, dim;
    std::vector<float> queries, keys;

    values(kind what, std::size_t rows_, std::size_t heads_, std::size_t dim_, std::size_t blocks, unsigned seed)
        : rows(rows_), heads(heads_), dim(dim_), queries(rows_ * heads_ * dim_), keys(blocks * dim_) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (float& value : queries) value = normal(random);
        for (float& value : keys) value = normal(random);
        for (std::size_t b = 0; b < blocks; ++b) {
            float* const key = &keys[b * dim];
            const auto draw = random() % 7;
            switch (what) {
                case kind::few_values:  // long runs of equal keys and repeats far apart
                    std::copy_n(&keys[(b / 97 % 5) * dim], dim, key);
                    break;
                case kind::rising: std::fill(key, key + dim, static_cast<float>(b + 1)); break;
                case kind::falling: std::fill(key, key + dim, static_cast<float>(blocks - b)); break;
                case kind::some_nan:
                    if (draw == 0) key[b % dim] = quiet_nan;
                    break;
                case kind::mostly_nan:
                    if (draw != 0 || b < 300) key[b % dim] = b % 2 == 0 ? quiet_nan : -quiet_nan;
                    break;
                case kind::all_nan: key[0] = quiet_nan; break;
                default: break;
            }
        }
        if (what == kind::zeros) std::fill(queries.begin(), queries.end(), 0.0f);
        if (what == kind::rising || what == kind::falling)
            for (float& value : queries) value = std::fabs(value);
    }
    [[nodiscard]] fg::matrix_view<const float> q() const { return {queries.data(), rows, heads * dim}; }
};

template <class Scalar, class Device>
std::vector<indices> select(Device& dev, const values& of, const std::vector<ops::block_row<Scalar>>& rows, std::size_t top) {
    fg::workspace scratch;
    indices chosen(rows.size() * top, 77777u);
    std::vector<std::size_t> counts(rows.size(), 99);
    REQUIRE(
        ops::select_blocks(dev, scratch, of.q(), std::span<const ops::block_row<Scalar>>(rows), of.heads, top, chosen, counts));
    std::vector<indices> out;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        REQUIRE(counts[r] == std::min(top, rows[r].complete));
        out.emplace_back(chosen.begin() + static_cast<std::ptrdiff_t>(r * top),
                         chosen.begin() + static_cast<std::ptrdiff_t>(r * top + counts[r]));
        for (std::size_t i = counts[r]; i < top; ++i) REQUIRE(chosen[r * top + i] == 77777u);
    }
    return out;
}

/// Every row's choice by the rule, from its scores computed one block at a time.
template <class Isa, class Scalar>
std::vector<indices> wanted(const values& of, const std::vector<ops::block_row<Scalar>>& rows, std::size_t top) {
    std::vector<indices> out;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        std::vector<float> scores(rows[r].complete);
        const test::row_queries<Scalar> q(of.q().row(r), of.heads, of.dim);
        for (std::size_t b = 0; b < scores.size(); ++b)
            ops::cpu::score_blocks<Isa>(q.view(), of.heads, of.dim, *rows[r].blocks, std::sqrt(static_cast<float>(of.dim)), b,
                                        b + 1, scores.data());
        out.push_back(by_rule(scores, top));
    }
    return out;
}

/// One case on 1, 2, 3 and 64 threads.
template <class Isa, class Scalar>
void check(kind what, std::size_t heads, std::size_t dim, const std::vector<std::size_t>& complete, std::size_t top) {
    CAPTURE(static_cast<int>(what));
    CAPTURE(complete.size());
    CAPTURE(complete.back());
    CAPTURE(top);
    const std::size_t most = *std::max_element(complete.begin(), complete.end());
    const values of(what, complete.size(), heads, dim, most, static_cast<unsigned>(most + top));
    const test::stored_keys<Scalar> keys(of.keys, dim);
    const auto view = keys.view();
    std::vector<ops::block_row<Scalar>> rows;
    for (const std::size_t c : complete) rows.push_back({&view, c});
    const auto want = wanted<Isa>(of, rows, top);
    fg::device::cpu<Isa> serial;
    REQUIRE(select(serial, of, rows, top) == want);
    for (const std::size_t count : {2u, 3u, 64u}) {
        CAPTURE(count);
        test::threads pool(count);
        fg::device::cpu<Isa> many{pool};
        REQUIRE(select(many, of, rows, top) == want);
    }
}

std::vector<std::size_t> rows_up_to(std::size_t rows, std::size_t complete) {
    std::vector<std::size_t> out;
    for (std::size_t r = rows; r-- > 0;) out.push_back(complete > r ? complete - r : 0);
    return out;
}

}  // namespace

TEST_CASE("C26 C28 one row, blocks around the budget and the borders of pieces, all precisions, any number of threads") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        test::for_each_key_scalar([]<class Scalar>(fg::type_tag<Scalar>) {
            for (const std::size_t top : {0u, 1u, 40u, 512u})
                for (const std::size_t blocks : {std::size_t{0}, std::size_t{1}, top, top + 1, piece - 1, piece, piece + 1,
                                                 2 * top + piece, 2 * top + piece + 1, 5 * piece + 3})
                    check<Isa, Scalar>(kind::normal, 1, 11, {blocks}, top);
        });
    });
}

TEST_CASE("C26 ties, NaN and every order of scores, within a list and across lists") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        test::for_each_key_scalar([]<class Scalar>(fg::type_tag<Scalar>) {
            for (const kind what :
                 {kind::zeros, kind::few_values, kind::rising, kind::falling, kind::some_nan, kind::mostly_nan, kind::all_nan}) {
                check<Isa, Scalar>(what, 2, 8, {2500}, 40);
                check<Isa, Scalar>(what, 4, 8, {2300}, 512);
                check<Isa, Scalar>(what, 1, 5, rows_up_to(3, 1300), 1);
            }
        });
    });
}

TEST_CASE("C26 rows of one sequence share their reads: few and many rows, of like and of different length") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        test::for_each_key_scalar([]<class Scalar>(fg::type_tag<Scalar>) {
            for (const std::size_t rows : {2u, 5u, 16u, 17u, 35u})
                check<Isa, Scalar>(kind::normal, 4, 9, rows_up_to(rows, 700), 40);
            check<Isa, Scalar>(kind::few_values, 3, 9, {900, 0, 40, 41, 300, 900, 128, 129, 700, 39, 850}, 40);
            check<Isa, Scalar>(kind::normal, 1, 9, rows_up_to(9, 44), 40);  // some rows take all, the others do not
        });
    });
}

TEST_CASE("rows of several sequences, in any order: each equals its choice alone") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const values of(kind::normal, 12, 2, 8, 1500, 3);
        const test::stored_keys<float> all(of.keys, 8), part({of.keys.begin() + 8 * 400, of.keys.end()}, 8);
        const auto a = all.view(), b = part.view();
        std::vector<ops::block_row<float>> rows;
        for (std::size_t r = 0; r < 12; ++r) rows.push_back({r % 5 < 3 ? &a : &b, 200 + 70 * r});
        rows[7] = {};  // padding
        const auto want = wanted<Isa>(of, rows, 40);
        CHECK(want[7].empty());
        for (const std::size_t count : {1u, 2u, 3u, 64u}) {
            test::threads pool(count);
            fg::device::cpu<Isa> many{pool};
            CHECK(select(many, of, rows, 40) == want);
        }
    });
}

TEST_CASE("C36 scratch does not grow with the number of blocks") {
    fg::device::cpu<fg::isa::baseline> dev;
    const values of(kind::normal, 1, 1, 4, 400000, 3);
    const test::stored_keys<float> keys(of.keys, 4);
    const auto view = keys.view();
    fg::workspace scratch;
    indices chosen(512);
    std::vector<std::size_t> counts(1);
    const auto bytes = [&](std::size_t blocks) {
        const ops::block_row<float> row{&view, blocks};
        REQUIRE(
            ops::select_blocks(dev, scratch, of.q(), std::span<const ops::block_row<float>>(&row, 1), 1, 512, chosen, counts));
        return scratch.bytes();
    };
    const std::size_t small = bytes(600);
    CHECK(bytes(400000) == small);
}
