#include "frugal/layer/ngram_embedding.hpp"

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "frugal/quant/formats.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "layer_data.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace layer = frugal::layer;
namespace attention = frugal::attention;
namespace quant = frugal::quant;
using attention::sequence_id;
using formats = quant::list<quant::f32>;
using embedding = layer::ngram_embedding<frugal::ops::norm_weight::zero_centred>;
using test::as_rows;

namespace {

constexpr const char* cases[] = {"parts/ple_layer_hc2", "parts/ple_layer_hc4_ngram4"};

std::vector<std::uint64_t> as_unsigned(const std::vector<std::int64_t>& values) { return {values.begin(), values.end()}; }

/// A reference case with its weights.
struct reference {
    test::golden file;
    std::vector<float> table, key, value, norm_key, norm_query, norm_conv, conv, x;
    std::vector<std::int32_t> tokens;
    layer::ngram_dims dims;
    std::size_t total;

    explicit reference(const std::string& name)
        : file(name),
          table(file.f32("w.ple_embedding.ngram_embedding.weight")),
          key(file.f32("w.key_proj.weight")),
          value(file.f32("w.value_proj.weight")),
          norm_key(file.f32("w.norm_key.weight")),
          norm_query(file.f32("w.norm_query.weight")),
          norm_conv(file.f32("w.norm_conv.weight")),
          conv(file.f32("w.conv1d.weight")),
          x(file.f32("x")),
          total(file.shape("tokens")[1]) {
        for (const std::int64_t id : file.i64("tokens")) tokens.push_back(static_cast<std::int32_t>(id));
        const auto& p = file.params();
        const std::size_t ngram_size = p.at("ngram_size");
        const auto sizes = as_unsigned(file.i64("w.ple_embedding.ngram_heads_vocab_sizes"));
        dims.hidden = p.at("hidden_size");
        dims.streams = p.at("hc_count");
        dims.row = file.shape("w.ple_embedding.ngram_embedding.weight")[1];
        dims.conv_kernel = p.at("conv_kernel");
        dims.eps = p.at("rms_eps").get<float>();
        auto hash = fg::ops::ngram_hash::from_constants(ngram_size, sizes.size() / (ngram_size - 1), 97, p.at("eos_token_id"),
                                                        as_unsigned(file.i64("w.ple_embedding.layer_multipliers")),
                                                        as_unsigned(file.i64("w.ple_embedding.ngram_heads_offsets")), sizes);
        REQUIRE(hash);
        dims.hash = *hash;
    }
    [[nodiscard]] layer::ngram_weights weights() const {
        return {fg::ops::row_table(test::f32_weights(table, dims.row)),
                test::f32_weights(key, dims.embedding()),
                test::f32_weights(value, dims.embedding()),
                norm_key,
                norm_query,
                norm_conv,
                conv};
    }
    /// The table in shards of unequal length.
    [[nodiscard]] layer::ngram_weights sharded() const {
        auto out = weights();
        const auto whole = test::f32_weights(table, dims.row);
        auto table_of =
            fg::ops::row_table::make({whole.rows_range(0, 7), whole.rows_range(7, 100), whole.rows_range(107, whole.rows - 107)});
        REQUIRE(table_of);
        out.table = *table_of;
        return out;
    }
    [[nodiscard]] std::size_t width() const { return dims.channels(); }
    /// Tokens and rows `first` … of sequence `s`.
    [[nodiscard]] std::vector<std::int32_t> tokens_of(std::size_t s, std::size_t first, std::size_t count) const {
        const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(s * total + first);
        return {at, at + static_cast<std::ptrdiff_t>(count)};
    }
    [[nodiscard]] std::vector<float> rows_of(const std::vector<float>& all, std::size_t s, std::size_t first,
                                             std::size_t count) const {
        const auto at = all.begin() + static_cast<std::ptrdiff_t>((s * total + first) * width());
        return {at, at + static_cast<std::ptrdiff_t>(count * width())};
    }
    [[nodiscard]] layer::ngram_state state(std::size_t sequences, std::size_t checkpoints = 0) const {
        auto out = layer::ngram_state::create(dims, sequences, checkpoints);
        REQUIRE(out);
        return std::move(out).value();
    }
};

/// A piece of a sequence of the reference that goes into a batch.
struct piece {
    int slot;            ///< sequence of the state, or -1: padding
    std::size_t source;  ///< sequence of the reference
    std::size_t first, count;
};

template <class Isa>
fg::result<std::vector<float>> forward(const reference& r, const layer::ngram_weights& weights, layer::ngram_state& state,
                                       const std::vector<piece>& pieces, std::size_t threads_count = 1) {
    std::vector<attention::segment> segments;
    std::vector<std::int32_t> tokens;
    std::vector<float> x;
    for (const piece& p : pieces) {
        segments.push_back({static_cast<sequence_id>(p.slot), tokens.size(), p.count});
        const auto own_tokens = r.tokens_of(p.source, p.first, p.count);
        const auto own_rows = r.rows_of(r.x, p.source, p.first, p.count);
        tokens.insert(tokens.end(), own_tokens.begin(), own_tokens.end());
        x.insert(x.end(), own_rows.begin(), own_rows.end());
    }
    const std::vector<attention::rope_position> positions(tokens.size());
    test::threads threads(threads_count);
    fg::device::cpu<Isa> dev(threads);
    fg::workspace scratch;
    std::vector<float> y(x.size(), -7);
    FRUGAL_TRY(embedding::forward<formats>(dev, scratch, r.dims, weights, state, {segments, positions}, tokens,
                                           as_rows(x, r.width()), as_rows(y, r.width())));
    return y;
}

std::vector<std::byte> saved(const layer::ngram_state& state, int s) {
    fg::byte_writer writer;
    state.save(static_cast<sequence_id>(s), writer);
    return std::move(writer).take();
}

std::vector<float> slice(const std::vector<float>& values, std::size_t first, std::size_t count) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(first);
    return {at, at + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

TEST_CASE("the n-gram embedding equals the reference, in the reference's calls, its history too") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : cases) {
            const reference r(name);
            CAPTURE(name);
            for (const std::size_t threads : {1u, 4u}) {
                auto state = r.state(2);
                std::size_t at = 0;
                const auto want = r.file.f32("y");
                for (const std::size_t n : r.file.params().at("calls").get<std::vector<std::size_t>>()) {
                    const auto y = forward<Isa>(r, r.sharded(), state, {{0, 0, at, n}, {1, 1, at, n}}, threads);
                    REQUIRE(y);
                    for (std::size_t s = 0; s < 2; ++s)
                        test::check_close(slice(*y, s * n * r.width(), n * r.width()), r.rows_of(want, s, at, n), r.file.tol("y"),
                                          "y");
                    at += n;
                    const std::string suffix = fg::concat(at < 10 ? "0" : "", at);
                    const auto history = r.file.f32("conv_state_" + suffix);
                    const std::size_t length = r.dims.conv_history();
                    for (std::size_t s = 0; s < 2; ++s) {
                        const auto snapshot = state.snapshot(static_cast<sequence_id>(s));
                        REQUIRE(snapshot);
                        CHECK(snapshot->length == at);
                        // The reference stores [channels, history].
                        std::vector<float> transposed(history.size() / 2);
                        for (std::size_t c = 0; c < r.width(); ++c)
                            for (std::size_t i = 0; i < length; ++i)
                                transposed[i * r.width() + c] = history[(s * r.width() + c) * length + i];
                        test::check_close(snapshot->history, transposed, r.file.tol("conv_state"), "history");
                        const auto last = r.tokens_of(s, at - r.dims.hash.context(), r.dims.hash.context());
                        CHECK(snapshot->tokens == last);
                    }
                }
            }
        }
    });
}

