// Whole steps on the emulated GPU under other policies than the default ones: activations in 8 bits, prefills by matrix units,
// caches of less precision. Each beside the host's model of the same policy, and nearer to that than to the default one.
#include <algorithm>

#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

const gguf_model& tiny_qwen35() {
    static const gguf_model file(std::string(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf"));
    return file;
}
/// Rounds as bf16_tiles does, but products of experts alone.
struct experts_alone {
    static constexpr bool rounds = true;
    struct multiplier : device::prefill::bf16_tiles::multiplier {
        template <quant::format Format>
        status multiply(const device::gpu::context_ref& on, const device::gpu::stream& queue,
                        const device::gpu::panel_product& product) {
            return on->check("multiply", device::gpu::multiply_panels<Format, device::f32_activations>(product, queue.get()));
        }
    };
};

model::weights<model::qwen35> weights_of(const gguf_model& file) {
    return must(model::read_weights<model::qwen35, file_formats>(file.file, file.sizes));
}

}  // namespace

TEST_CASE("activations in 8 bits: the host's logits with such activations, one token and several") {
    const machine guard;
    const std::vector<std::int32_t> tokens = {5, 17, 300, 4};
    using q8_cpu = device::cpu<isa::baseline, counters_on, device::q8_activations>;
    using q8_gpu = device::cuda<arch, q8_cpu, device::q8_activations, file_formats>;
    const auto& file = tiny_qwen35();
    const auto exact = file.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64})->run(tokens);
    const auto want = file.run_on<model::qwen35, q8_cpu>({.sequences = 1, .max_tokens = 64}, {})->run(tokens);
    auto dev = must(q8_gpu::open(0));
    auto m = must(model::cuda_decoder<model::qwen35, model::convention::gguf, policies<q8_gpu, file_formats>>::create(
        dev, file.sizes, weights_of(file), {.max_tokens = 64, .batch_tokens = 4, .logit_rows = 4}));
    const auto got = run(m, dev, tokens, {1, 3});
    MESSAGE("off by " << relative(got, want) << "; the policies differ by " << relative(want, exact));
    // Products of codes are exact. Now and then a last bit could decide to which code an activation is rounded.
    CHECK(relative(got, want) < 1e-4);
    CHECK(relative(got, exact) > 3e-3);
}

TEST_CASE("a prefill by matrix units: within the roundings to bfloat16, and the tokens after it") {
    const machine guard;
    std::vector<std::int32_t> tokens(19);
    for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<std::int32_t>(97 * t + 5);
    using precision = ops::cache_precision<bfloat16, float>;
    using tiles_gpu =
        device::cuda<arch, counting_cpu<isa::baseline>, device::f32_activations, file_formats, device::prefill::bf16_tiles>;
    const auto& file = tiny_qwen35();
    const auto want = file.run<model::qwen35, isa::baseline, precision>({.sequences = 1, .max_tokens = 64})->run(tokens);
    auto dev = must(tiles_gpu::open(0));
    auto m =
        must(model::cuda_decoder<model::qwen35, model::convention::gguf, policies<tiles_gpu, file_formats, precision>>::create(
            dev, file.sizes, weights_of(file), {.max_tokens = 64, .batch_tokens = 32, .logit_rows = 32}));
    const auto got = run(m, dev, tokens, {17, 1});
    const std::size_t rounded = 17 * m.sizes().vocabulary;
    const double off = relative(std::span(got).first(rounded), std::span(want).first(rounded));
    MESSAGE("prefill off by " << off << ", then by "
                              << relative(std::span(got).subspan(rounded), std::span(want).subspan(rounded)));
    CHECK(off < 1e-2);  // 8 layers, each product and each attention off by up to 2^-8 of its terms
    CHECK(off > 1e-4);  // matrix units have rounded
    CHECK(relative(std::span(got).subspan(rounded), std::span(want).subspan(rounded)) < 1e-2);
}

TEST_CASE("a mixture's prefill by matrix units: experts of more than 16 tokens are rounded") {
    const golden_case<model::qwen35moe> model("models/qwen3_5_moe");
    constexpr std::size_t count = 19;
    using some_gpu =
        device::cuda<device::sm_90, counting_cpu<isa::baseline>, device::f32_activations, file_formats, experts_alone>;
    const auto logits = [&](const std::vector<std::size_t>& pieces) {
        const machine guard;
        auto dev = must(some_gpu::open(0));
        auto m =
            must(model::cuda_decoder<model::qwen35moe, model::convention::hugging_face, policies<some_gpu, file_formats>>::create(
                dev, model.golden.sizes,
                must(model::read_weights<model::qwen35moe, file_formats>(model.golden.file, model.golden.sizes)),
                {.max_tokens = 64, .batch_tokens = 32, .logit_rows = 32}));
        return run(m, dev, model.first(count), pieces);
    };
    const auto exact = logits({16, 3}), rounded = logits({count});
    model.check(exact);
    std::vector<double> off;
    for (std::size_t t = 0; t < count; ++t) {
        const auto of_token = [&](const std::vector<float>& all) { return std::span(all).subspan(t * model.width, model.width); };
        off.push_back(relative(of_token(rounded), of_token(exact)));
    }
    std::sort(off.begin(), off.end());
    MESSAGE("a token is off by " << off.front() << " to " << off.back() << ", half of them by " << off[count / 2] << " at most");
    CHECK(off[count / 2] < 1.5e-2);  // for some a later layer's router chooses another expert
    CHECK(off.front() > 1e-4);
}

TEST_CASE("caches of less precision: the host's logits with such caches") {
    const golden_case<model::qwen4exp<4>> model("models/qwen4_exp");
    constexpr std::size_t count = 24;  // more than the budget of 16: blocks are chosen
    const auto exact =
        std::vector<float>(model.want.begin(), model.want.begin() + static_cast<std::ptrdiff_t>(count * model.width));
    const auto check = [&]<class Precision>(type_tag<Precision>) {
        const machine guard;
        const auto want = model.golden.run<model::qwen4exp<4>, isa::baseline, Precision>({.sequences = 1, .max_tokens = 64})
                              ->run(model.first(count));
        auto dev = must(gpu::open(0));
        auto m = must(
            model::cuda_decoder<model::qwen4exp<4>, model::convention::hugging_face, policies<gpu, file_formats, Precision>>::
                create(dev, model.golden.sizes,
                       must(model::read_weights<model::qwen4exp<4>, file_formats>(model.golden.file, model.golden.sizes)),
                       {.max_tokens = 64, .batch_tokens = 20, .logit_rows = 32}));
        const auto got = run(m, dev, model.first(count), {20, 1});
        MESSAGE("off by " << relative(got, want) << "; the precisions differ by " << relative(want, exact));
        // A last bit decides now and then how a feature is rounded in the cache; the same blocks are chosen.
        CHECK(relative(got, want) < relative(want, exact) / 4);
    };
    check(type_tag<ops::cache_precision<half, std::int8_t>>{});
    check(type_tag<ops::cache_precision<quant::q8_0, bfloat16>>{});
}
