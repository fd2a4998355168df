// A sequence on the emulated GPU is rolled back, saved and loaded: what comes after has the bits of one that was never otherwise.
#include "sequence_support.hpp"

using namespace frugal;
using namespace test;

TEST_CASE("Qwen3.5 dense: tokens are taken back, and the right ones have the bits of a sequence without them") {
    check_rollback(golden_case<model::qwen35>("models/qwen3_5_dense"), 17);
}
TEST_CASE("Qwen3.5 mixture of experts: as the dense model") {
    check_rollback(golden_case<model::qwen35moe>("models/qwen3_5_moe"), 16);
}
TEST_CASE("Qwen3.5 dense: a saved sequence goes on in another decoder") {
    check_saved(golden_case<model::qwen35>("models/qwen3_5_dense"), 5, 9);
}
TEST_CASE("Qwen3.5 mixture of experts: as the dense model") {
    check_saved(golden_case<model::qwen35moe>("models/qwen3_5_moe"), 5, 9);
}
TEST_CASE("without recurrent layers nothing is kept: full attention forgets any tokens") {
    const machine guard;
    const golden_case<model::qwen35> model("models/qwen3_5_dense");
    auto dev = must(gpu::open(0));
    auto m = attention_alone(model, dev, {.max_tokens = 64, .batch_tokens = 8, .logit_rows = 64});
    const auto want = run(m, dev, model.first(12), {12});
    CHECK(m.can_rollback(12));
    must(m.rollback(dev, 10));
    (void)run(m, dev, others(model.first(5), model.width), {5});
    must(m.rollback(dev, 5));
    CHECK(same_bits(run(m, dev, model.first(12).subspan(2), {10}), rows_of(want, model.width, 2, 12)));
    must(m.rollback(dev, 12));
    CHECK(same_bits(run(m, dev, model.first(3), {1}), rows_of(want, model.width, 0, 3)));
}
