#include "gdn_support.hpp"

using namespace test;
namespace layout = frugal::ops::state_layout;

namespace {

using value_major_gdn =
    attention::gdn<pairing::grouped, frugal::ops::activation::silu, frugal::ops::scan::recurrent, layout::value_major>;
constexpr gdn_dims small{16, 1, 2, 8, 6, 4};

std::vector<float> rows_of(const std::vector<float>& all, std::size_t first, std::size_t count) {
    const std::size_t width = small.hidden;
    return {all.begin() + static_cast<std::ptrdiff_t>(first * width),
            all.begin() + static_cast<std::ptrdiff_t>((first + count) * width)};
}

fg::errc code(const fg::status& s) { return s ? fg::errc::io : s.error().code; }

template <class State>
std::vector<std::byte> saved(const State& state, int s) {
    fg::byte_writer out;
    state.save(sequence_id{s}, out);
    return std::move(out).take();
}
template <class State>
fg::status load(State& state, int s, std::span<const std::byte> bytes) {
    fg::byte_reader in(bytes);
    return state.load(sequence_id{s}, in);
}

}  // namespace

TEST_CASE("C19 rollback: exactly the newest tokens that have checkpoints; refused with nothing changed beyond them") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random(small, 1);
        const auto x = normals(8 * small.hidden, 2), y = normals(6 * small.hidden, 3);
        for (const std::size_t checkpoints : std::initializer_list<std::size_t>{0, 1, 2, 3, 7, 8, 20})
            for (const bool one_call : {true, false})
                for (const std::size_t back : std::initializer_list<std::size_t>{0, 1, 2, 3, 7, 8, 9}) {
                    CAPTURE(checkpoints);
                    CAPTURE(back);
                    gdn_runner<Isa> run(layer, 2, checkpoints), plain(layer, 1, 0);
                    run.poison(1, 2.0f);
                    if (one_call)
                        run(0, x);
                    else
                        for (std::size_t t = 0; t < 8; ++t) run(0, rows_of(x, t, 1));
                    const auto before = run.content(0);
                    const bool possible = back <= std::min<std::size_t>(checkpoints, 8);
                    CHECK(run.state.can_rollback(sequence_id{0}, back) == possible);
                    const auto done = run.state.rollback(sequence_id{0}, back);
                    CHECK(bool(done) == possible);
                    for (const float value : run.content(1)) REQUIRE(value == 2.0f);
                    if (!possible) {
                        CHECK(done.error().code == fg::errc::cannot_rollback);
                        CHECK(same_bits(run.content(0), before));
                        CHECK(run.state.length(sequence_id{0}) == 8);
                        // The smaller way back still stands.
                        CHECK(run.state.can_rollback(sequence_id{0}, std::min<std::size_t>(checkpoints, 8)));
                        continue;
                    }
                    CHECK(run.state.length(sequence_id{0}) == 8 - back);
                    plain(0, rows_of(x, 0, 8 - back));
                    CHECK(same_bits(run.content(0), plain.content(0)));
                    CHECK(same_bits(run(0, y), plain(0, y)));
                    CHECK(same_bits(run.content(0), plain.content(0)));
                }
    });
}

TEST_CASE("C19 rollbacks in a row, and between forward passes of any length, use up the checkpoints") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random(small, 1);
        std::mt19937 generator(5);
        gdn_runner<Isa> run(layer, 1, 4);
        std::vector<std::vector<float>> tokens;  // what the sequence holds
        std::size_t undoable = 0;
        unsigned seed = 100;
        for (int step = 0; step < 60; ++step) {
            if (generator() % 2 == 0) {
                const std::size_t n = generator() % 7;
                std::vector<float> x;
                for (std::size_t t = 0; t < n; ++t) {
                    tokens.push_back(normals(small.hidden, ++seed));
                    x.insert(x.end(), tokens.back().begin(), tokens.back().end());
                }
                if (n != 0) run(0, x);
                undoable = std::min<std::size_t>(4, undoable + n);
            } else {
                const std::size_t n = generator() % 6;
                REQUIRE(run.state.can_rollback(sequence_id{0}, n) == (n <= undoable));
                REQUIRE(bool(run.state.rollback(sequence_id{0}, n)) == (n <= undoable));
                if (n <= undoable) {
                    undoable -= n;
                    tokens.resize(tokens.size() - n);
                }
            }
            gdn_runner<Isa> plain(layer, 1, 0);
            std::vector<float> all;
            for (const auto& token : tokens) all.insert(all.end(), token.begin(), token.end());
            if (!all.empty()) plain(0, all);
            REQUIRE(run.state.length(sequence_id{0}) == tokens.size());
            REQUIRE(same_bits(run.content(0), plain.content(0)));
        }
    });
}

