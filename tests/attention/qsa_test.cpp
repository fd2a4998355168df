#include "frugal/attention/qsa/qsa.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "frugal/reuse/inputs/qsa_layouts.hpp"
#include "heads_support.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
namespace attention = frugal::attention;
namespace reuse = frugal::reuse;
using fg::matrix_view;
template <std::size_t Ratio>
using qsa = attention::qsa<Ratio, test::zero_centred, float, float>;
using full = attention::full<test::zero_centred>;
using laws = test::laws<qsa<4>>;
using lists = std::vector<std::vector<std::uint32_t>>;

static_assert(attention::sequence_state<qsa<4>::state>);

namespace {

/// Indexer queries of a whole stream: [tokens, index_heads * index_dim].
template <class Device>
std::vector<float> index_queries(Device& dev, const test::layer_weights& layer, const test::stream& from) {
    const auto dims = layer.sizes();
    fg::workspace scratch;
    std::vector<float> angles(from.size() * layer.rope.rotary_dim), out(from.size() * dims.index_heads * dims.index_dim);
    const matrix_view<float> at(angles.data(), from.size(), layer.rope.rotary_dim);
    REQUIRE(ops::rope_angles(dev, layer.rope, from.positions, at));
    const auto weights = layer.view();
    reuse::direct_products<test::formats, Device, fg::attention::qsa_weights> products(dev, scratch, weights);
    const auto done = attention::detail::index_queries<test::zero_centred>(
        dev, products, dims, weights, fg::attention::step{{{}, from.positions}, at, {}},
        matrix_view<const float>(from.x.data(), from.size(), dims.hidden),
        matrix_view<float>(out.data(), from.size(), dims.index_heads * dims.index_dim));
    REQUIRE(done);
    return out;
}

/// What every token of the stream attends to, from the block keys of a sequence that holds all of it.
template <class Variant, class Device>
lists chosen(Device& dev, const test::arm<Variant>& from, fg::attention::sequence_id s, const test::stream& tokens) {
    const auto dims = from.layer->sizes();
    const std::size_t n = tokens.size(), top = dims.budget / Variant::ratio;
    const reuse::block_ratio ratio(Variant::ratio);
    const auto queries = index_queries(dev, *from.layer, tokens);
    const auto view = from.state.block_view(s);
    using scalar = typename Variant::state::index_scalar;
    std::vector<ops::block_row<scalar>> choices;
    std::vector<reuse::qsa_row> rows;
    for (std::size_t t = 0; t < n; ++t) {
        const reuse::token_rank rank(t);
        rows.push_back({false, rank, ratio.open_block(rank), ratio.tail_start(rank)});
        choices.push_back({&view, rows.back().open_block.value});
    }
    const std::size_t width = attention::detail::most_chosen(ratio, top);
    std::vector<std::uint32_t> all(n * width, 1u << 31);
    std::vector<std::size_t> counts(n);
    fg::workspace scratch;
    REQUIRE(attention::detail::choose_tokens(dev, scratch, dims, ratio, rows, std::span<const ops::block_row<scalar>>(choices),
                                             matrix_view<const float>(queries.data(), n, dims.index_heads * dims.index_dim), all,
                                             counts));
    lists out;
    for (std::size_t t = 0; t < n; ++t) out.emplace_back(&all[t * width], &all[t * width] + counts[t]);
    return out;
}

template <std::size_t Ratio, class Device>
void check_golden(Device& dev, const test::golden& file) {
    using isa = typename Device::isa;
    const auto layer = test::golden_layer(file);
    const auto dims = layer.sizes();
    const test::golden_rows rows(file, dims.hidden);
    const std::size_t total = rows.total, dim = dims.index_dim, blocks = file.shape("pooled")[1];
    const auto y = file.f32("y"), raw = file.f32("raw_keys"), pooled = file.f32("pooled"), normed = file.f32("normed"),
               roped = file.f32("roped"), scores = file.f32("scores"), index_q = file.f32("index_q"), margin = file.f32("margin"),
               keys = file.f32("k_cache");
    const auto block_tokens = file.get<std::int32_t>("block_tokens"), num_blocks = file.get<std::int32_t>("num_blocks"),
               num_selected = file.get<std::int32_t>("num_selected"), selected = file.get<std::int32_t>("selected");
    const std::size_t width = file.shape("selected")[2];
    const auto calls = file.params().at("calls").get<std::vector<std::size_t>>();
    const reuse::block_ratio ratio(Ratio);
    std::size_t compared = 0;
    test::arm<qsa<Ratio>> cache(layer, rows.streams.size());
    for (std::size_t b = 0; b < rows.streams.size(); ++b) {
        CAPTURE(b);
        const auto s = test::seq(static_cast<int>(b));
        const test::stream& tokens = rows.streams[b];
        const std::size_t pad = rows.padding[b], n = tokens.size();
        std::vector<float> got;
        std::size_t end = 0;
        for (const std::size_t call : calls) {
            const std::size_t begin = std::max(end, pad);
            end += call;
            if (end > begin) got = test::joined(got, cache.feed(dev, s, tokens, begin - pad, end - begin));
        }
        test::arm<qsa<Ratio>> at_once(layer, 1);
        CHECK(test::same_bits(at_once.feed(dev, test::seq(0), tokens, 0, n), got));

        for (std::size_t t = 0; t < n; ++t) {
            const float* key = cache.state.raw_keys(s).row(t);
            test::check_close({key, key + dim}, test::slice(raw, (b * total + pad + t) * dim, dim), file.tol("raw_keys"),
                              "raw key");
            for (std::size_t h = 0; h < dims.kv_heads; ++h) {
                key = cache.state.tokens().keys(s).row(t) + h * dims.head_dim;
                test::check_close({key, key + dims.head_dim},
                                  test::slice(keys, ((b * dims.kv_heads + h) * total + pad + t) * dims.head_dim, dims.head_dim),
                                  file.tol("k_cache"), "key");
            }
        }
        // Blocks, stage by stage.
        REQUIRE(cache.state.block_keys(s).size() == n / Ratio);
        for (std::size_t block = 0; block < n / Ratio; ++block) {
            const std::size_t at = (b * blocks + block) * dim;
            for (std::size_t i = 0; i < Ratio; ++i)
                CHECK(block_tokens[(b * blocks + block) * Ratio + i] ==
                      static_cast<std::int32_t>(pad + ratio.first_token(reuse::block_index(block)).value + i));
            std::vector<float> key(dim);
            attention::detail::pool_block(cache.state.raw_keys(s), ratio, reuse::block_index(block), key.data());
            test::check_close(key, test::slice(pooled, at, dim), file.tol("pooled"), "pooled");
            const matrix_view<float> one(key.data(), 1, dim);
            REQUIRE(ops::rms_norm<test::zero_centred>(dev, layer.indexer_k_norm, matrix_view<const float>(one), dims.eps, one));
            test::check_close(key, test::slice(normed, at, dim), file.tol("normed"), "normed");
            const float* finished = cache.state.block_keys(s).row(block);
            test::check_close({finished, finished + dim}, test::slice(roped, at, dim), file.tol("roped"), "roped");
        }
        for (std::size_t block = n / Ratio; block < blocks; ++block) CHECK(block_tokens[(b * blocks + block) * Ratio] == -1);

        const auto queries = index_queries(dev, layer, tokens);
        const std::size_t heads = dims.index_heads * dim;
        test::check_close(queries, test::slice(index_q, (b * total + pad) * heads, n * heads), file.tol("index_q"), "index_q");
        const auto picked = chosen(dev, cache, s, tokens);
        for (std::size_t t = 0; t < n; ++t) {
            CAPTURE(t);
            const std::size_t row = b * total + pad + t, complete = ratio.open_block(reuse::token_rank(t)).value;
            REQUIRE(static_cast<std::size_t>(num_blocks[row]) == complete);
            std::vector<float> score(complete);
            ops::cpu::score_blocks<isa>(&queries[t * heads], dims.index_heads, dim, cache.state.block_view(s),
                                        std::sqrt(static_cast<float>(dim)), 0, complete, score.data());
            test::check_close(score, test::slice(scores, row * blocks, complete), file.tol("scores"), "scores");
            CHECK(picked[t].size() == static_cast<std::size_t>(num_selected[row]));
            if (margin[row] < 1e-4f) continue;  // a tie or nearly one: the reference's choice is not defined
            ++compared;
            std::vector<std::uint32_t> want;
            for (std::size_t i = 0; i < width && selected[row * width + i] >= 0; ++i)
                want.push_back(static_cast<std::uint32_t>(selected[row * width + i]) - static_cast<std::uint32_t>(pad));
            CHECK(picked[t] == want);
            test::check_close(test::slice(got, t * dims.hidden, dims.hidden), test::slice(y, row * dims.hidden, dims.hidden),
                              file.tol("y"), "y");
        }
    }
    CHECK(compared > 0);
}

}  // namespace