TEST_CASE("table rows of the n-gram embedding equal the reference") {
    fg::device::cpu<fg::isa::baseline> dev;
    for (const char* name : cases) {
        const reference r(name);
        const auto want = r.file.f32("embeddings");
        for (std::size_t s = 0; s < 2; ++s) {
            std::vector<std::int64_t> rows(r.total * r.dims.hash.heads());
            const std::vector<std::int32_t> before(r.dims.hash.context(), static_cast<std::int32_t>(r.dims.hash.eos));
            REQUIRE(r.dims.hash.rows(before, r.tokens_of(s, 0, r.total), rows));
            std::vector<float> got(r.total * r.dims.embedding());
            REQUIRE(fg::ops::table_rows<formats>(dev, r.sharded().table, rows, as_rows(got, r.dims.row)));
            CHECK(std::equal(got.begin(), got.end(), want.begin() + static_cast<std::ptrdiff_t>(s * got.size())));
        }
    }
}

TEST_CASE("one call, token by token, or any split: the same bits, close to the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : cases) {
            const reference r(name);
            const auto weights = r.weights();
            auto state = r.state(2);
            const auto once = forward<Isa>(r, weights, state, {{0, 0, 0, r.total}});
            REQUIRE(once);
            test::check_close(*once, r.rows_of(r.file.f32("y_one_call"), 0, 0, r.total), r.file.tol("y_one_call"), name);
            test::check_close(slice(*once, 0, 3 * r.width()), slice(r.file.f32("y_first3_stepwise"), 0, 3 * r.width()),
                              r.file.tol("y_first3_stepwise"), name);
            for (std::size_t chunk = 1; chunk < r.total; chunk = chunk < 4 ? chunk + 1 : chunk * 2) {
                auto split = r.state(1, chunk % 3);
                std::vector<float> y;
                for (std::size_t at = 0; at < r.total; at += chunk) {
                    const auto part = forward<Isa>(r, weights, split, {{0, 0, at, std::min(chunk, r.total - at)}});
                    REQUIRE(part);
                    y.insert(y.end(), part->begin(), part->end());
                }
                CHECK(test::equal_bits(y, *once));
                CHECK(saved(split, 0) == saved(state, 0));
            }
        }
    });
}

