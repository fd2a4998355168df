// Attention over spans of keys on the emulator, against softmax in double.
#include "frugal/ops/attention/attention_cuda.cuh"

#include "frugal/ops/attention/attention_tiles_cuda.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "golden.hpp"
#include "layer_data.hpp"
#include "mutation.hpp"
#include "simt_data.hpp"

namespace fg = frugal;
namespace gpu = frugal::ops::cuda;
namespace ops = frugal::ops;
namespace quant = frugal::quant;
using test::device_matrix;

namespace {

constexpr std::size_t chunk_shift = 5, chunk_rows = 32;

std::vector<float> normals(std::size_t n, unsigned seed, float sigma = 1) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, sigma);
    std::vector<float> out(n);
    for (float& x : out) x = normal(generator);
    return out;
}

/// Numbers put in place of random ones: index and value.
using replaced = std::vector<std::pair<std::size_t, float>>;

/// Rows of features stored as Scalar, in chunks on the device; `worth`: what they are worth as floats.
template <class Scalar>
struct stored {
    using element = typename ops::stored_features<Scalar>::element;
    std::size_t width, stride;
    std::vector<float> worth;
    std::vector<std::unique_ptr<simt::device_array<element>>> chunks;
    std::unique_ptr<simt::device_array<const element*>> starts;

    stored(std::size_t tokens, std::size_t features, unsigned seed, const replaced& odd)
        : width(features), stride(ops::stored_features<Scalar>::elements(features)) {
        worth = normals(tokens * width, seed);
        for (const auto& [at, value] : odd) worth[at] = value;
        std::vector<element> all(tokens * stride);
        for (std::size_t t = 0; t < tokens; ++t) {
            float* const row = &worth[t * width];
            element* const to = &all[t * stride];
            if constexpr (std::is_same_v<Scalar, quant::q8_0>) {
                for (std::size_t b = 0; b < width / 32; ++b) {
                    quant::q8_0::encode(row + 32 * b, reinterpret_cast<std::byte*>(to) + 34 * b);
                    quant::q8_0::decode(reinterpret_cast<std::byte*>(to) + 34 * b, row + 32 * b);
                }
            } else {
                for (std::size_t i = 0; i < width; ++i) {
                    if constexpr (std::is_same_v<Scalar, fg::half>)
                        to[i] = fg::to_half(row[i]);
                    else if constexpr (std::is_same_v<Scalar, fg::bfloat16>)
                        to[i] = fg::to_bfloat16(row[i]);
                    else
                        to[i] = row[i];
                    row[i] = fg::to_float(to[i]);
                }
            }
        }
        std::vector<const element*> pointers;
        for (std::size_t t = 0; t < tokens; t += chunk_rows) {
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>(t * stride);
            chunks.push_back(std::make_unique<simt::device_array<element>>(
                std::vector<element>(begin, begin + static_cast<std::ptrdiff_t>(std::min(chunk_rows, tokens - t) * stride))));
            pointers.push_back(chunks.back()->data());
        }
        starts = std::make_unique<simt::device_array<const element*>>(pointers);
    }
};

struct row_spec {
    std::vector<std::uint32_t> list;  ///< empty: the first `visible`
    std::uint32_t visible = 0;
};

template <class Scalar>
struct problem {
    gpu::split_heads shape;
    std::size_t gap;
    stored<Scalar> keys, values;
    std::vector<row_spec> rows;
    std::vector<float> q;

    problem(gpu::split_heads shape_, std::size_t tokens, std::vector<row_spec> rows_, std::size_t gap_ = 8,
            const replaced& odd_keys = {}, const replaced& odd_values = {})
        : shape(shape_),
          gap(gap_),
          keys(tokens, shape.kv_heads * shape.head_dim, 1, odd_keys),
          values(tokens, shape.kv_heads * shape.head_dim, 2, odd_values),
          rows(std::move(rows_)),
          q(normals(rows.size() * shape.heads * (shape.head_dim + gap), 3, 2)) {}

