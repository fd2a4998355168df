#pragma once
/// What model::cuda_decoder asks of its policies. Needs no CUDA toolkit.
#include "frugal/device/cuda/arch.hpp"
#include "frugal/policies.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// A device::cuda.
template <class D>
concept cuda_device = device::cuda_arch<typename D::arch> && requires {
    D::prefill::rounds;
};

/// Complete where a bundle can be used.
template <class Policies>
struct FRUGAL_FLAGGED cuda_policies {
    static_assert(policy_bundle<Policies>,
                  "frugal: model::cuda_decoder takes its policies as one bundle; write cuda_decoder<spec, convention, "
                  "policies<device::cuda<...>>>");
    static_assert(cuda_device<typename Policies::device>,
                  "frugal: model::cuda_decoder runs on NVIDIA GPUs; write policies<device::cuda<...>>, or use "
                  "model::transformer");
};

}  // namespace model

FRUGAL_NAMESPACE_END