TEST_CASE("C14 left padding: the visible tokens alone give the reference's rows") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : cases) {
            const reference r(name);
            const auto mask = r.file.i64("mask"),
                       own_mask = std::vector<std::int64_t>(mask.end() - static_cast<std::ptrdiff_t>(r.total), mask.end());
            const auto pads = static_cast<std::size_t>(std::count(own_mask.begin(), own_mask.end(), 0));
            REQUIRE(pads == 6);
            auto state = r.state(2);
            const auto y = forward<Isa>(r, r.weights(), state, {{-1, 1, 0, pads}, {1, 1, pads, r.total - pads}});
            REQUIRE(y);
            const auto want = r.file.f32("y_leftpad");
            test::check_close(slice(*y, pads * r.width(), (r.total - pads) * r.width()), r.rows_of(want, 1, pads, r.total - pads),
                              r.file.tol("y_leftpad"), name);
            CHECK(std::all_of(y->begin(), y->begin() + static_cast<std::ptrdiff_t>(pads * r.width()),
                              [](float v) { return v == 0; }));
        }
    });
}

TEST_CASE("C13 sequences of one batch do not see each other: alone and together give the same bits") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const reference r(cases[0]);
        const auto weights = r.weights();
        auto alone0 = r.state(1), alone1 = r.state(1), together = r.state(3);
        for (const auto& [at, n0, n1] : {std::tuple<std::size_t, std::size_t, std::size_t>{0, 5, 3}, {5, 1, 0}, {6, 7, 9}}) {
            const std::size_t at1 = at == 0 ? 0 : 3;
            const auto y0 = forward<Isa>(r, weights, alone0, {{0, 0, at, n0}}),
                       y1 = forward<Isa>(r, weights, alone1, {{0, 1, at1, n1}});
            const auto both = forward<Isa>(r, weights, together, {{2, 1, at1, n1}, {0, 0, at, n0}}, 3);
            REQUIRE(y0);
            REQUIRE(y1);
            REQUIRE(both);
            CHECK(test::equal_bits(slice(*both, 0, y1->size()), *y1));
            CHECK(test::equal_bits(slice(*both, y1->size(), y0->size()), *y0));
            CHECK(saved(together, 0) == saved(alone0, 0));
            CHECK(saved(together, 2) == saved(alone1, 0));
        }
    });
}

TEST_CASE("C18 equal sequences in one batch give one answer") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const reference r(cases[1]);
        auto state = r.state(5);
        for (const auto& [at, n] : {std::pair<std::size_t, std::size_t>{0, 9}, {9, 1}, {10, 1}, {11, 4}}) {
            const auto y = forward<Isa>(r, r.weights(), state,
                                        {{0, 0, at, n}, {1, 0, at, n}, {4, 1, at, n}, {2, 0, at, n}, {3, 0, at, n}}, 2);
            REQUIRE(y);
            const std::size_t size = n * r.width();
            for (const std::size_t other : {1u, 3u, 4u})
                CHECK(test::equal_bits(slice(*y, other * size, size), slice(*y, 0, size)));
            CHECK(!test::equal_bits(slice(*y, 2 * size, size), slice(*y, 0, size)));
        }
        CHECK(saved(state, 0) == saved(state, 3));
    });
}