TEST_CASE("C14 QSA equals the reference at every stage, left padding not fed") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const std::string name :
             {"bigblock_r8_b32", "decode_r4", "decode_r8", "leftpad_r4", "mrope_r4", "oneheadindex_r4", "prefill_r4_b16_T53",
              "prefill_r4_b4_T21", "prefill_r4_b64_T53", "prefill_r8_b64_T53", "tie_equal_keys", "tie_zero_keys"}) {
            CAPTURE(name);
            const test::golden file("qsa/" + name);
            if (file.params().at("compress_ratio") == 8)
                check_golden<8>(dev, file);
            else
                check_golden<4>(dev, file);
        }
    });
}

TEST_CASE("C23 the same bits for any split of the tokens") { laws{}.any_split(); }
TEST_CASE("the same bits for any number of threads") { laws{}.any_threads(); }
TEST_CASE("C29 two sequences in one cache answer as if alone") { laws{}.two_sequences(); }
TEST_CASE("C18 equal sequences answer alike") { laws{}.equal_sequences(); }
TEST_CASE("C15 C16 padding and empty segments touch nothing") { laws{}.padding(); }
TEST_CASE("C17 a cleared slot is as new") { laws{}.cleared(); }
TEST_CASE("C19 C20 C25 tokens taken back re-open their block") { laws{}.rollback(); }
TEST_CASE("C21 a snapshot stays what it was") { laws{}.snapshots(); }
TEST_CASE("C30 a copy equals its source, indexer keys included, over a used destination") { laws{}.copies(); }
TEST_CASE("C24 saved bytes restore the sequence, broken ones change nothing") { laws{}.saving(); }
TEST_CASE("context overflow changes nothing") { laws{}.overflow(); }
TEST_CASE("a failed pass changes nothing") { laws{}.failure(); }
TEST_CASE("a token that is NaN shows in all that see it") { laws{}.not_a_number_shows(); }

