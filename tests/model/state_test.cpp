// A model's sequences: snapshots, rollback, drafts, copies, bytes; and every refusal leaves things as they were.
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

using Isa = isa::baseline;  // state handling has no instruction set of its own; the kernels are tested on each elsewhere
constexpr sequence_id first{0}, second{1};

template <class Body>
void each_model(Body&& body) {
    SUBCASE("Qwen3.5 dense") { body(type_tag<model::qwen35>{}, golden_model("models/qwen3_5_dense")); }
    SUBCASE("Qwen4-Exp") { body(type_tag<model::qwen4exp<4>>{}, golden_model("models/qwen4_exp")); }
}

template <class Model>
std::vector<std::byte> saved(const Model& m, sequence_id s) {
    byte_writer out;
    m.state.save(s, out);
    return std::move(out).take();
}

}  // namespace

TEST_CASE("C19 rollback undoes exactly n tokens or changes nothing") {
    each_model([]<class Spec>(type_tag<Spec>, const golden_model& golden) {
        const auto tokens = golden.tokens();
        for (const std::size_t n : {1u, 2u, 3u, 8u, 9u}) {
            CAPTURE(n);
            auto m = golden.run<Spec, Isa>({.sequences = 1, .max_tokens = 64, .checkpoints = 3});
            m->run(std::span(tokens).first(8));
            const auto before = saved(*m, first);
            const status undone = m->state.rollback(first, n);
            CHECK(undone.has_value() == (n <= 3));
            CHECK(m->state.can_rollback(first, 1) == (n < 3 || n > 3));
            std::size_t kept = 8;
            if (undone) {
                kept = 8 - n;
            } else {
                CHECK(undone.error().code == errc::cannot_rollback);
                CHECK(saved(*m, first) == before);
            }
            CHECK(m->state.length(first) == kept);
            auto fresh = golden.run<Spec, Isa>({.sequences = 1, .max_tokens = 64});
            fresh->run(std::span(tokens).first(kept));
            CHECK(same_bits(m->run(std::span(tokens).subspan(20, 6)), fresh->run(std::span(tokens).subspan(20, 6))));
        }
    });
}

TEST_CASE("C20 C21 drafted tokens leave no trace when rejected, and no snapshot sees them") {
    each_model([]<class Spec>(type_tag<Spec>, const golden_model& golden) {
        const auto tokens = golden.tokens();
        for (std::size_t accepted = 0; accepted <= 3; ++accepted) {
            CAPTURE(accepted);
            auto m = golden.run<Spec, Isa>({.sequences = 2, .max_tokens = 64, .checkpoints = 4});
            m->run(std::span(tokens).first(10));
            must(m->state.begin_draft(first));
            m->run(std::span(tokens).subspan(30, 3));
            CHECK(m->state.snapshot(first).error().code == errc::unsupported);
            CHECK(m->state.copy(first, second).error().code == errc::unsupported);
            CHECK(m->state.accept(first, 4).error().code == errc::invalid_argument);
            must(m->state.accept(first, accepted));
            CHECK(m->state.snapshot(first).has_value());
            auto fresh = golden.run<Spec, Isa>({.sequences = 1, .max_tokens = 64, .checkpoints = 4});
            fresh->run(std::span(tokens).first(10));
            fresh->run(std::span(tokens).subspan(30, accepted));
            CHECK(same_bits(m->run(std::span(tokens).subspan(5, 7)), fresh->run(std::span(tokens).subspan(5, 7))));
        }
    });
}

TEST_CASE("C17 C30 a slot that was used before serves like a new one, and copies are complete") {
    each_model([]<class Spec>(type_tag<Spec>, const golden_model& golden) {
        const auto tokens = golden.tokens();
        auto m = golden.run<Spec, Isa>({.sequences = 2, .max_tokens = 64});
        m->run(std::span(tokens).subspan(10, 30), second);
        auto fresh = golden.run<Spec, Isa>({.sequences = 1, .max_tokens = 64});
        const auto want = fresh->run(std::span(tokens).first(9));
        const auto want_next = fresh->run(std::span(tokens).subspan(40, 5));
        CHECK(same_bits(m->run(std::span(tokens).first(9), first), want));
        must(m->state.copy(first, second));  // over other contents
        CHECK(same_bits(m->run(std::span(tokens).subspan(40, 5), second), want_next));
        CHECK(same_bits(m->run(std::span(tokens).subspan(40, 5), first), want_next));
        m->state.clear(second);
        CHECK(m->state.length(second) == 0);
        CHECK(same_bits(m->run(std::span(tokens).first(9), second), want));
    });
}

