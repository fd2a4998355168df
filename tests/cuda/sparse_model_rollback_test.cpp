// Sequences of Qwen4-Exp on the emulated GPU are rolled back: blocks are opened anew, n-grams look back on other tokens.
#include "sequence_support.hpp"

using namespace frugal;
using namespace test;

TEST_CASE(
    "Qwen4-Exp: tokens are taken back, blocks are opened anew, and the right tokens have the bits of a sequence without them") {
    check_rollback(golden_case<model::qwen4exp<4>>("models/qwen4_exp"), 22);  // more than the budget of 16: blocks are chosen
}

TEST_CASE("QSA alone forgets tokens up to the border of any block, and into those that its history reaches") {
    const machine guard;
    const golden_case<model::qwen4exp<4>> model("models/qwen4_exp");
    auto dev = must(gpu::open(0));
    auto m = attention_alone(model, dev, {.max_tokens = 64, .batch_tokens = 2, .logit_rows = 64, .checkpoints = 6});
    const auto all = model.first(26);
    const auto want = run(m, dev, all, {26});  // raw keys of the newest 10 tokens are kept: 16 … 25
    for (std::size_t left = 0; left <= 26; ++left) CHECK(m.can_rollback(26 - left) == (left % 4 == 0 || left >= 16));
    CHECK(m.rollback(dev, 11).error().code == errc::cannot_rollback);
    must(m.rollback(dev, 5));
    (void)run(m, dev, others(all.subspan(21, 2), model.width), {2});  // in the block 20 … 23
    must(m.rollback(dev, 2));
    CHECK(same_bits(run(m, dev, all.subspan(21, 4), {1, 3}), rows_of(want, model.width, 21, 25)));
    must(m.rollback(dev, 9));  // 16: a border
    CHECK(!m.can_rollback(1));
    CHECK(m.can_rollback(4));
    CHECK(same_bits(run(m, dev, all.subspan(16), {3}), rows_of(want, model.width, 16, 26)));
}