TEST_CASE("C26 a zero hidden state takes the first blocks, in every way of running") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const auto layer = test::random_layer(8);  // two blocks of four
        auto zeros = test::random_stream(layer.dims.hidden, 16, 1);
        std::fill(zeros.x.begin(), zeros.x.end(), 0.0f);
        fg::device::cpu<Isa> serial;
        test::threads pool(3);
        fg::device::cpu<Isa> many{pool};
        const auto check = [&](auto& dev) {
            test::arm<qsa<4>> cache(layer, 1);
            cache.feed(dev, test::seq(0), zeros, 0, 16);
            const auto got = chosen(dev, cache, test::seq(0), zeros);
            CHECK(got[15] == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7});  // four full blocks, no tail
            CHECK(got[13] == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 12, 13});
        };
        check(serial);
        check(many);
    });
}

TEST_CASE("C26 the choice equals a sort of the scores by (score descending, index ascending)") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto layer = test::random_layer(12, 1);  // one indexer head: half of all scores are exactly 0
        const auto a = test::random_stream(layer.dims.hidden, 90, 2);
        test::arm<qsa<4>> cache(layer, 1);
        cache.feed(dev, test::seq(0), a, 0, 90);
        const auto got = chosen(dev, cache, test::seq(0), a);
        const auto queries = index_queries(dev, layer, a);
        std::size_t ties = 0;
        for (std::size_t t = 0; t < 90; ++t) {
            std::vector<float> score((t + 1) / 4);
            ops::cpu::score_blocks<Isa>(&queries[t * 11], 1, 11, cache.state.block_view(test::seq(0)), std::sqrt(11.0f), 0,
                                        score.size(), score.data());
            std::vector<std::size_t> order(score.size());
            for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
            std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t z) { return score[x] > score[z]; });
            if (order.size() > 3) ties += score[order[2]] == score[order[3]] ? 1 : 0;
            order.resize(std::min<std::size_t>(3, order.size()));
            std::set<std::uint32_t> want;
            for (const std::size_t block : order)
                for (std::size_t i = 0; i < 4; ++i) want.insert(static_cast<std::uint32_t>(4 * block + i));
            for (std::size_t i = (t + 1) / 4 * 4; i <= t; ++i) want.insert(static_cast<std::uint32_t>(i));
            CHECK(got[t] == std::vector<std::uint32_t>(want.begin(), want.end()));
        }
        CHECK(ties > 0);  // or the case would prove nothing
    });
}

