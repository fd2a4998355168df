// What steps of whole models need beyond the operators, on the emulator: unpacking tokens, appending to caches, keys of blocks,
// sums of experts, the tokens before an n-gram.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/attention/cache_scalar.hpp"
#include "frugal/ops/attention/step_cuda.cuh"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/ops/block_select/index_keys_cuda.cuh"
#include "frugal/ops/elementwise/elementwise_cuda.cuh"
#include "frugal/ops/moe/combine_cuda.cuh"
#include "frugal/ops/ngram/ngram_cuda.cuh"
#include "frugal/ops/rope/rope.hpp"
#include "layer_data.hpp"
#include "mutation.hpp"
#include "simt_data.hpp"

namespace fg = frugal;
namespace gpu = frugal::ops::cuda;
namespace ops = frugal::ops;
namespace weight = frugal::ops::norm_weight;
using fg::matrix_view;
using test::device_matrix;
using test::normal_numbers;
using test::started;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

/// Tokens and everything that a step keeps of them.
struct step_memory {
    simt::device_array<gpu::step_token> from;
    simt::device_array<std::int64_t> tokens;
    simt::device_array<ops::rope_position> positions, block_positions, history;
    simt::device_array<std::uint32_t> visible, complete, length;
    std::uint32_t ratio;

    step_memory(const std::vector<gpu::step_token>& t, std::uint32_t before, std::uint32_t blocks_of, std::size_t history_rows)
        : from(t),
          tokens(t.size()),
          positions(t.size()),
          block_positions(t.size()),
          history(std::vector<ops::rope_position>(history_rows)),
          visible(t.size()),
          complete(t.size()),
          length(std::vector<std::uint32_t>{before}),
          ratio(blocks_of) {}
    [[nodiscard]] gpu::step_rows rows() {
        return {tokens.data(),   positions.data(),       visible.data(), ratio,
                complete.data(), block_positions.data(), history.data(), static_cast<std::uint32_t>(history.to_host().size())};
    }
    void begin(std::size_t count) { started(gpu::begin_step(from.data(), count, rows(), length.data(), nullptr)); }
};

std::vector<gpu::step_token> some_tokens(std::size_t count) {
    std::vector<gpu::step_token> out(count);
    for (std::size_t t = 0; t < count; ++t) {
        const auto i = static_cast<std::int32_t>(t);
        out[t] = {7 * i + 3, {i + 100, i / 2, -i}};
    }
    return out;
}

}  // namespace

TEST_CASE("a step's tokens are unpacked, counted in, and cut into blocks") {
    constexpr std::uint32_t ratio = 4;
    constexpr std::size_t count = 150, before = 6;  // more than a block has threads
    const auto all = some_tokens(before + count);
    const auto run = [&] {
        step_memory step(all, 0, ratio, count + ratio);
        step.begin(before);
        std::copy(all.begin() + before, all.end(), step.from.data());
        step.begin(count);
        CHECK(step.length.to_host().front() == before + count);
        std::vector<std::int64_t> out;
        for (std::size_t t = 0; t < count; ++t) {
            const auto position = [&](const ops::rope_position& p) {
                for (const std::int32_t value : {p.temporal, p.height, p.width}) out.push_back(value);
            };
            out.push_back(step.tokens.data()[t]);
            position(step.positions.data()[t]);
            out.push_back(step.visible.data()[t]);
            out.push_back(step.complete.data()[t]);
            position(step.block_positions.data()[t]);
        }
        return out;
    };
    simt::for_each_schedule([&] {
        const auto got = run();
        for (std::size_t t = 0; t < count; ++t) {
            const std::size_t seen = before + t + 1;
            const gpu::step_token& own = all[seen - 1];
            const ops::rope_position block = seen % ratio == 0 ? all[seen - ratio].position : ops::rope_position{};
            const std::vector<std::int64_t> want = {own.token,
                                                    own.position.temporal,
                                                    own.position.height,
                                                    own.position.width,
                                                    static_cast<std::int64_t>(seen),
                                                    static_cast<std::int64_t>(seen / ratio),
                                                    block.temporal,
                                                    block.height,
                                                    block.width};
            CHECK(std::equal(want.begin(), want.end(), got.begin() + static_cast<std::ptrdiff_t>(t * want.size())));
        }
    });
    CHECK(test::unnoticed_barriers(run) == std::vector<std::string>{});
    CHECK(test::unnoticed_barriers([&] {  // without blocks the length alone needs the barrier
              step_memory step(all, 6, 0, 1);
              step.begin(count);
              return step.visible.to_host();
          }) == std::vector<std::string>{});
}

