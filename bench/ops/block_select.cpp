// The indexer of QSA: scores of all block keys and choice of the best, for one token and for a batch, by precision of the keys.
#include <algorithm>
#include <string_view>
#include <type_traits>

#include "bench.hpp"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/tensor/scalar.hpp"

namespace bench {

namespace {

template <class Isa, class Scalar>
struct selection {
    static constexpr std::size_t heads = 4, dim = 128, top = 512;
    static constexpr bool scaled = std::is_same_v<Scalar, std::int8_t>;

    selection(std::size_t rows, std::size_t blocks)
        : q(normal(rows * heads * dim, 1)),
          keys(blocks * dim),
          scales(scaled ? blocks : 0),
          see(rows, {&view, blocks}),
          chosen(rows * top),
          counts(rows) {
        const auto values = normal(keys.size(), 2);
        for (std::size_t b = 0; b < blocks; ++b) {
            if constexpr (scaled) scales[b] = fg::ops::encode_block_key(&values[b * dim], dim, &keys[b * dim]);
            for (std::size_t i = b * dim; i < (b + 1) * dim; ++i) {
                if constexpr (std::is_same_v<Scalar, float>) keys[i] = values[i];
                if constexpr (std::is_same_v<Scalar, fg::half>) keys[i] = fg::to_half(values[i]);
                if constexpr (std::is_same_v<Scalar, fg::bfloat16>) keys[i] = fg::to_bfloat16(values[i]);
            }
        }
        if constexpr (scaled)
            view = {&chunk, &scale_chunk, 40, dim};
        else
            view = {&chunk, 40, dim};
    }

    fg::status run() {
        return fg::ops::select_blocks<fg::device::cpu<Isa>, Scalar>(device, scratch, as_matrix(std::as_const(q), see.size()), see,
                                                                    heads, top, chosen, counts);
    }

    // Every chosen block scores at least what every other one does, within rounding.
    std::string check() const {
        const std::size_t blocks = see[0].complete;
        for (std::size_t r = 0; r < see.size(); r += 9) {
            if (counts[r] != top) return fg::concat("row ", r, " has ", counts[r], " blocks");
            double least = 1e300, most = 0;
            for (std::size_t b = 0; b < blocks; ++b) {
                double score = 0;
                for (std::size_t h = 0; h < heads; ++h) {
                    double dot = 0;
                    for (std::size_t d = 0; d < dim; ++d)
                        dot += static_cast<double>(q[(r * heads + h) * dim + d]) *
                               static_cast<double>(fg::to_float(keys[b * dim + d]));
                    score += std::fmax(0.0, dot);
                }
                if (scaled) score *= static_cast<double>(scales[b]);
                const auto* const begin = chosen.data() + r * top;
                if (std::binary_search(begin, begin + top, static_cast<std::uint32_t>(b)))
                    least = std::fmin(least, score);
                else
                    most = std::fmax(most, score);
            }
            if (least < most - 1e-4 * most) return fg::concat("row ", r, " chose a score of ", least, " and left ", most);
        }
        return {};
    }

    work cost() const {
        return {float_bytes(q.size() + scales.size()) + static_cast<double>(keys.size() * sizeof(Scalar)),
                static_cast<double>(2 * see.size() * heads * dim * see[0].complete)};
    }

    std::vector<float> q;
    std::vector<Scalar, cache_aligned<Scalar>> keys;
    std::vector<float> scales;
    const Scalar* chunk = keys.data();
    const float* scale_chunk = scales.data();
    fg::ops::block_key_view<Scalar> view;
    std::vector<fg::ops::block_row<Scalar>> see;
    std::vector<std::uint32_t> chosen;
    std::vector<std::size_t> counts;
    fg::device::cpu<Isa> device{executor()};
    fg::workspace scratch;
};

template <class Isa, class Scalar>
void add_precision(std::string_view precision) {
    const auto add = [&](std::size_t rows, std::size_t blocks) {
        add_case<selection<Isa, Scalar>>(name("block_select", precision, Isa::name, fg::concat(rows, "x4x128x", blocks)),
                                         Isa::name, rows, blocks);
    };
    // Blocks of 4 tokens: decode at 128k and 1M tokens, prefill at 32k.
    add(1, 32768);
    add(1, 262144);
    add(32, 8192);
}

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        add_precision<Isa, float>("f32");
        add_precision<Isa, fg::half>("f16");
        add_precision<Isa, fg::bfloat16>("bf16");
        add_precision<Isa, std::int8_t>("int8");
    });
}

}  // namespace bench
