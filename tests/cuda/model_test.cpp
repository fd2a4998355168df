// Whole steps of Qwen3.5 on the emulated GPU: logits, what goes up and down, what a token allocates and waits for, and failures.
// The host's code and the kernels are compiled apart, as for a GPU: no kernel is included here.
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

const golden_case<model::qwen35>& dense() {
    static const golden_case<model::qwen35> out("models/qwen3_5_dense");
    return out;
}

bool names(const error& e, std::string_view what) { return e.message.find(what) != std::string::npos; }

}  // namespace

TEST_CASE("Qwen3.5 as a quantised file: the host's logits, with weights that nobody reads once their images are on the device") {
    const machine guard;
    const std::vector<std::int32_t> tokens = {5, 17, 300, 4, 99, 1023};
    // N01: with scaled rotary positions, so that what scales them reaches the device.
    const auto yarn = must(ops::make_rope_scaling({.type = "yarn", .factor = 4, .original_context = 64}));
    gguf_model whole(std::string(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf"));
    whole.sizes.rope_scaling = yarn;
    const auto want = whole.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64})->run(tokens);

    auto bytes = embedded_file("tiny-qwen35");
    gguf_model file(must(io::gguf_file::parse(bytes, "in memory")));
    file.sizes.rope_scaling = yarn;
    auto dev = must(gpu::open(0));
    std::size_t unneeded = 0;
    const auto tell = [&](std::span<const std::byte> matrix) {
        unneeded += matrix.size();
        std::memset(const_cast<std::byte*>(matrix.data()), 0xFF, matrix.size());  // NaN from here on
    };
    auto weights = must(model::read_weights<model::qwen35, file_formats>(file.file, file.sizes));
    auto m = must(decoder<model::qwen35, model::convention::gguf>::create(
        dev, file.sizes, weights, {.max_tokens = 64, .batch_tokens = 4, .logit_rows = 6, .source_unneeded = tell}));
    weights = {};
    std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
    CHECK(unneeded > bytes.size() / 2);
    CHECK(dev.counters().read(counter::image_bytes_uploaded) > unneeded);
    CHECK(m.bytes() == simt::runtime().allocated_bytes);

    const auto logits = run(m, dev, tokens, {1, 5});  // the second call in pieces of 4 and 1
    const double off = relative(logits, want);
    MESSAGE("logits off by " << off << " from the host's");
    CHECK(off < rounding);
    CHECK(m.length() == tokens.size());
}

TEST_CASE("Qwen3.5 dense: transformers' logits; the same bits whatever the split into calls, and again after clear()") {
    check_golden(dense(), dense().tokens.size());
}

TEST_CASE("a token is one replayed graph: nothing is allocated or recorded, one wait, 16 bytes up, its logits down") {
    const machine guard;
    const auto& model = dense();
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64, .recorded_tokens = 2});
    model.check(run(m, dev, model.first(1), {1}));
    const auto before = simt::runtime();
    model.check(run(m, dev, model.first(2).subspan(1), {1}), 1);
    const auto after = simt::runtime();
    CHECK(after.allocation_calls == before.allocation_calls);
    CHECK(after.recordings == before.recordings);
    CHECK(after.graph_launches == before.graph_launches + 1);
    CHECK(after.synchronizations == before.synchronizations + 1);
    CHECK(after.bytes_to_device == before.bytes_to_device + 16);
    CHECK(after.bytes_to_host == before.bytes_to_host + model.width * sizeof(float));
    // The sequence outgrows what was recorded for 2 and for 4 tokens, and the results are right.
    model.check(run(m, dev, model.first(8).subspan(2), {1}), 2);
    CHECK(simt::runtime().recordings == before.recordings + 2);
    CHECK(simt::runtime().allocation_calls == before.allocation_calls);
}