TEST_CASE("C28 fewer candidates than the budget: all; the tail always; an empty view selects nothing") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto layer = test::random_layer(8);
        const auto a = test::random_stream(layer.dims.hidden, 19, 2);
        test::arm<qsa<4>> cache(layer, 1);
        cache.feed(dev, test::seq(0), a, 0, 19);
        const auto got = chosen(dev, cache, test::seq(0), a);
        CHECK(got[0] == std::vector<std::uint32_t>{0});
        CHECK(got[10].size() == 11);
        for (std::uint32_t t = 0; t <= 10; ++t) CHECK(got[10][t] == t);
        CHECK(got[18].size() == 8 + 3);
        CHECK(std::vector<std::uint32_t>(got[18].end() - 3, got[18].end()) == std::vector<std::uint32_t>{16, 17, 18});
        for (const auto& list : got) CHECK(std::is_sorted(list.begin(), list.end()));
        // A row of padding selects nothing, whatever the scratch holds.
        const std::vector<reuse::qsa_row> rows(1);
        const std::vector<ops::block_row<float>> choices(1);
        const std::vector<float> queries(22, test::not_a_number);
        std::vector<std::uint32_t> all(attention::detail::most_chosen(reuse::block_ratio(4), 2), 77u);
        std::vector<std::size_t> counts(1, 99);
        REQUIRE(attention::detail::choose_tokens(dev, cache.scratch, layer.sizes(), reuse::block_ratio(4), rows,
                                                 std::span<const ops::block_row<float>>(choices),
                                                 matrix_view<const float>(queries.data(), 1, 22), all, counts));
        CHECK(counts[0] == 0);
        for (const std::uint32_t token : all) CHECK(token == 77u);
    });
}

TEST_CASE("with a budget for every block the bits are those of full attention") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const std::size_t budget : {32u, 36u, 4096u}) {
            const auto layer = test::random_layer(budget);
            const auto a = test::random_stream(layer.dims.hidden, 39, 2);
            test::arm<full> dense(layer, 1);
            test::arm<qsa<4>> sparse(layer, 1);
            const auto want = dense.feed(dev, test::seq(0), a, 0, 39), got = sparse.feed(dev, test::seq(0), a, 0, 39);
            const std::size_t alike = budget == 32 ? 35 : 39;  // from token 35 on there are nine blocks, one more than 32 tokens
            CHECK(
                test::same_bits(test::slice(got, 0, alike * layer.dims.hidden), test::slice(want, 0, alike * layer.dims.hidden)));
            if (budget == 32) CHECK_FALSE(test::same_bits(got, want));
        }
    });
}

TEST_CASE("tokens that are not selected are not read") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto layer = test::random_layer(8);
        const auto a = test::random_stream(layer.dims.hidden, 50, 2);
        test::arm<qsa<4>> cache(layer, 2);
        cache.feed(dev, test::seq(0), a, 0, 49);
        cache.copy(test::seq(0), test::seq(1));
        const auto want = cache.feed(dev, test::seq(0), a, 49, 1);
        const auto seen = chosen(dev, cache, test::seq(0), a)[49];
        const std::vector<float> junk(layer.dims.kv_heads * layer.dims.head_dim, test::not_a_number);
        REQUIRE(cache.state.reserve(test::seq(1), 1));  // takes the shared rows for its own
        for (std::uint32_t t = 0; t < 49; ++t)
            if (!std::binary_search(seen.begin(), seen.end(), t)) cache.state.write(test::seq(1), t, junk.data(), junk.data());
        CHECK(test::same_bits(cache.feed(dev, test::seq(1), a, 49, 1), want));
    });
}

