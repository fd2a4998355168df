// The indexer of QSA: scores of all block keys and choice of the best, for one token and for a batch.
#include <algorithm>

#include "bench.hpp"
#include "frugal/ops/block_select/block_select.hpp"

namespace bench {

namespace {

template <class Isa>
struct selection {
    static constexpr std::size_t heads = 4, dim = 128, blocks = 8192, top = 512;
    explicit selection(std::size_t rows)
        : q(normal(rows * heads * dim, 1)),
          keys(normal(blocks * dim, 2)),
          chunk(keys.data()),
          view{&chunk, 40, dim},
          see(rows, {&view, blocks}),
          chosen(rows * top),
          counts(rows) {}

    fg::status run() {
        return fg::ops::select_blocks<fg::device::cpu<Isa>, float>(device, scratch, as_matrix(std::as_const(q), see.size()),
                                                                   heads, see, top, chosen, counts);
    }

    // Every chosen block scores at least what every other one does, within rounding.
    std::string check() const {
        for (std::size_t r = 0; r < see.size(); r += 9) {
            if (counts[r] != top) return fg::concat("row ", r, " has ", counts[r], " blocks");
            double least = 1e300, most = 0;
            for (std::size_t b = 0; b < blocks; ++b) {
                double score = 0;
                for (std::size_t h = 0; h < heads; ++h) {
                    double dot = 0;
                    for (std::size_t d = 0; d < dim; ++d)
                        dot += static_cast<double>(q[(r * heads + h) * dim + d]) * static_cast<double>(keys[b * dim + d]);
                    score += std::fmax(0.0, dot);
                }
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
        return {float_bytes(q.size() + keys.size()), static_cast<double>(2 * see.size() * heads * dim * blocks)};
    }

    std::vector<float> q, keys;
    const float* chunk;
    fg::ops::block_key_view<float> view;
    std::vector<fg::ops::block_row<float>> see;
    std::vector<std::uint32_t> chosen;
    std::vector<std::size_t> counts;
    fg::device::cpu<Isa> device{executor()};
    fg::workspace scratch;
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t rows : {std::size_t{1}, std::size_t{32}})
            add_case<selection<Isa>>(name("block_select", "f32", Isa::name, fg::concat(rows, "x4x128x8192")), Isa::name, rows);
    });
}

}  // namespace bench