TEST_CASE("the likeliest token is chosen on the device: 4 bytes come down") {
    const machine guard;
    const auto& model = dense();
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64});
    const auto prefill = model.golden.data.params().at("prefill").get<std::size_t>();
    const auto want = model.golden.data.i64("io.greedy");
    std::vector<std::int32_t> got = {must(m.step_greedy(dev, model.first(prefill)))};
    const auto before = simt::runtime();
    while (got.size() < want.size()) got.push_back(must(m.step_greedy(dev, {&got.back(), 1})));
    CHECK(std::equal(got.begin(), got.end(), want.begin(), want.end()));
    CHECK(simt::runtime().bytes_to_host == before.bytes_to_host + (want.size() - 1) * 4);
    CHECK(simt::runtime().bytes_to_device == before.bytes_to_device + (want.size() - 1) * 16);
    CHECK(simt::runtime().recordings == before.recordings);
}

TEST_CASE("a token is drawn on the device, as the host draws it from the same logits: 24 bytes more go up") {
    const machine guard;
    const auto& model = dense();
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64, .recorded_tokens = 64}), beside = model.create(dev, {.max_tokens = 64});
    const ops::sampling_options how{.temperature = 1.3f, .top_k = 20, .top_p = 0.9f, .seed = 4};
    auto on_device = must(ops::sampler::create(how)), on_host = must(ops::sampler::create(how));
    std::vector<float> row(model.width);
    std::vector<std::int32_t> got, want;
    std::int32_t newest = 0;
    simt::runtime_report before;
    for (int i = 0; i < 8; ++i) {
        const auto next = i == 0 ? model.first(3) : std::span<const std::int32_t>(&newest, 1);
        must(beside.step(dev, next, {row.data(), 1, model.width}));
        want.push_back(static_cast<std::int32_t>(must(on_host.sample(row))));
        before = simt::runtime();
        got.push_back(must(m.step_sample(dev, next, on_device)));
        newest = want.back();
    }
    const std::span<const std::int32_t> next(&newest, 1);
    CHECK(got == want);
    CHECK(on_device.random().state() == on_host.random().state());
    const auto after = simt::runtime();
    CHECK(after.bytes_to_device == before.bytes_to_device + 16 + 24);
    CHECK(after.bytes_to_host == before.bytes_to_host + 4);
    CHECK(after.graph_launches == before.graph_launches + 1);
    CHECK(after.allocation_calls == before.allocation_calls);
    // What is refused draws nothing.
    const auto state = on_device.random().state();
    CHECK(m.step_sample(dev, {}, on_device).error().code == errc::invalid_argument);
    CHECK(on_device.random().state() == state);
    auto all = must(ops::sampler::create({.temperature = 1.0f}));
    CHECK(m.step_sample(dev, next, all).error().code == errc::unsupported);
    auto at_least = must(ops::sampler::create({.top_k = 20, .min_p = 0.1f}));
    CHECK(m.step_sample(dev, next, at_least).error().code == errc::unsupported);
    CHECK(at_least.random().state() == 0);
    auto likeliest = must(ops::sampler::create({.temperature = 0.0f}));
    must(beside.step(dev, next, {row.data(), 1, model.width}));
    CHECK(must(m.step_sample(dev, next, likeliest)) == must(ops::greedy(row)));
}

TEST_CASE("what a sequence cannot take is refused, and changes nothing") {
    const machine guard;
    const auto& model = dense();
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 3, .batch_tokens = 2});
    const std::size_t width = model.width;
    std::vector<float> row(width), rows(2 * width);
    const auto kernels = simt::runtime().kernels;
    for (const std::int32_t token : {-1, static_cast<std::int32_t>(width)})
        CHECK(m.step(dev, {&token, 1}, {row.data(), 1, width}).error().code == errc::invalid_argument);
    CHECK(m.step(dev, model.first(4), {row.data(), 1, width}).error().code == errc::context_overflow);
    CHECK(m.step(dev, model.first(2), {rows.data(), 2, width}).error().code == errc::shape_mismatch);
    CHECK(m.step(dev, model.first(1), {row.data(), 1, width - 1}).error().code == errc::shape_mismatch);
    const ops::rope_position position;
    CHECK(m.step(dev, model.first(2), {}, {&position, 1}).error().code == errc::invalid_argument);
    CHECK(m.step_greedy(dev, {}).error().code == errc::invalid_argument);
    CHECK(simt::runtime().kernels == kernels);
    CHECK(m.length() == 0);
    must(m.step(dev, model.first(3), {row.data(), 1, width}));
    model.check(row, 2);
    CHECK(m.step(dev, model.first(1), {}).error().code == errc::context_overflow);
}

