#include "frugal/ops/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "frugal/device/cpu/simd.hpp"
#include "frugal/tensor/scalar.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using fg::matrix_view;

namespace {

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t chunk_shift = 5, chunk_rows = 32;

template <class Scalar>
Scalar narrow(float value) {
    if constexpr (std::is_same_v<Scalar, float>)
        return value;
    else
        return fg::to_half(value);
}

/// Keys and values of one sequence, each chunk in memory of its own.
template <class Scalar = float>
struct sequence {
    std::vector<std::vector<Scalar>> key_chunks, value_chunks;
    std::vector<const Scalar*> keys, values;
    ops::key_value_view<Scalar> view;
    std::size_t width;

    sequence(std::size_t tokens, std::size_t width_, unsigned seed) : width(width_) {
        std::mt19937 generator(seed);
        std::normal_distribution<float> normal;
        for (std::size_t t = 0; t < tokens; t += chunk_rows) {
            key_chunks.emplace_back(chunk_rows * width);
            value_chunks.emplace_back(chunk_rows * width);
            for (Scalar& x : key_chunks.back()) x = narrow<Scalar>(normal(generator));
            for (Scalar& x : value_chunks.back()) x = narrow<Scalar>(normal(generator));
        }
        for (const auto& chunk : key_chunks) keys.push_back(chunk.data());
        for (const auto& chunk : value_chunks) values.push_back(chunk.data());
        view = {keys.data(), values.data(), chunk_shift, width};
    }
    Scalar* key(std::size_t t) { return &key_chunks[t / chunk_rows][t % chunk_rows * width]; }
    Scalar* value(std::size_t t) { return &value_chunks[t / chunk_rows][t % chunk_rows * width]; }
};

struct problem {
    ops::attention_heads shape{6, 2, 40};
    std::size_t gap = 7;  // floats between the heads of q
    std::vector<float> q;
    std::vector<ops::attention_row<float>> rows;

    void queries(unsigned seed) {
        std::mt19937 generator(seed);
        std::normal_distribution<float> normal(0, 2);
        q.resize(rows.size() * shape.heads * (shape.head_dim + gap));
        for (float& x : q) x = normal(generator);
    }
    [[nodiscard]] matrix_view<const float> view() const { return {q.data(), rows.size(), shape.heads * (shape.head_dim + gap)}; }
    [[nodiscard]] float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }
};

template <class Device>
std::vector<float> attend(Device& dev, const problem& p, std::size_t first = 0, std::size_t count = ~std::size_t{0}) {
    count = std::min(count, p.rows.size() - first);
    fg::workspace scratch;
    {  // What the workspace hands out may hold anything.
        fg::workspace::scope scope(scratch);
        float* junk = scratch.floats(200000).value();
        std::fill(junk, junk + 200000, quiet_nan);
    }
    const std::size_t width = p.shape.heads * p.shape.head_dim;
    std::vector<float> y(count * width, quiet_nan);
    REQUIRE(ops::attention(dev, scratch, p.view().rows_range(first, count), p.shape, p.scale(),
                           std::span<const ops::attention_row<float>>(p.rows).subspan(first, count),
                           matrix_view<float>(y.data(), count, width)));
    return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Softmax attention of one row in double.
std::vector<float> naive(const problem& p, std::size_t r, sequence<float>& from) {
    const auto& row = p.rows[r];
    std::vector<float> y(p.shape.heads * p.shape.head_dim, 0.0f);
    for (std::size_t h = 0; h < p.shape.heads; ++h) {
        const std::size_t offset = h / (p.shape.heads / p.shape.kv_heads) * p.shape.head_dim;
        std::vector<double> weights(row.visible);
        double greatest = -1e300, sum = 0;
        for (std::size_t i = 0; i < row.visible; ++i) {
            const float* key = from.key(row.list != nullptr ? row.list[i] : i) + offset;
            double dot = 0;
            for (std::size_t d = 0; d < p.shape.head_dim; ++d)
                dot += static_cast<double>(p.view()(r, h * (p.shape.head_dim + p.gap) + d)) * static_cast<double>(key[d]);
            weights[i] = dot / std::sqrt(static_cast<double>(p.shape.head_dim));
            greatest = std::max(greatest, weights[i]);
        }
        for (double& weight : weights) sum += weight = std::exp(weight - greatest);
        for (std::size_t d = 0; d < p.shape.head_dim; ++d) {
            double out = 0;
            for (std::size_t i = 0; i < row.visible; ++i)
                out += weights[i] / sum * static_cast<double>(from.value(row.list != nullptr ? row.list[i] : i)[offset + d]);
            y[h * p.shape.head_dim + d] = static_cast<float>(out);
        }
    }
    return y;
}

}  // namespace

