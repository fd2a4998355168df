// fails BARE_DEVICE: frugal: model::cuda_decoder takes its policies as one bundle; write cuda_decoder<spec, convention, policies<device::cuda<...>>>
// fails OTHER_DEVICE: frugal: model::cuda_decoder runs on NVIDIA GPUs; write policies<device::cuda<...>>, or use model::transformer
// fails OTHER_LOADING: frugal: model::cuda_decoder uploads weights once and shares inputs and activations in every step; leave out other ways to load or share, or use model::transformer
// fails OTHER_INPUTS: frugal: model::cuda_decoder uploads weights once and shares inputs and activations in every step
// fails OTHER_ACTIVATIONS: frugal: model::cuda_decoder uploads weights once and shares inputs and activations in every step
// fails OWN_LAYERS: frugal: model::cuda_decoder runs models of attention::gdn and one of attention::full and qsa, with the library's own feed-forward and residual; run others by model::transformer on a CPU
#include "frugal/model/cuda_policies.hpp"

namespace fg = frugal;

/// A device::cuda as far as the check looks.
struct gpu : fg::device::cpu<> {
    using arch = fg::device::sm_90;
    struct prefill {
        static constexpr bool rounds = false;
    };
};

#if defined(BARE_DEVICE)
using bundle = gpu;
#elif defined(OTHER_DEVICE)
using bundle = fg::policies<>;
#elif defined(OTHER_LOADING)
using bundle = fg::policies<gpu, fg::reuse::reload_always>;
#elif defined(OTHER_INPUTS)
using bundle = fg::policies<gpu, fg::reuse::per_layer>;
#elif defined(OTHER_ACTIVATIONS)
using bundle = fg::policies<gpu, fg::reuse::per_product>;
#else
using bundle = fg::policies<gpu, fg::reuse::skip_resident, fg::ops::cache_precision<fg::half>>;
#endif
static_assert(sizeof(fg::model::cuda_policies<bundle>) > 0);

struct own : fg::model::qwen35 {
#if defined(OWN_LAYERS)
    template <class Build>
    using layers = fg::model::pattern<fg::model::full_layer<Build>>;
#endif
};
static_assert(sizeof(fg::model::cuda_spec<own, fg::model::convention::gguf, fg::policies<>>) > 0);

int main() {}