TEST_CASE("out of memory while it is created leaves nothing allocated, and the device usable") {
    const machine guard;
    const auto& model = dense();
    auto dev = must(gpu::open(0));
    const auto create = [&] { return model.try_create(dev, {.max_tokens = 64, .batch_tokens = 2}); };
    std::size_t refusals = 0;
    for (std::size_t allowed = 0;; allowed += 7) {  // every seventh allocation fails in turn
        simt::fail_call("cudaMalloc", cudaErrorMemoryAllocation, static_cast<int>(allowed));
        const auto made = create();
        if (made) break;
        ++refusals;
        CHECK(made.error().code == errc::out_of_memory);
        CHECK(simt::runtime().allocations == 0);
        CHECK(simt::runtime().pinned == 0);
    }
    CHECK(refusals > 5);
    simt::reset_runtime();
    {
        const auto made = create();
        REQUIRE(made.has_value());
        simt::device().memory = made->bytes() - 1;
    }
    const auto too_small = create();
    CHECK(too_small.error().code == errc::out_of_memory);
    CHECK(names(too_small.error(), "cudaErrorMemoryAllocation"));
    CHECK(simt::runtime().allocations == 0);
    CHECK(simt::runtime().pinned == 0);
    ++simt::device().memory;  // all of it: nothing else stays allocated on the device
    CHECK(create().has_value());
    simt::reset_runtime();
    for (const auto& failing :
         {std::pair{"cudaMallocHost", errc::out_of_memory}, std::pair{"cudaGraphInstantiate", errc::device_failed},
          std::pair{"launch", errc::device_failed}}) {
        const char* const call = failing.first;
        const errc kind = failing.second;
        CAPTURE(call);
        simt::fail_call(call, kind == errc::out_of_memory ? cudaErrorMemoryAllocation : cudaErrorInvalidValue, 1);
        CHECK(create().error().code == kind);
        CHECK(simt::runtime().allocations == 0);
        CHECK(simt::runtime().pinned == 0);
        CHECK(simt::runtime().graphs == 0);
    }
    CHECK(!dev.lost());
    CHECK(create().has_value());
}

TEST_CASE("a step that fails: clear() helps; where the device is lost, nothing but a new one") {
    const machine guard;
    const auto& model = dense();
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64});
    std::vector<float> row(model.width);
    const auto step = [&] { return m.step(dev, model.first(1), {row.data(), 1, model.width}); };
    simt::fail_call("cudaGraphLaunch", cudaErrorLaunchOutOfResources);
    const auto failed = step();
    CHECK(failed.error().code == errc::device_failed);
    CHECK(names(failed.error(), "cudaErrorLaunchOutOfResources"));
    CHECK(names(step().error(), "clear()"));
    must(m.clear(dev));
    must(step());
    model.check(row);
    // In the middle of a prefill: what was queued before has run, and is forgotten.
    simt::fail_call("launch", cudaErrorLaunchOutOfResources, 40);
    CHECK(m.step(dev, model.first(3), {row.data(), 1, model.width}).error().code == errc::device_failed);
    must(m.clear(dev));
    must(m.step(dev, model.first(3), {row.data(), 1, model.width}));
    model.check(row, 2);
    must(m.clear(dev));

    simt::fail_call("cudaStreamSynchronize", cudaErrorIllegalAddress, 0, true);
    const auto lost = step();
    CHECK(lost.error().code == errc::device_lost);
    CHECK(names(lost.error(), "cudaErrorIllegalAddress"));
    CHECK(dev.lost());
    CHECK(step().error().code == errc::device_lost);
    CHECK(m.clear(dev).error().code == errc::device_lost);
    CHECK(model.try_create(dev, {.max_tokens = 64}).error().code == errc::device_lost);
    must(dev.reopen());
    CHECK(step().error().code == errc::device_lost);  // of another generation
    m = model.create(dev, {.max_tokens = 64});
    must(step());
    model.check(row);
}
