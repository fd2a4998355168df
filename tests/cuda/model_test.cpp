// Whole steps of a model on the emulated GPU, beside the host's: logits, what goes up and down, what a token allocates and waits
// for, and failures. The host's code and the kernels are compiled apart, as for a GPU: no kernel is included here.
#include "frugal/model/cuda_decoder.hpp"

#include <cmath>

#include "../model/model_support.hpp"
#include "simt/runtime.hpp"

using namespace frugal;
using namespace test;

namespace {

using file_formats = quant::list<quant::f32, quant::q4_k, quant::q6_k>;
using gpu = device::cuda<device::sm_90, counting_cpu<isa::baseline>, device::f32_activations, file_formats>;
template <class Spec, class Convention>
using decoder = model::cuda_decoder<Spec, Convention, policies<gpu, file_formats>>;

/// Leaves the emulated machine as it was: nothing of a test stays allocated.
struct machine {
    machine() { simt::reset_runtime(); }
    machine(const machine&) = delete;
    machine& operator=(const machine&) = delete;
    ~machine() {
        CHECK(simt::runtime().allocations == 0);
        CHECK(simt::runtime().pinned == 0);
        CHECK(simt::runtime().streams == 0);
        CHECK(simt::runtime().graphs == 0);
        simt::reset_runtime();
    }
};

/// A golden model with its decoder type and what transformers says its logits are.
template <class Spec>
struct golden_case {
    using decoder_type = decoder<Spec, model::convention::hugging_face>;
    golden_model golden;
    std::vector<std::int32_t> tokens = golden.tokens();
    std::size_t width = golden.sizes.vocabulary;
    std::vector<float> want = [this] {
        const auto logits = golden.data.f32("io.logits");
        return std::vector<float>(logits.begin(), logits.end());
    }();

    explicit golden_case(const char* name) : golden(name) {}
    [[nodiscard]] result<decoder_type> try_create(gpu& dev, const model::cuda_decoder_options& options) const {
        return decoder_type::create(dev, golden.sizes, must(model::read_weights<Spec, file_formats>(golden.file, golden.sizes)),
                                    options);
    }
    [[nodiscard]] decoder_type create(gpu& dev, const model::cuda_decoder_options& options) const {
        return must(try_create(dev, options));
    }
    [[nodiscard]] std::span<const std::int32_t> first(std::size_t n) const { return std::span(tokens).first(n); }
    /// Checks rows of logits from token `begin` on.
    void check(const std::vector<float>& got, std::size_t begin = 0) const {
        const auto at = want.begin() + static_cast<std::ptrdiff_t>(begin * width);
        check_close(got, std::vector<float>(at, at + static_cast<std::ptrdiff_t>(got.size())), golden.data.tol("io.logits"),
                    "logits");
    }
};
const golden_case<model::qwen35>& dense() {
    static const golden_case<model::qwen35> out("models/qwen3_5_dense");
    return out;
}

/// Logits of all tokens, in calls of these sizes (the last one repeats).
template <class Decoder>
std::vector<float> run(Decoder& m, gpu& dev, std::span<const std::int32_t> input, std::vector<std::size_t> pieces) {
    const std::size_t width = m.sizes().vocabulary;
    std::vector<float> out(input.size() * width);
    for (std::size_t begin = 0, i = 0; begin < input.size(); ++i) {
        const std::size_t n = std::min(pieces[std::min(i, pieces.size() - 1)], input.size() - begin);
        must(m.step(dev, input.subspan(begin, n), {out.data() + begin * width, n, width}));
        begin += n;
    }
    return out;
}

/// Root of the mean square difference, relative to that of the wanted.
double relative(std::span<const float> got, std::span<const float> want) {
    REQUIRE(got.size() == want.size());
    double difference = 0, square = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
        difference += d * d;
        square += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    }
    return std::sqrt(difference / square);
}

/// The same weights, operators and precisions as on the host: only the order of additions differs, and the last bit of exp.
constexpr double rounding = 2e-6;

bool names(const error& e, std::string_view what) { return e.message.find(what) != std::string::npos; }

}  // namespace

TEST_CASE("Qwen3.5 as a quantised file: the host's logits, with weights that nobody reads once their images are on the device") {
    const machine guard;
    const std::vector<std::int32_t> tokens = {5, 17, 300, 4, 99, 1023};
    const gguf_model whole(std::string(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf"));
    const auto want = whole.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64})->run(tokens);

    auto bytes = embedded_file("tiny-qwen35");
    const gguf_model file(must(io::gguf_file::parse(bytes, "in memory")));
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

TEST_CASE("Qwen3.5: transformers' logits; the same bits whatever the split into calls, and again after clear()") {
    const machine guard;
    const auto& model = dense();
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64, .batch_tokens = 40, .logit_rows = 64});
    const auto prefill = model.golden.data.params().at("prefill").get<std::size_t>();
    const auto whole = run(m, dev, model.tokens, {prefill, 1});
    model.check(whole);
    CHECK(m.length() == model.tokens.size());
    must(m.clear(dev));
    CHECK(m.length() == 0);
    const auto again = run(m, dev, model.first(12), {1, 2, 9});
    CHECK(same_bits(again, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(again.size())}));
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
    for (const auto& [call, kind] :
         {std::pair{"cudaMallocHost", errc::out_of_memory}, std::pair{"cudaGraphInstantiate", errc::device_failed},
          std::pair{"launch", errc::device_failed}}) {
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