TEST_CASE("C36 batches of any length and a context of any length: the same bits, and no memory of keys times queries") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(16);
    const auto a = test::random_stream(layer.dims.hidden, 1100, 2);
    test::arm<qsa<4>> one_by_one(layer, 1);
    std::vector<float> want;
    for (std::size_t t = 0; t < 560; ++t) want = test::joined(want, one_by_one.feed(dev, test::seq(0), a, t, 1));
    for (const std::size_t count : {127u, 129u, 511u, 512u, 513u}) {
        test::arm<qsa<4>> cache(layer, 1);
        auto got = cache.feed(dev, test::seq(0), a, 0, count);
        got = test::joined(got, cache.feed(dev, test::seq(0), a, count, 560 - count));
        CHECK(test::same_bits(got, want));
    }
    // The scratch of a batch does not grow with the context, but for one row of block scores a thread.
    test::arm<qsa<4>> cache(layer, 1);
    cache.feed(dev, test::seq(0), a, 0, 300);
    const std::size_t before = cache.scratch.bytes();
    for (std::size_t t = 300; t < 1100; t += 200) cache.feed(dev, test::seq(0), a, t, 200);
    CHECK(cache.scratch.bytes() == before);
}

TEST_CASE("C36 twelve layers share one layout: one build a batch or none instead of twelve, the same bytes") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        constexpr std::array<std::size_t, 12> ratios = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
        static_assert(reuse::count_sets<reuse::shared>(ratios) == 1 && reuse::count_sets<reuse::per_layer>(ratios) == 12);
        static_assert(reuse::count_sets<reuse::memoised>(ratios) == 1 && reuse::count_sets<reuse::incremental>(ratios) == 1);
        std::vector<test::layer_weights> layers;
        for (unsigned i = 0; i < 12; ++i) layers.push_back(test::random_layer(8, 2, 100 + i));
        const std::size_t hidden = layers[0].dims.hidden;
        const auto a = test::random_stream(hidden, 40, 2);
        struct counts {
            std::uint64_t builds, updates, hits;
        };
        const auto run = [&]<class Policy>(fg::type_tag<Policy>, const counts& want) {
            fg::device::cpu<Isa, fg::counters_on> dev;
            fg::workspace scratch;
            auto layouts = reuse::qsa_layouts<Policy>::create(ratios, 1).value();
            std::vector<qsa<4>::state> states;
            for (const auto& layer : layers) states.push_back(qsa<4>::create_state(layer.sizes(), 1, 100).value());
            std::vector<float> out;
            for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 30}, {30, 1}, {31, 1}, {32, 8}}) {
                const test::segment part{test::seq(0), 0, count};
                const attention::batch tokens{{&part, 1}, std::span(a.positions).subspan(first, count)};
                auto x = test::slice(a.x, first * hidden, count * hidden);
                REQUIRE(layouts.append(tokens, dev.counters()));
                for (std::size_t layer = 0; layer < 12; ++layer) {
                    const matrix_view<float> view(x.data(), count, hidden);
                    REQUIRE(qsa<4>::forward<test::formats>(dev, scratch, layers[layer].sizes(), layers[layer].view(),
                                                           states[layer], tokens, layouts.of_layer(layer), view, view));
                }
                out = test::joined(out, x);
            }
            CHECK(dev.counters().read(fg::counter::layout_builds) == want.builds);
            CHECK(dev.counters().read(fg::counter::layout_updates) == want.updates);
            CHECK(dev.counters().read(fg::counter::layout_hits) == want.hits);
            return out;
        };
        const auto frugal = run(fg::type_tag<reuse::incremental>{}, {0, 4, 0});
        CHECK(test::same_bits(frugal, run(fg::type_tag<reuse::memoised>{}, {4, 0, 0})));
        CHECK(test::same_bits(frugal, run(fg::type_tag<reuse::shared>{}, {4, 0, 0})));
        CHECK(test::same_bits(frugal, run(fg::type_tag<reuse::per_layer>{}, {48, 0, 0})));
    });
}

