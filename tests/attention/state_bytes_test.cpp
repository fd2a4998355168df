// What a sequence becomes by its bytes: the states of every kind, edited in any order, beside twins that never save nor load.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "frugal/attention/gdn/gdn_state.hpp"
#include "frugal/attention/kv_cache.hpp"
#include "frugal/attention/qsa/qsa_cache.hpp"
#include "frugal/layer/ngram_state.hpp"
#include "frugal/model/state.hpp"
#include "frugal/reuse/inputs/qsa_layout.hpp"
#include "frugal/reuse/inputs/qsa_layouts.hpp"

namespace fg = frugal;
namespace attention = frugal::attention;
namespace reuse = frugal::reuse;
using attention::rope_position;
using attention::sequence_id;
using fg::matrix_view;

namespace {

constexpr std::size_t sequences = 3, most_tokens = 600;

sequence_id seq(std::size_t index) { return static_cast<sequence_id>(index); }

/// Numbers for the tokens of an append: the same for every state that gets the same seed.
struct numbers {
    explicit numbers(unsigned seed) : generator(seed) {}
    std::mt19937 generator;
    float next() { return static_cast<float>(static_cast<int>(generator() % 2001) - 1000) / 512.0f; }
    std::vector<float> row(std::size_t n) {
        std::vector<float> out(n);
        for (float& value : out) value = next();
        return out;
    }
};

// What an append of a layer does, for each kind of state.

template <class Scalar>
void append(attention::basic_kv_cache<Scalar>& state, sequence_id s, std::size_t n, unsigned seed) {
    numbers from(seed);
    REQUIRE(state.reserve(s, n));
    for (std::size_t t = 0; t < n; ++t)
        state.write(s, state.length(s) + t, from.row(state.kv_heads() * state.head_dim()).data(),
                    from.row(state.kv_heads() * state.head_dim()).data());
    state.commit(s, n);
}

template <class Scalar, class Index>
void append(attention::qsa_cache<Scalar, Index>& state, sequence_id s, std::size_t n, unsigned seed) {
    numbers from(seed);
    const std::size_t width = state.kv_heads() * state.head_dim(), dim = state.index_dim(), ratio = state.ratio().tokens();
    REQUIRE(state.reserve(s, n));
    for (std::size_t t = state.length(s), end = t + n; t < end; ++t) {
        state.write(s, t, from.row(width).data(), from.row(width).data());
        state.write_raw_key(s, reuse::token_rank(t), from.row(dim).data());
        if ((t + 1) % ratio != 0) continue;
        std::vector<float> key(dim);  // of the block: from the raw keys of all its tokens
        for (std::size_t i = t + 1 - ratio; i <= t; ++i)
            for (std::size_t d = 0; d < dim; ++d) key[d] += fg::to_float(state.raw_keys(s).row(i)[d]);
        state.write_block_key(s, reuse::block_index(t / ratio), key.data());
    }
    state.commit(s, n);
}

template <class Layout>
void append(attention::basic_gdn_state<Layout>& state, sequence_id s, std::size_t n, unsigned seed) {
    numbers from(seed);
    const std::size_t channels = state.shape().channels, history = state.shape().history;
    const auto values = from.row(n * channels);
    const matrix_view<const float> x(values.data(), n, channels);
    state.keep_conv_history(s, x);
    for (std::size_t t = 0; t < n; ++t) {
        if (t >= n - state.kept(n)) state.keep_recurrent(s, t);
        for (float& value : state.recurrent(s)) value = 0.5f * value + from.next();
    }
    const auto rows = state.conv_history(s);
    for (std::size_t row = 0; row < history; ++row) {
        const std::size_t at = row + n;  // in [history, x]: rows move towards the front, the foremost first
        std::memmove(rows.row(row), at < history ? rows.row(at) : x.row(at - history), channels * sizeof(float));
    }
    state.advance(s, n);
}

void append(fg::layer::ngram_state& state, sequence_id s, std::size_t n, unsigned seed) {
    numbers from(seed);
    const auto values = from.row(n * state.channels());
    std::vector<std::int32_t> tokens(n);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(from.generator() % 50);
    state.append(s, tokens, matrix_view<const float>(values.data(), n, state.channels()));
}

template <class State>
    requires requires(State& state, const attention::batch& tokens, fg::counters_off& counters) {
        state.append(tokens, counters);
    }
void append(State& state, sequence_id s, std::size_t n, unsigned seed) {
    numbers from(seed);
    std::vector<rope_position> positions(n);
    for (rope_position& at : positions)
        at = {static_cast<std::int32_t>(from.generator() % 1000), static_cast<std::int32_t>(from.generator() % 9), 0};
    const attention::segment part{s, 0, n};
    fg::counters_off counters;
    REQUIRE(state.append(attention::batch{{&part, 1}, positions}, counters));
}

using whole_model = fg::model::combined_state<attention::gdn_state, attention::qsa_cache<fg::half, std::int8_t>,
                                              fg::layer::ngram_state, reuse::qsa_layouts<reuse::incremental>>;

void append(whole_model& state, sequence_id s, std::size_t n, unsigned seed) {
    REQUIRE(state.reserve(s, n));
    for (auto& part : state.parts<attention::gdn_state>()) append(part, s, n, seed++);
    for (auto& part : state.parts<attention::qsa_cache<fg::half, std::int8_t>>()) append(part, s, n, seed++);
    for (auto& part : state.parts<fg::layer::ngram_state>()) append(part, s, n, seed++);
    for (auto& part : state.parts<reuse::qsa_layouts<reuse::incremental>>()) append(part, s, n, seed++);
    state.advance(s, n);
}

// How to make them.

template <class Scalar, class Index>
attention::qsa_cache<Scalar, Index> qsa(std::size_t raw_history) {
    return attention::qsa_cache<Scalar, Index>::create(1, std::is_same_v<Scalar, fg::quant::q8_0> ? 32 : 2, 3, 4, sequences,
                                                       most_tokens, raw_history)
        .value();
}
attention::gdn_dims gdn_dims() {
    attention::gdn_dims out;
    out.hidden = 3, out.key_heads = 1, out.value_heads = 2, out.key_dim = 2, out.value_dim = 3, out.conv_kernel = 4;
    return out;
}
attention::gdn_state gdn(std::size_t checkpoints) {
    return attention::gdn_state::create(gdn_dims(), sequences, checkpoints).value();
}
fg::layer::ngram_state ngrams(std::size_t checkpoints) {
    fg::layer::ngram_dims dims;
    dims.hidden = 2, dims.streams = 2, dims.row = 2, dims.conv_kernel = 3;
    dims.hash.ngram_size = 3, dims.hash.vocabulary = 50, dims.hash.eos = 7;
    return fg::layer::ngram_state::create(dims, sequences, checkpoints).value();
}
template <class Policy>
reuse::qsa_layouts<Policy> layouts() {
    const std::size_t ratios[] = {4, 4, 3};
    return reuse::qsa_layouts<Policy>::create(ratios, sequences).value();
}
whole_model model_state(std::size_t checkpoints) {
    const auto several = [](auto... parts) {
        std::vector<std::common_type_t<decltype(parts)...>> out;
        (out.push_back(std::move(parts)), ...);
        return out;
    };
    return whole_model(77, sequences, several(gdn(checkpoints), gdn(checkpoints)),
                       several(qsa<fg::half, std::int8_t>(checkpoints), qsa<fg::half, std::int8_t>(checkpoints)),
                       several(ngrams(checkpoints)), several(layouts<reuse::incremental>()));
}

template <class State>
std::vector<std::byte> saved(const State& state, std::size_t s) {
    fg::byte_writer out;
    state.save(seq(s), out);
    return std::move(out).take();
}

template <class State>
fg::status load(State& state, std::size_t s, std::span<const std::byte> bytes) {
    fg::byte_reader in(bytes);
    return state.load(seq(s), in);
}

/// How far back sequences can go, found by asking.
template <class State>
std::vector<bool> ways_back(const State& state, std::size_t s) {
    std::vector<bool> out;
    for (std::size_t n = 0; n <= std::min<std::size_t>(state.length(seq(s)), 40); ++n)
        out.push_back(state.can_rollback(seq(s), n));
    return out;
}

/// Whether a state forgets, when it is loaded, how it was before its newest tokens. (All tokens of an n-gram state can always go.)
template <class State>
constexpr bool has_checkpoints = std::is_same_v<State, attention::gdn_state> || std::is_same_v<State, fg::layer::ngram_state> ||
                                 std::is_same_v<State, whole_model>;

/// Random edits of `tested`, which is saved and loaded on the way, and of `twin`, which never is.
template <class Make>
void edit_at_random(const Make& make, unsigned seed) {
    auto tested = make(), twin = make();
    using State = decltype(tested);
    constexpr std::size_t any = static_cast<std::size_t>(-1);
    std::size_t since_load[sequences] = {any, any, any};  // tokens that came after the latest load, if there was one
    struct kept {
        typename State::snapshot_type tested, twin;
    };
    std::vector<kept> snapshots;
    std::mt19937 generator(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(generator() % n); };
    for (int step = 0; step < 150; ++step) {
        const std::size_t s = below(sequences), other = below(sequences), kind = below(10);
        const std::size_t length = twin.length(seq(s));
        CAPTURE(seed);
        CAPTURE(step);
        CAPTURE(kind);
        if (kind < 4) {
            const std::size_t n = std::min(below(3) == 0 ? below(140) : below(9), most_tokens - length);
            const auto values = static_cast<unsigned>(generator());
            append(tested, seq(s), n, values);
            append(twin, seq(s), n, values);
            if (since_load[s] != any) since_load[s] += n;
        } else if (kind == 4) {
            const std::size_t n = std::min(below(3) == 0 ? below(150) : below(7), length + 1);
            const auto before = saved(tested, s);
            const fg::status done = tested.rollback(seq(s), n);
            if (done) {
                REQUIRE(twin.rollback(seq(s), n));
                if (since_load[s] != any) since_load[s] -= std::min(n, since_load[s]);
            } else {
                CHECK(done.error().code == fg::errc::cannot_rollback);
                CHECK(saved(tested, s) == before);
            }
        } else if (kind < 7) {
            const auto bytes = saved(tested, s);
            REQUIRE(load(tested, other, bytes));
            REQUIRE(twin.copy(seq(s), seq(other)));
            since_load[other] = 0;
        } else if (kind == 7) {
            REQUIRE(tested.copy(seq(s), seq(other)));
            REQUIRE(twin.copy(seq(s), seq(other)));
            since_load[other] = since_load[s];
        } else if (kind == 8) {
            if (snapshots.empty() || below(2) == 0) {
                if (snapshots.size() > 3) snapshots.erase(snapshots.begin());
                auto of_tested = tested.snapshot(seq(s)), of_twin = twin.snapshot(seq(s));
                REQUIRE(of_tested);
                REQUIRE(of_twin);
                snapshots.push_back({*std::move(of_tested), *std::move(of_twin)});
            } else {
                const kept& from = snapshots[below(snapshots.size())];
                REQUIRE(tested.restore(seq(s), from.tested));
                REQUIRE(twin.restore(seq(s), from.twin));
                since_load[s] = any;
            }
        } else if (below(3) == 0) {
            tested.clear(seq(s));
            twin.clear(seq(s));
            since_load[s] = any;
        }
        for (const std::size_t one : {s, other}) {
            REQUIRE(tested.length(seq(one)) == twin.length(seq(one)));
            REQUIRE(saved(tested, one) == saved(twin, one));
            auto want = ways_back(twin, one);
            if constexpr (has_checkpoints<State>)
                for (std::size_t n = 0; n < want.size(); ++n)
                    want[n] = want[n] && (n <= since_load[one] ||
                                          (std::is_same_v<State, fg::layer::ngram_state> && n == tested.length(seq(one))));
            REQUIRE(ways_back(tested, one) == want);
        }
    }
}

/// Bytes that were cut or spoilt are refused with nothing changed, or load as a sequence that works like any other.
template <class Make>
void spoil(const Make& make) {
    const auto make_target = [&] {
        auto out = make();
        append(out, seq(0), 9, 7);
        append(out, seq(0), 2, 8);
        return out;
    };
    auto from = make(), target = make_target();
    append(from, seq(1), 20, 5);
    append(from, seq(1), 3, 6);
    const auto bytes = saved(from, 1), before = saved(target, 0);
    const auto back = ways_back(target, 0);
    REQUIRE(load(from, 2, bytes));
    CHECK(saved(from, 2) == bytes);
    std::size_t wrong = 0, refused = 0, accepted = 0;
    const auto unchanged = [&] { return saved(target, 0) == before && ways_back(target, 0) == back; };
    const std::size_t step = bytes.size() / 300 + 1;  // all of a small state
    for (std::size_t cut = 0; cut < bytes.size(); cut += cut < 200 ? 1 : step)
        if (load(target, 0, std::span(bytes).first(cut)) || !unchanged()) ++wrong;
    CHECK(wrong == 0);
    for (std::size_t i = 0; i < bytes.size(); i += i < 200 ? 1 : step)
        for (const int mask : {0x01, 0x80}) {
            auto spoilt = bytes;
            spoilt[i] ^= static_cast<std::byte>(mask);
            auto one = make_target();
            if (!load(one, 0, spoilt)) {
                ++refused;
                if (saved(one, 0) != before || ways_back(one, 0) != back) ++wrong;
                continue;
            }
            ++accepted;
            const auto as_loaded = saved(one, 0);
            REQUIRE(load(one, 1, as_loaded));  // what it is, a state can be
            if (saved(one, 1) != as_loaded) ++wrong;
            REQUIRE(one.copy(seq(0), seq(1)));
            const auto snapshot = one.snapshot(seq(0));
            REQUIRE(snapshot);
            if (one.length(seq(0)) < 200) {  // else it would not fit
                append(one, seq(0), 5, 9);
                (void)one.rollback(seq(0), 3);
                append(one, seq(0), 20, 10);
                (void)one.rollback(seq(0), 23);
            }
            REQUIRE(one.restore(seq(2), *snapshot));
            if (saved(one, 2) != as_loaded || saved(one, 1) != as_loaded) ++wrong;
        }
    CHECK(wrong == 0);
    CHECK(refused > 0);
    CHECK(accepted > 0);
}

template <class Body>
void each_state(Body&& body) {
    SUBCASE("keys and values in f32") {
        body([] { return attention::kv_cache::create(1, 2, sequences, most_tokens).value(); });
    }
    SUBCASE("keys and values in q8_0") {
        body([] { return attention::basic_kv_cache<fg::quant::q8_0>::create(1, 32, sequences, most_tokens).value(); });
    }
    SUBCASE("QSA, no raw keys but the open block's") {
        body([] { return qsa<float, float>(0); });
    }
    SUBCASE("QSA, raw keys of four tokens, in bytes") {
        body([] { return qsa<fg::half, std::int8_t>(4); });
    }
    SUBCASE("QSA, raw keys of 12 tokens") {
        body([] { return qsa<fg::bfloat16, fg::half>(12); });
    }
    SUBCASE("QSA, raw keys of 150 tokens") {
        body([] { return qsa<fg::quant::q8_0, float>(150); });
    }
    SUBCASE("QSA, all raw keys") {
        body([] { return qsa<float, fg::bfloat16>(attention::qsa_cache<>::unlimited); });
    }
    SUBCASE("Gated DeltaNet without checkpoints") {
        body([] { return gdn(0); });
    }
    SUBCASE("Gated DeltaNet with checkpoints") {
        body([] { return gdn(5); });
    }
    SUBCASE("n-grams") {
        body([] { return ngrams(6); });
    }
    SUBCASE("a QSA layout") {
        body([] { return reuse::qsa_layout::create(4, sequences).value(); });
    }
    SUBCASE("QSA layouts, edited") {
        body([] { return layouts<reuse::incremental>(); });
    }
    SUBCASE("QSA layouts, filled") {
        body([] { return layouts<reuse::memoised>(); });
    }
    SUBCASE("a whole model") {
        body([] { return model_state(5); });
    }
}

}  // namespace

