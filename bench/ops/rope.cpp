// Rotary position embedding of 32 heads of 128 features, 64 of them rotary, angles included.
#include "frugal/ops/rope/rope.hpp"
#include "bench.hpp"
#include "frugal/tensor/workspace.hpp"

namespace bench {

namespace {

template <class Isa>
struct rotation {
    static constexpr std::size_t heads = 32, head_dim = 128, rotary = 64;
    explicit rotation(std::size_t tokens)
        : table(fg::ops::rope_table::make(1e6, rotary)),
          original(normal(tokens * heads * head_dim, 1)),
          x(original),
          positions(tokens) {
        for (std::size_t t = 0; t < tokens; ++t) {
            const auto at = static_cast<std::int32_t>(1000 + t);
            positions[t] = {at, at, at};
        }
    }

    // In place, so the data keeps turning; its size does not change.
    fg::status run() {
        return fg::ops::apply_rope(device, scratch, table, positions, heads, head_dim, as_matrix(x, positions.size()));
    }

    std::string check() const {
        std::vector<double> want(original.begin(), original.end());
        for (std::size_t t = 0; t < positions.size(); ++t)
            for (std::size_t h = 0; h < heads; ++h)
                for (std::size_t j = 0; j < rotary / 2; ++j) {
                    const double angle = static_cast<double>(static_cast<float>(positions[t].temporal) * table.inv_freq[j]);
                    const std::size_t a = (t * heads + h) * head_dim + j, b = a + rotary / 2;
                    const double first = want[a], second = want[b];
                    want[a] = first * std::cos(angle) - second * std::sin(angle);
                    want[b] = second * std::cos(angle) + first * std::sin(angle);
                }
        return compare(x, want, 1e-5);
    }

    work cost() const {
        const std::size_t turned = positions.size() * heads * rotary;
        return {float_bytes(2 * turned), 3.0 * static_cast<double>(turned)};
    }

    fg::ops::rope_table table;
    std::vector<float> original, x;
    std::vector<fg::ops::rope_position> positions;
    fg::device::cpu<Isa> device{executor()};
    fg::workspace scratch;
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t tokens : {std::size_t{1}, std::size_t{512}})
            add_case<rotation<Isa>>(name("rope", "f32", Isa::name, fg::concat(tokens, "x32x128")), Isa::name, tokens);
    });
}

}  // namespace bench
