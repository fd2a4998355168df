// Perplexity with activations in 8 bits, on every instruction set: within 0.5 % of llama.cpp's figure for the same file, as with
// activations in f32, and within 0.3 % of that.
#include "frugal/device/cpu/activations.hpp"
#include "isa.hpp"
#include "perplexity.hpp"

using namespace frugal;
using namespace test;

namespace {

template <class Spec, class Isa, class Activations>
double perplexity_with(const gguf_model& file, const std::string& name) {
    using running = running_model<Spec, model::convention::gguf, device::cpu<Isa, counters_on, Activations>>;
    using model_type = typename running::model_type;
    auto weights = must(model::read_weights<Spec, typename model_type::formats>(file.file, file.sizes));
    threads executor(2);
    running m(must(model_type::create(file.sizes, std::move(weights))), {.sequences = 1, .max_tokens = 512}, {}, executor);
    const double found = perplexity(m, heldout(name));
    // Whether activations were rounded at all.
    CHECK((m.device.counters().read(counter::activation_quantize_calls) != 0) == Activations::quantized);
    return found;
}

template <class Spec>
void check_file(const std::string& name, const std::string& path, double want) {
    const gguf_model file(path);
    test::for_each_isa([&]<class Isa>(type_tag<Isa>) {
        const double rounded = perplexity_with<Spec, Isa, device::q8_activations>(file, name);
        check_within(rounded, want, 0.005);
        check_within(rounded, perplexity_with<Spec, Isa, device::f32_activations>(file, name), 0.003);
    });
}

}  // namespace

TEST_CASE("perplexity with 8-bit activations: tiny-qwen35") {
    check_file<model::qwen35>("tiny-qwen35", FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf",
                              llama_cpp("tiny-qwen35", "Q4_K_M"));
}
TEST_CASE("perplexity with 8-bit activations: tiny-qwen4exp") {
    check_file<model::qwen4exp<4>>("tiny-qwen4exp", FRUGAL_EXAMPLE_MODELS "/tiny-qwen4exp-Q4_K_M.gguf",
                                   llama_cpp("tiny-qwen4exp", "Q4_K_M"));
}
