#pragma once
// The QSA layer of Qwen3.8-Flash-Next, with random weights and a random past.
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "bench.hpp"
#include "frugal/attention/qsa/qsa.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/quant/formats/q8_0.hpp"
#include "frugal/tensor/scalar.hpp"

namespace bench {

struct shape {
    static constexpr std::size_t hidden = 2560, heads = 24, kv_heads = 2, head_dim = 256, rotary_dim = 64, index_heads = 4,
                                 index_dim = 128, ratio = 4, budget = 2048;
    static constexpr std::array<int, 3> sections{11, 11, 10};
    static constexpr float theta = 1e7f, eps = 1e-6f;
};

/// What a layer is given: `tokens` new rows, already projected to queries, keys and values, and rows of the tokens before them.
struct qsa_data {
    explicit qsa_data(std::size_t tokens)
        : x(normal(tokens * shape::hidden, 1)),
          queries_and_gates(normal(tokens * queries_and_gates_width, 2)),
          keys(normal(tokens * kv_width, 3)),
          values(normal(tokens * kv_width, 4)),
          index_norm(normal(shape::index_dim, 5, 0.1f)),
          head_norm(normal(shape::head_dim, 6, 0.1f)),
          index_q(shape::index_heads * shape::index_dim, shape::hidden, 1, 7),
          index_k(shape::index_dim, shape::hidden, 1, 8),
          past(normal(pool + kv_width, 9)) {
        for (float& value : past) value = fg::to_float(fg::to_half(value));
        // Whole numbers up to 127 in every block of 32: 8-bit activations hold them exactly, whoever rounds them.
        for (std::size_t i = 0; i < x.size(); ++i)
            x[i] = i % 32 == 0 ? 127.0f : std::nearbyint(std::fmin(std::fmax(40 * x[i], -127.0f), 127.0f));
    }

    static constexpr std::size_t kv_width = shape::kv_heads * shape::head_dim;
    static constexpr std::size_t queries_and_gates_width = 2 * shape::heads * shape::head_dim;

    // Rows of an earlier token, from places of one pool that drift apart. Half precision holds them.
    [[nodiscard]] const float* past_raw_key(std::size_t token) const { return past.data() + token * 131 % pool; }
    [[nodiscard]] const float* past_key(std::size_t token) const { return past.data() + token * 523 % pool; }
    [[nodiscard]] const float* past_value(std::size_t token) const { return past.data() + token * 541 % pool; }

    std::vector<float> x, queries_and_gates, keys, values;
    std::vector<float> index_norm, head_norm;
    weights<fg::quant::q8_0> index_q, index_k;

private:
    static constexpr std::size_t pool = 1000003;
    std::vector<float> past;
};

/// Appends tokens of a past to sequence 0 of a cache, up to `length` of them: keys, values, raw indexer keys and block keys.
template <class NormWeight, class Device, class Cache>
[[nodiscard]] fg::status write_past(Device& device, fg::workspace& scratch, const fg::ops::rope_table& rope, const qsa_data& data,
                                    Cache& cache, std::size_t length) {
    using namespace fg::reuse;
    constexpr sequence_id sequence{0};
    const block_ratio ratio(shape::ratio);
    const std::size_t begin = cache.length(sequence);
    FRUGAL_TRY(cache.reserve(sequence, length - begin));
    std::vector<float> key(shape::index_dim);
    const fg::matrix_view<float> row(key.data(), 1, key.size());
    for (std::size_t t = begin; t < length; ++t) {
        cache.write(sequence, t, data.past_key(t), data.past_value(t));
        cache.write_raw_key(sequence, token_rank(t), data.past_raw_key(t));
        if (!ratio.completes(token_rank(t))) continue;
        const block_index block = ratio.block_of(token_rank(t));
        fg::attention::detail::pool_block(cache.raw_keys(sequence), ratio, block, key.data());
        FRUGAL_TRY(fg::ops::rms_norm<NormWeight>(device, data.index_norm, fg::matrix_view<const float>(row), shape::eps, row));
        const auto at = static_cast<std::int32_t>(ratio.first_token(block).value);
        const rope_position position{at, at, at};
        FRUGAL_TRY(fg::ops::apply_rope(device, scratch, rope, std::span(&position, 1), 1, shape::index_dim, row));
        cache.write_block_key(sequence, block, key.data());
    }
    cache.commit(sequence, length - begin);
    return {};
}

/// Positions of the next `tokens` tokens of text.
inline std::vector<fg::ops::rope_position> text_positions(std::size_t begin, std::size_t tokens) {
    std::vector<fg::ops::rope_position> out;
    for (std::size_t t = begin; t < begin + tokens; ++t) {
        const auto at = static_cast<std::int32_t>(t);
        out.push_back({at, at, at});
    }
    return out;
}

}  // namespace bench