TEST_CASE("N34: states that are saved and loaded between edits in any order are those that never were") {
    each_state([](const auto& make) {
        for (unsigned seed = 1; seed <= 4; ++seed) edit_at_random(make, seed);
    });
}

TEST_CASE("N34: bytes that were cut or spoilt are refused with nothing changed, or load as a sequence like any other") {
    each_state([](const auto& make) { spoil(make); });
}

TEST_CASE("N34: a QSA cache whose raw keys were dropped is loaded with room for those to come") {
    const auto go_on = [](auto& loaded, auto& twin) {
        REQUIRE(saved(loaded, 0) == saved(twin, 0));
        const auto snapshot = loaded.snapshot(seq(0));
        REQUIRE(snapshot);
        REQUIRE(loaded.copy(seq(0), seq(1)));
        append(loaded, seq(0), 3, 2);
        append(twin, seq(0), 3, 2);
        CHECK(saved(loaded, 0) == saved(twin, 0));
        REQUIRE(loaded.restore(seq(2), *snapshot));
        CHECK(saved(loaded, 1) == saved(loaded, 2));
        for (const std::size_t s : {1u, 2u}) append(loaded, seq(s), 3, 2);
        for (const std::size_t s : {1u, 2u}) CHECK(saved(loaded, s) == saved(twin, 0));
    };
    SUBCASE("four tokens in blocks of four, raw history 0") {
        for (const std::size_t history : {std::size_t{0}, attention::qsa_cache<>::unlimited}) {
            auto from = qsa<float, float>(0), to = qsa<float, float>(history);
            append(from, seq(0), 4, 1);
            REQUIRE(load(to, 0, saved(from, 0)));
            CHECK(to.raw_keys(seq(0)).first() == 4);
            CHECK_FALSE(to.can_rollback(seq(0), 1));
            go_on(to, from);
        }
    }
    SUBCASE("raw history 12, a hundred tokens, sixty of them taken back") {
        for (const std::size_t tokens : {100u, 128u, 300u}) {
            auto from = qsa<float, float>(12), to = qsa<float, float>(12);
            append(from, seq(0), tokens, 1);
            REQUIRE(from.rollback(seq(0), 60));
            REQUIRE(load(to, 0, saved(from, 0)));
            go_on(to, from);
        }
    }
    SUBCASE("all raw keys into a cache that keeps fewer") {
        auto all = qsa<float, float>(attention::qsa_cache<>::unlimited), few = qsa<float, float>(12),
             twin = qsa<float, float>(12);
        append(all, seq(0), 300, 1);
        append(twin, seq(0), 300, 1);
        REQUIRE(load(few, 0, saved(all, 0)));
        CHECK(few.raw_keys(seq(0)).first() == twin.raw_keys(seq(0)).first());
        CHECK(ways_back(few, 0) == ways_back(twin, 0));
        CHECK(few.bytes() == twin.bytes());
        go_on(few, twin);
        const auto snapshot = all.snapshot(seq(0));
        REQUIRE(few.restore(seq(0), *snapshot));
        CHECK(few.raw_keys(seq(0)).first() == 288);
    }
    SUBCASE("few raw keys into a cache that keeps all: what was dropped stays dropped, and is not read") {
        auto few = qsa<float, float>(12), all = qsa<float, float>(attention::qsa_cache<>::unlimited), twin = all;
        append(few, seq(0), 303, 1);
        append(twin, seq(0), 303, 1);
        REQUIRE(load(all, 0, saved(few, 0)));
        append(all, seq(0), 50, 2);
        append(twin, seq(0), 50, 2);
        for (std::size_t n = 0; n <= 353; ++n)
            CHECK(all.can_rollback(seq(0), n) == ((353 - n) % 4 == 0 || (353 - n) / 4 * 4 >= 288));
        REQUIRE(all.rollback(seq(0), 64));
        REQUIRE(twin.rollback(seq(0), 64));
        for (auto* one : {&all, &twin}) append(*one, seq(0), 20, 3);
        const float *const own = all.block_keys(seq(0)).row(72), *const want = twin.block_keys(seq(0)).row(72);
        CHECK(std::equal(own, own + 3, want));
    }
}