TEST_CASE("C20 rejected draft tokens leave no trace in the recurrent state nor in the conv history") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random(small, 6);
        const auto prompt = normals(5 * small.hidden, 7), drafts = normals(3 * small.hidden, 8),
                   next = normals(4 * small.hidden, 9);
        for (std::size_t accepted = 0; accepted <= 3; ++accepted) {
            CAPTURE(accepted);
            gdn_runner<Isa> run(layer, 1, 3), plain(layer, 1, 0);
            run(0, prompt);
            run(0, drafts);
            REQUIRE(run.state.rollback(sequence_id{0}, 3 - accepted));
            plain(0, prompt);
            if (accepted != 0) plain(0, rows_of(drafts, 0, accepted));
            CHECK(same_bits(run.content(0), plain.content(0)));
            for (std::size_t t = 0; t < 4; ++t) CHECK(same_bits(run(0, rows_of(next, t, 1)), plain(0, rows_of(next, t, 1))));
            CHECK(same_bits(run.content(0), plain.content(0)));
        }
    });
}

TEST_CASE("C21 a snapshot or a saved state after a rollback is the accepted prefix") {
    const gdn_layer layer = gdn_layer::random(small, 6);
    const auto prompt = normals(5 * small.hidden, 7), drafts = normals(3 * small.hidden, 8), next = normals(2 * small.hidden, 9);
    using isa = fg::isa::baseline;
    gdn_runner<isa> run(layer, 3, 3), plain(layer, 1, 0);
    run(0, prompt);
    run(0, drafts);
    REQUIRE(run.state.rollback(sequence_id{0}, 2));
    const auto snapshot = run.state.snapshot(sequence_id{0});
    REQUIRE(snapshot);
    const auto bytes = saved(run.state, 0);
    run(0, drafts);  // later tokens do not reach what was taken
    REQUIRE(run.state.restore(sequence_id{1}, *snapshot));
    REQUIRE(load(run.state, 2, bytes));
    plain(0, prompt);
    plain(0, rows_of(drafts, 0, 1));
    const auto want = plain(0, next);
    for (const int s : {1, 2}) {
        CHECK(run.state.length(sequence_id{s}) == 6);
        CHECK(same_bits(run(s, next), want));
    }
}

TEST_CASE("C23 resuming from a snapshot with tails of 1, 2, 63, 64, 65 tokens equals the uninterrupted run") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random(small, 10);
        const auto x = normals((64 + 65) * small.hidden, 11);
        gdn_runner<Isa> run(layer, 2, 0);
        run(0, rows_of(x, 0, 64));
        const auto at_64 = *run.state.snapshot(sequence_id{0});
        for (const std::size_t tail : std::initializer_list<std::size_t>{1, 2, 63, 64, 65}) {
            gdn_runner<Isa> whole(layer, 1, 0);
            const auto want = whole(0, rows_of(x, 0, 64 + tail));
            REQUIRE(run.state.restore(sequence_id{1}, at_64));
            CHECK(same_bits(run(1, rows_of(x, 64, tail)), rows_of(want, 64, tail)));
            CHECK(same_bits(run.content(1), whole.content(0)));
        }
    });
}