TEST_CASE("keys and values are appended as the host's caches round them") {
    constexpr std::size_t tokens = 3, features = 96, before = 2;
    auto keys = normal_numbers(tokens * features, 1), values = normal_numbers(tokens * features, 2);
    keys[3] = nan_value, keys[40] = infinity, keys[70] = 1e-30f, values[5] = 65520.0f, values[features + 1] = -0.0f;
    values[6] = -1e30f, values[features + 40] = std::numeric_limits<float>::max();  // beyond the range of a type
    std::fill_n(values.begin() + 2 * features, 32, 0.0f);
    std::fill_n(values.begin() + 2 * features + 32, 32, 1e-39f);
    const auto check = [&]<class Scalar>(fg::type_tag<Scalar>, const auto& encode) {
        using element = typename ops::stored_features<Scalar>::element;
        const std::size_t stride = ops::stored_features<Scalar>::elements(features);
        simt::for_each_schedule([&] {
            device_matrix k(keys, features), v(values, features);
            simt::device_array<std::uint32_t> visible(std::vector<std::uint32_t>{3, 4, 5});
            simt::device_array<element> stored_keys(8 * stride), stored_values(8 * stride);
            simt::device_array<gpu::split_row<Scalar>> rows(tokens);
            started(gpu::append_keys_values<Scalar>(k, v, visible.data(), {stored_keys.data(), stored_values.data(), stride},
                                                    rows.data(), nullptr));
            for (std::size_t t = 0; t < tokens; ++t) {
                CHECK(rows.data()[t].visible == before + t + 1);
                CHECK(rows.data()[t].list == nullptr);
                for (const auto& [from, to] : {std::pair(&keys, &stored_keys), std::pair(&values, &stored_values)}) {
                    std::vector<element> want(stride);
                    encode(from->data() + t * features, want.data());
                    CHECK(std::memcmp(to->data() + (before + t) * stride, want.data(), stride * sizeof(element)) == 0);
                }
            }
        });
    };
    const auto each = [&](const auto& convert) {
        return [&convert](const float* from, auto* to) {
            for (std::size_t i = 0; i < features; ++i) to[i] = convert(from[i]);
        };
    };
    check(fg::type_tag<float>{}, each([](float x) { return x; }));
    keys[3] = 3.0f;  // NaN stays NaN, but not bit by bit
    check(fg::type_tag<fg::half>{}, each([](float x) { return ops::round_for_cache<fg::half>(x); }));
    check(fg::type_tag<fg::bfloat16>{}, each([](float x) { return ops::round_for_cache<fg::bfloat16>(x); }));
    keys[3] = nan_value;
    check(fg::type_tag<fg::quant::q8_0>{}, [](const float* from, std::int8_t* to) {
        fg::attention::key_value_store<fg::quant::q8_0> store(features);
        REQUIRE(store.reserve(1));
        store.write(0, from);
        std::copy_n(store.row(0), features / 32 * 34, to);
    });
}