TEST_CASE("attention equals a softmax in double precision") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const auto& shape : {ops::attention_heads{6, 2, 40}, ops::attention_heads{4, 4, 13}, ops::attention_heads{9, 1, 64},
                                  ops::attention_heads{1, 1, 3}}) {
            sequence keys(1100, shape.kv_heads * shape.head_dim, 1);
            problem p;
            p.shape = shape;
            for (const std::size_t visible : {1u, 2u, 3u, 31u, 32u, 33u, 64u, 500u, 1023u, 1024u, 1025u, 1100u})
                p.rows.push_back({&keys.view, nullptr, visible});
            p.queries(2);
            const auto got = attend(dev, p);
            const std::size_t width = shape.heads * shape.head_dim;
            for (std::size_t r = 0; r < p.rows.size(); ++r)
                test::check_close({got.begin() + static_cast<std::ptrdiff_t>(r * width),
                                   got.begin() + static_cast<std::ptrdiff_t>((r + 1) * width)},
                                  naive(p, r, keys), {2e-6, 5e-6}, "row");
        }
    });
}

TEST_CASE("a list of tokens picks them, and a list of all tokens gives the bits of no list") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        problem p;
        sequence keys(2500, 80, 3);
        std::vector<std::uint32_t> all(2500), some;
        std::iota(all.begin(), all.end(), 0u);
        for (std::uint32_t t = 5; t < 2500; t += 1 + t % 3) some.push_back(t);
        for (const std::size_t visible : {7u, 1024u, 1056u, 2500u}) {
            p.rows = {{&keys.view, nullptr, visible}, {&keys.view, all.data(), visible}, {&keys.view, nullptr, visible}};
            p.queries(4);
            std::copy_n(p.q.begin(), p.q.size() / 3, p.q.begin() + static_cast<std::ptrdiff_t>(p.q.size() / 3));
            const auto y = attend(dev, p);
            CHECK(std::memcmp(&y[0], &y[240], 240 * sizeof(float)) == 0);
        }
        p.rows = {{&keys.view, some.data(), some.size()}};
        p.queries(5);
        // Tokens that are not listed may hold anything.
        auto poisoned = keys;
        std::vector<bool> listed(2500);
        for (const std::uint32_t t : some) listed[t] = true;
        for (std::size_t t = 0; t < 2500; ++t)
            if (!listed[t]) std::fill_n(keys.key(t), 80, quiet_nan), std::fill_n(keys.value(t), 80, quiet_nan);
        test::check_close(attend(dev, p), naive(p, 0, keys), {2e-6, 5e-6}, "gathered");
    });
}