TEST_CASE("snapshots are values: restored any number of times, into any sequence; restore drops the way back") {
    const gdn_layer layer = gdn_layer::random(small, 12);
    gdn_runner<fg::isa::baseline> run(layer, 3, 4);
    run(0, normals(6 * small.hidden, 13));
    const auto content = run.content(0);
    auto snapshot = *run.state.snapshot(sequence_id{0});
    const auto copy = snapshot;
    const auto next = normals(2 * small.hidden, 14);
    const auto want = run(0, next);
    for (int round = 0; round < 2; ++round)
        for (const int s : {0, 2}) {
            run.poison(s, quiet_nan);
            REQUIRE(run.state.restore(sequence_id{s}, round == 0 ? snapshot : copy));
            CHECK(same_bits(run.content(s), content));
            CHECK(run.state.length(sequence_id{s}) == 6);
            CHECK(run.state.can_rollback(sequence_id{s}, 0));
            CHECK_FALSE(run.state.can_rollback(sequence_id{s}, 1));
            CHECK(same_bits(run(s, next), want));
            // Tokens that came after the restore have a way back, and no further.
            CHECK(run.state.can_rollback(sequence_id{s}, 2));
            CHECK_FALSE(run.state.can_rollback(sequence_id{s}, 3));
            REQUIRE(run.state.rollback(sequence_id{s}, 2));
            CHECK(same_bits(run.content(s), content));
        }
    // Other sizes, an empty snapshot, a sequence that does not exist.
    gdn_dims wider = small;
    wider.value_dim = 7;
    auto other = *attention::gdn_state::create(wider, 1, 0);
    const auto before = run.content(0);
    CHECK(code(run.state.restore(sequence_id{0}, *other.snapshot(sequence_id{0}))) == fg::errc::shape_mismatch);
    CHECK(code(run.state.restore(sequence_id{0}, {})) == fg::errc::shape_mismatch);
    CHECK(code(run.state.restore(sequence_id{3}, snapshot)) == fg::errc::invalid_argument);
    CHECK(code(run.state.restore(sequence_id::padding, snapshot)) == fg::errc::invalid_argument);
    CHECK_FALSE(run.state.snapshot(sequence_id{3}));
    CHECK(same_bits(run.content(0), before));
}

TEST_CASE("copy: the destination becomes equal, with its way back, whatever it held") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random(small, 15);
        const auto x = normals(9 * small.hidden, 16), next = normals(3 * small.hidden, 17);
        gdn_runner<Isa> run(layer, 3, 3), plain(layer, 1, 0);
        run(0, x);
        run(2, normals(4 * small.hidden, 18));  // other positions in the ring
        run.poison(2, quiet_nan);
        REQUIRE(run.state.copy(sequence_id{0}, sequence_id{2}));
        CHECK(run.state.length(sequence_id{2}) == 9);
        CHECK(same_bits(run.content(2), run.content(0)));
        CHECK(run.state.can_rollback(sequence_id{2}, 3));
        CHECK_FALSE(run.state.can_rollback(sequence_id{2}, 4));
        run(0, next);  // the source goes on by itself
        REQUIRE(run.state.rollback(sequence_id{2}, 2));
        plain(0, rows_of(x, 0, 7));
        CHECK(same_bits(run.content(2), plain.content(0)));
        CHECK(same_bits(run(2, next), plain(0, next)));
        // To itself; errors.
        const auto before = run.content(2);
        REQUIRE(run.state.copy(sequence_id{2}, sequence_id{2}));
        CHECK(code(run.state.copy(sequence_id{2}, sequence_id{3})) == fg::errc::invalid_argument);
        CHECK(code(run.state.copy(sequence_id::padding, sequence_id{2})) == fg::errc::invalid_argument);
        CHECK(same_bits(run.content(2), before));
    });
}

TEST_CASE("clear is dropping all: zeros, length 0, no way back; the neighbour keeps what it has") {
    const gdn_layer layer = gdn_layer::random(small, 19);
    gdn_runner<fg::isa::baseline> run(layer, 3, 3);
    run(0, normals(5 * small.hidden, 20));
    run(1, normals(5 * small.hidden, 21));
    const auto neighbour = run.content(0);
    run.poison(1, quiet_nan);
    run.state.clear(sequence_id{1});
    for (const float value : run.content(1)) CHECK((value == 0 && !std::signbit(value)));
    CHECK(run.state.length(sequence_id{1}) == 0);
    CHECK_FALSE(run.state.can_rollback(sequence_id{1}, 1));
    CHECK(same_bits(run.content(0), neighbour));
    CHECK(run.state.can_rollback(sequence_id{0}, 3));
    run.state.clear(sequence_id{3});
    run.state.clear(sequence_id::padding);
    CHECK(run.state.length(sequence_id{3}) == 0);
    CHECK(run.state.length(sequence_id::padding) == 0);
    CHECK_FALSE(run.state.can_rollback(sequence_id{3}, 0));
}

