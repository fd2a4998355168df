// Rows of embedding tables for a decoded token: its own, and those of its n-grams.
#include "frugal/ops/embedding/embedding.hpp"

#include <cstdint>
#include <utility>

#include "operators.hpp"
#include "small_operator.hpp"

namespace bench {

namespace {

template <class Format>
fg::status measure(contests& all, const char* name, std::size_t count, std::size_t cols) {
    constexpr std::size_t table_rows = 4096;
    const auto table = std::make_shared<const weights<Format>>(table_rows, cols, 1, 1);
    const fg::quant::weight_view view = table->view();
    std::vector<std::int32_t> rows;
    std::vector<double> want;
    for (std::size_t i = 0; i < count; ++i) {
        rows.push_back(static_cast<std::int32_t>((i + 1) * 2003 % table_rows));
        float values[Format::block_size];
        for (std::size_t b = 0; b < cols / Format::block_size; ++b) {
            Format::decode(view.row(static_cast<std::size_t>(rows.back())) + b * Format::block_bytes, values);
            want.insert(want.end(), values, values + Format::block_size);
        }
    }
    small_operator what{name, fg::concat(count, 'x', cols), "get_rows", std::move(want)};
    what.format = Format::name;
    return measure_small_operator(
        all, std::move(what),
        [=](auto& device, fg::workspace&, std::vector<float>& y) {
            return fg::ops::embedding_rows<fg::quant::list<Format>>(device, table->view(), rows, as_matrix(y, count));
        },
        [=](peer::prepared_graph& p) {
            std::vector<std::byte> bytes(view.data, view.data + view.bytes());
            const auto from = p.input(static_cast<peer::ggml_type>(Format::type), {cols, table_rows}, std::move(bytes));
            const std::vector<std::int32_t> numbers(rows.begin(), rows.end());
            return p.g().ggml_get_rows(p.context(), from, p.input(peer::i32, {count}, numbers));
        });
}

}  // namespace

fg::status measure_embedding(contests& all) {
    FRUGAL_TRY(measure<fg::quant::q6_k>(all, "embedding", 1, 2048));
    return measure<fg::quant::q8_0>(all, "embedding.ngram", 16, 160);
}

}  // namespace bench