TEST_CASE("C18 a row has the same bits whatever else is in the batch and for any number of threads") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> serial;
        problem p;
        p.shape.head_dim = 37;  // not a whole number of registers
        sequence first(3000, 74, 6), second(700, 74, 7);
        std::vector<std::uint32_t> list(1500);
        for (std::uint32_t i = 0; i < 1500; ++i) list[i] = 2 * i;
        for (std::size_t r = 0; r < 19; ++r) p.rows.push_back({&first.view, nullptr, 2950 + r});
        for (std::size_t r = 0; r < 5; ++r) p.rows.push_back({&second.view, nullptr, 600 + 17 * r});
        p.rows.push_back({});
        p.rows.push_back({&first.view, list.data(), 1500});
        p.rows.push_back({&first.view, list.data(), 1025});
        p.rows.push_back({&first.view, nullptr, 3});
        p.queries(8);
        const auto whole = attend(serial, p);
        const std::size_t width = p.shape.heads * p.shape.head_dim;
        for (std::size_t r = 0; r < p.rows.size(); ++r) {
            const auto alone = attend(serial, p, r, 1);
            CHECK(std::memcmp(alone.data(), &whole[r * width], width * sizeof(float)) == 0);
        }
        for (const std::size_t count : {2u, 3u, 8u, 100u}) {  // 100: more threads than tasks, so spans are shared out
            test::threads pool(count);
            fg::device::cpu<Isa> many{pool};
            CHECK(same_bits(attend(many, p), whole));
            for (const std::size_t r : {0u, 18u, 25u}) {
                const auto alone = attend(many, p, r, 1);
                CHECK(std::memcmp(alone.data(), &whole[r * width], width * sizeof(float)) == 0);
            }
        }
    });
}

TEST_CASE("C62 a query that sees nothing gives zeros") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        problem p;
        sequence keys(4, 80, 9);
        const std::uint32_t list[] = {0};
        p.rows = {{&keys.view, nullptr, 0}, {&keys.view, list, 0}, {}, {nullptr, nullptr, 4}};
        p.queries(10);
        for (const float y : attend(dev, p)) CHECK(y == 0.0f);
        // Keys that score -inf weigh nothing; if all do, the row is 0 as well.
        sequence far(40, 80, 11);
        for (std::size_t t = 0; t < 40; ++t) std::fill_n(far.key(t), 80, -std::numeric_limits<float>::infinity());
        p.rows = {{&far.view, nullptr, 40}};
        p.queries(12);
        for (float& x : p.q) x = std::abs(x);
        for (const float y : attend(dev, p)) CHECK(y == 0.0f);
        std::fill_n(far.key(35), 80, 0.0f);
        const auto y = attend(dev, p);
        for (std::size_t h = 0; h < 6; ++h)
            for (std::size_t d = 0; d < 40; ++d) CHECK(y[h * 40 + d] == far.value(35)[h / 3 * 40 + d]);
    });
}

TEST_CASE("keys that only a neighbour sees do not reach a row") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        problem p;
        sequence keys(64, 80, 13);
        for (std::size_t t = 40; t < 64; ++t) std::fill_n(keys.key(t), 80, quiet_nan), std::fill_n(keys.value(t), 80, quiet_nan);
        for (std::size_t r = 0; r < 8; ++r) p.rows.push_back({&keys.view, nullptr, r == 7 ? std::size_t{64} : 33 + r});
        p.queries(14);
        const auto y = attend(dev, p);
        for (std::size_t i = 0; i < 7 * 240; ++i) REQUIRE(std::isfinite(y[i]));
        CHECK(std::isnan(y[7 * 240]));
    });
}

TEST_CASE("scores of any size do not overflow") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        problem p;
        sequence keys(1300, 80, 15);
        for (std::size_t t = 0; t < 1300; ++t)
            for (std::size_t i = 0; i < 80; ++i) keys.key(t)[i] *= t % 7 == 0 ? 1e4f : 1e-3f;
        p.rows = {{&keys.view, nullptr, 1300}};
        p.queries(16);
        test::check_close(attend(dev, p), naive(p, 0, keys), {1e-3, 1e-3}, "large scores");
    });
}