    [[nodiscard]] float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }

    [[nodiscard]] std::vector<float> run(std::size_t first = 0, std::size_t count = ~std::size_t{0},
                                         gpu::row_keys shared = gpu::row_keys::own) const {
        count = std::min(count, rows.size() - first);
        std::vector<gpu::split_row<Scalar>> specs;
        std::vector<std::unique_ptr<simt::device_array<std::uint32_t>>> lists;
        std::size_t most = 0;
        for (std::size_t r = first; r < first + count; ++r) {
            gpu::split_row<Scalar> row;
            row.cache = {keys.starts->data(), values.starts->data(), chunk_shift, keys.stride};
            row.visible = rows[r].visible;
            if (!rows[r].list.empty()) {
                lists.push_back(std::make_unique<simt::device_array<std::uint32_t>>(rows[r].list));
                row.list = lists.back()->data();
            }
            most = std::max<std::size_t>(most, row.visible);
            specs.push_back(row);
        }
        const std::size_t q_width = shape.heads * (shape.head_dim + gap);
        simt::device_array<gpu::split_row<Scalar>> device_rows(specs);
        device_matrix queries({q.begin() + static_cast<std::ptrdiff_t>(first * q_width),
                               q.begin() + static_cast<std::ptrdiff_t>((first + count) * q_width)},
                              q_width);
        device_matrix y(count, shape.heads * shape.head_dim);
        simt::device_array<float> partial(gpu::split_partial(count, shape, most));
        const cudaError_t started =
            gpu::split_attention<Scalar>(queries, shape, scale(), device_rows.data(), most, partial.data(), y, nullptr, shared);
        REQUIRE(started == cudaSuccess);
        return y.to_host();
    }

    /// The same by matrix units: queries that see no fewer keys than the one before.
    [[nodiscard]] std::vector<float> run_tiles(std::size_t first, std::size_t count) const {
        std::vector<std::uint32_t> seen;
        for (std::size_t r = first; r < first + count; ++r) seen.push_back(rows[r].visible);
        const std::size_t width = shape.heads * (shape.head_dim + gap);
        device_matrix queries({q.begin() + static_cast<std::ptrdiff_t>(first * width),
                               q.begin() + static_cast<std::ptrdiff_t>((first + count) * width)},
                              width);
        device_matrix y(count, shape.heads * shape.head_dim);
        simt::device_array<std::uint32_t> visible(seen);
        const ops::key_value_view<fg::bfloat16> cache{keys.starts->data(), values.starts->data(), chunk_shift, keys.stride};
        const cudaError_t started = gpu::tile_attention(queries, shape, scale(), cache, visible.data(), y, nullptr);
        REQUIRE(started == cudaSuccess);
        return y.to_host();
    }

    /// Softmax attention in double.
    [[nodiscard]] std::vector<float> reference() const {
        std::vector<float> y;
        const std::size_t dim = shape.head_dim, width = keys.width;
        for (std::size_t r = 0; r < rows.size(); ++r)
            for (std::size_t h = 0; h < shape.heads; ++h) {
                const std::size_t offset = h / (shape.heads / shape.kv_heads) * dim;
                std::vector<double> weights(rows[r].visible);
                double greatest = -1e300, sum = 0;
                const auto token = [&](std::size_t i) { return rows[r].list.empty() ? i : std::size_t{rows[r].list[i]}; };
                for (std::size_t i = 0; i < weights.size(); ++i) {
                    double dot = 0;
                    for (std::size_t d = 0; d < dim; ++d)
                        dot += static_cast<double>(q[(r * shape.heads + h) * (dim + gap) + d]) *
                               static_cast<double>(keys.worth[token(i) * width + offset + d]);
                    weights[i] = dot / std::sqrt(static_cast<double>(dim));
                    greatest = std::max(greatest, weights[i]);
                }
                for (double& weight : weights) sum += weight = std::exp(weight - greatest);
                for (std::size_t d = 0; d < dim; ++d) {
                    double out = 0;
                    for (std::size_t i = 0; i < weights.size(); ++i)
                        out += weights[i] / sum * static_cast<double>(values.worth[token(i) * width + offset + d]);
                    y.push_back(static_cast<float>(out));
                }
            }
        return y;
    }
};

