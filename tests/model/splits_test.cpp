// The bits of a model's logits do not depend on how tokens are split, batched or spread over threads.
#include "model_support.hpp"
#include "threads.hpp"

using namespace frugal;
using namespace test;

namespace {

template <class Body>
void each_golden_model(Body&& body) {
    SUBCASE("Qwen3.5 dense") { body(type_tag<model::qwen35>{}, golden_model("models/qwen3_5_dense")); }
    SUBCASE("Qwen3.5 mixture of experts") { body(type_tag<model::qwen35moe>{}, golden_model("models/qwen3_5_moe")); }
    SUBCASE("Qwen4-Exp") { body(type_tag<model::qwen4exp<4>>{}, golden_model("models/qwen4_exp")); }
}

}  // namespace

TEST_CASE("C03 C23 prefill in any split gives the bits of token by token") {
    each_golden_model([]<class Spec>(type_tag<Spec>, const golden_model& golden) {
        const auto tokens = golden.tokens();
        for_each_isa([&]<class Isa>(type_tag<Isa>) {
            auto m = golden.run<Spec, Isa>({.sequences = 1, .max_tokens = 64});
            const auto want = m->run(tokens);
            for (const std::vector<std::size_t>& pieces : std::vector<std::vector<std::size_t>>{
                     {1}, {2}, {3, 1, 7}, {51, 1}, {1, 51}, {16}, {17, 15, 16}, {40, 1}, {40, 2, 10}}) {
                m->state.clear(sequence_id{0});
                CHECK(same_bits(m->run_pieces(tokens, pieces), want));
            }
        });
    });
}

TEST_CASE("C13 C18 C29 several sequences in a batch give the bits of each alone") {
    each_golden_model([]<class Spec>(type_tag<Spec>, const golden_model& golden) {
        const auto tokens = golden.tokens();
        for_each_isa([&]<class Isa>(type_tag<Isa>) {
            // Four equal sequences and one other, of different lengths, with padding and an empty segment between them.
            auto m = golden.run<Spec, Isa>({.sequences = 6, .max_tokens = 64});
            const std::span<const std::int32_t> same = std::span(tokens).first(9), other = std::span(tokens).subspan(20, 13);
            auto alone = golden.run<Spec, Isa>({.sequences = 1, .max_tokens = 64});
            const auto want_same = alone->run(same);
            alone->state.clear(sequence_id{0});
            const auto want_other = alone->run(other);

            std::vector<std::int32_t> batch;
            std::vector<segment> segments;
            const auto add = [&](sequence_id s, std::span<const std::int32_t> part) {
                segments.push_back({s, batch.size(), part.size()});
                batch.insert(batch.end(), part.begin(), part.end());
            };
            add(sequence_id{3}, same);
            add(sequence_id::padding, std::span(tokens).first(3));
            add(sequence_id{0}, same);
            add(sequence_id{5}, {});
            add(sequence_id{1}, other);
            add(sequence_id{2}, same);
            add(sequence_id{4}, same);
            const auto got = m->run_batch(batch, segments);
            for (const segment& s : segments) {
                if (s.sequence == sequence_id::padding || s.count == 0) continue;
                const std::vector<float> rows(got.begin() + static_cast<std::ptrdiff_t>(s.first * m->vocabulary()),
                                              got.begin() + static_cast<std::ptrdiff_t>((s.first + s.count) * m->vocabulary()));
                CHECK(same_bits(rows, s.sequence == sequence_id{1} ? want_other : want_same));
                CHECK(m->state.length(s.sequence) == s.count);
            }
            CHECK(m->state.length(sequence_id{5}) == 0);

            // Decode in turn and together: the four stay one, the other stays itself.
            const std::int32_t next[] = {tokens[40], tokens[40], tokens[41], tokens[40], tokens[40]};
            alone->state.clear(sequence_id{0});
            alone->run(same);
            const auto want_next = alone->run({&next[0], 1});
            const segment turns[] = {{sequence_id{0}, 0, 1}, {sequence_id{2}, 1, 1}, {sequence_id{1}, 2, 1}, {sequence_id{3}, 3, 1}};
            const auto together = m->run_batch(std::span(next).first(4), turns);
            const auto in_turn = m->run({&next[4], 1}, sequence_id{4});
            for (const std::size_t row : {0u, 1u, 3u})
                CHECK(std::equal(want_next.begin(), want_next.end(), together.begin() + static_cast<std::ptrdiff_t>(row * m->vocabulary())));
            CHECK(same_bits(in_turn, want_next));
        });
    });
}

TEST_CASE("results do not depend on the number of threads") {
    each_golden_model([]<class Spec>(type_tag<Spec>, const golden_model& golden) {
        const auto tokens = golden.tokens();
        for_each_isa([&]<class Isa>(type_tag<Isa>) {
            auto serial = golden.run<Spec, Isa>({.sequences = 1, .max_tokens = 64});
            const auto want = serial->run(tokens);
            for (const std::size_t count : {2u, 3u, 8u}) {
                threads executor(count);
                auto m = golden.run<Spec, Isa>({.sequences = 1, .max_tokens = 64}, executor);
                CHECK(same_bits(m->run_pieces(tokens, {17, 1, 34}), want));
            }
        });
    });
}

TEST_CASE("C36 no layout is built by default, one a batch when shared, one a layer otherwise, the same bits") {
    const golden_model golden("models/qwen4_exp");
    const auto tokens = golden.tokens();
    using Isa = isa::baseline;
    auto shared = golden.run<model::qwen4exp<4>, Isa, reuse::shared>({.sequences = 1, .max_tokens = 64});
    auto apart = golden.run<model::qwen4exp<4>, Isa, reuse::per_layer>({.sequences = 1, .max_tokens = 64});
    auto kept = golden.run<model::qwen4exp<4>, Isa>({.sequences = 1, .max_tokens = 64});
    auto remembered = golden.run<model::qwen4exp<4>, Isa, reuse::memoised>({.sequences = 1, .max_tokens = 64});
    const auto want = apart->run_pieces(tokens, {40, 1});
    CHECK(same_bits(shared->run_pieces(tokens, {40, 1}), want));
    CHECK(same_bits(kept->run_pieces(tokens, {40, 1}), want));
    CHECK(same_bits(remembered->run_pieces(tokens, {40, 1}), want));
    CHECK(shared->device.counters().read(counter::layout_builds) == 13);
    CHECK(apart->device.counters().read(counter::layout_builds) == 2 * 13);
    CHECK(kept->device.counters().read(counter::layout_builds) == 0);
    CHECK(kept->device.counters().read(counter::layout_updates) == 13);
    CHECK(remembered->device.counters().read(counter::layout_builds) == 13);
    CHECK(remembered->device.counters().read(counter::layout_hits) == 0);
}
