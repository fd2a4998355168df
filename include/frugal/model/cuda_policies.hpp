#pragma once
/// What model::cuda_decoder asks of its policies. Needs no CUDA toolkit.
#include <cstddef>
#include <type_traits>

#include "frugal/core/type_list.hpp"
#include "frugal/device/cuda/arch.hpp"
#include "frugal/model/parts.hpp"
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
    static_assert(std::is_same_v<typename Policies::loading, reuse::default_weight_loading> &&
                      std::is_same_v<typename Policies::inputs, reuse::default_shared_inputs> &&
                      std::is_same_v<typename Policies::activations, reuse::default_activation_sharing>,
                  "frugal: model::cuda_decoder uploads weights once and shares inputs and activations in every step; leave out "
                  "other ways to load or share, or use model::transformer");
};

namespace detail {

/// Whether a kind of layer has a form on a GPU.
template <class Kind>
inline constexpr bool runs_on_cuda = false;
template <class Pairing, class Gate, class Scan, class Layout>
inline constexpr bool runs_on_cuda<attention::gdn<Pairing, Gate, Scan, Layout>> = true;
template <class NormWeight, class Scalar>
inline constexpr bool runs_on_cuda<attention::full<NormWeight, Scalar>> = true;
template <std::size_t Ratio, class NormWeight, class Scalar, class Index, class Inputs>
inline constexpr bool runs_on_cuda<attention::qsa<Ratio, NormWeight, Scalar, Index, Inputs>> = true;

template <class... Kind>
[[nodiscard]] constexpr bool all_run_on_cuda(type_list<Kind...>) noexcept {
    return (runs_on_cuda<Kind> && ...) && (Kind::is_recurrent + ...) == 1 && sizeof...(Kind) == 2;
}

}  // namespace detail

/// Complete where a specification's parts have forms on a GPU.
template <specification Spec, class Convention, class Policies>
struct FRUGAL_FLAGGED cuda_spec {
    using parts = parts_of<Spec, Convention, Policies>;
    static_assert(
        detail::all_run_on_cuda(typename parts::kinds{}) &&
            (std::is_same_v<typename parts::feed_forward, layer::dense> ||
             std::is_same_v<
                 typename parts::feed_forward,
                 layer::mixture_of_experts>)&&(std::is_same_v<typename parts::residual,
                                                              layer::plain_residual<typename Convention::norm_weight>> ||
                                               std::is_same_v<typename parts::residual,
                                                              layer::hyper_connection<typename Convention::norm_weight>>),
        "frugal: model::cuda_decoder runs models of attention::gdn and one of attention::full and qsa, with the "
        "library's own feed-forward and residual; run others by model::transformer on a CPU");
};

}  // namespace model

FRUGAL_NAMESPACE_END
