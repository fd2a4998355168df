// Activations made ready once for all products that read them, or by each product: the same bits, and as many quantisations as
// the model's layers say.
#include "frugal/reuse/inputs/shared_activations.hpp"

#include "frugal/device/cpu/packed_cpu.hpp"
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

using packed = device::packed_cpu<isa::baseline, counters_on, quant::all, device::q8_activations>;
using direct = device::cpu<isa::baseline, counters_on, device::q8_activations>;
using rounded = device::packed_cpu<isa::baseline, counters_on, quant::all, device::bf16_activations>;

/// Quantisations of one token of decode that stays within the indexer's budget.
struct quantisations {
    std::size_t shared = 0, per_product = 0;
    void add(std::size_t inputs, std::size_t products) {
        shared += inputs;
        per_product += products;
    }
};

template <class Spec>
quantisations of_a_token(const model::config& c, bool one_for_all_experts) {
    using parts = model::parts_of<Spec>;
    constexpr bool hyper = parts::residual::product_lists::size != 0;
    constexpr bool sparse = parts::has_modules;
    quantisations out;
    for (const model::layer_kind kind : c.layers) {
        if (kind == model::layer_kind::gdn)
            out.add(2, 4);  // qkv, z, gates | out
        else
            out.add(2, sparse ? 3 : 2);      // q and k and v, indexer keys | out
        if constexpr (hyper) out.add(4, 6);  // twice: down, injection | up
        if constexpr (std::is_same_v<typename parts::feed_forward, frugal::layer::dense>) {
            out.add(2, 2);  // gate and up | down
        } else {
            const std::size_t experts = one_for_all_experts ? 1 : c.experts_used;
            out.add(3, 4 + 2 * experts);  // router, shared gate, shared and routed gate and up | shared down | routed down
        }
    }
    if constexpr (hyper) out.add(2, 2);  // the final mix
    out.add(c.ngrams.size() + 1, c.ngrams.size() + 1);
    return out;
}

template <class Spec, class Device, class Sharing>
std::vector<float> run(const gguf_model& file, std::size_t wanted) {
    const std::vector<std::int32_t> tokens = {5, 17, 300, 4, 99, 1023, 8, 2};
    auto m = file.run_on<Spec, Device, Sharing>({.sequences = 1, .max_tokens = 64}, {});
    auto out = m->run(std::span(tokens).first(7));
    const std::uint64_t before = m->device.counters().read(counter::activation_quantize_calls);
    const auto last = m->run(std::span(tokens).last(1));
    CHECK(m->device.counters().read(counter::activation_quantize_calls) - before == wanted);
    out.insert(out.end(), last.begin(), last.end());
    return out;
}

template <class Spec>
void check_model(const std::string& name) {
    const gguf_model file(std::string(FRUGAL_EXAMPLE_MODELS "/") + name);
    const quantisations images = of_a_token<Spec>(file.sizes, false), blocks = of_a_token<Spec>(file.sizes, true);
    CHECK(images.shared < images.per_product);
    const auto want = run<Spec, packed, reuse::shared_activations>(file, images.shared);
    CHECK(same_bits(run<Spec, packed, reuse::per_product>(file, images.per_product), want));
    CHECK(same_bits(run<Spec, direct, reuse::shared_activations>(file, blocks.shared), want));
    CHECK(same_bits(run<Spec, direct, reuse::per_product>(file, blocks.per_product), want));
}

}  // namespace

TEST_CASE("shared activations: Qwen3.5 quantises each input once, with the bits of every product for itself") {
    check_model<model::qwen35>("tiny-qwen35-Q4_K_M.gguf");
}
TEST_CASE("shared activations: Qwen3.5 rounds each input to bfloat16 once, with the bits of every product for itself") {
    using spec = model::qwen35;
    const gguf_model file(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf");
    const quantisations images = of_a_token<spec>(file.sizes, false);
    const auto want = run<spec, rounded, reuse::shared_activations>(file, images.shared);
    CHECK(same_bits(run<spec, rounded, reuse::per_product>(file, images.per_product), want));
}
TEST_CASE("shared activations: Qwen4-Exp quantises each input once, with the bits of every product for itself") {
    check_model<model::qwen4exp<>>("tiny-qwen4exp-Q4_K_M.gguf");
}
