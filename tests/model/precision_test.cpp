// What the precision of a model's caches does to its perplexity: a QSA model of mixed 4-bit weights on the same windows of held-out
// text as perplexity_test.cpp. llama.cpp's figure is of f16 caches.
#include <cmath>
#include <cstdlib>

#include "perplexity.hpp"

using namespace frugal;
using namespace test;

namespace {

constexpr const char* name = "tiny-qwen4exp";

/// Perplexity with these caches, on the least instruction set: the kernels of the others are compared in tests/ops.
template <class Precision>
double perplexity_of() {
    static const gguf_model file(FRUGAL_EXAMPLE_MODELS "/tiny-qwen4exp-Q4_K_M.gguf");
    using running = running_model<model::qwen4exp<4>, model::convention::gguf, device::cpu<isa::baseline>, Precision>;
    using model_type = typename running::model_type;
    auto weights = must(model::bind<model::qwen4exp<4>, model::convention::gguf, typename model_type::formats>(
        model::gguf_source(file.file), file.sizes, model::tensor_names<model::convention::gguf>{}));
    threads executor(2);
    running m(must(model_type::create(file.sizes, std::move(weights))), {.sequences = 1, .max_tokens = 512}, {}, executor);
    return perplexity(m, heldout(name));
}

}  // namespace

TEST_CASE("C35 perplexity by precision of the caches") {
    const double reference = llama_cpp(name, "Q4_K_M");
    check_within(perplexity_of<ops::cache_precision<half, bfloat16>>(), reference, 0.005);
    check_within(perplexity_of<ops::cache_precision<quant::q8_0, std::int8_t>>(), reference, 0.005);
}
