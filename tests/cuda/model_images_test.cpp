// model::transformer with its products on the emulated GPU: images within budgets of bytes, and within what the device has.
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

const golden_model& mixture() {
    static const golden_model out("models/qwen3_5_moe");
    return out;
}
auto open(const model::weight_store_options& images) {
    return mixture().run_on<model::qwen35moe, gpu>({.sequences = 1, .max_tokens = 64}, images, must(gpu::open(0)));
}

}  // namespace

TEST_CASE("routed experts on the GPU: the most recently used stay within the budget, with the bits of all of them there") {
    const machine guard;
    const auto tokens = mixture().tokens();
    const auto first = std::span(tokens).first(6);
    auto all = open({});
    const auto want = all->run_pieces(first, {3, 1});
    const auto logits = mixture().data.f32("io.logits");
    check_close(want, {logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(want.size())},
                mixture().data.tol("io.logits"), "logits");
    const std::size_t whole = all->store.experts().images().bytes();
    CHECK(all->store.experts().images().evictions() == 0);
    CHECK(simt::runtime().allocated_bytes >= all->store.bytes());
    all.reset();
    const std::size_t part = whole / 2;
    auto some = open({.expert_byte_budget = part});
    CHECK(same_bits(some->run_pieces(first, {3, 1}), want));
    CHECK(some->store.experts().images().bytes() <= part);
    CHECK(some->store.experts().images().evictions() > 0);
    CHECK(some->store.counted(counter::host_fallbacks) == 0);
    some.reset();
    CHECK(simt::runtime().allocated_bytes == 0);
    // Where the device has no more, that is the budget.
    auto full = open({});
    simt::device().memory = simt::runtime().allocated_bytes + part;
    const auto got = full->run_pieces(first, {3, 1});
    CHECK(simt::runtime().allocated_bytes <= simt::device().memory);
    CHECK(!full->device.lost());
    CHECK(relative(got, want) < rounding);
    CHECK(full->store.counted(counter::host_fallbacks) > 0);
}

TEST_CASE("a budget for each kind of layer: what is beyond it is the host's, and the logits are those of both") {
    const machine guard;
    const auto tokens = mixture().tokens();
    const auto first = std::span(tokens).first(3);
    auto all = open({});
    const auto want = all->run(first);
    using products = attention::gdn_products;
    const std::size_t whole = all->store.of<products>().images().bytes();
    all.reset();
    auto some = open({.byte_budget = whole / 2});
    const auto got = some->run(first);
    CHECK(some->store.of<products>().images().bytes() <= whole / 2);
    CHECK(some->store.of<products>().images().bytes() > 0);
    CHECK(some->store.counted(counter::host_fallbacks) > 0);
    CHECK(relative(got, want) < rounding);
    const auto packed = [&] { return some->store.of<products>().counters().read(counter::images_packed); };
    const auto before = packed();
    (void)some->run(first);
    CHECK(packed() == before);  // what stayed with the host is not tried again
}
