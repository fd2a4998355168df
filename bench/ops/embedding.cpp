// Look-up of 512 rows of an embedding table, in every format.
#include "frugal/ops/embedding/embedding.hpp"
#include "bench.hpp"

namespace bench {

namespace {

template <class Isa, class Format>
struct look_up {
    static constexpr std::size_t table_rows = 16384, cols = 2048, tokens = 512;
    look_up() : w(table_rows, cols, 1, 1), y(tokens * cols), rows(tokens) {
        for (std::size_t i = 0; i < tokens; ++i) rows[i] = static_cast<std::int32_t>(i * 7919 % table_rows);
    }

    fg::status run() { return fg::ops::embedding_rows<fg::quant::list<Format>>(device, w.view(), rows, as_matrix(y, tokens)); }

    std::string check() const {
        float values[Format::block_size];
        for (std::size_t i = 0; i < tokens; i += 31)
            for (std::size_t b = 0; b < cols / Format::block_size; ++b) {
                Format::decode(w.view().row(static_cast<std::size_t>(rows[i])) + b * Format::block_bytes, values);
                for (std::size_t j = 0; j < Format::block_size; ++j)
                    if (y[i * cols + b * Format::block_size + j] != values[j]) return fg::concat("look-up ", i, " is wrong");
            }
        return {};
    }

    work cost() const { return {static_cast<double>(tokens * w.view().row_bytes) + float_bytes(y.size()), 0}; }

    weights<Format> w;
    std::vector<float> y;
    std::vector<std::int32_t> rows;
    fg::device::cpu<Isa> device{executor()};
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        [&]<class... Format>(fg::quant::list<Format...>) {
            (add_case<look_up<Isa, Format>>(name("embedding", Format::name, Isa::name, "512x2048"), Isa::name), ...);
        }(fg::quant::all{});
    });
}

}  // namespace bench