TEST_CASE("C15 zero-length segments and empty batches change nothing") {
    const reference r(cases[0]);
    using isa = fg::isa::baseline;
    auto state = r.state(3), untouched = r.state(3);
    REQUIRE(forward<isa>(r, r.weights(), state, {{0, 0, 0, 4}, {1, 1, 0, 4}}));
    REQUIRE(forward<isa>(r, r.weights(), untouched, {{0, 0, 0, 4}, {1, 1, 0, 4}}));
    const auto y = forward<isa>(r, r.weights(), state, {{0, 0, 4, 0}, {1, 1, 4, 3}, {2, 0, 0, 0}});
    REQUIRE(y);
    CHECK(y->size() == 3 * r.width());
    CHECK(saved(state, 0) == saved(untouched, 0));
    CHECK(saved(state, 2) == saved(untouched, 2));
    CHECK(saved(state, 1) != saved(untouched, 1));
    CHECK(forward<isa>(r, r.weights(), state, {}));
    CHECK(forward<isa>(r, r.weights(), state, {{0, 0, 4, 0}}));
    CHECK(saved(state, 0) == saved(untouched, 0));
}

TEST_CASE("C16 padding segments are neither read nor written, and give zeros") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        reference r(cases[0]);
        auto state = r.state(3);
        REQUIRE(forward<Isa>(r, r.weights(), state, {{0, 1, 0, 5}, {1, 0, 0, 6}}));
        const auto slot0 = saved(state, 0), slot1 = saved(state, 1);
        auto twin = r.state(3);
        const auto want = forward<Isa>(r, r.weights(), twin, {{2, 0, 0, 3}, {0, 1, 0, 3}});
        REQUIRE(want);
        // Padding rows hold what could not be used: NaN, and a token of no vocabulary.
        for (std::size_t i = 0; i < 4 * r.width(); ++i)
            r.x[(r.total + 10) * r.width() + i] = std::numeric_limits<float>::quiet_NaN();
        for (std::size_t i = 0; i < 4; ++i) r.tokens[r.total + 10 + i] = -1;
        const auto y = forward<Isa>(r, r.weights(), state, {{-1, 1, 10, 2}, {2, 0, 0, 3}, {-1, 1, 12, 2}}, 3);
        REQUIRE(y);
        CHECK(slice(*y, 0, 2 * r.width()) == std::vector<float>(2 * r.width(), 0.0f));
        CHECK(slice(*y, 5 * r.width(), 2 * r.width()) == std::vector<float>(2 * r.width(), 0.0f));
        CHECK(test::equal_bits(slice(*y, 2 * r.width(), 3 * r.width()), slice(*want, 0, 3 * r.width())));
        CHECK(saved(state, 0) == slot0);
        CHECK(saved(state, 1) == slot1);
        CHECK(saved(state, 2) == saved(twin, 2));
    });
}

TEST_CASE("C17 a cleared slot equals a fresh one, whatever it held") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const reference r(cases[0]);
        auto used = r.state(2, 3), fresh = r.state(2, 3);
        reference poisoned(cases[0]);
        std::fill(poisoned.x.begin(), poisoned.x.end(), std::numeric_limits<float>::quiet_NaN());
        REQUIRE(forward<Isa>(poisoned, r.weights(), used, {{0, 0, 0, 17}}));
        used.clear(sequence_id{0});
        CHECK(used.length(sequence_id{0}) == 0);
        CHECK(saved(used, 0) == saved(fresh, 0));
        const auto got = forward<Isa>(r, r.weights(), used, {{0, 0, 0, 1}}),
                   want = forward<Isa>(r, r.weights(), fresh, {{0, 0, 0, 1}});
        REQUIRE(got);
        REQUIRE(want);
        CHECK(test::equal_bits(*got, *want));
        // Rolling everything back is a clear too, even beyond the checkpoints.
        REQUIRE(forward<Isa>(poisoned, r.weights(), used, {{0, 0, 1, 16}}));
        REQUIRE(used.rollback(sequence_id{0}, 17));
        fresh.clear(sequence_id{0});
        CHECK(saved(used, 0) == saved(fresh, 0));
    });
}