/// The sums of spans one after the other, as merge_spans adds them. Grid: [heads, rows].
template <class Scalar>
__global__ void merge_serially(const float* partial, int spans, int head_dim, const gpu::split_row<Scalar>* rows, float* y) {
    const auto visible = static_cast<int>((rows[blockIdx.y].visible + gpu::split_keys - 1) / gpu::split_keys);
    const std::size_t head = blockIdx.y * static_cast<std::size_t>(gridDim.x) + blockIdx.x;
    const auto at = [&](int s, int i) {
        return partial[(head * static_cast<std::size_t>(spans) + static_cast<std::size_t>(s)) *
                           static_cast<std::size_t>(head_dim + 2) +
                       static_cast<std::size_t>(i)];
    };
    float most = -INFINITY, sum = 0.0f;
    for (int s = 0; s < visible; ++s) most = fmaxf(most, at(s, head_dim));
    for (int s = 0; s < visible; ++s) sum = fmaf(expf(at(s, head_dim) - most), at(s, head_dim + 1), sum);
    for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += static_cast<int>(blockDim.x)) {
        float value = 0.0f;
        for (int s = 0; s < visible; ++s) value = fmaf(expf(at(s, head_dim) - most), at(s, d), value);
        y[head * static_cast<std::size_t>(head_dim) + static_cast<std::size_t>(d)] = visible == 0 ? 0.0f : value / sum;
    }
}

std::vector<row_spec> visible_rows(std::initializer_list<std::uint32_t> counts) {
    std::vector<row_spec> out;
    for (const std::uint32_t n : counts) out.push_back({{}, n});
    return out;
}

}  // namespace

TEST_CASE("attention equals a softmax in double, for every scalar, width and group of heads") {
    const auto check = [](const auto& p) { test::check_close(p.run(), p.reference(), {3e-6, 5e-6}, "attention"); };
    const auto rows = visible_rows({0, 1, 31, 32, 33, 127, 128, 129, 300});
    check(problem<float>({6, 2, 40}, 300, rows));
    check(problem<float>({2, 2, 13}, 300, rows, 7));
    check(problem<float>({10, 1, 256}, 300, visible_rows({1, 200}), 0));  // a group in two slices
    check(problem<fg::bfloat16>({8, 1, 256}, 300, visible_rows({5, 300})));
    check(problem<fg::bfloat16>({4, 2, 128}, 300, rows));
    check(problem<fg::half>({5, 1, 128}, 300, visible_rows({129})));
    check(problem<fg::half>({3, 3, 24}, 300, rows));
    check(problem<quant::q8_0>({4, 1, 64}, 300, rows));
    check(problem<quant::q8_0>({2, 1, 256}, 300, visible_rows({257})));
}

TEST_CASE("a list of tokens picks them, and a list of all tokens gives the bits of no list") {
    std::vector<std::uint32_t> all(400), some;
    std::iota(all.begin(), all.end(), 0u);
    for (std::uint32_t t = 5; t < 400; t += 1 + t % 3) some.push_back(t);
    problem<float> p({6, 2, 40}, 400,
                     {{{}, 400}, {all, 400}, {{}, 130}, {all, 130}, {some, static_cast<std::uint32_t>(some.size())}});
    const std::size_t q_width = p.q.size() / 5;
    for (const std::size_t r : {1u, 3u})
        std::copy_n(p.q.begin() + static_cast<std::ptrdiff_t>((r - 1) * q_width), q_width,
                    p.q.begin() + static_cast<std::ptrdiff_t>(r * q_width));
    const auto y = p.run();
    CHECK(std::memcmp(&y[0], &y[240], 240 * sizeof(float)) == 0);
    CHECK(std::memcmp(&y[480], &y[720], 240 * sizeof(float)) == 0);
    test::check_close(y, p.reference(), {3e-6, 5e-6}, "gathered");
}