TEST_CASE("N34: counters of tokens that bytes name do not wrap") {
    const auto with = [](auto state, std::size_t at, std::uint64_t tokens) {
        append(state, seq(0), 7, 1);
        auto bytes = saved(state, 0);
        std::uint64_t found = 0;
        std::memcpy(&found, &bytes[at], sizeof(found));
        REQUIRE(found == 7);
        std::memcpy(&bytes[at], &tokens, sizeof(tokens));
        const auto before = saved(state, 1);
        const auto done = load(state, 1, bytes);
        CHECK(saved(state, 1) == before);
        return done ? fg::errc::io : done.error().code;
    };
    for (const std::uint64_t tokens :
         {~std::uint64_t{0}, ~std::uint64_t{0} - 2, std::uint64_t{1} << 63, std::uint64_t{1} << 49}) {
        CHECK(with(gdn(3), 8 + 4 + 4 + 6 * 8, tokens) == fg::errc::malformed_file);
        CHECK(with(ngrams(3), 0, tokens) == fg::errc::malformed_file);
        CHECK(with(reuse::qsa_layout::create(4, sequences).value(), 4 + 8, tokens) == fg::errc::malformed_file);
        CHECK(with(attention::kv_cache::create(1, 2, sequences, most_tokens).value(), 24, tokens) == fg::errc::malformed_file);
        CHECK(with(model_state(3), 16, tokens) == fg::errc::malformed_file);
    }
}