TEST_CASE("C19 going back n tokens works as far as checkpoints reach, and is refused without a change beyond") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : cases)
            for (const std::size_t checkpoints : {0u, 1u, 3u, 20u})
                for (const std::size_t back : {1u, 2u, 3u, 7u, 8u, 9u}) {
                    CAPTURE(checkpoints);
                    CAPTURE(back);
                    const reference r(name);
                    auto state = r.state(2, checkpoints), plain = r.state(2, checkpoints);
                    for (const auto& [at, n] : {std::pair<std::size_t, std::size_t>{0, 3}, {3, 4}, {7, 1}})
                        REQUIRE(forward<Isa>(r, r.weights(), state, {{1, 0, at, n}}));
                    const auto before = saved(state, 1);
                    const bool possible = back == 8 || (back < 8 && back <= checkpoints);
                    CHECK(state.can_rollback(sequence_id{1}, back) == possible);
                    const auto got = state.rollback(sequence_id{1}, back);
                    CHECK(got.has_value() == possible);
                    if (!possible) {
                        CHECK(got.error().code == fg::errc::cannot_rollback);
                        CHECK(saved(state, 1) == before);
                        CHECK(state.length(sequence_id{1}) == 8);
                        continue;
                    }
                    if (back < 8) REQUIRE(forward<Isa>(r, r.weights(), plain, {{1, 0, 0, 8 - back}}));
                    CHECK(saved(state, 1) == saved(plain, 1));
                    CHECK(state.length(sequence_id{1}) == 8 - back);
                    // Other tokens from here on.
                    const auto y = forward<Isa>(r, r.weights(), state, {{1, 1, 11, 13}}),
                               want = forward<Isa>(r, r.weights(), plain, {{1, 1, 11, 13}});
                    REQUIRE(y);
                    CHECK(test::equal_bits(*y, *want));
                    CHECK(saved(state, 1) == saved(plain, 1));
                }
    });
}

TEST_CASE("C20 drafts that are rejected leave nothing behind, tokens and convolution history alike") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : cases) {
            const reference r(name);
            for (std::size_t accepted = 0; accepted <= 3; ++accepted) {
                auto drafting = r.state(1, 3), plain = r.state(1);
                std::size_t at = 0;
                for (int round = 0; round < 5; ++round) {
                    // One token and three drafts of another sequence, of which `accepted` are right.
                    const std::size_t good = 1 + accepted;
                    const auto tokens = forward<Isa>(r, r.weights(), drafting, {{0, 0, at, good}});
                    REQUIRE(tokens);
                    if (accepted < 3) {
                        REQUIRE(forward<Isa>(r, r.weights(), drafting, {{0, 1, at + 2, 3 - accepted}}));
                        REQUIRE(drafting.can_rollback(sequence_id{0}, 3 - accepted));
                        REQUIRE(drafting.rollback(sequence_id{0}, 3 - accepted));
                    }
                    std::vector<float> want;
                    for (std::size_t i = 0; i < good; ++i) {
                        const auto y = forward<Isa>(r, r.weights(), plain, {{0, 0, at + i, 1}});
                        REQUIRE(y);
                        want.insert(want.end(), y->begin(), y->end());
                    }
                    CHECK(test::equal_bits(*tokens, want));
                    CHECK(saved(drafting, 0) == saved(plain, 0));
                    at += good;
                }
            }
        }
    });
}

TEST_CASE("random runs with rollbacks equal a rebuild") {
    const reference r(cases[1]);
    using isa = fg::isa::baseline;
    std::mt19937 generator(7);
    for (int run = 0; run < 20; ++run) {
        const std::size_t checkpoints = generator() % 12;
        auto state = r.state(1, checkpoints);
        std::vector<std::pair<std::size_t, std::size_t>> history;  // (reference sequence, index) of each token
        std::size_t undoable = 0;
        for (int step = 0; step < 20; ++step) {
            if (generator() % 3 == 0) {
                const std::size_t back = generator() % (checkpoints + 3);
                const bool possible = back <= undoable || back == history.size();
                REQUIRE(state.rollback(sequence_id{0}, back).has_value() == possible);
                if (!possible) continue;
                undoable = back <= undoable ? undoable - back : 0;
                history.resize(history.size() - back);
            } else {
                const std::size_t source = generator() % 2, first = generator() % 20, count = generator() % 6;
                REQUIRE(forward<isa>(r, r.weights(), state, {{0, source, first, count}}));
                for (std::size_t i = 0; i < count; ++i) history.emplace_back(source, first + i);
                undoable = std::min(checkpoints, undoable + count);
            }
            REQUIRE(state.length(sequence_id{0}) == history.size());
        }
        auto rebuilt = r.state(1);
        for (const auto& [source, at] : history) REQUIRE(forward<isa>(r, r.weights(), rebuilt, {{0, source, at, 1}}));
        CHECK(saved(state, 0) == saved(rebuilt, 0));
    }
}

