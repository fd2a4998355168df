#pragma once
/// The compile-time policies of a model or layer as one bundle. Options come in any order, each at most once; the rest is
/// frugal's default:
///
///     using wasteful = frugal::policies<device::cpu<isa::avx2>, quant::list<quant::q4_k, quant::q6_k>, reuse::per_layer>;
///
/// The attention variant is a policy too, but it belongs to a layer: a model's spec names one for each of its layers.
#include <type_traits>

#include "frugal/core/config.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/device/cpu/activations.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/device/target.hpp"
#include "frugal/ops/attention/precision.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/inputs/shared_inputs.hpp"
#include "frugal/reuse/weights/weight_loading.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace detail {

// Which policy an option speaks for; concepts cannot be template arguments, these can.
struct FRUGAL_FLAGGED chooses_formats {
    template <class T>
    static constexpr bool value = quant::format_list<T>;
};
struct FRUGAL_FLAGGED chooses_device {
    template <class T>
    static constexpr bool value = device::target<T>;
};
struct FRUGAL_FLAGGED chooses_loading {
    template <class T>
    static constexpr bool value = reuse::weight_loading_policy<T>;
};
struct FRUGAL_FLAGGED chooses_inputs {
    template <class T>
    static constexpr bool value = reuse::shared_input_policy<T>;
};
struct FRUGAL_FLAGGED chooses_activations {
    template <class T>
    static constexpr bool value = reuse::activation_sharing_policy<T>;
};
struct FRUGAL_FLAGGED chooses_precision {
    template <class T>
    static constexpr bool value = ops::cache_precision_policy<T>;
};

template <class Kind, class... Option>
inline constexpr int times_given = (0 + ... + (Kind::template value<Option> ? 1 : 0));

template <class Kind, class Default, class... Option>
struct FRUGAL_FLAGGED chosen {
    using type = Default;
};
template <class Kind, class Default, class First, class... Rest>
struct chosen<Kind, Default, First, Rest...>
    : std::conditional_t<Kind::template value<First>, type_tag<First>, chosen<Kind, Default, Rest...>> {};

template <class T>
inline constexpr bool is_policy = chooses_formats::value<T> || chooses_device::value<T> || chooses_loading::value<T> ||
                                  chooses_inputs::value<T> || chooses_activations::value<T> || chooses_precision::value<T>;

}  // namespace detail

/// Where a model runs unless it is said: the CPU, with weights packed once and activations in 8 bits for products. The plain arm,
/// which unpacks the file's blocks in every product and rounds nothing, is device::cpu<>; device::packed_cpu<> packs and rounds
/// nothing.
template <quant::format_list Formats>
using default_device = device::packed_cpu<isa::native, counters_off, Formats, device::q8_activations>;

/// A set of policies. Options and what stands for them where they are not given: a quant::list (quant::all), a device::target
/// (default_device<formats>), a reuse::weight_loading_policy (reuse::default_weight_loading), a reuse::shared_input_policy
/// (reuse::default_shared_inputs), a reuse::activation_sharing_policy (reuse::default_activation_sharing), an
/// ops::cache_precision_policy (ops::default_cache_precision).
template <class... Option>
struct FRUGAL_FLAGGED policies {
    static_assert(!(quant::format<Option> || ...),
                  "frugal: policies take a list of formats; write quant::list<your_format> even for a single one");
    static_assert(!(isa::tag<Option> || ...), "frugal: policies take a device; write device::cpu<isa> instead of the isa alone");
    static_assert(((detail::is_policy<Option> || quant::format<Option> || isa::tag<Option>)&&...),
                  "frugal: every option of policies must be a quant::list, a device (device::cpu<>), a weight loading "
                  "(reuse::skip_resident, reuse::reload_always), a way to share inputs (reuse::incremental, reuse::memoised, "
                  "reuse::shared, reuse::per_layer), to share activations (reuse::shared_activations, reuse::per_product) or an "
                  "ops::cache_precision");
    static_assert(detail::times_given<detail::chooses_formats, Option...> <= 1,
                  "frugal: policies got two format lists; write all formats into one quant::list");
    static_assert(detail::times_given<detail::chooses_device, Option...> <= 1, "frugal: policies got two devices; name one");
    static_assert(detail::times_given<detail::chooses_loading, Option...> <= 1,
                  "frugal: policies got two weight loadings; name one");
    static_assert(detail::times_given<detail::chooses_inputs, Option...> <= 1,
                  "frugal: policies got two ways to share inputs; name one");
    static_assert(detail::times_given<detail::chooses_activations, Option...> <= 1,
                  "frugal: policies got two ways to share activations; name one");
    static_assert(detail::times_given<detail::chooses_precision, Option...> <= 1,
                  "frugal: policies got two precisions of caches; name one");

    using formats = typename detail::chosen<detail::chooses_formats, quant::all, Option...>::type;
    using device = typename detail::chosen<detail::chooses_device, default_device<formats>, Option...>::type;
    using loading = typename detail::chosen<detail::chooses_loading, reuse::default_weight_loading, Option...>::type;
    using inputs = typename detail::chosen<detail::chooses_inputs, reuse::default_shared_inputs, Option...>::type;
    using activations = typename detail::chosen<detail::chooses_activations, reuse::default_activation_sharing, Option...>::type;
    using precision = typename detail::chosen<detail::chooses_precision, ops::default_cache_precision, Option...>::type;
};

/// A bundle of policies: frugal::policies<…>, or a type of your own with the same six members.
template <class B>
concept policy_bundle = quant::format_list<typename B::formats> && device::target<typename B::device> &&
    reuse::weight_loading_policy<typename B::loading> && reuse::shared_input_policy<typename B::inputs> &&
    reuse::activation_sharing_policy<typename B::activations> && ops::cache_precision_policy<typename B::precision>;

static_assert(policy_bundle<policies<>>, "frugal: the default policies must model policy_bundle");

FRUGAL_NAMESPACE_END