TEST_CASE("N34: what stood before the first token of an n-gram state is not invented") {
    auto state = ngrams(2);
    append(state, seq(0), 1, 1);
    auto bytes = saved(state, 0);
    bytes[8 + 8] = std::byte{9};  // the older of two tokens, of which there is but one
    CHECK(load(state, 1, bytes).error().code == fg::errc::malformed_file);
    bytes = saved(state, 0);
    bytes[8 + 8 + 2 * 8 + 8 + 3] = std::byte{0x3F};  // a row of the convolution's history
    CHECK(load(state, 1, bytes).error().code == fg::errc::malformed_file);
}

TEST_CASE("N34: a snapshot that does not fit changes nothing in any layer, checkpoints included") {
    auto state = model_state(5);
    append(state, seq(0), 9, 1);
    const auto before = saved(state, 0);
    const auto back = ways_back(state, 0);
    auto other = model_state(5);
    append(other, seq(0), 7, 2);
    for (const int spoilt : {0, 1, 2, 3}) {
        auto snapshot = other.snapshot(seq(0)).value();
        if (spoilt == 0) snapshot.length = 6;
        if (spoilt == 1) std::get<1>(snapshot.parts)[1].raw_keys.truncate(4);
        if (spoilt == 2) std::get<2>(snapshot.parts)[0].tokens.pop_back();
        if (spoilt == 3) std::get<3>(snapshot.parts).clear();
        CHECK(state.restore(seq(0), snapshot).error().code == fg::errc::shape_mismatch);
        CHECK(saved(state, 0) == before);
        CHECK(ways_back(state, 0) == back);
    }
    REQUIRE(state.restore(seq(0), other.snapshot(seq(0)).value()));
    CHECK(saved(state, 0) == saved(other, 0));
}