TEST_CASE("snapshots, copies and saved bytes carry a sequence on unchanged") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : cases)
            for (const std::size_t length : {0u, 1u, 2u, 5u, 14u}) {
                const reference r(name);
                auto state = r.state(4, 2);
                if (length != 0)
                    REQUIRE(forward<Isa>(r, r.weights(), state, {{0, 0, 0, length}, {1, 1, 0, 4}, {2, 1, 0, 3}, {3, 1, 2, 6}}));
                const auto snapshot = state.snapshot(sequence_id{0});
                REQUIRE(snapshot);
                const auto bytes = saved(state, 0);
                REQUIRE(state.restore(sequence_id{1}, *snapshot));
                REQUIRE(state.copy(sequence_id{0}, sequence_id{2}));
                fg::byte_reader reader(bytes);
                REQUIRE(state.load(sequence_id{3}, reader));
                CHECK(reader.remaining() == 0);
                for (int s = 1; s < 4; ++s) CHECK(saved(state, s) == bytes);
                const auto y = forward<Isa>(r, r.weights(), state, {{0, 0, 14, 5}, {1, 0, 14, 5}, {2, 0, 14, 5}, {3, 0, 14, 5}});
                REQUIRE(y);
                for (std::size_t s = 1; s < 4; ++s)
                    CHECK(test::equal_bits(slice(*y, s * 5 * r.width(), 5 * r.width()), slice(*y, 0, 5 * r.width())));
                // What came after can be taken back, on every one of them; what came before only where it was copied along.
                for (int s = 0; s < 4; ++s) REQUIRE(state.rollback(static_cast<sequence_id>(s), 2));
                for (int s = 1; s < 4; ++s) CHECK(saved(state, s) == saved(state, 0));
            }
    });
    const reference r(cases[0]);
    auto state = r.state(2, 4);
    REQUIRE(forward<fg::isa::baseline>(r, r.weights(), state, {{0, 0, 0, 6}}));
    REQUIRE(state.restore(sequence_id{1}, *state.snapshot(sequence_id{0})));
    CHECK(!state.can_rollback(sequence_id{1}, 1));
    REQUIRE(state.copy(sequence_id{0}, sequence_id{1}));
    CHECK(state.can_rollback(sequence_id{1}, 4));
}

TEST_CASE("a load that fails changes nothing") {
    const reference r(cases[0]), other(cases[1]);
    auto state = r.state(2);
    REQUIRE(forward<fg::isa::baseline>(r, r.weights(), state, {{0, 0, 0, 9}, {1, 1, 0, 4}}));
    const auto good = saved(state, 0), before = saved(state, 1);
    for (std::size_t size = 0; size < good.size(); size += size < 64 ? 1 : 97) {
        fg::byte_reader reader(std::span<const std::byte>(good).first(size));
        const auto got = state.load(sequence_id{1}, reader);
        REQUIRE(!got);
        CHECK(got.error().code == fg::errc::malformed_file);
        CHECK(saved(state, 1) == before);
    }
    const auto refused = [&](std::vector<std::byte> bytes, fg::errc code) {
        fg::byte_reader reader(bytes);
        const auto got = state.load(sequence_id{1}, reader);
        REQUIRE(!got);
        CHECK(got.error().code == code);
        CHECK(saved(state, 1) == before);
    };
    auto foreign = other.state(1);
    refused(saved(foreign, 0), fg::errc::shape_mismatch);
    auto changed = good;
    changed[16] = std::byte{97};  // the oldest token
    refused(changed, fg::errc::malformed_file);
    changed = good;
    changed[7] = std::byte{0xFF};  // the length
    refused(changed, fg::errc::malformed_file);
    CHECK(state.restore(sequence_id{1}, *foreign.snapshot(sequence_id{0})).error().code == fg::errc::shape_mismatch);
    CHECK(saved(state, 1) == before);
}