TEST_CASE("C37 a layout that is not this batch's is refused") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto layer = test::random_layer(8);
    const auto a = test::random_stream(layer.dims.hidden, 20, 2);
    auto state = qsa<4>::create_state(layer.sizes(), 2, 100).value();
    auto layout = reuse::qsa_layout::create(4, 2).value();
    auto other_ratio = reuse::qsa_layout::create(8, 2).value();
    fg::workspace scratch;
    std::vector<float> y(a.x.size());
    const auto batch_of = [&](const test::segment& part) {
        return attention::batch{{&part, 1}, std::span(a.positions).first(part.count)};
    };
    const auto code = [&](const test::segment& part, const reuse::qsa_layout& from) {
        const auto done = qsa<4>::forward<test::formats>(dev, scratch, layer.sizes(), layer.view(), state, batch_of(part), from,
                                                         matrix_view<const float>(a.x.data(), part.count, layer.dims.hidden),
                                                         matrix_view<float>(y.data(), part.count, layer.dims.hidden));
        return done ? fg::errc::io : done.error().code;
    };
    const test::segment five{test::seq(0), 0, 5}, other{test::seq(1), 0, 5}, six{test::seq(0), 0, 6};
    CHECK(code(five, layout) == fg::errc::invalid_argument);  // nothing appended
    REQUIRE(other_ratio.append(batch_of(five)));
    CHECK(code(five, other_ratio) == fg::errc::invalid_argument);  // blocks of another size
    REQUIRE(layout.append(batch_of(other)));
    CHECK(code(five, layout) == fg::errc::invalid_argument);  // another sequence's
    REQUIRE(layout.rollback(test::seq(1), 5));
    REQUIRE(layout.append(batch_of(six)));
    CHECK(code(five, layout) == fg::errc::invalid_argument);  // more rows
    REQUIRE(layout.rollback(test::seq(0), 6));
    REQUIRE(layout.append(batch_of(five)));
    CHECK(code(five, layout) == fg::errc::io);                // runs
    CHECK(code(five, layout) == fg::errc::invalid_argument);  // the same batch again: the cache is ahead
    REQUIRE(layout.append(batch_of(five)));
    REQUIRE(state.rollback(test::seq(0), 1));
    CHECK(code(five, layout) == fg::errc::invalid_argument);  // taken back in the cache alone
    CHECK(state.length(test::seq(0)) == 4);
}

TEST_CASE("C35 the indexer's precision does not follow the cache's") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        using half_cache = attention::qsa<4, test::zero_centred, fg::half, float>;
        using half_indexer = attention::qsa<4, test::zero_centred, fg::half, fg::half>;
        using unsaid = attention::qsa<4, test::zero_centred, fg::quant::q8_0>;
        static_assert(std::is_same_v<unsaid::state::index_scalar, fg::bfloat16>);
        const auto layer = test::random_layer(16);
        const auto a = test::random_stream(layer.dims.hidden, 64, 2);
        test::arm<qsa<4>> floats(layer, 1);
        test::arm<half_cache> halves(layer, 1);
        test::arm<half_indexer> all_halves(layer, 1);
        const auto y = floats.feed(dev, test::seq(0), a, 0, 64);
        test::check_close(halves.feed(dev, test::seq(0), a, 0, 64), y, {5e-3, 5e-3}, "half cache");
        all_halves.feed(dev, test::seq(0), a, 0, 64);
        const auto want = chosen(dev, floats, test::seq(0), a);
        CHECK(chosen(dev, halves, test::seq(0), a) == want);
        std::size_t kept = 0, of = 0;
        const auto got = chosen(dev, all_halves, test::seq(0), a);
        for (std::size_t t = 0; t < 64; ++t)
            for (const std::uint32_t token : want[t])
                ++of, kept += std::binary_search(got[t].begin(), got[t].end(), token) ? 1 : 0;
        MESSAGE("selection recall with f16 indexer keys: ", kept, " of ", of);
        CHECK(kept * 100 >= of * 95);
        fg::byte_writer out;
        all_halves.state.save(test::seq(0), out);
        fg::byte_reader in(out.bytes());
        CHECK(halves.state.load(test::seq(0), in).error().code == fg::errc::shape_mismatch);
    });
}

TEST_CASE("a rollback into a block re-opens it: the key is computed anew from other tokens") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto layer = test::random_layer(8);
        const auto a = test::random_stream(layer.dims.hidden, 40, 2), b = test::random_stream(layer.dims.hidden, 40, 3);
        test::arm<qsa<4>> cache(layer, 1);
        cache.feed(dev, test::seq(0), a, 0, 16);
        const float* row = cache.state.block_keys(test::seq(0)).row(3);
        const std::vector<float> old(row, row + 11);
        REQUIRE(cache.rollback(test::seq(0), 2));
        CHECK(cache.state.block_keys(test::seq(0)).size() == 3);
        cache.feed(dev, test::seq(0), b, 0, 2);
        REQUIRE(cache.state.block_keys(test::seq(0)).size() == 4);
        row = cache.state.block_keys(test::seq(0)).row(3);
        CHECK_FALSE(test::same_bits({row, row + 11}, old));
    });
}