TEST_CASE("N34: a sequence that a failed pass left halfway is not saved as a sequence") {
    auto state = model_state(3);
    append(state, seq(0), 7, 1);
    state.mark_broken(seq(0));
    CHECK(load(state, 1, saved(state, 0)).error().code == fg::errc::malformed_file);
    CHECK(state.length(seq(9)) == 0);
    CHECK_FALSE(load(state, 1, saved(state, 9)).has_value());
}

TEST_CASE("N14: a value beyond the range of a cache becomes the greatest one, NaN and infinities stay") {
    const float infinity = std::numeric_limits<float>::infinity(), greatest = std::numeric_limits<float>::max();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto kept = []<class Scalar>(fg::type_tag<Scalar>, float value) {
        attention::key_value_store<Scalar> store(32);
        REQUIRE(store.reserve(1));
        std::vector<float> row(32, 1.0f);
        row[5] = value;
        store.write(0, row.data());
        store.commit(1);
        if constexpr (std::is_same_v<Scalar, fg::quant::q8_0>) {
            fg::quant::q8_0::decode(reinterpret_cast<const std::byte*>(store.row(0)), row.data());
            return row[5];
        } else {
            return fg::to_float(store.row(0)[5]);
        }
    };
    const auto check = [&](auto tag, float most) {
        CHECK(kept(tag, most) == most);
        CHECK(kept(tag, -most) == -most);
        for (const float beyond : {std::nextafter(most, infinity), most * 1.001f, 1e38f, greatest}) {
            if (!(beyond > most) || beyond == infinity) continue;
            CHECK(kept(tag, beyond) == most);
            CHECK(kept(tag, -beyond) == -most);
        }
        CHECK(std::isnan(kept(tag, nan)));
        CHECK(std::isnan(kept(tag, -nan)));
        CHECK_FALSE(std::isfinite(kept(tag, infinity)));
        CHECK_FALSE(std::isfinite(kept(tag, -infinity)));
    };
    check(fg::type_tag<float>{}, greatest);
    check(fg::type_tag<fg::half>{}, 65504.0f);
    check(fg::type_tag<fg::bfloat16>{}, fg::to_float(fg::bfloat16{0x7F7F}));
    check(fg::type_tag<fg::quant::q8_0>{}, 65504.0f * 127.0f);
    CHECK(kept(fg::type_tag<fg::half>{}, 65504.0f + 15.0f) == 65504.0f);  // rounds to it as ever
}