TEST_CASE("a block's key is the mean of its tokens' keys, normed and rotated, in every precision; older blocks stay") {
    constexpr std::uint32_t ratio = 4;
    constexpr std::size_t dim = 40, rotary = 8, count = 7, before = 6, blocks = 3;
    constexpr float eps = 1e-6f;
    const auto raw = normal_numbers((before + count) * dim, 5), norm = normal_numbers(dim, 6);
    const auto all = some_tokens(before + count);
    const auto table = ops::rope_table::make(10000.0, rotary);
    // The formula, in double but for the angles.
    std::vector<float> want(blocks * dim);
    for (std::size_t b = 0; b < blocks; ++b) {
        std::vector<double> key(dim);
        double square = 0;
        for (std::size_t i = 0; i < dim; ++i) {
            for (std::size_t t = 0; t < ratio; ++t) key[i] += static_cast<double>(raw[(b * ratio + t) * dim + i]) / ratio;
            square += key[i] * key[i];
        }
        for (std::size_t i = 0; i < dim; ++i)
            key[i] = key[i] / std::sqrt(square / dim + static_cast<double>(eps)) * (1.0 + static_cast<double>(norm[i]));
        const auto at = static_cast<float>(all[b * ratio].position.temporal);
        for (std::size_t i = 0; i < dim; ++i) {
            double value = key[i];
            if (i < rotary) {
                const std::size_t j = i % (rotary / 2);
                const auto angle = static_cast<double>(at * table.inv_freq[j]);
                value = i < rotary / 2 ? key[j] * std::cos(angle) - key[j + rotary / 2] * std::sin(angle)
                                       : key[j + rotary / 2] * std::cos(angle) + key[j] * std::sin(angle);
            }
            want[b * dim + i] = static_cast<float>(value);
        }
    }
    /// The angle's position for the block that a token completes.
    const auto block_start = [&](std::size_t token) {
        return (token + 1) % ratio == 0 ? static_cast<float>(all[token + 1 - ratio].position.temporal) : nan_value;
    };
    const auto run = [&]<class Scalar>(fg::type_tag<Scalar>, std::vector<float>* scales) {
        simt::device_array<Scalar> keys(std::vector<Scalar>(4 * dim));
        simt::device_array<float> history((count + ratio) * dim), own_scales(std::vector<float>(4)), weights(norm);
        simt::device_array<gpu::select_row<Scalar>> rows(count);
        const auto append = [&](std::size_t first, std::size_t n) {
            std::vector<std::uint32_t> seen(n);
            for (std::size_t t = 0; t < n; ++t) seen[t] = static_cast<std::uint32_t>(first + t + 1);
            simt::device_array<std::uint32_t> visible(seen);
            gpu::step_rows step;
            step.visible = visible.data();
            step.ratio = ratio;
            step.history_rows = count + ratio;
            std::vector<float> angles(n * rotary);
            for (std::size_t t = 0; t < n; ++t)
                for (std::size_t j = 0; j < rotary / 2; ++j) {
                    const float angle = block_start(first + t) * table.inv_freq[j];
                    angles[t * rotary + j] = std::cos(angle), angles[t * rotary + rotary / 2 + j] = std::sin(angle);
                }
            device_matrix x({raw.begin() + static_cast<std::ptrdiff_t>(first * dim),
                             raw.begin() + static_cast<std::ptrdiff_t>((first + n) * dim)},
                            dim);
            simt::device_array<float> device_angles(angles);
            started(gpu::append_index_keys<weight::zero_centred>(
                matrix_view<const float>(x), step, weights.data(), eps, device_angles.data(), static_cast<int>(rotary / 2),
                {keys.data(), own_scales.data(), history.data()}, rows.data(), nullptr));
            for (std::size_t t = 0; t < n; ++t) CHECK(rows.data()[t].complete == (first + t + 1) / ratio);
        };
        append(0, before);
        append(before, count);
        if (scales != nullptr) *scales = own_scales.to_host();
        return keys.to_host();
    };
    simt::for_each_schedule([&] {
        const auto exact = run(fg::type_tag<float>{}, nullptr);
        for (std::size_t i = 0; i < want.size(); ++i) CHECK(exact[i] == doctest::Approx(want[i]).epsilon(1e-5));
        const auto halves = run(fg::type_tag<fg::half>{}, nullptr);
        const auto upper_halves = run(fg::type_tag<fg::bfloat16>{}, nullptr);
        std::vector<float> scales;
        const auto bytes = run(fg::type_tag<std::int8_t>{}, &scales);
        for (std::size_t i = 0; i < want.size(); ++i) {
            CHECK(halves[i].bits == fg::to_half(exact[i]).bits);
            CHECK(upper_halves[i].bits == fg::to_bfloat16(exact[i]).bits);
        }
        for (std::size_t b = 0; b < blocks; ++b) {
            std::vector<std::int8_t> codes(dim);
            CHECK(scales[b] == ops::encode_block_key(exact.data() + b * dim, dim, codes.data()));
            CHECK(std::equal(codes.begin(), codes.end(), bytes.begin() + static_cast<std::ptrdiff_t>(b * dim)));
        }
    });
    // The room of the sum is used once: the barrier behind it is for those that use it again.
    CHECK(test::unnoticed_barriers([&] { return run(fg::type_tag<float>{}, nullptr); }).size() <= 1);
    CHECK(test::unnoticed_barriers([&] { return run(fg::type_tag<std::int8_t>{}, nullptr); }).size() <= 1);
}