TEST_CASE(
    "C18 C62 a row has the same bits whatever else is in the batch and under every order; one that sees nothing gives zeros") {
    const problem<fg::bfloat16> p({4, 2, 128}, 300, visible_rows({0, 7, 150, 300}));
    const auto whole = p.run();
    const std::size_t width = 4 * 128;
    for (std::size_t r = 0; r < 4; ++r) {
        const auto alone = p.run(r, 1);
        CHECK(std::memcmp(alone.data(), &whole[r * width], width * sizeof(float)) == 0);
    }
    CHECK(std::all_of(whole.begin(), whole.begin() + 512, [](float y) { return y == 0.0f; }));
    CHECK(simt::same_under_all_schedules([&] { return p.run(); }));
}

TEST_CASE("rows that see one sequence share its keys and keep their bits, for every scalar, width and group of heads") {
    const auto check = [](const auto& p) {
        const auto want = p.run();
        CHECK(test::equal_bits(p.run(0, p.rows.size(), gpu::row_keys::of_one_sequence), want));
    };
    const auto rows = visible_rows({0, 1, 31, 32, 33, 127, 128, 129, 300});
    check(problem<float>({6, 2, 40}, 300, rows));
    check(problem<float>({1, 1, 13}, 300, visible_rows({0, 0, 0, 0, 0, 0, 1, 1, 2, 5, 6, 7, 130, 9, 10, 129, 12}), 7));
    check(problem<float>({24, 2, 256}, 150, visible_rows({127, 128, 129}), 0));  // a row lies in two blocks
    check(problem<float>({2, 1, 40}, 150, visible_rows({127, 129})));            // too few queries for a block
    check(problem<fg::bfloat16>({8, 1, 256}, 300, visible_rows({300, 5, 298, 299})));
    check(problem<fg::bfloat16>({4, 2, 128}, 300, rows));
    check(problem<fg::half>({12, 1, 128}, 300, visible_rows({129, 130})));
    check(problem<quant::q8_0>({4, 1, 64}, 300, rows));
    check(problem<quant::q8_0>({8, 1, 256}, 300, visible_rows({257, 258})));
    const problem<fg::bfloat16> p({4, 2, 128}, 300, rows);
    CHECK(simt::same_under_all_schedules([&] { return p.run(0, rows.size(), gpu::row_keys::of_one_sequence); }));
}

TEST_CASE("C18 among rows that share keys, too, those that are not finite reach the queries that see them alone") {
    constexpr std::size_t dim = 128, width = 2 * dim;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    std::vector<row_spec> rows;
    for (std::uint32_t r = 0; r < 40; ++r) rows.push_back({{}, r + 110});
    const problem<float> p({4, 2, dim}, 150, rows, 8, {{131 * width + dim + 3, nan}, {140 * width, infinity}},
                           {{120 * width + 5, nan}, {128 * width + dim, -infinity}});
    const auto got = p.run(0, rows.size(), gpu::row_keys::of_one_sequence);
    CHECK(test::equal_bits(got, p.run()));
    CHECK(std::all_of(got.begin(), got.begin() + 11 * 4 * dim, [](float y) { return std::isfinite(y); }));
}

TEST_CASE("spans are merged as if one after the other, however many there are") {
    constexpr std::size_t heads = 2, dim = 40, spans = 300;
    auto partial = normals(3 * heads * spans * (dim + 2), 1);
    for (std::size_t i = 0; i < partial.size(); i += dim + 2) partial[i + dim + 1] = 1.0f + std::abs(partial[i + dim + 1]);
    std::vector<gpu::split_row<float>> specs(3);
    specs[1].visible = 5 * gpu::split_keys;
    specs[2].visible = spans * gpu::split_keys - 7;
    const auto run = [&](bool serially) {
        simt::device_array<gpu::split_row<float>> rows(specs);
        simt::device_array<float> from(partial);
        device_matrix y(3, heads * dim);
        const auto launch = [&](auto kernel, dim3 grid, auto... more) {
            test::started(fg::device::gpu::launch(kernel, grid, dim3(gpu::merge_threads), 0, nullptr, from.data(),
                                                  static_cast<int>(spans), static_cast<int>(dim), rows.data(), y.data(),
                                                  more...));
        };
        if (serially)
            launch(merge_serially<float>, dim3(heads, 3));
        else
            launch(gpu::merge_spans<float>, dim3(heads, 3, 2), heads * dim);
        return y.to_host();
    };
    const auto want = run(true);
    CHECK(test::equal_bits(run(false), want));
    CHECK(simt::same_under_all_schedules([&] { return run(false); }));
    CHECK(test::unnoticed_barriers([&] { return run(false); }) == std::vector<std::string>{});
}

