// Causal depthwise convolution of 8192 channels with four taps, as a Gated DeltaNet layer runs it.
#include "convolution.hpp"

namespace bench {

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t tokens : {std::size_t{1}, std::size_t{512}})
            add_case<convolution<Isa, 8192, 1>>(name("conv1d", "f32", Isa::name, fg::concat(tokens, "x8192x4")), Isa::name, tokens);
    });
}

}  // namespace bench
