// N-gram embeddings: the hash of 16 heads, their rows of 160 out of a large table, the gate into four streams of 2560, and
// the dilated convolution behind it.
#include <algorithm>
#include <numeric>

#include "bench.hpp"
#include "convolution.hpp"
#include "frugal/ops/ngram/hash.hpp"
#include "frugal/ops/ngram/ngram.hpp"
#include "frugal/ops/ngram/row_table.hpp"

namespace bench {

namespace {

constexpr std::size_t heads = 16, streams = 4, hidden = 2560;

/// Integer arithmetic, the same code for every instruction set.
struct hashing {
    static constexpr std::int32_t vocabulary = 248320, eos = 248044;
    explicit hashing(std::size_t count) : tokens(count), rows(count * heads) {
        auto derived = fg::ops::ngram_hash::derive({3, heads / 2, vocabulary, eos, 20000000, 1234, 0});
        if (derived) hash = std::move(*derived);
        std::mt19937 random(1);
        for (auto& token : tokens) token = random() % 64 == 0 ? eos : static_cast<std::int32_t>(random() % vocabulary);
    }

    fg::status run() { return hash.rows(before, tokens, rows); }

    std::string check() const {
        const auto token = [&](std::size_t t, std::size_t back) {
            for (std::size_t i = 1; i <= back; ++i)
                if (i > t || tokens[t - i] == eos) return static_cast<std::uint64_t>(eos);
            return static_cast<std::uint64_t>(tokens[t - back]);
        };
        if (hash.heads() != heads) return "the constants could not be derived";
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const std::size_t t = i / heads, head = i % heads, order = head / (heads / 2) + 2;
            std::uint64_t mixed = 0;
            for (std::size_t back = 0; back < order; ++back) mixed ^= token(t, back) * hash.multipliers[back];
            const std::uint64_t want = hash.head_offsets[head] + mixed % hash.head_sizes[head];
            if (static_cast<std::uint64_t>(rows[i]) != want) return fg::concat("head ", head, " of token ", t, " is wrong");
        }
        return {};
    }

    work cost() const {
        return {static_cast<double>(tokens.size() * sizeof(std::int32_t) + rows.size() * sizeof(std::int64_t)), 0};
    }

    fg::ops::ngram_hash hash;
    std::vector<std::int32_t> before{eos, eos}, tokens;
    std::vector<std::int64_t> rows;
};

/// Every run looks up other rows, in no order, of a table that exceeds the last-level cache.
template <class Isa, class Format>
struct table {
    static constexpr std::size_t cols = 160, shard_rows = 16384, row_bytes = cols / Format::block_size * Format::block_bytes;
    table(std::size_t tokens, bool cut)
        : count(tokens * heads), shards(copies_beyond_cache(shard_rows * row_bytes)), w(shard_rows, cols, shards, 1) {
        std::vector<fg::quant::weight_view> parts;
        for (std::size_t i = 0; cut && i < shards; ++i) parts.push_back(w.view(i));
        if (parts.empty()) parts.push_back({Format::type, w.view().data, shards * shard_rows, cols, row_bytes});
        if (auto made = fg::ops::row_table::make(std::move(parts))) whole = std::move(*made);
        order.resize(shards * shard_rows);
        std::iota(order.begin(), order.end(), std::int64_t{0});
        std::shuffle(order.begin(), order.end(), std::mt19937(2));
        y.resize(count * cols);
    }

    std::span<const std::int64_t> rows() const { return std::span(order).subspan(turn % (order.size() / count) * count, count); }

    fg::status run() {
        ++turn;
        return fg::ops::table_rows<fg::quant::list<Format>>(device, whole, rows(), as_matrix(y, count));
    }

    std::string check() const {
        float values[Format::block_size];
        for (std::size_t i = 0; i < count; i += 7)
            for (std::size_t b = 0; b < cols / Format::block_size; ++b) {
                const auto row = static_cast<std::size_t>(rows()[i]);
                Format::decode(w.view(row / shard_rows).row(row % shard_rows) + b * Format::block_bytes, values);
                for (std::size_t j = 0; j < Format::block_size; ++j)
                    if (y[i * cols + b * Format::block_size + j] != values[j]) return fg::concat("look-up ", i, " is wrong");
            }
        return {};
    }

    work cost() const { return {static_cast<double>(count * row_bytes) + float_bytes(y.size()), 0}; }

    std::size_t count, shards, turn = 0;
    weights<Format> w;
    fg::ops::row_table whole;
    std::vector<std::int64_t> order;
    std::vector<float> y;
    fg::device::cpu<Isa> device{executor()};
};

template <class Isa>
struct gate {
    explicit gate(std::size_t tokens)
        : rows(tokens),
          key(normal(tokens * streams * hidden, 1)),
          query(normal(tokens * streams * hidden, 2)),
          value(normal(tokens * hidden, 3)),
          y(key.size()) {}

    fg::status run() {
        return fg::ops::ngram_gate(device, as_matrix(std::as_const(key), rows), as_matrix(std::as_const(query), rows),
                                   as_matrix(std::as_const(value), rows), as_matrix(y, rows));
    }

    std::string check() const {
        std::vector<double> want(y.size());
        for (std::size_t r = 0; r < rows * streams; ++r) {
            double product = 0;
            for (std::size_t i = 0; i < hidden; ++i)
                product += static_cast<double>(key[r * hidden + i]) * static_cast<double>(query[r * hidden + i]);
            product /= std::sqrt(static_cast<double>(hidden));
            const double root = std::copysign(std::sqrt(std::fmax(std::fabs(product), 1e-6)), product);
            for (std::size_t i = 0; i < hidden; ++i)
                want[r * hidden + i] = static_cast<double>(value[r / streams * hidden + i]) / (1 + std::exp(-root));
        }
        // The root makes much of the rounding of products near 0.
        return compare(y, want, 1e-3);
    }

    work cost() const {
        return {float_bytes(key.size() + query.size() + value.size() + y.size()), static_cast<double>(3 * key.size())};
    }

    std::size_t rows;
    std::vector<float> key, query, value, y;
    fg::device::cpu<Isa> device{executor()};
};

}  // namespace

void register_benchmarks() {
    for (std::size_t tokens : {std::size_t{1}, std::size_t{512}}) {
        add_case<hashing>(name("ngram_hash", "i64", "scalar", fg::concat(tokens, 'x', heads)), "scalar", tokens);
        for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
            const auto add_format = [&]<class Format>(fg::type_tag<Format>) {
                const std::string shape = fg::concat(tokens * heads, "x160");
                add_case<table<Isa, Format>>(name("ngram_table", Format::name, Isa::name, shape), Isa::name, tokens, false);
                add_case<table<Isa, Format>>(name("ngram_sharded_table", Format::name, Isa::name, shape), Isa::name, tokens,
                                             true);
            };
            add_format(fg::type_tag<fg::quant::bf16>{});
            add_format(fg::type_tag<fg::quant::iq4_nl>{});
            const std::string shape = fg::concat(tokens, 'x', streams, 'x', hidden);
            add_case<gate<Isa>>(name("ngram_gate", "f32", Isa::name, shape), Isa::name, tokens);
            add_case<convolution<Isa, streams * hidden, 3>>(name("ngram_conv1d", "f32", Isa::name, shape), Isa::name, tokens);
        });
    }
}

}  // namespace bench