TEST_CASE("a token's experts are added in ascending order, then the shared one by its gate") {
    constexpr std::size_t rows = 3, top_k = 5, columns = 200;
    const auto outputs = normal_numbers(rows * top_k * columns, 1), weights = normal_numbers(rows * top_k, 2),
               shared = normal_numbers(rows * columns, 3), gate = normal_numbers(rows, 4);
    const std::vector<std::int32_t> index = {9, 2, 7, 0, 4, 1, 0, 3, 2, 4, 31, 30, 5, 6, 29};
    const auto run = [&](bool with_shared, bool with_gate) {
        device_matrix out(outputs, columns), extra(shared, columns), y(rows, columns);
        simt::device_array<std::int32_t> chosen(index);
        simt::device_array<float> w(weights), g(gate);
        started(gpu::combine_experts(out, chosen.data(), w.data(), top_k,
                                     with_shared ? matrix_view<const float>(extra) : matrix_view<const float>(),
                                     with_gate ? g.data() : nullptr, y, nullptr));
        return y.to_host();
    };
    simt::for_each_schedule([&] {
        for (const auto& [with_shared, with_gate] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
            const auto got = run(with_shared, with_gate);
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t c = 0; c < columns; ++c) {
                    float sum = 0.0f;
                    for (std::int32_t expert = 0; expert < 32; ++expert)
                        for (std::size_t k = 0; k < top_k; ++k)
                            if (index[r * top_k + k] == expert)
                                sum = std::fmaf(weights[r * top_k + k], outputs[(r * top_k + k) * columns + c], sum);
                    if (with_shared) sum = std::fmaf(with_gate ? ops::sigmoid(gate[r]) : 1.0f, shared[r * columns + c], sum);
                    CHECK(got[r * columns + c] == sum);
                }
        }
    });
    device_matrix nothing(1, 1);
    CHECK(gpu::combine_experts(nothing, nullptr, nullptr, 65, {}, nullptr, nothing, nullptr) == cudaErrorInvalidValue);
    CHECK(test::unnoticed_barriers([&] { return run(true, true); }) == std::vector<std::string>{});
}

TEST_CASE("the tokens before an n-gram move on by as many as came; streams begin as copies") {
    const std::vector<std::int64_t> before = {1, 2, 3}, tokens = {10, 11, 12, 13, 14};
    const auto run = [&](std::size_t count) {
        simt::device_array<std::int64_t> kept(before), came(tokens);
        started(gpu::keep_ngram_tokens(kept.data(), before.size(), came.data(), count, nullptr));
        return kept.to_host();
    };
    simt::for_each_schedule([&] {
        CHECK(run(0) == before);
        CHECK(run(1) == std::vector<std::int64_t>{2, 3, 10});
        CHECK(run(3) == std::vector<std::int64_t>{10, 11, 12});
        CHECK(run(5) == std::vector<std::int64_t>{12, 13, 14});
        const auto numbers = normal_numbers(2 * 5, 1);
        device_matrix x(numbers, 5), y(2, 15);
        started(gpu::expand_streams(x, y, nullptr));
        const auto got = y.to_host();
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == numbers[i / 15 * 5 + i % 5]);
    });
    CHECK(test::unnoticed_barriers([&] { return run(1); }) == std::vector<std::string>{});
}
