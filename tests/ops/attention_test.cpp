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

/// Keys and values of one sequence, each chunk in memory of its own.
struct sequence {
    std::vector<std::vector<float>> key_chunks, value_chunks;
    std::vector<const float*> keys, values;
    ops::key_value_view<float> view;
    std::size_t width;

    sequence(std::size_t tokens, std::size_t width_, unsigned seed) : width(width_) {
        std::mt19937 generator(seed);
        std::normal_distribution<float> normal;
        for (std::size_t t = 0; t < tokens; t += chunk_rows) {
            key_chunks.emplace_back(chunk_rows * width);
            value_chunks.emplace_back(chunk_rows * width);
            for (float& x : key_chunks.back()) x = normal(generator);
            for (float& x : value_chunks.back()) x = normal(generator);
        }
        for (const auto& chunk : key_chunks) keys.push_back(chunk.data());
        for (const auto& chunk : value_chunks) values.push_back(chunk.data());
        view = {keys.data(), values.data(), chunk_shift, width};
    }
    float* key(std::size_t t) { return &key_chunks[t / chunk_rows][t % chunk_rows * width]; }
    float* value(std::size_t t) { return &value_chunks[t / chunk_rows][t % chunk_rows * width]; }
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
    REQUIRE(ops::attention(dev, scratch, p.view().rows_range(first, count),
                           std::span<const ops::attention_row<float>>(p.rows).subspan(first, count), p.shape, p.scale(),
                           matrix_view<float>(y.data(), count, width)));
    return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Softmax attention of one row in double.
std::vector<float> naive(const problem& p, std::size_t r, sequence& from) {
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

namespace {

/// Attention of two rows over 300 tokens stored as `Scalar`, all of them or every third, has the bits of that over the floats
/// that they stand for.
template <class Isa, class Scalar>
void check_stored(std::size_t head_dim) {
    using stored = ops::stored_features<Scalar>;
    using element = typename stored::element;
    fg::device::cpu<Isa> dev;
    const ops::attention_heads shape{12, 2, head_dim};
    const std::size_t tokens = 300, width = 2 * head_dim, elements = stored::elements(width), q_width = 12 * head_dim;
    sequence floats(tokens, width, 17);
    std::vector<element> keys(tokens * elements), values(tokens * elements);
    const auto store = [&](float* row, element* to) {
        if constexpr (stored::quantised) {
            using format = typename stored::format;
            for (std::size_t b = 0; b < width / format::block_size; ++b) {
                auto* const block = reinterpret_cast<std::byte*>(to) + b * format::block_bytes;
                format::encode(row + b * format::block_size, block);
                format::decode(block, row + b * format::block_size);
            }
        } else {
            for (std::size_t i = 0; i < width; ++i) {
                if constexpr (std::is_same_v<Scalar, fg::half>)
                    to[i] = fg::to_half(row[i]);
                else
                    to[i] = fg::to_bfloat16(row[i]);
                row[i] = fg::to_float(to[i]);
            }
        }
    };
    for (std::size_t t = 0; t < tokens; ++t) {
        store(floats.key(t), &keys[t * elements]);
        store(floats.value(t), &values[t * elements]);
    }
    // Chunks of 64 tokens.
    std::vector<const element*> key_chunks, value_chunks;
    for (std::size_t t = 0; t < tokens; t += 64) {
        key_chunks.push_back(&keys[t * elements]);
        value_chunks.push_back(&values[t * elements]);
    }
    const ops::key_value_view<Scalar> view{key_chunks.data(), value_chunks.data(), 6, elements};
    std::mt19937 generator(18);
    std::normal_distribution<float> normal;
    std::vector<float> q(2 * q_width), a(q.size()), b(q.size());
    for (float& x : q) x = normal(generator);
    std::vector<std::uint32_t> list;
    for (std::uint32_t t = 1; t < tokens; t += 3) list.push_back(t);
    fg::workspace scratch;
    const matrix_view<const float> queries(q.data(), 2, q_width);
    for (const std::uint32_t* chosen :
         {static_cast<const std::uint32_t*>(nullptr), static_cast<const std::uint32_t*>(list.data())}) {
        const std::size_t seen = chosen != nullptr ? list.size() : tokens;
        const ops::attention_row<Scalar> rows[] = {{&view, chosen, seen - 1}, {&view, chosen, seen}};
        const ops::attention_row<float> float_rows[] = {{&floats.view, chosen, seen - 1}, {&floats.view, chosen, seen}};
        REQUIRE(ops::attention(dev, scratch, queries, std::span<const ops::attention_row<Scalar>>(rows), shape, 0.2f,
                               matrix_view<float>(a.data(), 2, q_width)));
        REQUIRE(ops::attention(dev, scratch, queries, std::span<const ops::attention_row<float>>(float_rows), shape, 0.2f,
                               matrix_view<float>(b.data(), 2, q_width)));
        CHECK(same_bits(a, b));
    }
}

}  // namespace

TEST_CASE("keys and values of any stored type give what their values give") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const std::size_t head_dim : {37u, 64u}) {
            check_stored<Isa, fg::half>(head_dim);
            check_stored<Isa, fg::bfloat16>(head_dim);
        }
        for (const std::size_t head_dim : {32u, 96u}) check_stored<Isa, fg::quant::q8_0>(head_dim);
        fg::device::cpu<Isa> dev;
        fg::workspace scratch;
        std::vector<float> q(48), y(48);
        const ops::key_value_view<fg::quant::q8_0> nothing;
        const ops::attention_row<fg::quant::q8_0> row[] = {{&nothing, nullptr, 0}};
        CHECK(ops::attention(dev, scratch, matrix_view<const float>(q.data(), 1, 48),
                             std::span<const ops::attention_row<fg::quant::q8_0>>(row), ops::attention_heads{1, 1, 48}, 1.0f,
                             matrix_view<float>(y.data(), 1, 48))
                  .error()
                  .code == fg::errc::shape_mismatch);
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
        return ops::attention(dev, scratch, matrix_view<const float>(q.data(), q_rows, q_cols),
                              std::span<const ops::attention_row<float>>(rows), shape, 1.0f,
                              matrix_view<float>(y.data(), 1, y_cols))
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