TEST_CASE("snapshots and bytes bring a sequence back, also in another slot and another process") {
    each_model([]<class Spec>(type_tag<Spec>, const golden_model& golden) {
        const auto tokens = golden.tokens();
        auto m = golden.run<Spec, Isa>({.sequences = 2, .max_tokens = 64});
        m->run(std::span(tokens).first(13));
        const auto snapshot = must(m->state.snapshot(first));
        const auto bytes = saved(*m, first);
        const auto want = m->run(std::span(tokens).subspan(13, 20));
        must(m->state.restore(first, snapshot));
        CHECK(m->state.length(first) == 13);
        CHECK(same_bits(m->run(std::span(tokens).subspan(13, 20), first), want));
        must(m->state.restore(second, snapshot));
        CHECK(same_bits(m->run(std::span(tokens).subspan(13, 20), second), want));

        auto other = golden.run<Spec, Isa>({.sequences = 3, .max_tokens = 64});
        byte_reader in(bytes);
        must(other->state.load(sequence_id{2}, in));
        CHECK(in.remaining() == 0);
        CHECK(same_bits(other->run(std::span(tokens).subspan(13, 20), sequence_id{2}), want));
    });
}

TEST_CASE("C24 saved bytes that are cut, foreign or of another model are refused and change nothing") {
    const golden_model dense("models/qwen3_5_dense"), exp("models/qwen4_exp");
    const auto tokens = exp.tokens();
    auto m = exp.run<model::qwen4exp<4>, Isa>({.sequences = 1, .max_tokens = 64});
    m->run(std::span(tokens).first(6));
    const auto mine = saved(*m, first);
    auto other = dense.run<model::qwen35, Isa>({.sequences = 1, .max_tokens = 64});
    other->run(std::span(tokens).first(6));
    const auto theirs = saved(*other, first);
    byte_reader foreign(theirs);
    CHECK_FALSE(m->state.load(first, foreign).has_value());
    for (std::size_t size = 0; size < mine.size(); size += 997) {
        byte_reader cut{std::span(mine).first(size)};
        CHECK_FALSE(m->state.load(first, cut).has_value());
    }
    CHECK(saved(*m, first) == mine);
    m->run(std::span(tokens).subspan(6, 2));
}

TEST_CASE("C08 C09 a state with the other head order is refused, although every shape fits") {
    const golden_model golden("models/qwen3_5_dense");
    const auto tokens = golden.tokens();
    auto grouped = golden.run<model::qwen35, Isa>({.sequences = 1, .max_tokens = 64});
    grouped->run(std::span(tokens).first(6));
    const auto bytes = saved(*grouped, first);
    const auto snapshot = must(grouped->state.snapshot(first));
    using running = running_model<model::qwen35, model::convention::gguf, counting_cpu<Isa>>;
    auto weights = must(model::read_weights<model::qwen35, quant::all>(golden.file, golden.sizes));
    running tiled(must(running::model_type::create(golden.sizes, std::move(weights))), {.sequences = 1, .max_tokens = 64}, {});
    byte_reader in(bytes);
    CHECK(tiled.state.load(first, in).error().code == errc::shape_mismatch);
    CHECK(tiled.state.restore(first, snapshot).error().code == errc::shape_mismatch);
    CHECK(tiled.state.length(first) == 0);
}

TEST_CASE("context overflow and bad tokens are refused before anything changes") {
    each_model([]<class Spec>(type_tag<Spec>, const golden_model& golden) {
        const auto tokens = golden.tokens();
        auto m = golden.run<Spec, Isa>({.sequences = 2, .max_tokens = 12});
        m->run(std::span(tokens).first(10));
        const auto before = saved(*m, first);
        const auto refused = [&](std::span<const std::int32_t> ids, std::span<const segment> segments, errc code) {
            const status s = m->model.forward(m->pass, m->state, {ids, segments, {}, {}}, {});
            REQUIRE_FALSE(s.has_value());
            CHECK(s.error().code == code);
            CHECK_FALSE(s.error().message.empty());
            CHECK(saved(*m, first) == before);
        };
        const segment three[] = {{first, 0, 3}}, gap[] = {{first, 1, 2}}, twice[] = {{first, 0, 1}, {first, 1, 1}},
                      unknown[] = {{sequence_id{7}, 0, 1}}, one[] = {{first, 0, 1}};
        refused(std::span(tokens).first(3), three, errc::context_overflow);
        refused(std::span(tokens).first(3), gap, errc::invalid_argument);
        refused(std::span(tokens).first(2), twice, errc::invalid_argument);
        refused(std::span(tokens).first(1), unknown, errc::invalid_argument);
        const std::int32_t bad[] = {static_cast<std::int32_t>(m->vocabulary())}, negative[] = {-1};
        refused(bad, one, errc::invalid_argument);
        refused(negative, one, errc::invalid_argument);
        m->run(std::span(tokens).subspan(10, 2));  // exactly full
        CHECK(m->state.length(first) == 12);
    });
}
