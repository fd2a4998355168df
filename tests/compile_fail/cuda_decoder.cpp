// fails BARE_DEVICE: frugal: model::cuda_decoder takes its policies as one bundle; write cuda_decoder<spec, convention, policies<device::cuda<...>>>
// fails OTHER_DEVICE: frugal: model::cuda_decoder runs on NVIDIA GPUs; write policies<device::cuda<...>>, or use model::transformer
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
#else
using bundle = fg::policies<gpu>;
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