TEST_CASE("tokens and sequences that do not exist are refused, and the state stays as it was") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        reference r(cases[0]);
        auto state = r.state(2, 2);
        REQUIRE(forward<Isa>(r, r.weights(), state, {{0, 0, 0, 5}, {1, 1, 0, 5}}));
        const auto first = saved(state, 0), second = saved(state, 1);
        const auto refused = [&](const std::vector<piece>& pieces, const layer::ngram_weights& weights, fg::errc code) {
            const auto got = forward<Isa>(r, weights, state, pieces);
            REQUIRE(!got);
            CHECK(got.error().code == code);
            CHECK(saved(state, 0) == first);
            CHECK(saved(state, 1) == second);
        };
        const auto good_tokens = r.tokens;
        for (const std::int32_t bad : {97, -1, INT32_MIN, INT32_MAX}) {
            r.tokens[r.total + 8] = bad;  // in the last segment
            refused({{0, 0, 5, 4}, {1, 1, 5, 4}}, r.weights(), fg::errc::invalid_argument);
        }
        r.tokens = good_tokens;
        refused({{2, 0, 5, 4}}, r.weights(), fg::errc::invalid_argument);
        refused({{0, 0, 5, 1}, {0, 0, 6, 1}}, r.weights(), fg::errc::invalid_argument);
        auto w = r.weights();
        w.table = fg::ops::row_table(test::f32_weights(r.table, r.dims.row).rows_range(0, 100));
        refused({{0, 0, 5, 4}}, w, fg::errc::shape_mismatch);
        w = r.weights();
        w.conv = w.conv.first(3);
        refused({{0, 0, 5, 4}}, w, fg::errc::shape_mismatch);
        w = r.weights();
        w.norm_conv = w.norm_conv.first(3);
        refused({{0, 0, 5, 4}}, w, fg::errc::shape_mismatch);
        w = r.weights();
        w.key.type = quant::q4_k::type;
        refused({{0, 0, 5, 4}}, w, fg::errc::unsupported_format);
    });
    const reference r(cases[0]);
    auto state = r.state(2);
    for (const auto s : {sequence_id{2}, sequence_id::padding, sequence_id{-5}}) {
        CHECK(state.length(s) == 0);
        CHECK(!state.can_rollback(s, 0));
        CHECK(state.reserve(s, 1).error().code == fg::errc::invalid_argument);
        CHECK(state.rollback(s, 0).error().code == fg::errc::invalid_argument);
        CHECK(state.snapshot(s).error().code == fg::errc::invalid_argument);
        CHECK(state.copy(s, sequence_id{0}).error().code == fg::errc::invalid_argument);
        CHECK(state.copy(sequence_id{0}, s).error().code == fg::errc::invalid_argument);
        state.clear(s);
    }
    CHECK(state.reserve(sequence_id{1}, 1u << 30));
    layer::ngram_dims none;
    CHECK(layer::ngram_state::create(none, 1, 0).error().code == fg::errc::invalid_argument);
    CHECK(layer::ngram_state::create(r.dims, std::size_t{1} << 31, std::size_t{1} << 31).error().code == fg::errc::out_of_memory);
    CHECK(layer::ngram_state::create(r.dims, std::size_t{1} << 60, 1).error().code == fg::errc::out_of_memory);
}

TEST_CASE("a kernel of 1 keeps no history, and a whole model state of zero sequences is fine") {
    reference r(cases[0]);
    r.dims.conv_kernel = 1;
    std::vector<float> last;
    for (std::size_t c = 0; c < r.width(); ++c) last.push_back(r.conv[c * 4 + 3]);
    r.conv = last;
    auto state = r.state(1, 2), split = r.state(1, 2);
    const auto once = forward<fg::isa::baseline>(r, r.weights(), state, {{0, 0, 0, 6}});
    REQUIRE(once);
    const auto a = forward<fg::isa::baseline>(r, r.weights(), split, {{0, 0, 0, 6}});
    REQUIRE(split.rollback(sequence_id{0}, 2));
    const auto b = forward<fg::isa::baseline>(r, r.weights(), split, {{0, 0, 4, 2}});
    REQUIRE(b);
    CHECK(test::equal_bits(*b, slice(*once, 4 * r.width(), 2 * r.width())));
    CHECK(r.state(0).sequences() == 0);
}