TEST_CASE(
    "C24 saved states: what was saved comes back; other sizes, layouts, scalars and damaged bytes are errors that change "
    "nothing") {
    const gdn_layer layer = gdn_layer::random(small, 22);
    using isa = fg::isa::baseline;
    gdn_runner<isa> run(layer, 2, 2), other(layer, 2, 5);
    run(0, normals(7 * small.hidden, 23));
    const auto bytes = saved(run.state, 0);
    other(1, normals(3 * small.hidden, 24));
    REQUIRE(load(other.state, 1, bytes));  // another number of checkpoints does not matter
    CHECK(other.state.length(sequence_id{1}) == 7);
    CHECK_FALSE(other.state.can_rollback(sequence_id{1}, 1));
    CHECK(same_bits(other.content(1), run.content(0)));
    CHECK(saved(other.state, 1) == bytes);
    const auto next = normals(2 * small.hidden, 25);
    CHECK(same_bits(other(1, next), run(0, next)));

    run(1, normals(4 * small.hidden, 26));
    const auto before = run.content(1);
    const auto unchanged = [&] {
        return same_bits(run.content(1), before) && run.state.length(sequence_id{1}) == 4 &&
               run.state.can_rollback(sequence_id{1}, 2);
    };
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        const auto cut = load(run.state, 1, std::span(bytes).first(size));
        REQUIRE(code(cut) == fg::errc::malformed_file);
        REQUIRE(unchanged());
    }
    const auto damaged = [&](std::size_t at) {
        auto copy = bytes;
        copy[at] ^= std::byte{0x40};
        return code(load(run.state, 1, copy));
    };
    CHECK(damaged(0) == fg::errc::malformed_file);
    CHECK(damaged(8) == fg::errc::shape_mismatch);   // layout
    CHECK(damaged(12) == fg::errc::shape_mismatch);  // scalar
    for (std::size_t i = 0; i < 6; ++i) CHECK(damaged(16 + 8 * i) == fg::errc::shape_mismatch);
    CHECK(damaged(72) == fg::errc::shape_mismatch);  // number of values
    CHECK(code(load(run.state, 2, bytes)) == fg::errc::invalid_argument);
    CHECK(unchanged());
    for (const auto member :
         {&gdn_dims::key_heads, &gdn_dims::value_heads, &gdn_dims::key_dim, &gdn_dims::value_dim, &gdn_dims::conv_kernel}) {
        gdn_dims changed = small;
        changed.*member *= 2;
        auto state = *attention::gdn_state::create(changed, 1, 0);
        CHECK(code(load(state, 0, bytes)) == fg::errc::shape_mismatch);
    }
    CHECK(saved(run.state, 2).empty());
}

TEST_CASE("C09 hand-over between state layouts: refused as it is, right after conversion") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random(small, 27);
        gdn_runner<Isa> run(layer, 1, 0);
        gdn_runner<Isa, value_major_gdn> turned(layer, 1, 0);
        run(0, normals(6 * small.hidden, 28));
        CHECK(code(load(turned.state, 0, saved(run.state, 0))) == fg::errc::shape_mismatch);
        CHECK(turned.state.length(sequence_id{0}) == 0);
        const auto snapshot = *run.state.snapshot(sequence_id{0});
        const auto converted = snapshot.template converted<layout::value_major>();
        REQUIRE(converted);
        REQUIRE(turned.state.restore(sequence_id{0}, *converted));
        CHECK(turned.state.length(sequence_id{0}) == 6);
        // Element [h][i][c] of one is [h][c][i] of the other; the conv history is the same.
        const auto a = run.content(0), b = turned.content(0);
        for (std::size_t h = 0; h < 2; ++h)
            for (std::size_t i = 0; i < 8; ++i)
                for (std::size_t c = 0; c < 6; ++c) REQUIRE(a[(h * 8 + i) * 6 + c] == b[(h * 6 + c) * 8 + i]);
        CHECK(std::equal(a.begin() + 96, a.end(), b.begin() + 96));
        const auto next = normals(3 * small.hidden, 29);
        CHECK(same_bits(turned(0, next), run(0, next)));
        const auto back = (*turned.state.snapshot(sequence_id{0})).template converted<layout::key_major>();
        REQUIRE(back);
        CHECK(same_bits(back->values(), run.state.snapshot(sequence_id{0})->values()));
    });
}