TEST_CASE("attention by matrix units equals a softmax in double, of queries in bfloat16") {
    for (const std::size_t dim : {std::size_t{64}, std::size_t{128}, std::size_t{256}})
        for (const std::size_t queries : {std::size_t{1}, std::size_t{70}}) {
            if (dim == 256 && queries == 1) continue;
            CAPTURE(dim);
            std::vector<row_spec> rows;
            for (std::size_t r = 0; r < queries; ++r) rows.push_back({{}, static_cast<std::uint32_t>(queries == 1 ? 37 : r)});
            problem<fg::bfloat16> p({4, 2, dim}, 90, rows);
            for (float& x : p.q) x = fg::to_float(fg::to_bfloat16(x));
            const auto run = [&](std::size_t first, std::size_t count) { return p.run_tiles(first, count); };
            const auto whole = run(0, queries);
            const auto greatest = std::abs(*std::max_element(p.values.worth.begin(), p.values.worth.end(),
                                                             [](float a, float b) { return std::abs(a) < std::abs(b); }));
            test::check_close(whole, p.reference(), {0x1p-8 * static_cast<double>(greatest), 1e-5}, "tiles");
            // Alone a query has the same bits; under every order of threads it has.
            const auto alone = run(queries / 2, 1);
            CHECK(std::memcmp(alone.data(), &whole[queries / 2 * 4 * dim], alone.size() * sizeof(float)) == 0);
            if (dim == 64) CHECK(simt::same_under_all_schedules([&] { return run(0, queries); }));
            if (dim == 64 && queries > 1)
                CHECK(test::unnoticed_barriers([&] { return run(0, queries); }) == std::vector<std::string>{});
        }
}

TEST_CASE("C18 keys and values that are not finite reach the queries that see them, and no other, by matrix units too") {
    constexpr std::size_t dim = 64, width = 2 * dim, heads = 4, count = 70;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    std::vector<row_spec> rows;
    for (std::uint32_t r = 0; r < count; ++r) rows.push_back({{}, r});
    const auto with = [&](const replaced& keys, const replaced& values) {
        return problem<fg::bfloat16>({heads, 2, dim}, 90, rows, 8, keys, values).run_tiles(0, count);
    };
    const auto want = with({}, {});
    // Token 21's second key-value head, token 40's first, feature 5 and 14 of their values.
    const auto of_keys = with({{21 * width + dim + 3, nan}, {40 * width, infinity}}, {});
    const auto of_values = with({}, {{21 * width + dim + 5, nan}, {40 * width + 14, -infinity}, {41 * width + 14, infinity}});
    std::size_t wrong = 0;
    for (std::size_t r = 0; r < count; ++r)
        for (std::size_t h = 0; h < heads; ++h)
            for (std::size_t d = 0; d < dim; ++d) {
                const std::size_t at = (r * heads + h) * dim + d;
                const bool sees = r > (h < 2 ? 40u : 21u);
                const auto untouched = [&](float y) { return std::memcmp(&y, &want[at], sizeof(float)) == 0; };
                if (!sees && !untouched(of_keys[at])) ++wrong;
                if (sees && h >= 2 && !std::isnan(of_keys[at])) ++wrong;
                const bool hit = sees && d == (h < 2 ? 14u : 5u);
                if (hit ? std::isfinite(of_values[at]) : !untouched(of_values[at])) ++wrong;
            }
    CHECK(wrong == 0);
}