TEST_CASE("a cache of halves gives what its values give") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const ops::attention_heads shape{4, 2, 37};
        sequence<fg::half> halves(300, 74, 17);
        sequence<float> floats(300, 74, 17);
        for (std::size_t t = 0; t < 300; ++t)
            for (std::size_t i = 0; i < 74; ++i) {
                floats.key(t)[i] = fg::to_float(halves.key(t)[i]);
                floats.value(t)[i] = fg::to_float(halves.value(t)[i]);
            }
        std::mt19937 generator(18);
        std::normal_distribution<float> normal;
        std::vector<float> q(2 * 148), a(2 * 148), b(2 * 148);
        for (float& x : q) x = normal(generator);
        fg::workspace scratch;
        const ops::attention_row<fg::half> half_rows[] = {{&halves.view, nullptr, 299}, {&halves.view, nullptr, 300}};
        const ops::attention_row<float> float_rows[] = {{&floats.view, nullptr, 299}, {&floats.view, nullptr, 300}};
        const matrix_view<const float> queries(q.data(), 2, 148);
        REQUIRE(ops::attention(dev, scratch, queries, shape, 0.2f, std::span<const ops::attention_row<fg::half>>(half_rows),
                               matrix_view<float>(a.data(), 2, 148)));
        REQUIRE(ops::attention(dev, scratch, queries, shape, 0.2f, std::span<const ops::attention_row<float>>(float_rows),
                               matrix_view<float>(b.data(), 2, 148)));
        CHECK(same_bits(a, b));
    });
}

TEST_CASE("the output gate multiplies by a sigmoid that never overflows") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::size_t rows = 3, heads = 2, head_dim = 21, stride = 30;
        std::vector<float> gate(rows * heads * stride, quiet_nan), y(rows * heads * head_dim), want(y.size());
        const float extremes[] = {0.0f,
                                  -0.0f,
                                  1e-8f,
                                  20.0f,
                                  -20.0f,
                                  87.0f,
                                  -87.0f,
                                  1000.0f,
                                  -1000.0f,
                                  std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::infinity()};
        for (std::size_t i = 0; i < rows * heads; ++i)
            for (std::size_t d = 0; d < head_dim; ++d) {
                const float g = d < 11 ? extremes[d] : static_cast<float>(d) * 0.7f - 11.0f;
                gate[i * stride + d] = g;
                y[i * head_dim + d] = 3.0f;
                want[i * head_dim + d] = static_cast<float>(3.0 / (1.0 + std::exp(-static_cast<double>(g))));
            }
        REQUIRE(ops::gate_heads(dev, matrix_view<const float>(gate.data(), rows, heads * stride), heads,
                                matrix_view<float>(y.data(), rows, heads * head_dim)));
        test::check_close(y, want, {1e-37, 5e-7}, "gated");
        CHECK(ops::gate_heads(dev, matrix_view<const float>(gate.data(), rows, heads * 20), heads,
                              matrix_view<float>(y.data(), rows, heads * head_dim))
                  .error()
                  .code == fg::errc::shape_mismatch);
    });
}

TEST_CASE("wrong shapes are errors") {
    fg::device::cpu<fg::isa::baseline> dev;
    fg::workspace scratch;
    sequence keys(4, 80, 19);
    const ops::attention_row<float> rows[] = {{&keys.view, nullptr, 4}};
    std::vector<float> q(240), y(240);
    const auto code = [&](std::size_t q_rows, std::size_t q_cols, ops::attention_heads shape, std::size_t y_cols) {
        return ops::attention(dev, scratch, matrix_view<const float>(q.data(), q_rows, q_cols), shape, 1.0f,
                              std::span<const ops::attention_row<float>>(rows), matrix_view<float>(y.data(), 1, y_cols))
            .error()
            .code;
    };
    CHECK(code(1, 240, {6, 4, 40}, 240) == fg::errc::shape_mismatch);  // 4 does not divide 6
    CHECK(code(1, 239, {6, 2, 40}, 240) == fg::errc::shape_mismatch);
    CHECK(code(1, 240, {6, 2, 40}, 200) == fg::errc::shape_mismatch);
    CHECK(code(0, 240, {6, 2, 40}, 240) == fg::errc::shape_mismatch);
    CHECK(code(1, 240, {6, 0, 40}, 240) == fg::errc::shape_mismatch);
    CHECK(code(1, 120, {6, 2, 40}, 240) == fg::errc::shape_mismatch);  // heads closer than head_dim
}