TEST_CASE("checkpoints do not change results, and are kept whatever the scan") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        using chunked = attention::gdn<pairing::grouped, frugal::ops::activation::silu, frugal::ops::scan::chunked<64>>;
        const gdn_layer layer = gdn_layer::random(small, 30);
        const auto x = normals(80 * small.hidden, 31), next = normals(2 * small.hidden, 32);
        gdn_runner<Isa> none(layer, 1, 0), some(layer, 1, 9);
        CHECK(same_bits(none(0, x), some(0, x)));
        CHECK(same_bits(none.content(0), some.content(0)));
        // Chunked: rolled back = the same calls without the tokens that were rolled back, bit for bit.
        gdn_runner<Isa, chunked> run(layer, 1, 3), plain(layer, 1, 0);
        run(0, x);
        REQUIRE(run.state.rollback(sequence_id{0}, 3));
        plain(0, rows_of(x, 0, 77));
        CHECK(same_bits(run.content(0), plain.content(0)));
        check_close(run(0, next), plain(0, next), {5e-6, 2e-5}, "after a rollback");
    });
}

TEST_CASE("creation: bad sizes and too much memory are returned errors") {
    using state = attention::gdn_state;
    const auto created = [](gdn_dims d, std::size_t sequences, std::size_t checkpoints) {
        const auto made = state::create(d, sequences, checkpoints);
        return made ? fg::errc::io : made.error().code;
    };
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    CHECK(created(small, 0, 0) == fg::errc::io);  // no sequences: fine
    for (const auto member :
         {&gdn_dims::key_heads, &gdn_dims::value_heads, &gdn_dims::key_dim, &gdn_dims::value_dim, &gdn_dims::conv_kernel}) {
        gdn_dims d = small;
        d.*member = 0;
        CHECK(created(d, 1, 0) == fg::errc::invalid_argument);
        d.*member = member == &gdn_dims::value_heads ? most - 1 : most / 2 + 1;
        if (member == &gdn_dims::key_heads) d.value_heads = d.key_heads;
        CHECK(created(d, 1, 0) == fg::errc::out_of_memory);
    }
    gdn_dims uneven = small;
    uneven.key_heads = 2, uneven.value_heads = 3;
    CHECK(created(uneven, 1, 0) == fg::errc::invalid_argument);
    CHECK(created(small, most, 0) == fg::errc::out_of_memory);
    CHECK(created(small, 1, most) == fg::errc::out_of_memory);
    CHECK(created(small, std::size_t{1} << 40, 1) == fg::errc::out_of_memory);

    auto made = *state::create(small, 2, 1);
    CHECK(made.sequences() == 2);
    CHECK(made.bytes() >= 4 * (96 + 3 * 28) * sizeof(float));
    CHECK(made.reserve(sequence_id{1}, most));
    CHECK(code(made.reserve(sequence_id{2}, 1)) == fg::errc::invalid_argument);
    CHECK(code(made.reserve(sequence_id::padding, 1)) == fg::errc::invalid_argument);
    CHECK(code(made.rollback(sequence_id{2}, 0)) == fg::errc::invalid_argument);
    CHECK(code(made.rollback(sequence_id{0}, 1)) == fg::errc::cannot_rollback);
    CHECK(made.rollback(sequence_id{0}, 0));
}