TEST_CASE("NaN: a query, or a key that is seen, makes its heads NaN, also where nothing else is seen") {
    constexpr std::size_t dim = 64, width = 2 * dim, heads = 4, rows = 4;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<row_spec> specs = {{{}, 1}, {{}, 2}, {{}, gpu::split_keys + 1}, {{}, 2 * gpu::split_keys + 60}};
    const auto check = [&](const std::vector<float>& y, const auto& spoilt) {
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < y.size(); ++i)
            wrong += std::isnan(y[i]) == spoilt(i / (heads * dim), i / dim % heads) ? 0 : 1;
        CHECK(wrong == 0);
    };
    // The second key-value head of the first token, then of every token of the first span.
    for (const std::size_t tokens : {std::size_t{1}, std::size_t{gpu::split_keys}}) {
        replaced keys;
        for (std::size_t t = 0; t < tokens; ++t) keys.emplace_back(t * width + dim + t % dim, nan);
        const problem<fg::bfloat16> p({heads, 2, dim}, 400, specs, 8, keys);
        for (const auto& y : {p.run(), p.run_tiles(0, rows)}) check(y, [](std::size_t, std::size_t head) { return head >= 2; });
    }
    problem<fg::bfloat16> p({heads, 2, dim}, 400, specs);
    for (std::size_t r = 0; r < rows; ++r) p.q[(r * heads + r) * (dim + p.gap) + r] = nan;
    for (const auto& y : {p.run(), p.run_tiles(0, rows)}) check(y, [](std::size_t r, std::size_t head) { return r == head; });
}

TEST_CASE("attention refuses heads that it has no kernel for") {
    device_matrix q(1, 512), y(1, 512);
    CHECK(gpu::split_attention<float>(q, {1, 1, 512}, 1, nullptr, 1, nullptr, y, nullptr) == cudaErrorInvalidValue);
    CHECK(gpu::split_attention<quant::q8_0>(q, {1, 1, 40}, 1, nullptr, 1, nullptr, y, nullptr) == cudaErrorInvalidValue);
    CHECK(gpu::tile_attention(q, {1, 1, 512}, 1, {}, nullptr, y, nullptr) == cudaErrorInvalidValue);
}

TEST_CASE("a removed __syncthreads is noticed") {
    // A list of keys: of the two kernels the first has barriers, so it is run alone.
    const auto run = [](const auto& p, auto kernel) {
        std::vector<gpu::split_row<float>> specs(p.rows.size());
        for (auto& row : specs) {
            row.cache = {p.keys.starts->data(), p.values.starts->data(), chunk_shift, p.keys.stride};
            row.visible = 300;
        }
        simt::device_array<gpu::split_row<float>> rows(specs);
        device_matrix q(p.q, p.q.size() / specs.size());
        simt::device_array<float> partial(gpu::split_partial(specs.size(), p.shape, 300));
        const gpu::split_arguments a{
            q.data(),      p.q.size() / specs.size(), static_cast<int>(specs.size()), 128 + 8, 4, 1, 128, 128, 3, p.scale(),
            partial.data()};
        test::started(fg::device::gpu::launch(kernel, dim3(3, 1, 1), dim3(128), 0, nullptr, a, rows.data()));
        return partial.to_host();
    };
    if (!simt::access_checks_active()) return;  // a pointer that nobody wrote would be followed
    const problem<float> one({4, 1, 128}, 300, visible_rows({300})),
        several({4, 1, 128}, 300, visible_rows({300, 300, 300, 300}));
    CHECK(test::unnoticed_barriers([&] { return run(one, gpu::attend_spans<float, 4, 4, true>); }) == std::vector<std::string>{});
    CHECK(test::unnoticed_barriers([&] { return run(several, gpu::attend_spans<float, 8, 4, true, gpu::split_batches>); }) ==
          std::vector<std::string>{});
}
