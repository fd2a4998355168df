// Whole steps of mixtures of experts and of Qwen4-Exp on the emulated GPU.
#include "model_support.hpp"

using namespace frugal;
using namespace test;

TEST_CASE("Qwen3.5 mixture of experts: transformers' logits, and the same bits whatever the split into calls") {
    check_golden(golden_case<model::qwen35moe>("models/qwen3_5_moe"), 16);
}

TEST_CASE("Qwen4-Exp: transformers' logits, and the same bits whatever the split into calls") {
    const golden_case<model::qwen4exp<4>> model("models/qwen4_exp");
    check_golden(model, 34);  // there are two ends of documents among them, and more blocks than the budget
}

TEST_CASE(
    "Qwen4-Exp: what all QSA layers share goes up as 16 bytes a token, one token or many; one graph, one wait, no allocation") {
    const machine guard;
    const golden_case<model::qwen4exp<4>> model("models/qwen4_exp");
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64, .batch_tokens = 24});
    std::vector<float> row(model.width);
    const auto up = [&] { return simt::runtime().bytes_to_device; };
    auto before = up();
    must(m.step(dev, model.first(18), {row.data(), 1, model.width}));
    CHECK(up() == before + 18 * 16);
    model.check(row, 17);
    const auto counted = simt::runtime();
    for (std::size_t t = 18; t < 21; ++t) {
        before = up();
        must(m.step(dev, model.first(t + 1).subspan(t), {row.data(), 1, model.width}));
        CHECK(up() == before + 16);
        model.check(row, t);
    }
    CHECK(simt::runtime().allocation_calls == counted.allocation_calls);
    CHECK(simt::runtime().recordings == counted.recordings);
    CHECK(simt::runtime().graph_launches == counted.graph_launches + 3);
    CHECK(simt::runtime().synchronizations == counted.synchronizations + 3);
    CHECK(simt::runtime().bytes_to_host == counted.bytes_to_host + 3 * (model.width * sizeof(float) + sizeof(int)));
}

TEST_CASE("positions of images: as on the host, for tokens and for the blocks that they begin") {
    const machine guard;
    const golden_case<model::qwen4exp<4>> model("models/qwen4_exp");
    constexpr std::size_t count = 22;  // more than the budget of 16: blocks are chosen
    std::vector<ops::rope_position> positions(count);
    for (std::size_t t = 0; t < count; ++t) {  // text, a picture of 3 rows of 4, text
        const auto i = static_cast<std::int32_t>(t);
        positions[t] = t < 5    ? ops::rope_position{i, i, i}
                       : t < 17 ? ops::rope_position{5, 5 + (i - 5) / 4, 5 + (i - 5) % 4}
                                : ops::rope_position{i - 8, i - 8, i - 8};
    }
    auto host = model.golden.run<model::qwen4exp<4>, isa::baseline, exact_selection>({.sequences = 1, .max_tokens = 64});
    std::vector<std::size_t> rows(count);
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    std::vector<float> want(count * model.width), text(count * model.width), got(count * model.width);
    const segment whole{sequence_id{0}, 0, count};
    must(host->model.forward(host->pass, host->state, {model.first(count), {&whole, 1}, positions, rows},
                             {want.data(), count, model.width}));
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64, .batch_tokens = 5, .logit_rows = count});
    must(m.step(dev, model.first(count), {got.data(), count, model.width}, positions));
    CHECK(relative(got, want) < rounding);
    std::copy_n(model.want.begin(), text.size(), text.begin());
    CHECK(relative(want, text) > 1e-3);  // the positions matter
}

TEST_CASE("a router without a choice is an error that names the token; clear() helps") {
    const machine guard;
    const golden_case<model::qwen35moe> model("models/qwen3_5_moe");
    auto weights = must(model::read_weights<model::qwen35moe, file_formats>(model.golden.file, model.golden.sizes));
    quant::weight_view& router = weights.layers[1].feed_forward.router;
    std::vector<std::byte> broken(router.data, router.data + router.bytes());
    std::memset(broken.data(), 0xFF, 4);  // one NaN
    router.data = broken.data();
    auto dev = must(gpu::open(0));
    auto m = must(
        decoder<model::qwen35moe, model::convention::hugging_face>::create(dev, model.golden.sizes, weights, {.max_tokens = 8}));
    CHECK(m.length() == 0);
    const auto failed = m.step_greedy(dev, model.first(1));
    CHECK(failed.error().code == errc::not_finite);
    CHECK(failed.error().message.find("token 0") != std::string::npos);
    CHECK(m.step_greedy(dev, model.first(1)).error().message.find("clear()") != std::string::npos);
    must(m.clear(dev));
    CHECK(m.step_greedy(dev, model.first(1)).error().code == errc::not_finite);
}
