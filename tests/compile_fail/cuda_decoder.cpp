// fails BARE_DEVICE: frugal: model::cuda_decoder takes its policies as one bundle; write cuda_decoder<spec, convention, policies<device::cuda<...>>>
// fails OTHER_DEVICE: frugal: model::cuda_decoder runs on NVIDIA GPUs; write policies<device::cuda<...>>, or use model::transformer
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

int main() {}
